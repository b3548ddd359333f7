"""A clock that the test advances."""

from __future__ import annotations


class ManualClock:
    """A `broker_core.clock.Clock` that changes only through `advance` and `set_back`."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000, monotonic_ns: int = 1_000_000_000) -> None:
        self._now, self._monotonic = now_ns, monotonic_ns

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        nanoseconds = round(seconds * 1e9)
        self._now += nanoseconds
        self._monotonic += nanoseconds

    def set_back(self, seconds: float) -> None:
        """Set the wall clock back, as an operator might; the monotonic clock does not change."""
        self._now -= round(seconds * 1e9)

    def now_ns(self) -> int:
        return self._now

    def monotonic_ns(self) -> int:
        return self._monotonic

    def suspended_ns(self) -> int:
        return self._monotonic

    def monotonic_ms(self) -> int:
        return self._monotonic // 1_000_000

    def seconds(self) -> float:
        return self._monotonic / 1e9
