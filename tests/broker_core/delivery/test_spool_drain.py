"""Chunks of a drain: their size, and when each is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.delivery import scheduling as module
from broker_core.delivery.scheduling import (
    FIRST_CHUNK_BYTES,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_BYTES_BESIDE_LIVE,
    ReplayFairShare,
)
from broker_core.delivery.spool.entry_format import RUN_BYTES
from broker_core.delivery.spool.spool import Spool
from broker_core.delivery.spooled_backlog import SpoolDrain
from broker_core.journal.segment import BatchPosition


class DrainFixture:
    """A spool of batches that no run joins, and a journal that has them all."""

    def __init__(self, path: Path, patched: pytest.MonkeyPatch) -> None:
        self.now, self.slept = 100.0, 0.0
        patched.setattr(module.asyncio, "sleep", self._sleep)
        clock: Any = SimpleNamespace(seconds=lambda: self.now)
        self.turns = ReplayFairShare(clock)
        self.spool = Spool(path / "i.c.1.spool")
        self.batch = Batch.parse(build_single_topic_batch("p", "t", [b"x" * 4_000]))
        reader = SimpleNamespace(run=self._read, worked_s=0.0)
        facilities: Any = SimpleNamespace(share=self.turns, journal=self, reader=reader)
        self.drain = SpoolDrain(facilities, self.spool, lambda entries: entries)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    async def _read(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    def read_span(self, position: BatchPosition, length: int) -> list[tuple[int, Batch]]:
        return [(position.offset, self.batch)]

    def fill(self, number: int) -> None:
        length = self.batch.nbytes
        for n in range(number):
            self.spool.append_reference(1, BatchPosition(1, 8 + 2 * length * n), length, 1, n + 1, n + 1)

    async def take(self) -> int:
        """Take the next chunk; return its bytes."""
        self.drain.start()
        assert self.drain.chunk is not None
        nbytes = self.drain.chunk.nbytes
        assert sum(entry.nbytes for entry in await self.drain.chunk.reading) == nbytes
        self.drain.chunk = None
        self.drain.size.grow()
        return nbytes


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DrainFixture]:
    made = DrainFixture(tmp_path, monkeypatch)
    yield made
    made.spool.close()


async def test_chunks_start_small_and_grow_while_the_client_takes_everything_at_once(
    scene: DrainFixture,
) -> None:
    scene.fill(5_000)
    scene.drain.set_reading(True)
    assert await scene.take() < FIRST_CHUNK_BYTES + scene.batch.nbytes
    sizes = [await scene.take()]
    while sum(sizes) < 15_000_000:
        sizes.append(await scene.take())
    assert sizes[0] < 2 * FIRST_CHUNK_BYTES and sizes == sorted(sizes)
    taken = sum(sizes)
    assert MAX_CHUNK_BYTES // 2 < sizes[-1] <= taken // 8 and sizes[-1] < MAX_CHUNK_BYTES + scene.batch.nbytes
    assert scene.drain.size.is_read_ahead_useful
    scene.drain.set_reading(False)
    scene.drain.set_reading(True)
    assert await scene.take() < FIRST_CHUNK_BYTES + scene.batch.nbytes, "it had stopped"


async def test_one_chunk_is_in_flight_at_a_time(scene: DrainFixture) -> None:
    scene.fill(100)
    scene.drain.start()
    chunk, waiting = scene.drain.chunk, scene.spool.messages
    scene.drain.start()
    assert scene.drain.chunk is chunk and scene.spool.messages == waiting
    assert chunk is not None and chunk.messages + waiting == 100 and chunk.first == 1


async def test_a_drain_counts_among_the_replays_while_its_client_reads(scene: DrainFixture) -> None:
    for reading in (True, True, False, False, True):
        scene.drain.set_reading(reading)
    assert scene.turns.replays == 1
    scene.drain.stop()
    scene.drain.stop()
    assert scene.turns.replays == 0


async def test_what_is_in_flight_is_dropped_when_the_client_goes(scene: DrainFixture) -> None:
    scene.fill(10)
    scene.drain.start()
    assert scene.drain.chunk is not None
    reading = scene.drain.chunk.reading
    scene.drain.stop()
    await asyncio.gather(reading, return_exceptions=True)
    assert scene.drain.chunk is None and reading.cancelled()


async def test_without_live_traffic_a_drain_never_waits_for_its_turn(scene: DrainFixture) -> None:
    scene.drain.set_reading(True)
    for _ in range(100):
        await scene.drain.wait_slot()
        scene.turns.charge(0.001)
    assert scene.slept == 0


async def test_beside_live_traffic_a_drain_pauses_as_replays_do(scene: DrainFixture) -> None:
    scene.drain.set_reading(True)
    for _ in range(100):
        scene.turns.on_live_traffic()
        await scene.drain.wait_slot()
        scene.turns.charge(0.001)
        scene.now += 0.001
    assert scene.slept > 0.1
    assert not scene.drain.size.is_read_ahead_useful


async def test_a_large_chunk_that_was_read_ahead_is_given_back_when_live_traffic_begins(
    scene: DrainFixture,
) -> None:
    scene.fill(5_000)
    scene.drain.set_reading(True)
    while await scene.take() < MAX_CHUNK_BYTES:
        pass
    before = scene.spool.messages
    scene.drain.start()
    assert scene.drain.chunk is not None
    oldest = scene.drain.chunk.entries[0]
    await scene.drain.chunk.reading
    scene.turns.on_live_traffic()
    await scene.drain.wait_slot()
    assert scene.drain.chunk is None and scene.spool.messages == before, "everything waits again"
    assert await scene.take() < MAX_CHUNK_BYTES_BESIDE_LIVE + scene.batch.nbytes
    assert scene.spool.oldest_at > oldest.accepted_at, "and the oldest was the first"


async def test_entries_that_arrive_during_a_drain_need_no_pause_so_that_it_ends(
    scene: DrainFixture,
) -> None:
    """At any rate of new messages the drain delivers as much, and its share of the loop on top."""
    scene.drain.arrived_bytes += 1 << 40  # of the time before, when it didn't read
    scene.drain.set_reading(True)
    turns = rests = 0
    for _ in range(100):
        scene.turns.on_live_traffic()
        scene.drain.arrived_bytes += 2 * RUN_BYTES  # twice what a turn delivers comes in the time of one
        for _ in range(3):
            before = scene.slept
            await scene.drain.wait_slot()
            scene.turns.charge(0.001)
            turns, rests = turns + 1, rests + (scene.slept > before)
    assert 80 <= rests <= 100 and turns - rests >= 200
