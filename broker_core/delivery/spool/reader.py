"""Conversion of spool entries to deliveries and of unsent deliveries back to spool entries.

`load_deliveries` runs in the reader thread. The batches of neighbouring entries are adjacent in the journal,
so it reads them together: up to MAX_READ_BYTES at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker_core.batch import Batch
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.spool.entry_format import BatchRun, SpoolEntry
from broker_core.journal.journal import Journal
from broker_core.journal.segment import BatchPosition

MAX_READ_BYTES = 1024 * 1024
"""Maximum bytes of journal that are read together."""


class _SegmentRead:
    """Batches of one read, by offset in the segment."""

    def __init__(self, journal: Journal, segment: int, start: int, end: int) -> None:
        self._journal = journal
        self._segment = segment
        self.end = end
        self._batches = dict(journal.read_span(BatchPosition(segment, start), end - start))

    def covers(self, entry: SpoolEntry) -> bool:
        segment, offset = entry.position
        return segment == self._segment and offset in self._batches and offset + entry.length <= self.end

    def batches(self, entry: SpoolEntry) -> Iterator[tuple[BatchPosition, Batch]]:
        """Yield the batches that an entry refers to.

        Raises:
            JournalError: one of them is damaged.
        """
        segment, offset = entry.position
        end = offset + entry.length
        while offset < end:
            position = BatchPosition(segment, offset)
            batch = self._batches.get(offset)
            if batch is None:  # the read has stopped at damage; this call reports it
                batch = self._journal.read_at(position, end - offset)
            yield position, batch
            offset += batch.nbytes


def load_deliveries(journal: Journal, entries: Sequence[SpoolEntry]) -> list[OutboxEntry]:
    """Return the deliveries of these entries, in order.

    Raises:
        JournalError: as for `Journal.read_span`.
    """
    loaded: list[OutboxEntry] = []
    segment_read: _SegmentRead | None = None
    for number, entry in enumerate(entries):
        if entry.batch is not None:
            loaded.append(
                OutboxEntry(
                    entry.stream, entry.batch, None, None, 0, entry.count, entry.nbytes, entry.accepted_at
                )
            )
            continue
        if segment_read is None or not segment_read.covers(entry):
            segment, start = entry.position
            segment_read = _SegmentRead(journal, segment, start, _end(entries, number))
        for position, batch in segment_read.batches(entry):
            loaded.append(_delivery(entry, position, batch))
    return loaded


def _end(entries: Sequence[SpoolEntry], number: int) -> int:
    """Return the segment offset at which the read that begins with entry `number` ends."""
    segment, start = entries[number].position
    end = start + entries[number].length
    for entry in entries[number + 1 :]:
        if entry.batch is not None:
            continue
        (entry_segment, offset), following = entry.position, entry.position.offset + entry.length
        if entry_segment != segment or not start <= offset <= end or following - start > MAX_READ_BYTES:
            break
        end = max(end, following)
    return end


def _delivery(entry: SpoolEntry, position: BatchPosition, batch: Batch) -> OutboxEntry:
    """Return the delivery of one batch of an entry."""
    part = batch if entry.rows is None else batch.select(entry.rows)
    # A run stores the time of its first batch; the batches behind it were accepted later.
    at = max(entry.accepted_at, batch.accepted_at)
    return OutboxEntry(entry.stream, part, entry.rows, position, batch.nbytes, part.count, part.nbytes, at)


def to_spool_entries(deliveries: Sequence[OutboxEntry]) -> list[SpoolEntry]:
    """Return the spool entries of these deliveries: references without batches, adjacent ones joined."""
    entries: list[SpoolEntry] = []
    run: BatchRun | None = None
    for one in deliveries:
        if one.source is None or one.rows is not None:
            run = None
            entries.append(_entry(one))
        elif run is not None and run.try_extend(one.stream, one.source, one.source_length, one.count):
            entries[-1] = _reference(run)
        else:
            run = BatchRun(one.stream, one.source, one.source_length, one.count, one.accepted_at)
            entries.append(_reference(run))
    return entries


def _entry(one: OutboxEntry) -> SpoolEntry:
    """Return the entry of a delivery with selected rows, or of a copy."""
    counts = (one.count, one.nbytes, one.accepted_at)
    if one.source is None:
        return SpoolEntry(one.stream, "copy", BatchPosition(0, 0), one.nbytes, None, one.batch, *counts)
    return SpoolEntry(
        one.stream, "reference", BatchPosition(*one.source), one.source_length, one.rows, None, *counts
    )


def _reference(run: BatchRun) -> SpoolEntry:
    position = BatchPosition(*run.position)
    return SpoolEntry(
        run.stream, "reference", position, run.length, None, None, run.records, run.length, run.accepted_at
    )
