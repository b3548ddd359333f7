"""Sizes and intervals as people write them: `512MiB`, `2GB`, `250ms`, `1.5h`; one number and one unit, in any case.

The one reader of them: of rates, conflation and what a client asks for, and of the console's forms. Sizes are those of
SI and IEC: KB is 1,000 bytes and KiB 1,024; K, M, G and T alone are 1,024's, as operators of servers write memory.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from broker_core.errors import ClientError

BYTES: Final = {
    "": 1, "b": 1,
    "kb": 1_000, "mb": 1_000**2, "gb": 1_000**3, "tb": 1_000**4,
    "k": 1_024, "m": 1_024**2, "g": 1_024**3, "t": 1_024**4,
    "kib": 1_024, "mib": 1_024**2, "gib": 1_024**3, "tib": 1_024**4,
}  # fmt: skip
"""Bytes of a size's unit."""
NS_PER_MS: Final = 1_000_000
_S: Final = 1_000 * NS_PER_MS
NANOSECONDS: Final = {
    "ms": NS_PER_MS,
    "s": _S,
    "m": 60 * _S,
    "min": 60 * _S,
    "h": 3_600 * _S,
    "d": 86_400 * _S,
    "w": 604_800 * _S,
}
"""Nanoseconds of an interval's unit."""
MAX_DIGITS: Final = 18
SHORTEST_NS: Final = NS_PER_MS
LONGEST_NS: Final = NANOSECONDS["d"]


def split_unit(text: str) -> tuple[Fraction, str]:
    """The number at the beginning, and the unit after it in small letters; "" when there is none.

    A number is a plain decimal of 18 digits at most, taken exactly: `2`, `.5`, `1.25`, `1,500`. A comma that doesn't divide thousands
    is refused, since it may be meant as a point. Raises ValueError.
    """
    bare = text.strip()
    digits = bare.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    whole, _, fraction = digits.strip().partition(".")
    plain = _without_commas(whole) + fraction
    if not (0 < len(plain) <= MAX_DIGITS and plain.isascii() and plain.isdigit()):
        raise ValueError(text)
    return Fraction(int(plain), 10 ** len(fraction)), bare[len(digits) :].lower()


def _without_commas(whole: str) -> str:
    first, *groups = whole.split(",")
    if groups and not (1 <= len(first) <= 3 and all(len(group) == 3 for group in groups)):
        raise ValueError(whole)
    return first + "".join(groups)


def parse_size(text: str) -> int:
    """Bytes: `1.5GiB` is 1610612736, a number without a unit is bytes. Raises ValueError."""
    return _scaled(text, BYTES)


def parse_interval(text: str) -> int:
    """Nanoseconds: `30s` is 30,000,000,000. Raises ValueError, also without a unit."""
    return _scaled(text, NANOSECONDS)


def _scaled(text: str, units: dict[str, int]) -> int:
    number, unit = split_unit(text)
    if unit not in units:
        raise ValueError(text)
    return round(number * units[unit])


def parse_client_interval(text: str, field: str) -> int:
    """Nanoseconds of an interval that a client asks for, from 1ms to 24h. ClientError bad_interval, which names the field."""
    try:
        interval = parse_interval(text)
    except ValueError:
        interval = 0
    if SHORTEST_NS <= interval <= LONGEST_NS:
        return interval
    raise ClientError(
        "bad_interval",
        f"{field} can't be {text[:40]!r}.",
        "Write it like 250ms, 1s, 5m or 2h; from 1ms to 24h.",
        field=field,
    )


def format_size(nbytes: int) -> str:
    """A number of bytes in the largest unit that writes it exactly: 10000000 is 10MB."""
    return _written(nbytes, BYTES, ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB")) or str(nbytes)


def format_interval(ns: int) -> str:
    """Nanoseconds, whole milliseconds of them, in the largest unit that writes them exactly."""
    return _written(ns, NANOSECONDS, ("d", "h", "min", "s")) or f"{ns // NS_PER_MS}ms"


def _written(number: int, units: dict[str, int], names: tuple[str, ...]) -> str:
    for name in names:
        whole, rest = divmod(number, units[name.lower()])
        if whole and not rest:
            return f"{whole}{name}"
    return ""
