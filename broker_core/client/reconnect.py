"""When a client that lost its connection tries again, and where: back-off with jitter, over a list of addresses."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """Delays in seconds. `give_up_after` bounds one outage, None tries for ever; `enabled=False` never tries again.

    The first connection of a client gets `first_connect_timeout`, then start() raises what went wrong. One address
    gets `connect_timeout` to connect and `logon_timeout` to answer the logon before the next one is tried: a broker to which
    thousands come back at once answers late, and who leaves then comes last again. Each is tried before the client gives up.
    """

    enabled: bool = True
    first_delay: float = 0.05
    longest_delay: float = 10.0
    factor: float = 2.0
    jitter: float = 0.5
    give_up_after: float | None = None
    first_connect_timeout: float = 10.0
    connect_timeout: float = 5.0
    logon_timeout: float = 60.0

    def delay(self, attempt: int) -> float:
        """How long to wait before attempt 0, 1, 2, …; the jitter spreads clients that lost the same broker."""
        whole = min(self.longest_delay, self.first_delay * self.factor ** min(attempt, 60))
        return whole * (1 - self.jitter * random.random())


class Turns:
    """Whose turn it is of a number of addresses. Every failure gives it to the next one; a round grows the delay."""

    def __init__(self, number: int, policy: ReconnectPolicy) -> None:
        self.current = 0
        self._number = number
        self._policy = policy
        self._failures = 0

    @property
    def whole_round(self) -> bool:
        """Whether each address has failed since one of them held."""
        return self._failures >= self._number

    def held(self) -> None:
        """The current address was good for a while: what happened before it says nothing any more."""
        self._failures = 0

    def failed(self) -> float:
        """The current address failed or was lost; how long to wait before trying the one whose turn it is now."""
        delay = self._policy.delay(self._failures // self._number)
        self._failures += 1
        self.current = (self.current + 1) % self._number
        return delay
