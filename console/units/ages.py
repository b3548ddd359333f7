"""Ages as operators type them: `7d`, `1h30m`, `45s`, or a plain number of seconds."""

from __future__ import annotations

from broker_core.errors import OperatorError
from broker_core.quantities import NANOSECONDS

UNITS_S = {unit: NANOSECONDS[unit] // NANOSECONDS["s"] for unit in ("w", "d", "h", "m", "s")}
"""Seconds of each unit, largest first."""
MAX_AGE_S = 100 * 366 * 86_400
"""Maximum age in seconds: 100 years."""


def parse_age(text: str | int) -> int:
    """Return the seconds of an age.

    Units must be in descending order, each at most once. Raises OperatorError `bad_age`.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise _bad(text)
    if isinstance(text, int):
        return _checked(text, text)
    compact = "".join(text.split()).lower()
    if compact.isascii() and compact.isdigit() and len(compact) <= 12:
        return _checked(int(compact), text)
    return _checked(_sum(compact, text), text)


def format_age(seconds: int) -> str:
    """Return the shortest text for an age: 5400 is `1h30m`."""
    parts = []
    for unit, size in UNITS_S.items():
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _sum(compact: str, text: str) -> int:
    total, digits, remaining = 0, "", list(UNITS_S)
    for character in compact:
        if character.isascii() and character.isdigit() and len(digits) < 12:
            digits += character
        elif digits and character in remaining:
            total += int(digits) * UNITS_S[character]
            remaining = remaining[remaining.index(character) + 1 :]
            digits = ""
        else:
            raise _bad(text)
    if digits or not compact:
        raise _bad(text)
    return total


def _checked(seconds: int, text: str | int) -> int:
    if not 0 <= seconds <= MAX_AGE_S:
        raise _bad(text)
    return seconds


def _bad(text: object) -> OperatorError:
    return OperatorError(
        "bad_age",
        f"{str(text)[:100]!r} is not an age.",
        "Write it like 7d, 1h30m, 45s, or as seconds; up to 100 years.",
    )
