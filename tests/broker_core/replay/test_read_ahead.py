"""Chunks read ahead: each starts where the previous one ended, whatever the loop has processed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker_core.clock import SystemClock
from broker_core.delivery.scheduling import (
    FIRST_CHUNK_BYTES,
    MAX_CHUNK_BYTES_BESIDE_LIVE,
    READ_BYTES_PER_CHUNK_BYTE,
    UNCUT_AFTER_BYTES,
    ReplayFairShare,
)
from broker_core.errors import JournalError
from broker_core.journal.journal import Journal, JournalOptions
from broker_core.replay.cursor import DurableFrontier
from broker_core.replay.read_ahead import CHUNKS_AHEAD, ReadAhead, ReadPosition, ReplayTarget
from broker_core.replay.span import ReplaySpan
from broker_core.subscriptions.subscription import TopicSubscription
from broker_core.subscriptions.topics import TopicPattern
from tests.broker_core.journal.support import fill

BATCHES, COUNT = 30, 200
NEWEST = BATCHES * COUNT
"""30 batches of 200 records, 25 KB each: larger than a replay's first chunk."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal.open(tmp_path, "ahead", None, JournalOptions(segment_size=256 * 1024, preallocated=1))
    fill(made, BATCHES, COUNT)
    yield made
    made.close()


def subscription(stream: int) -> TopicSubscription:
    return TopicSubscription(None, str(stream), stream, TopicPattern.parse("t.a"))


def sequences(chunk: Any, stream: int = 1) -> list[int]:
    return [
        sequence
        for piece in chunk.slices
        if piece.subscription.stream == stream
        for sequence in piece.batch.sequences().tolist()
    ]


