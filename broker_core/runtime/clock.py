"""The only reader of time. Everything else is given these numbers."""

from __future__ import annotations

from time import monotonic, time_ns
from time import monotonic_ns as _monotonic_ns


def now_ns() -> int:
    """Wall-clock time in nanoseconds UTC: what records and decisions carry."""
    return time_ns()


def monotonic_ms() -> int:
    """A clock that never jumps, in milliseconds: for durations alone."""
    return _monotonic_ns() // 1_000_000


def monotonic_ns() -> int:
    """The same clock in nanoseconds: for pacing."""
    return _monotonic_ns()


def seconds() -> float:
    """The same clock in seconds."""
    return monotonic()
