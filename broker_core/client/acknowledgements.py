"""The acknowledgements of one subscription: counts what came, and says what is done, once a turn of the loop.

The broker numbers a subscription's messages from 1 on each connection. Here they are counted on over connections, so
that an acknowledgement for a message of an earlier connection is known as such and not sent: the broker has
forgotten that it sent it, and delivers it again where it is owed.

What the broker may send of one subscription: as much as fits beside what waits for the application.

Both sides count the bytes of its deliveries, from 0 on each connection, and the client says up to which count it has room. So
an application that is slow with one subscription holds up that one alone: the connection is always read.

How far an application is done with a subscription, when it is done out of order.

The most recent bookmark is the last record before which nothing is left to do: after a restart from it nothing is
missed, and only what was done out of order comes again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from broker_core.batch import EXPLICIT_SEQUENCES, Batch
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

    def on_delivery(self, count: int) -> int:
        """That many messages came; the number of the first."""
        first = self._counted + 1
        self._counted += count
        return first

    def on_connected(self) -> None:
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


STEPS: Final = 4
"""In so many parts room is given back while more is on its way: a word for each batch would cost more than the batch."""
STARVED_BYTES: Final = 32 * 1024
"""Where the broker waits for room it is given as soon as there is so much."""


class CreditWindow:
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

    def initial_credit(self) -> int:
        """It is asked for, on a new connection or anew: with how much to begin."""
        self._received, self._granted, self._begun = 0, max(self._most - self.held, 0), False
        return self._granted

    def on_subscribed(self) -> None:
        """The broker has it."""
        self._begun = True
        self._give()

    def on_unsubscribed(self) -> None:
        """Nothing more comes for it."""
        self._begun = False

    def on_delivery(self, nbytes: int) -> bool:
        """A delivery came. Whether there was room when the broker sent it; the last one may be larger than what is left."""
        fits = self._received < self._granted
        self._received += nbytes
        self.held += nbytes
        return fits

    def on_consumed(self, nbytes: int) -> None:
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


MAX_UNDONE = 100_000
"""Delivered batches of a subscription that an application may have open."""
_TRIM = 1_024


class _DeliveredBatch:
    """The records of one delivered batch that aren't done yet."""

    __slots__ = ("done", "front", "sequences")

    def __init__(self, sequences: Sequence[int]) -> None:
        self.sequences = sequences
        self.done: bytearray | None = None
        self.front = 0

    def mark_record_done(self, sequence: int) -> None:
        at = bisect_left(self.sequences, sequence)
        if at == len(self.sequences) or self.sequences[at] != sequence:
            return
        if at == self.front and self.done is None:
            self.front += 1
            return
        if self.done is None:
            self.done = bytearray(len(self.sequences))
            self.done[: self.front] = b"\1" * self.front
        self.done[at] = 1
        end = self.done.find(0, self.front)
        self.front = len(self.done) if end < 0 else end


class CompletionTracker:
    """The delivered, not yet done records of one subscription from one instance."""

    __slots__ = ("_delivered", "_firsts", "_head", "most_recent")

    def __init__(self) -> None:
        self.most_recent = 0
        self._delivered: list[_DeliveredBatch] = []
        self._firsts: list[int] = []
        self._head = 0

    @property
    def pending_batches(self) -> int:
        """Delivered batches that aren't done as a whole, or wait behind one that isn't."""
        return len(self._delivered) - self._head

    def add(self, batch: Batch) -> None:
        """A batch was delivered. One small object for a batch, and nothing for a record."""
        first = batch.first_sequence
        explicit = batch.flags & EXPLICIT_SEQUENCES
        self._delivered.append(
            _DeliveredBatch(batch.sequences().tolist() if explicit else range(first, first + batch.count))
        )
        self._firsts.append(first)

    def advance_to(self, sequence: int) -> bool:
        """Nothing more comes up to this sequence. True when the most recent bookmark moved there: all was done."""
        if self._head == len(self._delivered):
            before, self.most_recent = self.most_recent, max(self.most_recent, sequence)
            return self.most_recent > before
        if sequence > self._delivered[-1].sequences[-1]:
            # As a record that is done: once everything before it is done as well, the bookmark moves to it.
            mark = _DeliveredBatch(range(sequence, sequence + 1))
            mark.front = 1
            if (
                self._delivered[-1].front == 1 == len(self._delivered[-1].sequences)
                and self._head < len(self._delivered) - 1
            ):
                self._delivered[-1], self._firsts[-1] = mark, sequence
            else:
                self._delivered.append(mark)
                self._firsts.append(sequence)
        return False

    def mark_record_done(self, sequence: int) -> bool:
        """One record is done. True when the most recent bookmark moved."""
        if entry := self._find(sequence):
            entry.mark_record_done(sequence)
        return self._advance()

    def mark_batch_done(self, batch: Batch) -> bool:
        """All records of a delivered batch are done."""
        if entry := self._find(batch.first_sequence):
            entry.front = len(entry.sequences)
        return self._advance()

    def _find(self, sequence: int) -> _DeliveredBatch | None:
        at = bisect_right(self._firsts, sequence, self._head) - 1
        return self._delivered[at] if at >= self._head else None

    def _advance(self) -> bool:
        before = self.most_recent
        while self._head < len(self._delivered):
            entry = self._delivered[self._head]
            if entry.front:
                self.most_recent = max(self.most_recent, entry.sequences[entry.front - 1])
            if entry.front < len(entry.sequences):
                break
            self._head += 1
        if self._head >= _TRIM:
            del self._delivered[: self._head], self._firsts[: self._head]
            self._head = 0
        return self.most_recent > before
