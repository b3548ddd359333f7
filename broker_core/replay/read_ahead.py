"""Reading of a replay's chunks, up to two in advance, in the reader thread.

A chunk starts small and grows while the client accepts each chunk immediately. The transport of a stalled
client keeps in memory the whole chunk that its bytes belong to. So a chunk is never larger than a fraction of
the bytes that the client has taken: the kernels take some hundred KiB for a stalled client, and these must
not make its chunks large.

For a fast client two chunks are requested in advance. The reader thread then reads and inflates one while the
event loop hands over the one before. Requested one by one they would alternate, since the event loop keeps
the interpreter lock while it hands over.
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
from broker_core.delivery.scheduling import UNCUT_AFTER_BYTES, AdaptiveChunkSize
from broker_core.errors import JournalError
from broker_core.filters import BatchEvaluator
from broker_core.journal.journal import Journal
from broker_core.journal.segment import BatchPosition
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.cursor import DurableFrontier
from broker_core.replay.span import ReplaySpan
from broker_core.subscriptions.subscription import TopicSubscription, select_rows


class ReplayTarget(NamedTuple):
    """Subscription of a replay, and the first sequence that it has not been given."""

    subscription: TopicSubscription[object]
    next_sequence: int


class ReplayChunk(NamedTuple):
    """Matching slices of the batches that one read returned.

    * `first`: first readable sequence. Above the requested one when the records between are damaged or lost.
    * `following`: sequence at which the next chunk starts.
    * `has_reached_start`: whether a record of the span's beginning was reached.
    * `is_last`: whether the end of the span was reached.
    """

    first: int
    following: int
    slices: list[BatchSlice]
    has_reached_start: bool
    is_last: bool


@dataclass(slots=True)
class ReadPosition:
    """Position up to which a replay has been read.

    Only the reader thread moves it, so chunks can be requested in advance: each starts where the one before
    ended, whether or not the event loop has received that one.
    """

    _journal: Journal
    _readers: Sequence[ReplayTarget]
    _span: ReplaySpan
    _has_ended: bool = False

    def read_next_chunk(self, upto: int, max_bytes: int, cuts: bool = False) -> ReplayChunk | None:
        """Read the next chunk, up to sequence `upto`; arguments and errors as for `read_chunk`.

        Returns None when nothing remains up to `upto`, or when the chunk before could not be read.
        """
        ended = self._has_ended or min(one.next_sequence for one in self._readers) > min(
            upto, self._span.last
        )
        self._has_ended = True  # stays set if the read fails, so that no chunk is skipped
        if ended:
            return None
        chunk = read_chunk(self._journal, self._readers, self._span, upto, max_bytes, cuts)
        self._has_ended = chunk.is_last
        self._readers = [ReplayTarget(one, max(at, chunk.following)) for one, at in self._readers]
        if chunk.has_reached_start:
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
    """Read about `max_bytes` from the first sequence that any subscription needs, up to sequence `upto`.

    At least one batch is read. It is whole, however large, unless `cuts` is set: then only the records that
    fit into `max_bytes` count.

    Raises JournalError bookmark_gone or journal_failed.
    """
    start = min(reader.next_sequence for reader in readers)
    exact = [reader.subscription.pattern.exact for reader in readers]
    topics = {topic for topic in exact if topic is not None}
    if not span.not_before and None not in exact:  # skip segments whose sidecar lists none of these topics
        following = min(journal.next_sequence_of_topics(topics, start), min(upto, span.last) + 1)
        if following > start:
            return ReplayChunk(start, following, [], True, False)
    read = journal.read_with_positions(start, max_bytes, upto)
    has_reached_start, slices = span.not_before == 0, list[BatchSlice]()
    if not read:
        following = journal.next_readable(start)
        return ReplayChunk(following, following, slices, has_reached_start, False)
    first = following = max(start, read[0][1].first_sequence)
    for position, batch in read:
        at = batch.header.accepted_at
        if at > span.not_after:
            return ReplayChunk(first, following, slices, has_reached_start, True)
        has_reached_start = has_reached_start or at >= span.not_before
        last = (
            _last_fitting(batch, start, max_bytes)
            if cuts and batch.nbytes > max_bytes
            else batch.last_sequence
        )
        if has_reached_start:
            slices += _select_slices(position, batch, readers, min(span.last, last))
        following = last + 1
    return ReplayChunk(first, following, slices, has_reached_start, False)


def _last_fitting(batch: Batch, start: int, max_bytes: int) -> int:
    """Return the sequence of the last record that fits into `max_bytes`, counted from `start`.

    At least one record counts as fitting. A transport that buffers part of a batch keeps the whole batch in
    memory. So a client that has taken little so far must not get a large one.
    """
    sequences, rows = batch.sequences(), batch.rows
    first = int(np.searchsorted(sequences, np.uint64(start)))
    sizes = rows["headers"][first:].astype(np.int64) + rows["body"][first:] + (ROW_SIZE + SEQUENCE_SIZE)
    number = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
    return int(sequences[first + max(number, 1) - 1])


def _select_slices(
    position: BatchPosition, batch: Batch, readers: Sequence[ReplayTarget], upto: int
) -> list[BatchSlice]:
    """Return the slices of a batch that the subscriptions match, in the order of the records."""
    # One subscription makes an evaluator only if its filter needs it; several share the decoded bodies.
    evaluator = BatchEvaluator(batch, readers[0].subscription.decoder_of) if len(readers) > 1 else None
    selected = [
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
        for number, rows in split_into_runs(batch.count, selected)
    ]


def split_into_runs(count: int, selected: Sequence[Rows | None]) -> list[tuple[int, Rows | None]]:
    """Split the wanted rows of a batch of `count` records into runs of (index of the subscription, rows).

    Rows None means all rows. A record that several subscriptions want appears once for each, in their order,
    before the next record. Subscriptions that want nothing are left out; a single one gets its rows unsplit.
    """
    active = [number for number, rows in enumerate(selected) if rows is None or len(rows)]
    if len(active) < 2:
        return [(number, selected[number]) for number in active]
    every = np.arange(count)
    parts = [every if (rows := selected[number]) is None else rows for number in active]
    rows = np.concatenate(parts)
    owners = np.repeat(np.array(active), [len(part) for part in parts])
    order = np.lexsort((owners, rows))
    rows, owners = rows[order], owners[order]
    cuts = np.flatnonzero(np.diff(owners)) + 1
    starts = [0, *cuts.tolist()]
    return [(int(owners[start]), part) for start, part in zip(starts, np.split(rows, cuts), strict=True)]


CHUNKS_AHEAD = 2
"""Chunks that are read in advance for a fast client, in addition to the one being handed over."""


class ReadAhead:
    """Chunk reader of one replay. Chunks are read one after the other in the reader thread."""

    def __init__(self, facilities: InstanceResources, frontier: DurableFrontier) -> None:
        self._facilities = facilities
        self._share = facilities.share
        self._frontier = frontier
        self._position: ReadPosition | None = None
        self._reading: deque[asyncio.Future[ReplayChunk | None]] = deque()
        self.size = AdaptiveChunkSize(facilities.share)

    def schedule_next(self, targets: Sequence[ClientSubscription], span: ReplaySpan, following: int) -> None:
        """Request chunks in advance if the client is fast enough.

        The caller is about to give `targets` every record before sequence `following`.
        """
        if self.size.is_read_ahead_useful:
            while len(self._reading) < CHUNKS_AHEAD:
                self._start(targets, span, following)

    def _start(self, targets: Sequence[ClientSubscription], span: ReplaySpan, following: int = 0) -> None:
        """Request one more chunk in the reader thread."""
        if self._position is None:
            readers = [
                ReplayTarget(one.subscription, max(one.cursor.next_sequence, following)) for one in targets
            ]
            self._position = ReadPosition(self._facilities.journal, readers, span)
        max_bytes = min(self.size.nbytes, self._share.max_chunk_bytes)
        cuts = self.size.read_bytes < UNCUT_AFTER_BYTES
        self._reading.append(
            self._facilities.reader.run(
                self._position.read_next_chunk, self._frontier.durable, max_bytes, cuts
            )
        )

    async def next_chunk(self, targets: Sequence[ClientSubscription], span: ReplaySpan) -> ReplayChunk | None:
        """Return the chunk read in advance or, if there is none, read the next one.

        Returns None when there is nothing to read: the caller then checks its position and calls again.
        Raises JournalError as `read_chunk` does.
        """
        if self._share.is_busy:
            self.stop()  # these chunks are too large beside live traffic
        if self._reading:
            return await self._next()
        async with self._share.reads:
            self.stop()
            self._start(targets, span)
            return await self._next()

    async def _next(self) -> ReplayChunk | None:
        """Wait for the oldest requested chunk."""
        # Drop the reference: a waiting replay must not keep a delivered chunk in memory.
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
        """Discard the chunks that were read or requested in advance."""
        for reading in self._reading:
            if reading.done() and not reading.cancelled():
                reading.exception()  # else asyncio logs that it was never retrieved
            reading.cancel()
        self._reading.clear()
        self._position = None

    def on_stalled(self) -> None:
        """Discard the chunks read in advance and restart with small ones: the client has stopped reading."""
        self.stop()
        self.size.reset()
