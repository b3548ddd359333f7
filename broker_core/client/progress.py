"""How far an application is done with a subscription, when it is done out of order.

The most recent bookmark is the last record before which nothing is left to do: after a restart from it nothing is
missed, and only what was done out of order comes again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from broker_core.batch import EXPLICIT_SEQUENCES, Batch

MAX_UNDONE = 100_000
"""Delivered batches of a subscription that an application may have open."""
_TRIM = 1_024


class _Delivered:
    """The records of one delivered batch that aren't done yet."""

    __slots__ = ("done", "front", "sequences")

    def __init__(self, sequences: Sequence[int]) -> None:
        self.sequences = sequences
        self.done: bytearray | None = None
        self.front = 0

    def mark(self, sequence: int) -> None:
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


class Progress:
    """The delivered, not yet done records of one subscription from one instance."""

    __slots__ = ("_delivered", "_firsts", "_head", "most_recent")

    def __init__(self) -> None:
        self.most_recent = 0
        self._delivered: list[_Delivered] = []
        self._firsts: list[int] = []
        self._head = 0

    @property
    def undone(self) -> int:
        """Delivered batches that aren't done as a whole, or wait behind one that isn't."""
        return len(self._delivered) - self._head

    def add(self, batch: Batch) -> None:
        """A batch was delivered. One small object for a batch, and nothing for a record."""
        first = batch.first_sequence
        explicit = batch.flags & EXPLICIT_SEQUENCES
        self._delivered.append(
            _Delivered(batch.sequences().tolist() if explicit else range(first, first + batch.count))
        )
        self._firsts.append(first)

    def reached(self, sequence: int) -> bool:
        """Nothing more comes up to this sequence. True when the most recent bookmark moved there: all was done."""
        if self._head == len(self._delivered):
            before, self.most_recent = self.most_recent, max(self.most_recent, sequence)
            return self.most_recent > before
        if sequence > self._delivered[-1].sequences[-1]:
            # As a record that is done: once everything before it is done as well, the bookmark moves to it.
            mark = _Delivered(range(sequence, sequence + 1))
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

    def done(self, sequence: int) -> bool:
        """One record is done. True when the most recent bookmark moved."""
        if entry := self._find(sequence):
            entry.mark(sequence)
        return self._advance()

    def batch_done(self, batch: Batch) -> bool:
        """All records of a delivered batch are done."""
        if entry := self._find(batch.first_sequence):
            entry.front = len(entry.sequences)
        return self._advance()

    def _find(self, sequence: int) -> _Delivered | None:
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
