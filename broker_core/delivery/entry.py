"""One delivery: a batch for a stream, and where it came from. What waits for a client is made of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from broker_core.batch import CONFLATED, Batch, Rows


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

    def marked(self, mark: int) -> OutboxEntry:
        """The same delivery with a mark in a copy of its batch, which no log has."""
        return replace(self, batch=self.batch.marked(mark), rows=None, source=None, source_length=0)


def of_log(entries: Sequence[OutboxEntry]) -> list[OutboxEntry]:
    """Those of one subscription's deliveries that are had again by reading the log from the first of them on: what comes
    behind the last that isn't."""
    start = len(entries)
    while start and entries[start - 1].source is not None:
        start -= 1
    return list(entries[start:])
