"""When a client that lost its connection tries again: exponential back-off with jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """Delays in seconds. `give_up_after` bounds one outage, None tries for ever; `enabled=False` never tries again.

    The first connection of a client gets `first_connect_timeout`, then start() raises what went wrong.
    """

    enabled: bool = True
    first_delay: float = 0.05
    longest_delay: float = 10.0
    factor: float = 2.0
    jitter: float = 0.5
    give_up_after: float | None = None
    first_connect_timeout: float = 10.0

    def delay(self, attempt: int) -> float:
        """How long to wait before attempt 0, 1, 2, …; the jitter spreads clients that lost the same broker."""
        whole = min(self.longest_delay, self.first_delay * self.factor ** min(attempt, 60))
        return whole * (1 - self.jitter * random.random())
