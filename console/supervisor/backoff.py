"""How long to wait before a child that died is started again. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """Exponential back-off. All times in seconds.

    first_s    the wait after the first failure
    factor     each further failure in a row waits this many times longer
    most_s     no wait is longer
    stable_s   a child that ran this long before it died starts again from `first_s`
    """

    first_s: float = 0.5
    factor: float = 2.0
    most_s: float = 30.0
    stable_s: float = 60.0

    def failures_after(self, failures: int, ran_s: float) -> int:
        """Failures in a row, counting the one that just happened after `ran_s` seconds of running."""
        return 1 if ran_s >= self.stable_s else failures + 1

    def delay_s(self, failures: int) -> float:
        """The wait before the next start, after this many failures in a row (at least one)."""
        delay = self.first_s
        for _ in range(failures - 1):
            delay *= self.factor
            if delay >= self.most_s:  # stop early: a child may have failed a hundred thousand times
                break
        return min(delay, self.most_s)
