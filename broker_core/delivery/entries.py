"""Deliveries: backlog entries, batches shared by many clients, and slices of a batch of the log.

`OutboxEntry` is one delivery: a batch for a stream, and its position in the journal. `BatchSlice` is the
selection of a log batch for one subscription, before it becomes a delivery. `SharedDelivery` is one live
batch for many subscriptions: those that want the same rows on the same stream number share one `OutboxEntry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from broker_core.batch import CONFLATED, Batch, Rows
from broker_core.journal.segment import BatchPosition
from broker_core.subscriptions.subscription import TopicSubscription


@dataclass(slots=True, eq=False)
class OutboxEntry:
    """Delivery to a client: a batch for one stream. Immutable by convention, so clients may share it.

    `nbytes` is the delivery's charge to the memory pool: the size of the batch that will be sent.
    `accepted_at` (ns) is the time from which the delivery's age counts. That is when the broker accepted the
    batch, or, for a batch read from the journal, when it was queued: a replayed record isn't late by being
    old.
    """

    stream: int
    batch: Batch
    rows: Rows | None
    """Row numbers in the source batch that `batch` was selected from; None: `batch` is the whole source."""
    source: tuple[int, int] | None
    """Position (segment, offset) of the source batch in the journal.

    None when reading the log does not bring the same delivery back: no journal keeps it, or it is the result
    of conflation or of a snapshot.
    """
    source_length: int
    """Bytes of the source batch in the journal; 0 without one."""
    count: int
    nbytes: int
    accepted_at: int

    @property
    def conflated(self) -> bool:
        """Whether the delivery is the result of a conflated backlog.

        Reading the log again would give a different one.
        """
        return self.batch.flags & CONFLATED != 0

    def with_conflation_mark(self, mark: int) -> OutboxEntry:
        """Return this delivery with a conflation mark in a copy of its batch.

        The copy has no source in the log.
        """
        return replace(
            self, batch=self.batch.with_conflation_mark(mark), rows=None, source=None, source_length=0
        )


def rereadable_entries(entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
    """Return the deliveries of one subscription that reading the log brings back.

    These are the deliveries behind the last one without a source.
    """
    start = len(entries)
    while start and entries[start - 1].source is not None:
        start -= 1
    return list(entries[start:])


class BatchSlice(NamedTuple):
    """Records of a log batch for one subscription: position, row numbers (None: all), batch of the rows.

    `source` None: the records were conflated and are in no journal in this form. `recorded_at` (ns) is their
    time on the recorded timeline. `start` is the index of the first record that remains, when a rate limit
    has delivered some already.
    """

    subscription: TopicSubscription[object]
    source: BatchPosition | None
    length: int
    rows: Rows | None
    batch: Batch
    recorded_at: int
    start: int = 0

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of headers and body of each remaining record."""
        rows = self.batch.rows[self.start :]
        sizes: npt.NDArray[np.int64] = rows["headers"].astype(np.int64) + rows["body"]
        return sizes

    def first(self, number: int) -> BatchSlice:
        """Return the next `number` records as a slice of their own."""
        if self.start == 0 and number == self.batch.count:
            return self
        chosen = np.arange(self.start, self.start + number)
        rows = chosen if self.rows is None else self.rows[chosen]
        return self._replace(rows=rows, batch=self.batch.select(chosen), start=0)

    def drop_first(self, number: int) -> BatchSlice:
        """Return this slice without its next `number` records.

        It copies nothing, so a large batch can be cut a thousand times.
        """
        return self._replace(start=self.start + number)

    @property
    def first_sequence(self) -> int:
        """Sequence of the first remaining record."""
        return int(self.batch.sequences()[self.start]) if self.start else self.batch.first_sequence


MAX_PLAUSIBLE_AGE_NS: Final = 10_000_000_000
"""Longest plausible time between acceptance and delivery matching, ns.

A larger difference means that this broker was away from its group, was suspended, or has another clock than
the broker that stamped the record.
"""


def age_start_ns(accepted_at: int, now: int) -> int:
    """Return the time from which a live record's age counts, ns.

    That is `accepted_at`, or `now` if the two are too far apart to say how long the record has waited for its
    clients.
    """
    return accepted_at if 0 <= now - accepted_at <= MAX_PLAUSIBLE_AGE_NS else now


class SharedDelivery:
    """Live batch and the deliveries made from it.

    All clients that want the same rows on the same stream number share one delivery.

    `position` is the batch's position in the journal, None while it isn't written or if it never will be.
    `now` (ns) is the current time.
    """

    __slots__ = ("_entries", "_parts", "_since", "batch", "journaled", "position")

    def __init__(self, batch: Batch, position: BatchPosition | None, now: int) -> None:
        self.batch = batch
        self._since = age_start_ns(batch.accepted_at, now)
        self.position = position
        self.journaled = batch.header.first_sequence > 0
        self._parts: dict[int, Batch] = {}
        self._entries: dict[tuple[int, int], OutboxEntry] = {}

    def slice(self, rows: Rows | None) -> Batch:
        """Return the batch of these rows (None: all). The same rows object is selected only once."""
        if rows is None:
            return self.batch
        part = self._parts.get(id(rows))
        if part is None:
            part = self._parts[id(rows)] = self.batch.select(rows)
        return part

    def entry(self, stream: int, rows: Rows | None) -> OutboxEntry:
        """Return the shared delivery of these rows on a stream.

        Most clients' subscription is stream 1 of their connection.
        """
        key = (stream, id(rows))
        entry = self._entries.get(key)
        if entry is None:
            batch, part = self.batch, self.slice(rows)
            entry = self._entries[key] = OutboxEntry(
                stream, part, rows, self.position, batch.nbytes, part.count, part.nbytes, self._since
            )
        return entry
