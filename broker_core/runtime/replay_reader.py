"""The next chunk of a replay: where to read, and what of it the subscription wants. Runs in the reader thread."""

from __future__ import annotations

from typing import NamedTuple

from broker_core.batch import Batch, Rows
from broker_core.journal.journal import Journal
from broker_core.journal.segment import Position
from broker_core.subscriptions.replay import select_for
from broker_core.subscriptions.span import Span
from broker_core.subscriptions.subscription import Subscription


class Piece(NamedTuple):
    """What is delivered of one batch: where the batch stands, the rows of it (None: all), and these as a batch."""

    source: Position
    length: int
    rows: Rows | None
    batch: Batch


class Chunk(NamedTuple):
    """What the subscription wants of the batches read.

    `first` is the first sequence that was readable: above the one asked for when the records between are damaged or
    lost. The next chunk starts at `following`. `begun`: a record of the span's beginning was met; `over`: its end.
    """

    first: int
    following: int
    pieces: list[Piece]
    begun: bool
    over: bool


def read_chunk(
    journal: Journal, subscription: Subscription, span: Span, start: int, upto: int, max_bytes: int
) -> Chunk:
    """Read from sequence `start` to `upto`, about `max_bytes`. Raises JournalError bookmark_gone or journal_failed."""
    read = journal.read_located(start, max_bytes, upto)
    if not read:
        following = journal.next_readable(start)
        return Chunk(following, following, [], span.not_before == 0, False)
    begun = span.not_before == 0
    pieces: list[Piece] = []
    first = following = max(start, read[0][1].first_sequence)
    for position, batch in read:
        at = batch.header.accepted_at
        if at > span.not_after:
            return Chunk(first, following, pieces, begun, True)
        begun = begun or at >= span.not_before
        if begun:
            rows = select_for(subscription, batch, start, upto=span.last)
            if rows is None:
                pieces.append(Piece(position, batch.nbytes, None, batch))
            elif len(rows):
                pieces.append(Piece(position, batch.nbytes, rows, batch.select(rows)))
        following = batch.last_sequence + 1
    return Chunk(first, following, pieces, begun, False)
