"""How AMPS writes things: sizes such as 10MB, intervals such as 30s or 7d, topics that may be regular expressions."""

from __future__ import annotations

from console.units.parse import parse_size

_TIMES = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def parse_bytes(text: str) -> int | None:
    """Bytes, by the units that forms have, or None when it is no size."""
    try:
        return parse_size(text)
    except ValueError:
        return None


def parse_seconds(text: str) -> float | None:
    """Seconds, or None when it is no interval."""
    number, unit = _split(text)
    scale = _TIMES.get(unit.lower())
    return None if number is None or scale is None else number * scale


def topic_pattern(name: str) -> str:
    """A topic's name as a pattern: one with characters of a regular expression becomes a `~` pattern."""
    return "~" + name if any(character in name for character in "*+?[](){}^$|\\") else name


def _split(text: str) -> tuple[float | None, str]:
    stripped = text.strip()[:40]  # no number has more, and float knows infinity
    digits = len(stripped) - len(stripped.lstrip("0123456789."))
    try:
        return float(stripped[:digits]), stripped[digits:].strip()
    except ValueError:
        return None, ""
