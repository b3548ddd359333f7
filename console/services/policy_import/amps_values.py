"""Values as AMPS writes them: sizes (10MB), intervals (30s, 7d), topics that may be regular expressions."""

from __future__ import annotations

from console.units.parse import parse_size

_TIMES = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def parse_bytes(text: str) -> int | None:
    """Return the bytes of a size with the units of Sluice's forms, or None if it is invalid."""
    try:
        return parse_size(text)
    except ValueError:
        return None


def parse_seconds(text: str) -> float | None:
    """Return the seconds of an interval, or None if it is invalid."""
    number, unit = _split(text)
    scale = _TIMES.get(unit.lower())
    return None if number is None or scale is None else number * scale


def topic_pattern(name: str) -> str:
    """Return a topic's name as a pattern: a regular expression becomes a `~` pattern."""
    return "~" + name if any(character in name for character in "*+?[](){}^$|\\") else name


def _split(text: str) -> tuple[float | None, str]:
    """Return number and unit of a text; the number is None if it is invalid."""
    stripped = text.strip()[:40]  # bounds the work: no valid number is longer
    digits = len(stripped) - len(stripped.lstrip("0123456789."))
    try:
        return float(stripped[:digits]), stripped[digits:].strip()
    except ValueError:
        return None, ""
