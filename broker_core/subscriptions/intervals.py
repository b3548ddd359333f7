"""Spans of time as clients write them: `250ms`, `1s`, `1.5m`, `2h`; one number and one unit."""

from __future__ import annotations

from typing import Final

from broker_core.errors import ClientError

_UNITS_NS: Final = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
SHORTEST_NS: Final = 1_000_000
LONGEST_NS: Final = 24 * 3_600_000_000_000


def parse_interval(text: str, field: str) -> int:
    """Nanoseconds of a span from 1ms to 24h. Raises ClientError bad_interval, which names the field."""
    compact = text.strip().lower()
    digits = compact.rstrip("mhs")
    unit = _UNITS_NS.get(compact[len(digits) :])
    number = parse_decimal(digits)
    if unit is not None and number is not None and SHORTEST_NS <= number * unit <= LONGEST_NS:
        return round(number * unit)
    raise ClientError(
        "bad_interval", f"{field} can't be {text[:40]!r}.", "Write it like 250ms, 1s, 5m or 2h; from 1ms to 24h.",
        field=field,
    )


def parse_decimal(text: str) -> float | None:
    """A plain decimal number such as `2`, `.5` or `1.25`, of 15 digits at most; None for anything else."""
    digits = text.replace(".", "", 1)
    if not (0 < len(digits) <= 15 and digits.isascii() and digits.isdigit()):
        return None
    return float(text)
