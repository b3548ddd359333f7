"""Wait before a child that died is restarted. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """Exponential back-off. All times are in seconds.

    first_s    wait after the first failure
    factor     each further consecutive failure multiplies the wait by this
    max_s      maximum wait
    stable_s   a child that ran this long before it died counts as recovered: the wait is `first_s` again
    """

    first_s: float = 0.5
    factor: float = 2.0
    max_s: float = 30.0
    stable_s: float = 60.0

    def failures_after(self, failures: int, ran_s: float) -> int:
        """Return the number of consecutive failures, including the latest after `ran_s` seconds."""
        return 1 if ran_s >= self.stable_s else failures + 1

    def delay_s(self, failures: int) -> float:
        """Return the wait before the next start, after `failures` consecutive failures (at least one)."""
        delay = self.first_s
        for _ in range(failures - 1):
            delay *= self.factor
            if delay >= self.max_s:  # ends early: `failures` may be very large
                break
        return min(delay, self.max_s)
