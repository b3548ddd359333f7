"""The only reader of time. Everything else is given these numbers."""

from __future__ import annotations

from time import monotonic, monotonic_ns, time_ns


def now_ns() -> int:
    """Wall-clock time in nanoseconds UTC: what records and decisions carry."""
    return time_ns()


def monotonic_ms() -> int:
    """A clock that never jumps, in milliseconds: for durations alone."""
    return monotonic_ns() // 1_000_000


def seconds() -> float:
    """The same clock in seconds."""
    return monotonic()
