"""The next chunk of a replay: where to read, and what of it its subscriptions want. Runs in the reader thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from broker_core.batch import ROW_SIZE, SEQUENCE_SIZE, Batch, Rows
from broker_core.delivery.entries import BatchSlice
from broker_core.filters import BatchEvaluator
from broker_core.journal.journal import Journal
from broker_core.journal.segment import BatchPosition
from broker_core.replay.span import Span
from broker_core.subscriptions.subscription import Subscription, select_rows


class Reader(NamedTuple):
    """One subscription of a replay, and the first sequence it hasn't been given."""

    subscription: Subscription[object]
    next_sequence: int


class Chunk(NamedTuple):
    """What the subscriptions want of the batches read.

    `first` is the first sequence that was readable: above the one asked for when the records between are damaged or
    lost. The next chunk starts at `following`. `begun`: a record of the span's beginning was met; `over`: its end.
    """

    first: int
    following: int
    pieces: list[BatchSlice]
    begun: bool
    over: bool


@dataclass(slots=True)
class Way:
    """Where the reading of a replay has come to. The reader thread alone moves it, so chunks can be queued ahead of time.

    Each chunk starts where the one before ended, which the loop needn't have seen yet.
    """

    _journal: Journal
    _readers: Sequence[Reader]
    _span: Span
    _ended: bool = False

    def chunk(self, upto: int, max_bytes: int, cuts: bool = False) -> Chunk | None:
        """The next chunk, to `upto`, as `read_chunk`. None: nothing is left to read to there, or the chunk before couldn't be read.

        Raises JournalErrors as that.
        """
        ended = self._ended or min(one.next_sequence for one in self._readers) > min(upto, self._span.last)
        self._ended = True  # until this one is read: none is passed over
        if ended:
            return None
        chunk = read_chunk(self._journal, self._readers, self._span, upto, max_bytes, cuts)
        self._ended = chunk.over
        self._readers = [Reader(one, max(at, chunk.following)) for one, at in self._readers]
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
    exact = [reader.subscription.pattern.exact for reader in readers]
    topics = {topic for topic in exact if topic is not None}
    if not span.not_before and None not in exact:  # segments without their topics needn't be read
        following = min(journal.next_of(topics, start), min(upto, span.last) + 1)
        if following > start:
            return Chunk(start, following, [], True, False)
    read = journal.read_located(start, max_bytes, upto)
    begun, pieces = span.not_before == 0, list[BatchSlice]()
    if not read:
        following = journal.next_readable(start)
        return Chunk(following, following, pieces, begun, False)
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


def _pieces(position: BatchPosition, batch: Batch, readers: Sequence[Reader], upto: int) -> list[BatchSlice]:
    # One alone makes its own evaluator when its filter asks; several share what is decoded.
    evaluator = BatchEvaluator(batch, readers[0].subscription.decoder_of) if len(readers) > 1 else None
    wanted = [
        select_rows(one.subscription, batch, one.next_sequence, evaluator, upto=upto) for one in readers
    ]
    return [
        BatchSlice(
            readers[number].subscription,
            position,
            batch.nbytes,
            rows,
            batch if rows is None else batch.select(rows),
            batch.accepted_at,
        )
        for number, rows in in_journal_order(batch.count, wanted)
    ]


def in_journal_order(count: int, wanted: Sequence[Rows | None]) -> list[tuple[int, Rows | None]]:
    """Cut what subscriptions want of a batch of `count` records into runs: (which subscription, its next rows).

    None is all rows. A record that several want comes once for each, in the order of the subscriptions, before the
    next record. Subscriptions that want nothing don't appear; one alone gets its rows uncut.
    """
    active = [number for number, rows in enumerate(wanted) if rows is None or len(rows)]
    if len(active) < 2:
        return [(number, wanted[number]) for number in active]
    every = np.arange(count)
    parts = [every if (rows := wanted[number]) is None else rows for number in active]
    rows = np.concatenate(parts)
    owners = np.repeat(np.array(active), [len(part) for part in parts])
    order = np.lexsort((owners, rows))
    rows, owners = rows[order], owners[order]
    cuts = np.flatnonzero(np.diff(owners)) + 1
    starts = [0, *cuts.tolist()]
    return [(int(owners[start]), part) for start, part in zip(starts, np.split(rows, cuts), strict=True)]
