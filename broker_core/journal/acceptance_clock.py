"""Acceptance times of records: the machine's clock, unless it jumps.

A clock that jumps is first distrusted. Times then continue from the last reading that was in step, by the
monotonic clock, and their records are marked. A jump that lasts ACCEPTED_AFTER_S is taken for a correction,
such as one by an operator, and the clock is followed again. So an error of a few seconds falsifies no times.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import structlog

from broker_core.clock import Clock

log = structlog.get_logger("sluice.journal")
TOLERANCE_S: Final = 60.0
"""Largest step of the clock, in seconds, that is followed at once."""
ACCEPTED_AFTER_S: Final = 60.0
"""Duration in seconds after which a larger step is followed."""


class AcceptanceTime(NamedTuple):
    """Time of acceptance in ns UTC, and whether the machine's clock showed it."""

    at: int
    is_certain: bool


class AcceptanceClock:
    """Acceptance times of a log's records. They never decrease.

    Args:
        clock: Clock of the machine.
        last_at: Acceptance time of the log's newest record, ns UTC.
    """

    def __init__(self, clock: Clock, last_at: int) -> None:
        self._clock = clock
        self._last_at = last_at
        self._good = (clock.now_ns(), clock.suspended_ns())
        """Last reading in step: time, and monotonic time with suspensions, in ns."""
        self._jumped_at: int | None = None
        """Monotonic time with suspensions at which the clock was first out of step; None while in step."""

    def read(self) -> AcceptanceTime:
        """Return the time for records that are accepted now."""
        now, monotonic = self._clock.now_ns(), self._clock.suspended_ns()
        expected = self._good[0] + monotonic - self._good[1]
        step_ns = now - expected
        is_certain = abs(step_ns) <= TOLERANCE_S * 1e9
        if is_certain:
            if self._jumped_at is not None:
                log.warning("clock_returned", after_s=round((monotonic - self._jumped_at) / 1e9, 3))
        elif self._jumped_at is None:
            log.warning("clock_jumped", step_s=round(step_ns / 1e9, 3), followed_after_s=ACCEPTED_AFTER_S)
            self._jumped_at = monotonic
        elif monotonic - self._jumped_at >= ACCEPTED_AFTER_S * 1e9:
            log.warning("clock_followed", step_s=round(step_ns / 1e9, 3))
            is_certain = True
        if is_certain:
            self._good, self._jumped_at = (now, monotonic), None
        self._last_at = max(now if is_certain else expected, self._last_at)
        return AcceptanceTime(self._last_at, is_certain)
