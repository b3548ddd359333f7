"""Scheduling of replays: full speed without live traffic, a fixed share of the loop beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.clock import SystemClock
from broker_core.config import default_policy
from broker_core.delivery import scheduling as module
from broker_core.delivery.scheduling import (
    FIRST_CHUNK_BYTES,
    MAX_ALL_CHUNKS_BYTES,
    MAX_CHUNK_BYTES,
    MAX_CHUNK_BYTES_BESIDE_LIVE,
    PAUSE_PER_SLOT,
    READ_BYTES_PER_CHUNK_BYTE,
    ReplayFairShare,
)
from broker_core.engine.engine import Engine
from broker_core.journal.journal import Journal
from broker_core.protocols import commands


class SleepClock:
    """A clock that advances only when code sleeps."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patched.setattr(module.asyncio, "sleep", self.sleep)

    def seconds(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepClock:
    return SleepClock(monkeypatch)


def grown_to(turns: ReplayFairShare, chunk: int = FIRST_CHUNK_BYTES, taken: int = 1 << 40) -> int:
    for _ in range(10):
        chunk = turns.grow_chunk(chunk, taken)
    return chunk


async def test_without_live_traffic_nobody_waits_and_chunks_grow_to_the_largest(clock: SleepClock) -> None:
    turns = ReplayFairShare(clock)
    for _ in range(100):
        await turns.wait_slot()
        turns.charge(0.001)
    assert clock.now == 100.0
    assert grown_to(turns) == MAX_CHUNK_BYTES


async def test_beside_live_traffic_all_replays_together_take_a_share_of_the_loop(clock: SleepClock) -> None:
    turns, worked = ReplayFairShare(clock), 0.0
    turns.replays = 8

    async def replay() -> None:
        nonlocal worked
        for _ in range(50):
            turns.on_live_traffic()
            await turns.wait_slot()
            clock.now += 0.001
            worked += 0.001
            turns.charge(0.001)

    await asyncio.gather(*(replay() for _ in range(8)))
    assert worked / (clock.now - 100.0) == pytest.approx(1 / (1 + PAUSE_PER_SLOT), rel=0.05)
    assert grown_to(turns) == MAX_CHUNK_BYTES_BESIDE_LIVE


async def test_a_loop_that_runs_late_costs_the_replays_none_of_their_turns(
    clock: SleepClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live delivery blocks the loop for 80 ms at a time: a replay that sleeps for 4 ms wakes after 84."""

    async def late(seconds: float) -> None:
        clock.now += seconds + 0.08

    monkeypatch.setattr(module.asyncio, "sleep", late)
    turns, had = ReplayFairShare(clock), 0

    async def replay() -> None:
        nonlocal had
        while clock.now < 110.0:
            turns.on_live_traffic()
            await turns.wait_slot()
            had += 1
            clock.now += 0.001
            turns.charge(0.001)

    await asyncio.gather(*(replay() for _ in range(8)))
    assert had * 0.001 / (clock.now - 100.0) == pytest.approx(1 / (1 + PAUSE_PER_SLOT), rel=0.1)


async def test_a_tenth_of_a_second_after_the_last_live_message_replays_are_free_again(
    clock: SleepClock,
) -> None:
    turns = ReplayFairShare(clock)
    turns.on_live_traffic()
    assert turns.is_busy
    clock.now += 0.11
    assert not turns.is_busy


def test_many_replays_share_the_memory_of_chunks_and_each_has_a_small_one(clock: SleepClock) -> None:
    turns = ReplayFairShare(clock)
    turns.replays = 64
    assert grown_to(turns) == MAX_ALL_CHUNKS_BYTES // 64
    turns.replays = 2_000
    assert grown_to(turns) == FIRST_CHUNK_BYTES


def test_what_the_kernels_take_for_a_client_that_reads_nothing_makes_no_large_chunks(
    clock: SleepClock,
) -> None:
    turns = ReplayFairShare(clock)
    assert grown_to(turns, taken=300_000) < 3 * FIRST_CHUNK_BYTES
    assert grown_to(turns, taken=READ_BYTES_PER_CHUNK_BYTE * MAX_CHUNK_BYTES) == MAX_CHUNK_BYTES


async def test_replays_give_way_from_the_moment_a_clients_message_comes_and_not_to_the_brokers_own(
    tmp_path: Path,
) -> None:
    journal = Journal.open(tmp_path / "journal", "turns-1")
    engine = Engine(journal, default_policy("turns-1"), tmp_path / "spool", 1 << 30, None, SystemClock())
    client = engine.add_connection(
        "tcp", Mock(writable=True, protocol="tcp", remote="test", peer_names=frozenset())
    )
    client.execute_command(commands.Logon(name="p"))
    engine.dispatch.publish_system_record("$SLUICE.told", [b"{}"])
    async with asyncio.timeout(10):
        while engine.frontier.durable == 0:
            await asyncio.sleep(0.001)
    assert not engine.share.is_busy
    engine.dispatch.publish(client, Batch.parse(build_single_topic_batch("p", "t", [b"x"])), ())
    assert engine.share.is_busy
    await engine.close()
