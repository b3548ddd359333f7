"""Sizes and intervals as operators type them, parsed as the broker does, but with intervals in
milliseconds.
"""

from __future__ import annotations

from broker_core import quantities
from broker_core.quantities import NS_PER_MS, format_size, parse_size

__all__ = ["format_size", "parse_interval", "parse_size", "write_interval"]


def parse_interval(text: str) -> int:
    """Return the milliseconds of an interval: 30000 for "30s". Raises ValueError, also for a missing unit."""
    return quantities.parse_interval(text) // NS_PER_MS


def write_interval(ms: int) -> str:
    """Return milliseconds as text in the largest exact unit."""
    return quantities.format_interval(ms * NS_PER_MS)
