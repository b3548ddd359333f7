"""Clocks. Only this module reads the time; other code receives a `Clock` or times as numbers."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time: `SYSTEM` in a broker, a manual clock in tests."""

    def now_ns(self) -> int:
        """Return wall-clock time in ns UTC, for records and decisions. It may jump."""

    def monotonic_ns(self) -> int:
        """Return monotonic time in nanoseconds, for durations only."""

    def suspended_ns(self) -> int:
        """Return monotonic time in nanoseconds that also counts while the machine is suspended."""

    def monotonic_ms(self) -> int:
        """Return monotonic time in milliseconds."""

    def seconds(self) -> float:
        """Return monotonic time in seconds."""


_WITH_SUSPENSIONS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock that counts suspensions; elsewhere a suspension looks like a step of the clock."""


class SystemClock:
    """Clock of the machine."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def suspended_ns(self) -> int:
        return time.clock_gettime_ns(_WITH_SUSPENSIONS)

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def seconds(self) -> float:
        return time.monotonic()


SYSTEM = SystemClock()

# Functions for code without an injected clock.
now_ns = SYSTEM.now_ns
monotonic_ns = SYSTEM.monotonic_ns
monotonic_ms = SYSTEM.monotonic_ms
seconds = SYSTEM.seconds


def thread_cpu_seconds() -> float:
    """Return the CPU time of the calling thread in seconds, without time spent waiting for a core."""
    return time.thread_time()
