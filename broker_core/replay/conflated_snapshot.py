"""Snapshot from the log: reads a range for one subscription and keeps the last record of each key.

The range is read chunk by chunk in the reader thread, so replays can read in between. Batches are not held in
memory: the reader stores the position of each, and at the end reads the few again that hold a key's last
record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker_core.batch import Rows
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.ports import InstanceResources
from broker_core.errors import JournalError
from broker_core.journal.journal import Journal
from broker_core.journal.segment import BatchPosition
from broker_core.subscriptions.keys import KeyOf, LastPerKey
from broker_core.subscriptions.subscription import TopicSubscription, select_rows

CHUNK_BYTES: Final = 2 * 1024 * 1024
"""Bytes per read; other replays may read in between."""
FOLD_BYTES: Final = 256 * 1024 * 1024
"""Maximum bytes of the log that a snapshot reads, back from its end."""


class FoldRange:
    """Range of the log that the reader thread folds to the last record of each key."""

    def __init__(self, journal: Journal, subscription: TopicSubscription[object]) -> None:
        self.matched = 0
        self._journal = journal
        self._subscription = subscription
        self._batch_positions: list[tuple[BatchPosition, int]] = []
        """Position and bytes of each batch that has a match for the subscription."""

    def read(self, start: int, last: int, keys: LastPerKey) -> int:
        """Read one chunk into `keys`; return the sequence at which the next one begins.

        Raises JournalError journal_failed when a record in the range can't be read.
        """
        read = self._journal.read_with_positions(start, CHUNK_BYTES, last)
        if not read:
            following = self._journal.next_readable(start)
            if following <= start:
                raise JournalError(
                    "journal_failed", f"Record {start} of the log can't be read.", "Run journal verify."
                )
            return following
        for position, batch in read:
            rows = select_rows(self._subscription, batch, start)
            if rows is None or len(rows):
                self._batch_positions.append((position, batch.nbytes))
                self.matched += batch.count if rows is None else len(rows)
                keys.add(batch, rows)
        return read[-1][1].last_sequence + 1

    def reread(self, chosen: Sequence[tuple[int, Rows]], now_ns: int) -> list[OutboxEntry]:
        """Read the chosen batches again and return the chosen rows as outbox entries.

        `chosen` has pairs (index of the batch in this range, rows).
        """
        entries, stream = [], self._subscription.stream
        for number, rows in chosen:
            part = self._journal.read_at(*self._batch_positions[number]).select(rows)
            # The entry gets no source: falling back to the log from here would also deliver all records in
            # between.
            entries.append(OutboxEntry(stream, part, None, None, 0, part.count, part.nbytes, now_ns))
        return entries


def fold_start(journal: Journal, upto: int) -> int:
    """Return the first sequence of a range of whole segments, about FOLD_BYTES long, that ends at `upto`."""
    first, nbytes = upto + 1, 0
    for segment in reversed(journal.segments()):
        if segment.first_sequence > upto:
            continue
        first, nbytes = segment.first_sequence, nbytes + segment.nbytes
        if nbytes >= FOLD_BYTES:
            break
    return first


async def fold_latest(
    facilities: InstanceResources,
    subscription: TopicSubscription[object],
    first: int,
    last: int,
    key_of: KeyOf,
) -> tuple[int, list[OutboxEntry]]:
    """Return the number of matching records from `first` to `last`, and the last record of each key.

    The records are outbox entries in the log's order. Raises ClientError snapshot_too_large; JournalError
    when the log can't be read.
    """
    reader, journal = facilities.reader, facilities.journal
    fold_range, keys = FoldRange(journal, subscription), LastPerKey(key_of)
    pin = journal.pin(first, f"snapshot for {subscription.id}")
    try:
        start = first
        while start <= last:
            start = await reader.run(fold_range.read, start, last, keys)
        chosen = list(keys.last_rows())
        entries: list[OutboxEntry] = []
        for at in range(0, len(chosen), 256):
            part = chosen[at : at + 256]
            entries += await reader.run(fold_range.reread, part, facilities.clock.now_ns())
        return fold_range.matched, entries
    finally:
        pin.release()
