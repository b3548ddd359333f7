"""Acceptance times of records: the machine's clock, unless it jumps.

A clock that jumps is first distrusted. Times then continue from the last reading that was in step, by the
monotonic clock, and their records are marked. A jump that lasts ACCEPTED_AFTER_S is taken for a correction,
such as one by an operator, and the clock is followed again. So an error of a few seconds falsifies no times.
"""

from __future__ import annotations

from typing import Final

import structlog

from broker_core.clock import Clock

log = structlog.get_logger("sluice.journal")
TOLERANCE_S: Final = 60.0
"""Largest step of the clock, in seconds, that is followed at once."""
ACCEPTED_AFTER_S: Final = 60.0
"""Duration in seconds after which a larger step is followed."""
IN_STEP_NS: Final = 1_000_000_000
"""A reading at most this much, ns, after the last compared one is in step without a comparison."""


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
        self.is_certain = True
        """Whether the machine's clock showed the time that `read` returned last."""

    def read(self) -> int:
        """Return the acceptance time, ns UTC, for records that are accepted now."""
        now = self._clock.now_ns()
        if self._jumped_at is not None or not 0 <= now - self._good[0] < IN_STEP_NS:
            now = self._compare(now)
        if now > self._last_at:
            self._last_at = now
        return self._last_at

    def _compare(self, now: int) -> int:
        """Compare the clock with the monotonic one; return the time to use."""
        monotonic = self._clock.suspended_ns()
        expected = self._good[0] + monotonic - self._good[1]
        step_ns = now - expected
        self.is_certain = abs(step_ns) <= TOLERANCE_S * 1e9
        if self.is_certain:
            if self._jumped_at is not None:
                log.warning("clock_returned", after_s=round((monotonic - self._jumped_at) / 1e9, 3))
        elif self._jumped_at is None:
            log.warning("clock_jumped", step_s=round(step_ns / 1e9, 3), followed_after_s=ACCEPTED_AFTER_S)
            self._jumped_at = monotonic
        elif monotonic - self._jumped_at >= ACCEPTED_AFTER_S * 1e9:
            log.warning("clock_followed", step_s=round(step_ns / 1e9, 3))
            self.is_certain = True
        if not self.is_certain:
            return expected
        self._good, self._jumped_at = (now, monotonic), None
        return now
