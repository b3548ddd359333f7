"""What the broker may send of one subscription: as much as fits beside what waits for the application.

Both sides count the bytes of its deliveries, from 0 on each connection, and the client says up to which count it has room. So
an application that is slow with one subscription holds up that one alone: the connection is always read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker_core.protocols import commands

STEPS: Final = 4
"""In so many parts room is given back while more is on its way: a word for each batch would cost more than the batch."""
STARVED_BYTES: Final = 32 * 1024
"""Where the broker waits for room it is given as soon as there is so much."""


class Credit:
    """One subscription's. `most` is what may wait for the application, but for one delivery more."""

    def __init__(self, id: str, most: int, send: Callable[[commands.GrantCredit], object]) -> None:
        self._id = id
        self._most = most
        self._send = send
        self.held = 0
        """Bytes that wait for the application."""
        self._received = 0
        """Bytes that came on this connection."""
        self._granted = 0
        self._begun = False

    def ask(self) -> int:
        """It is asked for, on a new connection or anew: with how much to begin."""
        self._received, self._granted, self._begun = 0, max(self._most - self.held, 0), False
        return self._granted

    def begun(self) -> None:
        """The broker has it."""
        self._begun = True
        self._give()

    def end(self) -> None:
        """Nothing more comes for it."""
        self._begun = False

    def received(self, nbytes: int) -> bool:
        """A delivery came. Whether there was room when the broker sent it; the last one may be larger than what is left."""
        fits = self._received < self._granted
        self._received += nbytes
        self.held += nbytes
        return fits

    def taken(self, nbytes: int) -> None:
        """The application has taken so much."""
        self.held -= nbytes
        self._give()

    def _give(self) -> None:
        upto = self._received + self._most - self.held
        step = max(self._most // STEPS, 1)
        if self._received >= self._granted:
            step = min(step, STARVED_BYTES)
        if self._begun and upto - self._granted >= step:
            self._granted = upto
            self._send(commands.GrantCredit(id=self._id, upto=upto))
