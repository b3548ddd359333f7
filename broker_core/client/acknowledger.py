"""The acknowledgements of one subscription: counts what came, and says what is done, once a turn of the loop.

The broker numbers a subscription's messages from 1 on each connection. Here they are counted on over connections, so
that an acknowledgement for a message of an earlier connection is known as such and not sent: the broker has
forgotten that it sent it, and delivers it again where it is owed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_core.protocols import commands


class Acknowledger:
    """`send` is given commands, and drops them while there is no connection."""

    def __init__(
        self, id: str, mode: commands.AckWord, send: Callable[[commands.Acknowledge], object]
    ) -> None:
        self.mode = mode
        self._id = id
        self._send = send
        self._counted = 0
        self._before = 0
        """Messages counted before this connection."""
        self._upto = 0
        self._single: list[int] = []
        self._due = False

    def received(self, count: int) -> int:
        """That many messages came; the number of the first."""
        first = self._counted + 1
        self._counted += count
        return first

    def connected(self) -> None:
        """A new connection: the broker counts from 1 again."""
        self._before, self._upto = self._counted, 0
        self._single.clear()

    def acknowledge(self, first: int, last: int) -> None:
        """These messages are done; without `client-individual` everything before them as well."""
        first, last = max(first - self._before, 1), last - self._before
        if last < 1:
            return
        if self.mode == "client-individual":
            self._single += range(first, last + 1)
        self._upto = max(self._upto, last)
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Say now what is done and hasn't been said: before the subscription ends, or its turn of the loop does."""
        if not self._due:
            return
        self._due = False
        if self.mode != "client-individual":
            if self._upto:
                self._send(commands.Acknowledge(id=self._id, upto=self._upto))
            return
        ranges = _ranges(sorted(set(self._single)))
        self._single.clear()
        for at in range(0, len(ranges), commands.MAX_ACK_RANGES):
            part = ranges[at : at + commands.MAX_ACK_RANGES]
            self._send(commands.Acknowledge(id=self._id, numbers=part))


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers, first and last of each."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
