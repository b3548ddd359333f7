"""Reads a stretch of the log for one subscription and keeps the last record of each key, or only counts.

Chunk by chunk through the reader thread, so that replays take their turns in between, and without holding what was
read: of each batch the place is remembered, and the few that a key's last record is in are read again at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from broker_core.batch import Rows
from broker_core.delivery.entry import OutboxEntry
from broker_core.delivery.ports import Facilities
from broker_core.errors import JournalError
from broker_core.journal.journal import Journal
from broker_core.journal.segment import Position
from broker_core.subscriptions.keys import KeyOf, LastPerKey
from broker_core.subscriptions.selecting import select_for
from broker_core.subscriptions.subscription import Subscription

CHUNK_BYTES: Final = 2 * 1024 * 1024
FOLD_BYTES: Final = 256 * 1024 * 1024
"""How far back a snapshot looks at most, in bytes of the log."""


@dataclass(slots=True)
class Stretch:
    """What a fold found. `first` to `last` were read; `matched` records of them are for the subscription."""

    first: int
    last: int
    matched: int = 0
    places: list[tuple[Position, int]] = field(default_factory=list)


def look_back(journal: Journal, upto: int) -> int:
    """The first sequence of a stretch up to `upto` that is about FOLD_BYTES long, by whole segments."""
    first, nbytes = upto + 1, 0
    for segment in reversed(journal.segments()):
        if segment.first_sequence > upto:
            continue
        first, nbytes = segment.first_sequence, nbytes + segment.nbytes
        if nbytes >= FOLD_BYTES:
            break
    return first


async def fold(
    facilities: Facilities, subscription: Subscription[object], first: int, last: int, key_of: KeyOf
) -> tuple[Stretch, list[OutboxEntry]]:
    """The last record of each key among `first` to `last`, as deliveries in the log's order.

    Raises ClientError snapshot_too_large; JournalError when the log can't be read.
    """
    stretch, keys = Stretch(first, last), LastPerKey(key_of)
    reader, journal = facilities.reader, facilities.journal
    pin = journal.pin(first, f"snapshot for {subscription.id}")
    try:
        start = first
        while start <= last:
            start = await reader.run(_take, journal, subscription, start, last, stretch, keys)
        chosen = list(keys.remaining())
        entries: list[OutboxEntry] = []
        for at in range(0, len(chosen), 256):
            part = chosen[at : at + 256]
            entries += await reader.run(
                _read_again, journal, subscription, part, stretch, facilities.clock.now_ns()
            )
        return stretch, entries
    finally:
        pin.release()


def _take(
    journal: Journal,
    subscription: Subscription[object],
    start: int,
    last: int,
    stretch: Stretch,
    keys: LastPerKey,
) -> int:
    """One chunk; where the next begins. Runs in the reader thread."""
    read = journal.read_located(start, CHUNK_BYTES, last)
    if not read:
        following = journal.next_readable(start)
        if following <= start:
            raise JournalError(
                "journal_failed", f"Record {start} of the log can't be read.", "Run journal verify."
            )
        return following
    for position, batch in read:
        rows = select_for(subscription, batch, start)
        if rows is not None and not len(rows):
            continue
        stretch.places.append((position, batch.nbytes))
        stretch.matched += batch.count if rows is None else len(rows)
        keys.add(batch, rows)
    return read[-1][1].last_sequence + 1


def _read_again(
    journal: Journal,
    subscription: Subscription[object],
    chosen: Sequence[tuple[int, Rows]],
    stretch: Stretch,
    now_ns: int,
) -> list[OutboxEntry]:
    """The batches with somebody's last record. Runs in the reader thread."""
    entries = []
    for number, rows in chosen:
        part = journal.read_at(*stretch.places[number]).select(rows)
        # Without a source: reading the log from here on would bring everything between as well.
        entries.append(OutboxEntry(subscription.stream, part, None, None, 0, part.count, part.nbytes, now_ns))
    return entries
