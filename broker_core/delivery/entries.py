"""One delivery: a batch for a stream, and where it came from. What waits for a client is made of these.

What one subscription is given of one batch of the log, on its way to becoming a delivery.

One batch on its way to many subscriptions: those that want the same rows on the same stream share one delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from broker_core.batch import CONFLATED, Batch, Rows
from broker_core.journal.segment import BatchPosition
from broker_core.subscriptions.subscription import Subscription


@dataclass(slots=True, eq=False)
class OutboxEntry:
    """Never changed, so clients may share it.

    `nbytes` is what the delivery takes from the pool: the batch that will be sent. `accepted_at` (ns) is the
    moment from which the delivery's age counts: when the broker accepted the batch, or, for a batch read from
    the journal, when it was queued, because a replayed record isn't late by being old.
    """

    stream: int
    batch: Batch
    rows: Rows | None
    """Row numbers in the source batch that `batch` was selected from; None: `batch` is the whole source."""
    source: tuple[int, int] | None
    """The journal's Position (segment, offset) of the source batch; None when reading the log doesn't bring this back as it
    is: no journal keeps it, or it is what conflation or a snapshot left of a stretch of the log."""
    source_length: int
    """Bytes of the source batch in the journal; 0 without one."""
    count: int
    nbytes: int
    accepted_at: int

    @property
    def conflated(self) -> bool:
        """Whether it is left of a conflated backlog: read again from the log it would be another one."""
        return self.batch.flags & CONFLATED != 0

    def with_conflation_mark(self, mark: int) -> OutboxEntry:
        """The same delivery with a mark in a copy of its batch, which no log has."""
        return replace(
            self, batch=self.batch.with_conflation_mark(mark), rows=None, source=None, source_length=0
        )


def rereadable_entries(entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
    """Those of one subscription's deliveries that are had again by reading the log from the first of them on: what comes
    behind the last that isn't."""
    start = len(entries)
    while start and entries[start - 1].source is not None:
        start -= 1
    return list(entries[start:])


class BatchSlice(NamedTuple):
    """What one subscription is given of one batch: where that stands, the rows of it (None: all), and these as a batch.

    `source` None: the records were conflated and stand nowhere as they are. `recorded_at` (ns) is their moment on the
    recorded timeline. A piece that a rate has cut goes on with its record number `start`.
    """

    subscription: Subscription[object]
    source: BatchPosition | None
    length: int
    rows: Rows | None
    batch: Batch
    recorded_at: int
    start: int = 0

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of headers and body of each record that is left."""
        rows = self.batch.rows[self.start :]
        sizes: npt.NDArray[np.int64] = rows["headers"].astype(np.int64) + rows["body"]
        return sizes

    def first(self, number: int) -> BatchSlice:
        """The next so many records as a piece of their own."""
        if self.start == 0 and number == self.batch.count:
            return self
        chosen = np.arange(self.start, self.start + number)
        rows = chosen if self.rows is None else self.rows[chosen]
        return self._replace(rows=rows, batch=self.batch.select(chosen), start=0)

    def rest_after(self, number: int) -> BatchSlice:
        """What is left behind these. Nothing is copied, so that a large batch can be cut a thousand times."""
        return self._replace(start=self.start + number)

    @property
    def first_sequence(self) -> int:
        """Of the first record that is left."""
        return int(self.batch.sequences()[self.start]) if self.start else self.batch.first_sequence


APART_NS: Final = 10_000_000_000
"""More than a record takes from its acceptance to here, unless this broker was away from its group, stood still, or its clock isn't the
one that the record was stamped with."""


def age_start_ns(accepted_at: int, now: int) -> int:
    """From when the age of what comes live counts, ns: its acceptance, or now where that says nothing of how long it waits for its clients."""
    return accepted_at if 0 <= now - accepted_at <= APART_NS else now


class SharedDelivery:
    """`position` is where the batch stands in the journal; None while it isn't there, or never will be. `now` (ns): of that moment."""

    __slots__ = ("_entries", "_parts", "_since", "batch", "journaled", "position")

    def __init__(self, batch: Batch, position: BatchPosition | None, now: int) -> None:
        self.batch = batch
        self._since = age_start_ns(batch.accepted_at, now)
        self.position = position
        self.journaled = batch.header.first_sequence > 0
        self._parts: dict[int, Batch] = {}
        self._entries: dict[tuple[int, int], OutboxEntry] = {}

    def slice(self, rows: Rows | None) -> Batch:
        """The batch of these rows (None: all). Rows that are the same object are cut once."""
        if rows is None:
            return self.batch
        part = self._parts.get(id(rows))
        if part is None:
            part = self._parts[id(rows)] = self.batch.select(rows)
        return part

    def entry(self, stream: int, rows: Rows | None) -> OutboxEntry:
        """The delivery of these rows on a stream. Most clients' subscription is stream 1 of their connection."""
        key = (stream, id(rows))
        entry = self._entries.get(key)
        if entry is None:
            batch, part = self.batch, self.slice(rows)
            entry = self._entries[key] = OutboxEntry(
                stream, part, rows, self.position, batch.nbytes, part.count, part.nbytes, self._since
            )
        return entry
