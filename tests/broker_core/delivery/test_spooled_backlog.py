"""A client's spool step by step: reads from the log, pins on it, and what returns to the spool.

The property tests over all paths, and the client, socket and log used here, are in test_backlog_law.py.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_core.delivery import backlog as backlog_module
from broker_core.delivery import scheduling as fair_share_module
from broker_core.delivery import spooled_backlog as spooled_backlog_module
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.loss_ledger import DiscardTally
from broker_core.delivery.scheduling import FIRST_CHUNK_BYTES, ReplayFairShare
from broker_core.delivery.spool import spool as spool_module
from broker_core.delivery.spool.entry_format import SpoolEntry
from broker_core.delivery.spool.spool import Spool
from broker_core.delivery.spooled_backlog import SpooledBacklog
from broker_core.errors import JournalError
from broker_core.journal.segment import BatchPosition
from tests.broker_core.delivery.test_backlog_law import PLAIN, SCRATCH, WINDOWED, BacklogModel


class SlowDisk(BacklogModel):
    """A log whose reads wait while `shut` is set; it counts the events of its owner."""

    def __init__(self, directory: Path) -> None:
        self.shut = asyncio.Event()
        self.heard = 0
        self.refused: list[JournalError] = []
        super().__init__(directory)
        self.shut.set()

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await self.shut.wait()
        return await super().run(work, *arguments)

    def mark_changed(self) -> None:
        self.heard += 1

    def on_spool_failed(self, error: Exception) -> None:
        assert isinstance(error, JournalError)
        self.refused.append(error)

    @property
    def offlined(self) -> SpooledBacklog:
        assert self.backlog.offline is not None
        return self.backlog.offline

    def publish_many(self, stream: int, batches: int, count: int = 60) -> None:
        for _ in range(batches):
            self.now += 1
            self.publish(stream, count)

    async def run_iterations(self, number: int = 30) -> None:
        for _ in range(number):
            await asyncio.sleep(0)
            self.check()


@asynccontextmanager
async def client(path: Path) -> AsyncIterator[SlowDisk]:
    made = SlowDisk(path)
    yield made
    made.backlog.close()
    made.check()
    assert list(path.iterdir()) == [], "nothing of its spool stays behind"
    assert made._pin.sequence == 1 << 62, "and the log isn't kept for it"


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the socket accept one entry at a time."""
    monkeypatch.setattr(backlog_module, "PULL_BYTES", 1)


@pytest.fixture
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    return lambda seconds: monkeypatch.setattr(spooled_backlog_module, "STALLED_AFTER_S", seconds)


async def test_what_is_on_its_way_back_still_waits(tmp_path: Path) -> None:
    async with client(tmp_path) as scene:
        scene.publish(PLAIN, 3)
        began = scene.now
        scene.publish(SCRATCH, 2)
        scene.offline()
        offline = scene.offlined
        assert (offline.chunk_messages, offline.chunk_oldest_at, offline.chunk_first) == (0, 0, 0)
        scene.shut.clear()
        scene.now += 50
        scene.socket.room = 1 << 20
        scene.backlog.on_writable()
        await scene.run_iterations()
        assert (offline.chunk_messages, offline.chunk_oldest_at, offline.chunk_first) == (5, began, 1)
        assert offline.spool.empty and offline.memory_bytes > 0 and scene.backlog.oldest_at == began
        assert [offline.has_pending(stream) for stream in (WINDOWED, PLAIN, SCRATCH)] == [False, True, True]
        assert {stream: tally.messages for stream, tally in offline.tallies().items()} == {
            PLAIN: 3,
            SCRATCH: 2,
        }
        assert (offline.get_first_sequence(PLAIN), offline.get_first_sequence(WINDOWED)) == (1, 0)
        assert scene.backlog.state is ClientState.DRAINING
        scene.shut.set()
        await scene.run_iterations()
        assert scene.socket.got == {WINDOWED: [], PLAIN: [1, 2, 3], SCRATCH: [4, 5]}
        assert scene.backlog.state is ClientState.LIVE and scene.backlog.offline is None


