"""Sizes and intervals as text: `512MiB`, `2GB`, `250ms`, `1.5h`; one number and one unit, in any case.

Rates, conflation, clients' commands and the console's forms all use this parser. Units of sizes are those of
SI and IEC: KB is 1,000 bytes and KiB is 1,024. K, M, G and T alone are powers of 1,024, as is usual for
memory.
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
"""Bytes of each unit of sizes."""
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
"""Nanoseconds of each unit of intervals."""
MAX_DIGITS: Final = 18
"""Maximum digits of a number."""
MIN_INTERVAL_NS: Final = NS_PER_MS
"""Shortest interval that a client may request, in nanoseconds."""
MAX_INTERVAL_NS: Final = NANOSECONDS["d"]
"""Longest interval that a client may request, in nanoseconds."""


def split_unit(text: str) -> tuple[Fraction, str]:
    """Split a text into its number and its unit in lower case; "" without a unit.

    The number is an exact decimal of at most 18 digits: `2`, `.5`, `1.25`, `1,500`. A comma that does not
    separate thousands is refused, because it may be meant as a decimal point.

    Raises:
        ValueError: The text does not begin with such a number.
    """
    bare = text.strip()
    digits = bare.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    integer_part, _, fraction = digits.strip().partition(".")
    plain = _remove_commas(integer_part) + fraction
    if not (0 < len(plain) <= MAX_DIGITS and plain.isascii() and plain.isdigit()):
        raise ValueError(text)
    return Fraction(int(plain), 10 ** len(fraction)), bare[len(digits) :].lower()


def _remove_commas(digits: str) -> str:
    first, *groups = digits.split(",")
    if groups and not (1 <= len(first) <= 3 and all(len(group) == 3 for group in groups)):
        raise ValueError(digits)
    return first + "".join(groups)


def parse_size(text: str) -> int:
    """Return a size in bytes. `1.5GiB` is 1610612736; a number without a unit is bytes.

    Raises:
        ValueError: The text is not a size.
    """
    return _parse_scaled(text, BYTES)


def parse_interval(text: str) -> int:
    """Return an interval in nanoseconds. `30s` is 30,000,000,000.

    Raises:
        ValueError: The text is not an interval, or has no unit.
    """
    return _parse_scaled(text, NANOSECONDS)


def _parse_scaled(text: str, units: dict[str, int]) -> int:
    number, unit = split_unit(text)
    if unit not in units:
        raise ValueError(text)
    return round(number * units[unit])


def parse_client_interval(text: str, field: str) -> int:
    """Return an interval that a client requested in nanoseconds, from 1 ms to 24 h.

    `field` is the field of the command, for the error.

    Raises:
        ClientError: `bad_interval`.
    """
    try:
        interval = parse_interval(text)
    except ValueError:
        interval = 0
    if MIN_INTERVAL_NS <= interval <= MAX_INTERVAL_NS:
        return interval
    raise ClientError(
        "bad_interval",
        f"{field} can't be {text[:40]!r}.",
        "Write it like 250ms, 1s, 5m or 2h; from 1ms to 24h.",
        field=field,
    )


def format_size(nbytes: int) -> str:
    """Return a number of bytes in the largest unit that expresses it exactly: 10000000 is 10MB."""
    return _format_number(nbytes, BYTES, ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "KB")) or str(nbytes)


def format_interval(ns: int) -> str:
    """Return an interval in the largest unit that expresses it exactly, with a precision of milliseconds."""
    return _format_number(ns, NANOSECONDS, ("d", "h", "min", "s")) or f"{ns // NS_PER_MS}ms"


def _format_number(number: int, units: dict[str, int], names: tuple[str, ...]) -> str:
    for name in names:
        quotient, remainder = divmod(number, units[name.lower()])
        if quotient and not remainder:
            return f"{quotient}{name}"
    return ""
