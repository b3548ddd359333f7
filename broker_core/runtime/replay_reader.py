"""The next chunk of a replay: where to read, and what of it its subscriptions want. Runs in the reader thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from broker_core.batch import ROW_SIZE, SEQUENCE_SIZE, Batch, Rows
from broker_core.filters import BatchEvaluator
from broker_core.journal.journal import Journal
from broker_core.journal.segment import Position
from broker_core.subscriptions.combine import in_journal_order
from broker_core.subscriptions.replay import select_for
from broker_core.subscriptions.span import Span
from broker_core.subscriptions.subscription import Subscription


class Piece(NamedTuple):
    """What one subscription is given of one batch: where that stands, the rows of it (None: all), and these as a batch.

    `source` None: the records were conflated and stand nowhere as they are. `recorded_at` (ns) is their moment on the
    recorded timeline. A piece that a rate has cut goes on with its record number `start`.
    """

    subscription: Subscription
    source: Position | None
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

    def first(self, number: int) -> Piece:
        """The next so many records as a piece of their own."""
        if self.start == 0 and number == self.batch.count:
            return self
        chosen = np.arange(self.start, self.start + number)
        rows = chosen if self.rows is None else self.rows[chosen]
        return self._replace(rows=rows, batch=self.batch.select(chosen), start=0)

    def after(self, number: int) -> Piece:
        """What is left behind these. Nothing is copied, so that a large batch can be cut a thousand times."""
        return self._replace(start=self.start + number)

    @property
    def first_sequence(self) -> int:
        """Of the first record that is left."""
        return int(self.batch.sequences()[self.start]) if self.start else self.batch.first_sequence


class Reader(NamedTuple):
    """One subscription of a replay, and the first sequence it hasn't been given."""

    subscription: Subscription
    next_sequence: int

    def behind(self, following: int) -> Reader:
        """The same, given everything before `following`."""
        return Reader(self.subscription, max(self.next_sequence, following))


class Chunk(NamedTuple):
    """What the subscriptions want of the batches read.

    `first` is the first sequence that was readable: above the one asked for when the records between are damaged or
    lost. The next chunk starts at `following`. `begun`: a record of the span's beginning was met; `over`: its end.
    """

    first: int
    following: int
    pieces: list[Piece]
    begun: bool
    over: bool


class Way:
    """Where the reading of a replay has come to. The reader thread alone moves it, so chunks can be queued ahead of time.

    Each chunk starts where the one before ended, which the loop needn't have seen yet.
    """

    def __init__(self, journal: Journal, readers: Sequence[Reader], span: Span) -> None:
        self._journal = journal
        self._readers = readers
        self._span = span
        self._ended = False

    def chunk(self, upto: int, max_bytes: int, cuts: bool = False) -> Chunk | None:
        """The next chunk, to `upto`, as `read_chunk`. None: nothing is left to read to there, or the chunk before couldn't be read.

        Raises JournalErrors as that.
        """
        if self._ended or min(reader.next_sequence for reader in self._readers) > min(upto, self._span.last):
            self._ended = True
            return None
        self._ended = True  # until this one is read: none is passed over
        chunk = read_chunk(self._journal, self._readers, self._span, upto, max_bytes, cuts)
        self._ended = chunk.over
        self._readers = [reader.behind(chunk.following) for reader in self._readers]
        if chunk.begun:
            self._span = self._span._replace(not_before=0)
        return chunk


def read_chunk(
    journal: Journal, readers: Sequence[Reader], span: Span, upto: int, max_bytes: int, cuts: bool = False
) -> Chunk:
    """Read from the first sequence that any of them needs to `upto`, about `max_bytes`.

    One batch at least is read, whole however large it is, or with `cuts` as much of it as goes into `max_bytes`.

    Raises JournalError bookmark_gone or journal_failed.
    """
    start = min(reader.next_sequence for reader in readers)
    read = journal.read_located(start, max_bytes, upto)
    if not read:
        following = journal.next_readable(start)
        return Chunk(following, following, [], span.not_before == 0, False)
    begun, pieces = span.not_before == 0, list[Piece]()
    first = following = max(start, read[0][1].first_sequence)
    for position, batch in read:
        at = batch.header.accepted_at
        if at > span.not_after:
            return Chunk(first, following, pieces, begun, True)
        begun = begun or at >= span.not_before
        last = _cut(batch, start, max_bytes) if cuts and batch.nbytes > max_bytes else batch.last_sequence
        if begun:
            pieces += _pieces(position, batch, readers, min(span.last, last))
        following = last + 1
    return Chunk(first, following, pieces, begun, False)


def _cut(batch: Batch, start: int, max_bytes: int) -> int:
    """The sequence of the last record from `start` on that goes into about so many bytes; one record does always.

    What a transport holds of a batch keeps all of it in memory. So a client that reads nothing must not be handed a
    large one while nothing is known of it.
    """
    sequences, rows = batch.sequences(), batch.rows
    first = int(np.searchsorted(sequences, np.uint64(start)))
    sizes = rows["headers"][first:].astype(np.int64) + rows["body"][first:] + (ROW_SIZE + SEQUENCE_SIZE)
    number = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
    return int(sequences[first + max(number, 1) - 1])


def _pieces(position: Position, batch: Batch, readers: Sequence[Reader], upto: int) -> list[Piece]:
    """What each wants of one batch; of several subscriptions in the journal's order across them."""
    # One alone makes its own when its filter asks; several share what is decoded.
    evaluator = BatchEvaluator(batch, readers[0].subscription.decoder_of) if len(readers) > 1 else None
    wanted = [select_for(one.subscription, batch, one.next_sequence, evaluator, upto=upto) for one in readers]
    return [
        Piece(readers[number].subscription, position, batch.nbytes, rows,
              batch if rows is None else batch.select(rows), batch.accepted_at)
        for number, rows in in_journal_order(batch.count, wanted)
    ]