async def test_what_only_copies_need_keeps_nothing_in_the_log(tmp_path: Path) -> None:
    async with client(tmp_path) as scene:
        scene.publish(SCRATCH, 2)
        scene.offline()
        assert scene._pin.sequence == 1 << 62
        scene.shut.clear()
        scene.socket.room = 1 << 20
        scene.backlog.on_writable()
        await scene.run_iterations()
        assert (scene.offlined.chunk_messages, scene.offlined.chunk_first) == (2, 0)
        scene.publish(PLAIN, 1)
        assert scene._pin.sequence == 3, "and what comes then from there on"
        scene.shut.set()
        await scene.run_iterations()


async def test_a_stream_holds_something_as_long_as_something_of_it_waits(tmp_path: Path) -> None:
    async with client(tmp_path) as scene:
        scene.publish(PLAIN, 1)
        scene.offline()
        scene.publish(WINDOWED, 1)
        assert scene.offlined.has_pending(PLAIN) and scene.offlined.has_pending(WINDOWED)
        assert not scene.offlined.has_pending(SCRATCH)
        scene.unsubscribe(PLAIN)
        scene.socket.room = 1 << 20
        scene.shut.clear()
        scene.backlog.on_writable()
        await scene.run_iterations()
        offline = scene.offlined
        assert offline.spool.tallies[PLAIN].messages == 0, "pulled and left out"
        assert not offline.has_pending(PLAIN) and offline.has_pending(WINDOWED)
        scene.shut.set()
        await scene.run_iterations()
        assert scene.socket.got[WINDOWED] == [2]


async def test_the_log_is_let_go_of_as_it_is_sent_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "BLOCK_ENTRIES", 8)
    async with client(tmp_path) as scene:
        for _ in range(60):  # what stands between them keeps the references apart
            scene.publish(PLAIN, 40)
            scene.publish(SCRATCH, 1)
        scene.offline()
        assert scene._pin.sequence == 1
        pinned = [1]
        scene.socket.room = 1
        scene.backlog.on_writable()
        await scene.run_iterations()
        assert scene.backlog.outbox.messages, "the socket takes a part of what was brought back"
        assert scene._pin.sequence == 1, "what isn't sent may have to be read again"
        for _ in range(200):
            if scene.backlog.offline is None:
                break
            scene.socket.room = 3_000
            scene.backlog.on_writable()
            await scene.run_iterations(5)
            if scene.backlog.offline is not None:
                pinned.append(scene._pin.sequence)
        assert len(scene.socket.got[PLAIN]) == 2_400
        assert len(set(pinned)) > 3 and pinned == sorted(pinned), "it moved on while it was read"


async def test_chunks_grow_for_who_takes_them_and_not_for_who_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_share_module, "READ_BYTES_PER_CHUNK_BYTE", 1)
    async with client(tmp_path) as scene:
        for _ in range(120):
            scene.publish(PLAIN, 60)
            scene.publish(SCRATCH, 1)
        scene.offline()
        drain, sizes = scene.offlined._drain, [FIRST_CHUNK_BYTES]
        for room in (1, 1 << 20):
            for _ in range(60):
                scene.socket.room = room
                scene.backlog.on_writable()
                await scene.run_iterations(2)
                if scene.backlog.offline is not None:
                    sizes.append(drain.size.nbytes)
            if room == 1:
                assert scene.backlog.outbox.messages and set(sizes) == {FIRST_CHUNK_BYTES}
        assert max(sizes) > FIRST_CHUNK_BYTES


async def test_what_comes_meanwhile_counts_towards_the_turns_of_the_drain(tmp_path: Path) -> None:
    async with client(tmp_path) as scene:
        scene.publish(PLAIN, 10)
        scene.offline()
        before = scene.offlined._drain.arrived_bytes
        assert before == scene.log[4_096].nbytes
        scene.publish(PLAIN, 10)
        assert scene.offlined._drain.arrived_bytes > before


