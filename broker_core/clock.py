"""Time, and the only reader of it. Everything else is given a `Clock`, or the numbers."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What tells the time: `SYSTEM` in a broker, one set by hand in tests."""

    def now_ns(self) -> int:
        """Wall-clock time in nanoseconds UTC: what records and decisions carry. It may jump."""

    def monotonic_ns(self) -> int:
        """A clock that never jumps, in nanoseconds: for durations alone."""

    def monotonic_ms(self) -> int:
        """The same clock in milliseconds."""

    def seconds(self) -> float:
        """The same clock in seconds."""


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def seconds(self) -> float:
        return time.monotonic()


SYSTEM = SystemClock()

# For those who aren't given a clock.
now_ns = SYSTEM.now_ns
monotonic_ns = SYSTEM.monotonic_ns
monotonic_ms = SYSTEM.monotonic_ms
seconds = SYSTEM.seconds


def thread_cpu_seconds() -> float:
    """CPU time that the calling thread has taken, in seconds: what its work costs, however long it waited for a core."""
    return time.thread_time()
