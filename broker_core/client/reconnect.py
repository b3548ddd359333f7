"""When a client that lost its connection tries again, and where: back-off with jitter, over a list of addresses."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from broker_core.errors import SluiceError

STEADY_DELAYS: Final = 6
"""A connection that lasted for so many longest delays was good, whatever ended it."""
PLAIN_LOSS: Final = "broker_away"
"""Code of a connection that was lost without a reason."""


@dataclass(frozen=True, slots=True)
class ConnectionLoss:
    """A connection that ended, or could not be made: why, and when the client tries again."""

    error: SluiceError
    """Its code, sentence and fix: the broker's own where it gave a reason."""
    address: str
    failures: int
    """Losses in a row without a good connection between them, this one included."""
    retry_in_s: float | None
    """Seconds until the next attempt; None when the client gives up."""

    def __str__(self) -> str:
        then = "gives up" if self.retry_in_s is None else f"tries again in {self.retry_in_s:.2f} s"
        return f"{self.error} ({self.address}, loss {self.failures} in a row). The client {then}."


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
        self._last_code = ""

    @property
    def failures(self) -> int:
        """Losses in a row without a good connection between them."""
        return self._failures

    @property
    def whole_round(self) -> bool:
        """Whether each address has failed since one of them held."""
        return self._failures >= self._number

    def note_connection(self, code: str, up_s: float, *, moved: bool) -> None:
        """Start the delays anew if the connection that ended with `code` after `up_s` seconds was a good one.

        A connection that ends for the same reason as the one before it is not good, however long the peers
        took to notice. A plain loss recurs only if nothing was delivered or acknowledged (`moved`).
        """
        same = code == self._last_code and (code != PLAIN_LOSS or not moved)
        recurs = same and up_s < STEADY_DELAYS * self._policy.longest_delay
        if up_s > self._policy.longest_delay and not recurs:
            self._failures = 0
        self._last_code = code

    def failed(self) -> float:
        """The current address failed or was lost; how long to wait before trying the one whose turn it is now."""
        delay = self._policy.delay(self._failures // self._number)
        self._failures += 1
        self.current = (self.current + 1) % self._number
        return delay