async def test_what_a_stalled_client_was_not_sent_goes_to_the_spool_again_before_the_rest(
    tmp_path: Path, long_timeouts: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back: list[int] = []
    real = Spool.requeue
    monkeypatch.setattr(
        Spool,
        "requeue",
        lambda spool, entries, first: (
            put_back.append(sum(e.count for e in entries)),
            real(spool, entries, first),
        ),
    )
    async with client(tmp_path) as scene:
        scene.publish_many(PLAIN, 30)
        scene.publish_many(SCRATCH, 30)
        scene.offline()
        everything = scene.backlog.account.outstanding.messages
        for room in (1, 700, 1, 2_000):
            long_timeouts(60.0)
            scene.socket.room = room
            scene.backlog.on_writable()
            await scene.run_iterations()
            unsent = scene.backlog.outbox.messages
            assert unsent > 0 and scene.backlog.state is ClientState.DRAINING
            journaled = [e.batch.first_sequence for e in scene.backlog.outbox if e.source is not None]
            heard = scene.heard
            scene.offlined.on_stalled()
            if journaled:
                assert 0 < scene.offlined.spool.first_sequence <= journaled[0], "the log is needed from there"
            assert put_back[-1] >= unsent, "all of it, and what was on its way"
            assert (scene.backlog.outbox.messages, scene.backlog.state) == (0, ClientState.OFFLINED)
            assert scene.heard > heard, "its owner is told: others may be judged by it"
            scene.check()
            assert (
                everything
                == scene.backlog.account.outstanding.messages + scene.backlog.account.acknowledged.messages
            )
            await scene.run_iterations()
        assert len(put_back) == 4
        for _ in range(60):
            scene.socket.room = 1 << 14
            scene.backlog.on_writable()
            await scene.run_iterations(5)
        assert scene.socket.got[PLAIN] == list(range(1, 1_801))
        assert scene.socket.got[SCRATCH] == list(range(1_801, 3_601))


async def test_a_chunk_that_is_still_being_read_goes_back_too(tmp_path: Path) -> None:
    async with client(tmp_path) as scene:
        scene.publish_many(PLAIN, 5, 3)
        scene.offline()
        scene.shut.clear()
        scene.socket.room = 1 << 20
        scene.backlog.on_writable()
        await scene.run_iterations()
        assert scene.offlined.chunk_messages == 15
        first = scene._pin.sequence
        scene.socket.room = 0
        scene.offlined.on_stalled()
        assert (scene.offlined.chunk_messages, scene.offlined.spool.messages) == (0, 15)
        assert scene.offlined.spool.first_sequence == first == 1
        scene.check()


async def test_a_disk_that_takes_no_more_leaves_everything_waiting_in_memory_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise JournalError("disk_full", "There is no room.", errno=errno.ENOSPC)

    async with client(tmp_path) as scene:
        scene.publish(PLAIN, 1)
        scene.publish(SCRATCH, 2)
        scene.publish(SCRATCH, 3)
        scene.publish(PLAIN, 4)
        monkeypatch.setattr(Spool, "append_copy", refuse)
        scene.offline()
        assert [error.code for error in scene.refused] == ["disk_full"], "told once"
        assert [(e.stream, e.count) for e in scene.backlog.outbox] == [(SCRATCH, 2), (SCRATCH, 3), (PLAIN, 4)]
        assert scene.offlined.spool.messages == 1
        scene.check()
        scene.publish(SCRATCH, 5)
        assert len(scene.refused) == 2 and scene.backlog.outbox.messages == 14
        scene.check()


async def test_closing_ends_the_drain_in_the_middle_of_a_read(tmp_path: Path) -> None:
    async with client(tmp_path) as scene:
        scene.publish_many(SCRATCH, 400)
        scene.offline()
        assert list(tmp_path.iterdir()), "it is large enough to be in a file"
        scene.shut.clear()
        scene.socket.room = 1 << 20
        scene.backlog.on_writable()
        await scene.run_iterations()
        task, offline = scene.offlined._task, scene.offlined
        scene.backlog.close()
        scene.shut.set()
        await scene.run_iterations()
        assert task is not None and task.cancelled() and offline._task is None
        assert not any(scene.socket.got.values()), "nobody is sent anything after its end"
        assert scene.facilities.share.replays == 0


async def test_a_client_waiting_for_unreadable_records_gets_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = JournalError("journal_damaged", "It can't be read.")

    def damaged(*_: Any) -> None:
        raise gone

    async with client(tmp_path) as scene:
        scene.publish(PLAIN, 3)
        scene.offline()
        told: list[Exception] = []
        monkeypatch.setattr(scene, "fail", told.append)
        monkeypatch.setattr(scene, "read_span", damaged)
        scene.socket.room = 1 << 20
        scene.backlog.on_writable()
        for _ in range(30):
            await asyncio.sleep(0)
        assert told == [gone] and not scene.socket.got[PLAIN]


async def test_a_turn_costs_the_share_of_replays_what_loop_and_reader_worked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: list[float] = []
    monkeypatch.setattr(ReplayFairShare, "charge", lambda share, worked_s: took.append(worked_s))
    async with client(tmp_path) as scene:
        scene.publish_many(PLAIN, 5)
        scene.offline()
        scene.worked_s = 0.25  # each read's
        scene.socket.room = 1 << 20
        scene.backlog.on_writable()
        await scene.run_iterations()
        assert scene.backlog.state is ClientState.LIVE
        assert took == [0.25] * len(took) and took


async def test_a_fast_client_has_its_next_chunk_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_share_module, "READ_BYTES_PER_CHUNK_BYTE", 1)
    async with client(tmp_path) as scene:
        scene.publish_many(PLAIN, 400)
        scene.offline()
        drain = scene.offlined._drain
        while drain.size.nbytes <= FIRST_CHUNK_BYTES:
            scene.socket.room = 1 << 20
            scene.backlog.on_writable()
            await scene.run_iterations(1)
        scene.socket.room = 0
        await scene.run_iterations(10)
        assert not scene.offlined.spool.empty and not scene.offlined.is_draining
        assert drain.chunk is not None


