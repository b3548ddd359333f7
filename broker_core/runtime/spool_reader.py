"""Spool entries brought back as deliveries. Runs in the reader thread.

The unit is the stretch: what neighbouring entries refer to stands behind one another in the journal, and is one read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from broker_core.batch import Batch
from broker_core.delivery import OutboxEntry
from broker_core.journal.journal import Journal
from broker_core.journal.segment import Position
from broker_core.spool.entries import SpoolEntry

STRETCH_BYTES = 1024 * 1024


class _Stretch:
    """The batches of one read, by offset."""

    def __init__(self, journal: Journal, segment: int, start: int, end: int) -> None:
        self._journal = journal
        self._segment = segment
        self.end = end
        self._batches = dict(journal.read_span(Position(segment, start), end - start))

    def holds(self, entry: SpoolEntry) -> bool:
        segment, offset = entry.position
        return segment == self._segment and offset in self._batches and offset + entry.length <= self.end

    def batches(self, entry: SpoolEntry) -> Iterator[tuple[Position, Batch]]:
        """The batches an entry refers to. JournalError when one of them is damaged."""
        segment, offset = entry.position
        end = offset + entry.length
        while offset < end:
            position = Position(segment, offset)
            batch = self._batches.get(offset)
            if batch is None:  # the read has stopped at damage; this says which
                batch = self._journal.read_at(position, end - offset)
            yield position, batch
            offset += batch.nbytes


def load(journal: Journal, entries: Sequence[SpoolEntry]) -> list[OutboxEntry]:
    """The deliveries of these entries, in order; JournalErrors as `Journal.read_span`."""
    loaded: list[OutboxEntry] = []
    stretch: _Stretch | None = None
    for number, entry in enumerate(entries):
        if entry.batch is not None:
            loaded.append(OutboxEntry(
                entry.stream, entry.batch, None, None, 0, entry.count, entry.nbytes, entry.accepted_at
            ))
            continue
        if stretch is None or not stretch.holds(entry):
            segment, start = entry.position
            stretch = _Stretch(journal, segment, start, _end(entries, number))
        for position, batch in stretch.batches(entry):
            loaded.append(_delivery(entry, position, batch))
    return loaded


def _end(entries: Sequence[SpoolEntry], number: int) -> int:
    """Where the stretch that begins with an entry ends."""
    segment, start = entries[number].position
    end = start + entries[number].length
    for entry in entries[number + 1 :]:
        if entry.batch is not None:
            continue
        (other, offset), following = entry.position, entry.position.offset + entry.length
        if other != segment or not start <= offset <= end or following - start > STRETCH_BYTES:
            break
        end = max(end, following)
    return end


def _delivery(entry: SpoolEntry, position: Position, batch: Batch) -> OutboxEntry:
    part = batch if entry.rows is None else batch.select(entry.rows)
    # A run keeps the first one's moment; those behind it were accepted later.
    at = max(entry.accepted_at, batch.accepted_at)
    return OutboxEntry(entry.stream, part, entry.rows, position, batch.nbytes, part.count, part.nbytes, at)
