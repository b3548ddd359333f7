"""The next chunk of a replay: where to read, and what of it its subscriptions want. Runs in the reader thread.

The next chunks of one replay: how large they are, and the reads that are under way.

A chunk starts small, and grows while the client takes everything at once. What a stopped client's transport holds
keeps the whole chunk it was read with in memory, so a chunk is also never more than a part of what the client has
taken: the kernels take some hundred KiB for a client that reads nothing, and that must not make its chunks large.

For a client that is fast two chunks are asked for ahead of time. The reader thread then goes from one to the next by
itself, and inflates one while the loop hands over the one before; asked for one by one they would take turns, since
the loop keeps the interpreter while it hands over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from broker_core.batch import ROW_SIZE, SEQUENCE_SIZE, Batch, Rows
from broker_core.delivery.entries import BatchSlice
from broker_core.delivery.ports import InstanceResources
from broker_core.delivery.scheduling import CUT_BEFORE, AdaptiveChunkSize
from broker_core.errors import JournalError
from broker_core.filters import BatchEvaluator
from broker_core.journal.journal import Journal
from broker_core.journal.segment import BatchPosition
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.cursor import DurableFrontier
from broker_core.replay.span import ReplaySpan
from broker_core.subscriptions.subscription import Subscription, select_rows


class ReplayTarget(NamedTuple):
    """One subscription of a replay, and the first sequence it hasn't been given."""

    subscription: Subscription[object]
    next_sequence: int


class ReplayChunk(NamedTuple):
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
class ReadPosition:
    """Where the reading of a replay has come to. The reader thread alone moves it, so chunks can be queued ahead of time.

    Each chunk starts where the one before ended, which the loop needn't have seen yet.
    """

    _journal: Journal
    _readers: Sequence[ReplayTarget]
    _span: ReplaySpan
    _ended: bool = False

    def read_next_chunk(self, upto: int, max_bytes: int, cuts: bool = False) -> ReplayChunk | None:
        """The next chunk, to `upto`, as `read_chunk`. None: nothing is left to read to there, or the chunk before couldn't be read.

        Raises JournalErrors as that.
        """
        ended = self._ended or min(one.next_sequence for one in self._readers) > min(upto, self._span.last)
        self._ended = True  # until this one is read: none is passed over
        if ended:
            return None
        chunk = read_chunk(self._journal, self._readers, self._span, upto, max_bytes, cuts)
        self._ended = chunk.over
        self._readers = [ReplayTarget(one, max(at, chunk.following)) for one, at in self._readers]
        if chunk.begun:
            self._span = self._span._replace(not_before=0)
        return chunk


def read_chunk(
    journal: Journal,
    readers: Sequence[ReplayTarget],
    span: ReplaySpan,
    upto: int,
    max_bytes: int,
    cuts: bool = False,
) -> ReplayChunk:
    """Read from the first sequence that any of them needs to `upto`, about `max_bytes`.

    One batch at least is read, whole however large it is, or with `cuts` as much of it as goes into `max_bytes`.

    Raises JournalError bookmark_gone or journal_failed.
    """
    start = min(reader.next_sequence for reader in readers)
    exact = [reader.subscription.pattern.exact for reader in readers]
    topics = {topic for topic in exact if topic is not None}
    if not span.not_before and None not in exact:  # segments without their topics needn't be read
        following = min(journal.next_sequence_of_topics(topics, start), min(upto, span.last) + 1)
        if following > start:
            return ReplayChunk(start, following, [], True, False)
    read = journal.read_with_positions(start, max_bytes, upto)
    begun, pieces = span.not_before == 0, list[BatchSlice]()
    if not read:
        following = journal.next_readable(start)
        return ReplayChunk(following, following, pieces, begun, False)
    first = following = max(start, read[0][1].first_sequence)
    for position, batch in read:
        at = batch.header.accepted_at
        if at > span.not_after:
            return ReplayChunk(first, following, pieces, begun, True)
        begun = begun or at >= span.not_before
        last = _cut(batch, start, max_bytes) if cuts and batch.nbytes > max_bytes else batch.last_sequence
        if begun:
            pieces += _pieces(position, batch, readers, min(span.last, last))
        following = last + 1
    return ReplayChunk(first, following, pieces, begun, False)


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


def _pieces(
    position: BatchPosition, batch: Batch, readers: Sequence[ReplayTarget], upto: int
) -> list[BatchSlice]:
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
        for number, rows in split_into_runs(batch.count, wanted)
    ]


def split_into_runs(count: int, wanted: Sequence[Rows | None]) -> list[tuple[int, Rows | None]]:
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


CHUNKS_AHEAD = 2
"""Chunks of a fast client that are read, or being read, besides the one that is handed over."""


class ReadAhead:
    """Reads the chunks of one replay in the reader thread, one after the other."""

    def __init__(self, facilities: InstanceResources, frontier: DurableFrontier) -> None:
        self._facilities = facilities
        self._share = facilities.share
        self._frontier = frontier
        self._way: ReadPosition | None = None
        self._reading: deque[asyncio.Future[ReplayChunk | None]] = deque()
        self.size = AdaptiveChunkSize(facilities.share)

    def schedule_next(self, targets: Sequence[ClientSubscription], span: ReplaySpan, following: int) -> None:
        """Have chunks read ahead, if the client is so fast that it pays. These are about to be given all before `following`."""
        if self.size.is_read_ahead_useful:
            while len(self._reading) < CHUNKS_AHEAD:
                self._start(targets, span, following)

    def _start(self, targets: Sequence[ClientSubscription], span: ReplaySpan, following: int = 0) -> None:
        if self._way is None:
            readers = [
                ReplayTarget(one.subscription, max(one.cursor.next_sequence, following)) for one in targets
            ]
            self._way = ReadPosition(self._facilities.journal, readers, span)
        max_bytes = min(self.size.nbytes, self._share.max_chunk_bytes)
        cuts = self.size.taken_bytes < CUT_BEFORE
        self._reading.append(
            self._facilities.reader.run(self._way.read_next_chunk, self._frontier.durable, max_bytes, cuts)
        )

    async def next_chunk(self, targets: Sequence[ClientSubscription], span: ReplaySpan) -> ReplayChunk | None:
        """What was read ahead or, when nothing is being read, the next chunk. None: look where these stand, and ask anew.

        JournalErrors as `read_chunk`.
        """
        if self._share.busy:
            self.stop()  # it was read for a faster pace, in large chunks; nothing is read ahead beside live traffic
        if self._reading:
            return await self._next()
        async with self._share.reads:
            self.stop()
            self._start(targets, span)
            return await self._next()

    async def _next(self) -> ReplayChunk | None:
        # Let go of it: a waiting replay must not keep the chunk it has delivered.
        reading = self._reading.popleft()
        try:
            chunk = await reading
        except JournalError:
            self.stop()
            raise
        if chunk is None:
            self.stop()
        return chunk

    def stop(self) -> None:
        """What is being read isn't wanted any more."""
        for reading in self._reading:
            if reading.done() and not reading.cancelled():
                reading.exception()  # nobody will ask for it any more
            reading.cancel()
        self._reading.clear()
        self._way = None

    def on_stalled(self) -> None:
        """The client has stopped reading: what was read ahead is given back."""
        self.stop()
        self.size.reset()
