"""Sizes and intervals as operators type them: the broker's reader of them, with intervals in milliseconds."""

from __future__ import annotations

from broker_core import quantities
from broker_core.quantities import NS_PER_MS, format_size, parse_size

__all__ = ["format_size", "parse_interval", "parse_size", "write_interval"]


def parse_interval(text: str) -> int:
    """Milliseconds: "30s" is 30000. Raises ValueError, also without a unit."""
    return quantities.parse_interval(text) // NS_PER_MS


def write_interval(ms: int) -> str:
    """Milliseconds in the largest unit that writes them exactly."""
    return quantities.format_interval(ms * NS_PER_MS)
