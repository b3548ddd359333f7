"""Where a publisher keeps what the broker hasn't acknowledged: in memory here, in a file in `publish_file`.

A store holds whole batches by publisher sequence, oldest first. Its `limit` is also the bound on what may be in
flight: a publisher waits while `nbytes` is at or over it, so a store holds at most its limit and one batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from broker_core.batch import Buffer

MEMORY_LIMIT = 8 * 1024 * 1024


class StoredBatch(NamedTuple):
    """One unacknowledged batch and the publisher sequences in it."""

    first: int
    last: int
    batch: Buffer


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


class MemoryPublishStore:
    """Keeps batches while the process lives."""

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        self.limit = limit
        self.nbytes = 0
        self.last_sequence = 0
        self._batches: OrderedDict[int, StoredBatch] = OrderedDict()

    def add(self, first: int, last: int, batch: Buffer) -> None:
        self._batches[first] = StoredBatch(first, last, batch)
        self.nbytes += len(batch)
        self.last_sequence = last

    def discard(self, first: int, last: int) -> None:
        for key in within(self._batches, first, last):
            self.nbytes -= len(self._batches.pop(key).batch)

    def discard_upto(self, last: int) -> None:
        batches = self._batches
        while batches:
            oldest = next(iter(batches.values()))
            if oldest.last > last:
                return
            del batches[oldest.first]
            self.nbytes -= len(oldest.batch)

    def pending(self, after: int = 0) -> Iterator[StoredBatch]:
        for first in list(self._batches):
            stored = self._batches.get(first)
            if stored is not None and stored.last > after:
                yield stored

    def oldest(self) -> int:
        return next(iter(self._batches), 0)

    def close(self) -> None:
        """Nothing to let go of; what is kept stays, so that another client object can go on with it."""


class Span(Protocol):
    """Anything that stands for publisher sequences."""

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...


def within(batches: Mapping[int, Span], first: int, last: int) -> list[int]:
    """The keys of those that lie within these sequences; the mapping is by first sequence, ascending."""
    exact = batches.get(first)
    if exact is not None and exact.last == last:
        return [first]
    found: list[int] = []
    for stored in batches.values():
        if stored.first > last:
            break
        if stored.first >= first and stored.last <= last:
            found.append(stored.first)
    return found