async def test_references_from_an_unknown_record_on_report_no_first_record() -> None:
    entry = SpoolEntry(PLAIN, "", BatchPosition(1, 4_096), 100, None, None, 3, 100, 1)
    tallies: dict[int, DiscardTally] = {}
    spooled_backlog_module._add_entries(tallies, [entry], {})
    assert (tallies[PLAIN].messages, tallies[PLAIN].first) == (3, 0)
    spooled_backlog_module._add_entries(tallies, [entry], {PLAIN: 7})
    assert (tallies[PLAIN].messages, tallies[PLAIN].first) == (6, 7)


async def test_what_held_a_client_up_when_it_stalled_holds_nothing_up_once_it_takes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooled_backlog_module, "PULL_BYTES", 1)  # whatever waits in a lane is enough
    monkeypatch.setattr(fair_share_module, "FIRST_CHUNK_BYTES", 1)  # an entry a chunk
    async with client(tmp_path) as scene:
        scene.offline()
        for stream, count in ((WINDOWED, 4), (WINDOWED, 4), (PLAIN, 1), (WINDOWED, 4)):
            scene.publish(stream, count)
        scene.socket.room = 1 << 20
        scene.backlog.on_writable()
        await scene.run_iterations()
        assert scene.socket.got[WINDOWED] == [1, 2, 3, 4] and scene.backlog.queues.messages == 4
        scene.offlined.on_stalled()
        await scene.run_iterations()
        assert scene.offlined._is_drain_blocked and not scene.offlined.is_draining, "its window is full"
        scene.acknowledge(4)
        await scene.run_iterations()
        # Its window is full again, and what is behind that and needs none is sent.
        assert scene.socket.got[WINDOWED] == [1, 2, 3, 4, 5, 6, 7, 8] and scene.socket.got[PLAIN] == [9]


async def test_a_client_that_does_not_read_idles_while_live_and_not_when_offlined(tmp_path: Path) -> None:
    async with client(tmp_path) as scene:
        scene.publish(PLAIN, 3)
        assert scene.backlog.unwritable_since and not scene.backlog.is_coalescing(), "only for a moment"
        scene.now += backlog_module.NOT_READING_AFTER_NS
        assert scene.backlog.is_coalescing()
        scene.offline()
        assert not scene.backlog.is_coalescing()
