"""How AMPS writes things: sizes such as 10MB, intervals such as 30s or 7d, topics that may be regular expressions."""

from __future__ import annotations

_SIZES = {"": 1, "B": 1, "K": 1024, "KB": 1024, "M": 1024**2, "MB": 1024**2, "G": 1024**3, "GB": 1024**3, "T": 1024**4, "TB": 1024**4}
_TIMES = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def nbytes(text: str) -> int | None:
    """Bytes, or None when it is no size."""
    number, unit = _split(text)
    scale = _SIZES.get(unit.upper())
    return None if number is None or scale is None else round(number * scale)


def seconds(text: str) -> float | None:
    """Seconds, or None when it is no interval."""
    number, unit = _split(text)
    scale = _TIMES.get(unit.lower())
    return None if number is None or scale is None else number * scale


def topic_pattern(name: str) -> str:
    """A topic's name as a pattern: one with characters of a regular expression becomes a `~` pattern."""
    return "~" + name if any(character in name for character in "*+?[](){}^$|\\") else name


def _split(text: str) -> tuple[float | None, str]:
    stripped = text.strip()
    digits = len(stripped) - len(stripped.lstrip("0123456789."))
    try:
        return float(stripped[:digits]), stripped[digits:].strip()
    except ValueError:
        return None, ""
