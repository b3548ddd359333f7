"""A clock set by hand."""

from __future__ import annotations


class ManualClock:
    """Satisfies `broker_core.clock.Clock`. Stands still until `passes` or `set_back` is called."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000, monotonic_ns: int = 1_000_000_000) -> None:
        self._now, self._monotonic = now_ns, monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let time go by on both clocks."""
        nanoseconds = round(seconds * 1e9)
        self._now += nanoseconds
        self._monotonic += nanoseconds

    def set_back(self, seconds: float) -> None:
        """What an operator does to the wall clock; durations know nothing of it."""
        self._now -= round(seconds * 1e9)

    def now_ns(self) -> int:
        return self._now

    def monotonic_ns(self) -> int:
        return self._monotonic

    def monotonic_ms(self) -> int:
        return self._monotonic // 1_000_000

    def seconds(self) -> float:
        return self._monotonic / 1e9