class ManualReader:
    """A host whose reader thread reads when the test asks, so that the test decides what the loop has
    seen.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.share = ReplayFairShare(SystemClock())
        self.frontier = DurableFrontier(NEWEST)
        self.reader = self
        self.queued: list[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def run(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        self.queued.append((future, work, arguments))
        return future

    def read(self, number: int = 100) -> None:
        for future, work, arguments in self.queued[:number]:
            if not future.cancelled():
                future.set_result(work(*arguments))
        del self.queued[:number]


def read_ahead_bytes(host: ManualReader) -> ReadAhead:
    """Return the read-ahead of a client that already reads large chunks."""
    ahead: ReadAhead = ReadAhead(host, host.frontier)  # type: ignore[arg-type]
    while ahead.size.nbytes < 2 * FIRST_CHUNK_BYTES:
        ahead.size.read_bytes += FIRST_CHUNK_BYTES * READ_BYTES_PER_CHUNK_BYTE
        ahead.size.grow()
    return ahead


def target(stream: int, next_sequence: int = 1) -> Any:
    return SimpleNamespace(
        subscription=subscription(stream), cursor=SimpleNamespace(next_sequence=next_sequence)
    )


async def first_chunk(ahead: ReadAhead, host: ManualReader, targets: list[Any]) -> Any:
    asking = asyncio.ensure_future(ahead.next_chunk(targets, ReplaySpan(1)))
    await asyncio.sleep(0)
    host.read()
    return await asking


async def test_chunks_asked_for_together_follow_one_another(journal: Journal) -> None:
    host = ManualReader(journal)
    ahead, targets = read_ahead_bytes(host), [target(1)]
    got: list[int] = []
    chunk = await first_chunk(ahead, host, targets)
    while chunk is not None:
        ahead.schedule_next(targets, ReplaySpan(1), chunk.following)
        assert len(ahead._reading) == CHUNKS_AHEAD
        got += sequences(chunk)
        targets[0].cursor.next_sequence = chunk.following
        host.read()
        chunk = await ahead.next_chunk(targets, ReplaySpan(1))
    assert got == list(range(1, NEWEST + 1))


async def test_a_slow_or_a_new_clients_chunks_are_not_read_ahead(journal: Journal) -> None:
    host = ManualReader(journal)
    ahead, targets = ReadAhead(host, host.frontier), [target(1)]  # type: ignore[arg-type]
    chunk = await first_chunk(ahead, host, targets)
    ahead.schedule_next(targets, ReplaySpan(1), chunk.following)
    assert host.queued == []


async def test_large_batches_are_cut_until_the_client_has_taken_more_than_kernels_do(
    journal: Journal,
) -> None:
    host = ManualReader(journal)
    host.share.replays = 1_000  # so many that chunks stay small
    ahead, targets = ReadAhead(host, host.frontier), [target(1)]  # type: ignore[arg-type]
    pieces, taken = [], 0
    while taken < 2 * UNCUT_AFTER_BYTES:
        chunk = await first_chunk(ahead, host, targets)
        pieces.append((taken, chunk.slices[0].batch.count))
        taken += FIRST_CHUNK_BYTES
        ahead.size.grow()
        targets[0].cursor.next_sequence = chunk.following if chunk.following <= NEWEST else 1
    assert all((count < COUNT) == (taken < UNCUT_AFTER_BYTES) for taken, count in pieces[:-1])
    ahead.on_stalled()
    targets[0].cursor.next_sequence = 1
    assert (await first_chunk(ahead, host, targets)).slices[0].batch.count < COUNT


async def test_beside_live_traffic_nothing_is_read_ahead(journal: Journal) -> None:
    host = ManualReader(journal)
    ahead, targets = read_ahead_bytes(host), [target(1)]
    chunk = await first_chunk(ahead, host, targets)
    host.share.on_live_traffic()
    ahead.schedule_next(targets, ReplaySpan(1), chunk.following)
    assert host.queued == []


async def test_large_chunks_that_were_read_ahead_are_let_go_when_messages_come(journal: Journal) -> None:
    host = ManualReader(journal)
    ahead, targets = read_ahead_bytes(host), [target(1)]
    ahead.size.nbytes = 2 * MAX_CHUNK_BYTES_BESIDE_LIVE
    chunk = await first_chunk(ahead, host, targets)
    assert sum(piece.batch.nbytes for piece in chunk.slices) > MAX_CHUNK_BYTES_BESIDE_LIVE
    ahead.schedule_next(targets, ReplaySpan(1), chunk.following)
    host.read()
    targets[0].cursor.next_sequence = chunk.following
    host.share.on_live_traffic()
    following = await first_chunk(ahead, host, targets)
    assert sequences(following)[0] == chunk.following
    assert sum(piece.batch.nbytes for piece in following.slices) <= MAX_CHUNK_BYTES_BESIDE_LIVE


async def test_when_one_of_two_leaves_the_other_goes_on_where_it_is(journal: Journal) -> None:
    host = ManualReader(journal)
    leaving, staying = target(1), target(2)
    ahead, targets = read_ahead_bytes(host), [leaving, staying]
    chunk = await first_chunk(ahead, host, targets)
    ahead.schedule_next(targets, ReplaySpan(1), chunk.following)
    asking = asyncio.ensure_future(ahead.next_chunk(targets, ReplaySpan(1)))
    await asyncio.sleep(0)
    targets.remove(leaving)
    ahead.stop()
    host.read()
    second = await asking
    # The position isn't moved before the chunk is handed over; what is asked for now starts behind it all the
    # same.
    ahead.schedule_next(targets, ReplaySpan(1), second.following)
    host.read()
    third = await ahead.next_chunk(targets, ReplaySpan(1))
    assert third is not None
    got = sequences(chunk, 2) + sequences(second, 2) + sequences(third, 2)
    assert got == list(range(1, third.following))
    assert sequences(third, 1) == []
    assert staying.cursor.next_sequence == 1


async def test_a_stalled_client_has_no_read_ahead_and_restarts_at_its_position(
    journal: Journal,
) -> None:
    host = ManualReader(journal)
    ahead, targets = read_ahead_bytes(host), [target(1)]
    chunk = await first_chunk(ahead, host, targets)
    ahead.schedule_next(targets, ReplaySpan(1), chunk.following)
    host.read(1)
    ahead.on_stalled()
    host.read()
    targets[0].cursor.next_sequence = 5
    again = await first_chunk(ahead, host, targets)
    assert sequences(again)[0] == 5


async def test_records_dispatched_later_are_requested_again(journal: Journal) -> None:
    host = ManualReader(journal)
    host.frontier.durable = COUNT
    ahead, targets = read_ahead_bytes(host), [target(1)]
    chunk = await first_chunk(ahead, host, targets)
    ahead.schedule_next(targets, ReplaySpan(1), chunk.following)
    host.read()
    targets[0].cursor.next_sequence = chunk.following
    assert await ahead.next_chunk(targets, ReplaySpan(1)) is None
    host.frontier.durable = NEWEST
    assert sequences(await first_chunk(ahead, host, targets))[0] == COUNT + 1


def test_behind_a_chunk_that_cant_be_read_nothing_is_read() -> None:
    gone = JournalError("bookmark_gone", "gone", "go on")

    class RemovingJournal:
        tried = 0

        def next_sequence_of_topics(self, topics: set[str], sequence: int) -> int:
            return sequence

        def read_with_positions(self, sequence: int, max_bytes: int, upto: int) -> Any:
            self.tried += 1
            raise gone

    removed = RemovingJournal()
    way = ReadPosition(removed, [ReplayTarget(subscription(1), 1)], ReplaySpan(1))  # type: ignore[arg-type]
    with pytest.raises(JournalError):
        way.read_next_chunk(NEWEST, 1_000)
    assert way.read_next_chunk(NEWEST, 1_000) is None
    assert removed.tried == 1


def test_behind_the_spans_end_nothing_is_read(journal: Journal) -> None:
    way = ReadPosition(journal, [ReplayTarget(subscription(1), 1)], ReplaySpan(1, last=COUNT + 10))
    got = []
    while (chunk := way.read_next_chunk(NEWEST, 1_000)) is not None:
        got += sequences(chunk)
    assert got == list(range(1, COUNT + 11))
