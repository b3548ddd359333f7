"""Where a publisher keeps what the broker hasn't acknowledged: in memory here, in a file in `publish_file`.

A store holds whole batches by publisher sequence, oldest first. Its `limit` is also the bound on what may be in
flight: a publisher waits while `nbytes` is at or over it, so a store holds at most its limit and one batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile
from typing import Generic, NamedTuple, Protocol, TypeVar

from broker_core.batch import Buffer

MEMORY_LIMIT = 8 * 1024 * 1024


class StoredBatch(NamedTuple):
    """One unacknowledged batch and the publisher sequences in it."""

    first: int
    last: int
    batch: Buffer

    @property
    def length(self) -> int:
        return len(self.batch)


class PublishStore(Protocol):
    """What a client needs of a store. Sequences ascend from one add() to the next."""

    limit: int
    nbytes: int
    last_sequence: int

    def add(self, first: int, last: int, batch: Buffer) -> None:
        """Keep a batch until it is discarded."""

    def discard(self, first: int, last: int) -> None:
        """Drop the batches that lie within these sequences."""

    def discard_upto(self, last: int) -> None:
        """Drop the batches that end at or before this sequence."""

    def pending(self, after: int = 0) -> Iterator[StoredBatch]:
        """What is kept and ends after this sequence, oldest first. Batches dropped meanwhile are left out."""

    def oldest(self) -> int:
        """The first sequence kept, 0 when nothing is."""

    def close(self) -> None:
        """Let go of files."""


class Entry(Protocol):
    """What stands for a batch of `length` bytes."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def length(self) -> int: ...


E = TypeVar("E", bound=Entry)


class KeptBatches(Generic[E]):
    """What is the same in every store: which batches are kept, and which go."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.last_sequence = 0
        self._kept: OrderedDict[int, E] = OrderedDict()

    def _keep(self, entry: E) -> None:
        self._kept[entry.first] = entry
        self.nbytes += entry.length
        self.last_sequence = max(self.last_sequence, entry.last)

    def _forget(self, gone: list[E]) -> None:
        for entry in gone:
            del self._kept[entry.first]
            self.nbytes -= entry.length

    def _drop(self, gone: list[E], first: int, last: int) -> None:
        """Forget these, because everything of `first` to `last` is acknowledged."""
        self._forget(gone)

    def _batch_of(self, entry: E) -> Buffer:
        raise NotImplementedError

    def _within(self, first: int, last: int) -> list[E]:
        """Those that lie within these sequences."""
        exact = self._kept.get(first)
        if exact is not None and exact.last == last:
            return [exact]
        begun = takewhile(lambda entry: entry.first <= last, self._kept.values())
        return [entry for entry in begun if entry.first >= first and entry.last <= last]

    def discard(self, first: int, last: int) -> None:
        if gone := self._within(first, last):
            self._drop(gone, first, last)

    def discard_upto(self, last: int) -> None:
        if gone := list(takewhile(lambda entry: entry.last <= last, self._kept.values())):
            self._drop(gone, gone[0].first, last)

    def pending(self, after: int = 0) -> Iterator[StoredBatch]:
        for first in list(self._kept):
            entry = self._kept.get(first)
            if entry is not None and entry.last > after:
                yield StoredBatch(first, entry.last, self._batch_of(entry))

    def oldest(self) -> int:
        return next(iter(self._kept), 0)


class MemoryPublishStore(KeptBatches[StoredBatch]):
    """Keeps batches while the process lives."""

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        super().__init__(limit)

    def add(self, first: int, last: int, batch: Buffer) -> None:
        self._keep(StoredBatch(first, last, batch))

    def _batch_of(self, entry: StoredBatch) -> Buffer:
        return entry.batch

    def close(self) -> None:
        """Nothing to let go of; what is kept stays, so that another client object can go on with it."""
