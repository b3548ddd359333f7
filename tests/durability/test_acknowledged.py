"""No record is reported as persisted before it is on disk: with a blocked sync, a failed sync, and a
reconnect.

From the client, over its socket, to the broker's files.
"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from broker_core.broker import EXIT_LOG_FAILED
from broker_core.client import AsyncClient
from broker_core.client.publish_store import MemoryPublishStore
from broker_core.control import exit_report
from broker_core.errors import OperatorError
from tests.broker_core.test_broker import numbered_bodies, take
from tests.support.broker_process import start_broker
from tests.support.brokers import address_of, running_broker, until
from tests.support.failpoints import Failpoint, SyncGate
from tests.support.raw import RawClient


async def blocked_sync(gate: SyncGate) -> None:
    await until(gate.waiting.is_set)


async def test_a_client_that_comes_back_during_a_sync_is_told_nothing_before_it_returns(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        first = await RawClient.connect(broker, "p", session=7)
        gate.block()
        await first.publish("a", [b"1", b"2"], first=1)
        await blocked_sync(gate)
        second = await RawClient.open(broker)
        second.name = "p"
        second.send_command({"c": "logon", "name": "p", "session": 7})
        assert (await second.read_until("processed")).get("sequence", 0) == 0, "nothing of it is on disk"
        await second.publish("a", [b"1", b"2"], first=1)
        second.send_command({"c": "flush", "id": "f"})
        second.send_command({"c": "heartbeat"})
        heard = []
        while (frame := await second.next_command())["c"] != "heartbeat":
            heard.append(frame)
        assert heard == [], "neither the repeat nor the flush is answered"
        third = await RawClient.connect(broker, "other")
        await third.publish("a", [b"3"], first=1)
        gate.release()
        assert (await second.read_until("persisted"))["sequence"] == 2
        await second.read_until("completed")
        await third.read_until("persisted")
        assert broker.engine.journal.next_sequence == 4, "the repeat was stored once"
        again = await RawClient.open(broker)
        again.send_command({"c": "logon", "name": "p"})
        assert (await again.read_until("processed"))["sequence"] == 2


async def test_the_clients_store_keeps_what_a_failed_sync_left_and_the_next_broker_gets_it(
    tmp_path: Path,
) -> None:
    gate, store = SyncGate(), MemoryPublishStore()
    async with running_broker(tmp_path, files=gate, broken=("journal_failed",)) as broker:
        client = await AsyncClient(address_of(broker), "p", publish_store=store).start()
        await client.publish_many("a", numbered_bodies(0, 5))
        await client.flush()
        gate.block()
        await client.publish_many("a", numbered_bodies(5, 10))
        await blocked_sync(gate)
        gate.release(OSError(errno.EIO, "Input/output error"))
        words = None
        while words is None:
            await asyncio.sleep(0.01)
            words = exit_report.read_exit_report(broker.paths.control)
        assert words.code == "journal_failed"
        raw = await RawClient.open(broker)
        raw.send_command({"c": "logon", "name": "q"})
        await raw.read_until("processed")
        assert [kept.first for kept in store.pending()] == [6], "what isn't on disk isn't forgotten"
        with pytest.raises(OperatorError, match="unsent_messages"):
            await client.close(0)
    async with running_broker(tmp_path) as broker:
        assert "written again" in broker.engine.journal.recovery.reason
        async with AsyncClient(address_of(broker), "p", publish_store=store) as client:
            subscription = await client.subscribe("a", bookmark="0")
            await client.publish_many("a", numbered_bodies(10, 12))
            await client.flush()
            assert await take(subscription, 12) == numbered_bodies(0, 12)
            assert store.oldest_sequence() == 0


async def test_waiting_repeats_are_answered_when_the_group_fails(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate, broken=("journal_failed",)) as broker:
        first = await RawClient.connect(broker, "p", session=7)
        gate.block()
        await first.publish("a", [b"1"], first=1)
        await blocked_sync(gate)
        second = await RawClient.connect(broker, "p", session=7)
        await second.publish("a", [b"1"], first=1)
        await until(lambda: broker.engine.dispatch.numbers.repeats)
        gate.release(OSError(errno.EIO, "Input/output error"))
        assert (await second.read_until("error"))["code"] == "journal_failed"


async def test_numbers_that_no_journal_keeps_are_not_ahead_of_those_on_their_way_to_the_disk(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        first = await RawClient.connect(broker, "p")
        gate.block()
        await first.publish("a", [b"1"], first=1)
        await blocked_sync(gate)
        await first.publish("scratch.a", [b"2"], first=2)
        first.send_command({"c": "heartbeat"})
        assert (await first.next_command())["c"] == "heartbeat", "it waits behind its publisher's first one"
        assert broker.engine.dispatch.publisher_sequence("p") == 0
        gate.release()
        answers = [await first.next_command() for _ in range(2)]
        assert {one["ack"]: one["sequence"] for one in answers} == {"processed": 2, "persisted": 1}
        assert broker.engine.dispatch.publisher_sequence("p") == 2


FAILURES = [
    Failpoint("fdatasync", 3, errno.EIO),
    Failpoint("fdatasync", 3, errno.EIO, delay_s=0.3),
    Failpoint("fdatasync", 4, errno.ENOSPC),
    Failpoint("pwritev", 5, errno.EIO),
    # All from the second on: some that only spares and sidecars need are forgiven.
    Failpoint("sync_directory", 2, errno.EIO, name="journal", times=1_000),
]


@pytest.mark.parametrize("failpoint", FAILURES, ids=lambda point: f"{point.call} {point.at} {point.errno}")
async def test_a_broker_whose_disk_fails_ends_says_why_and_loses_nothing(
    tmp_path: Path, failpoint: Failpoint
) -> None:
    store, sent = MemoryPublishStore(), 0
    process, port = await asyncio.to_thread(start_broker, tmp_path, failpoint)
    client = await AsyncClient(f"tcp://127.0.0.1:{port}", "p", publish_store=store).start()
    acknowledged = 0
    while process.is_alive():
        await client.publish_many("a", numbered_bodies(sent, sent + 10))
        sent += 10
        await asyncio.sleep(0.01)
        oldest = store.oldest_sequence()
        acknowledged = max(acknowledged, oldest - 1 if oldest else sent)
    process.join()
    with pytest.raises(OperatorError, match="unsent_messages"):
        await client.close(0)
    assert process.exitcode == EXIT_LOG_FAILED
    words = exit_report.read_exit_report(tmp_path / "run" / "test-1.sock")
    assert words is not None and words.code == "journal_failed"
    process, port = await asyncio.to_thread(start_broker, tmp_path)
    try:
        async with AsyncClient(f"tcp://127.0.0.1:{port}", "p", publish_store=store) as client:
            subscription = await client.subscribe("a", bookmark="0")
            await client.flush()
            assert await take(subscription, sent) == numbered_bodies(0, sent)
    finally:
        process.terminate()
        process.join()
    assert exit_report.read_exit_report(tmp_path / "run" / "test-1.sock") is None, "it runs again"
    assert acknowledged > 0


async def test_a_log_that_nobody_reads_keeps_nobody_waiting_and_no_broken_broker_alive(
    tmp_path: Path,
) -> None:
    process, port = await asyncio.to_thread(
        start_broker, tmp_path, Failpoint("fdatasync", 40, errno.EIO), log_unread=True
    )
    client = await AsyncClient(f"tcp://127.0.0.1:{port}", "p").start()
    subscription = await client.subscribe("a")
    await client.publish_many("a", numbered_bodies(0, 10))
    await client.flush()
    assert await take(subscription, 10) == numbered_bodies(0, 10)
    flooding = asyncio.create_task(_publish_for_ever(client))
    await asyncio.to_thread(process.join, 30)
    flooding.cancel()
    assert process.exitcode == EXIT_LOG_FAILED, "what it logs at its end keeps it from nothing"
    with pytest.raises(OperatorError, match="unsent_messages"):
        await client.close(0)
    words = exit_report.read_exit_report(tmp_path / "run" / "test-1.sock")
    assert words is not None and words.code == "journal_failed"


async def _publish_for_ever(client: AsyncClient) -> None:
    while True:
        await client.publish_many("a", numbered_bodies(10, 20))
        await client.flush()


async def test_a_full_disk_is_no_end(tmp_path: Path) -> None:
    process, port = await asyncio.to_thread(
        start_broker, tmp_path, Failpoint("pwritev", 3, errno.ENOSPC, times=2)
    )
    try:
        async with AsyncClient(f"tcp://127.0.0.1:{port}", "p") as client:
            subscription = await client.subscribe("a", bookmark="0")
            for start in range(0, 50, 10):
                await client.publish_many("a", numbered_bodies(start, start + 10))
                await asyncio.sleep(0.02)
            await client.flush()
            assert await take(subscription, 50) == numbered_bodies(0, 50)
        assert process.is_alive()
    finally:
        process.terminate()
        process.join()


@pytest.mark.parametrize("what", ["lock", "journal", "cut journal"])
async def test_files_taken_away_end_the_broker_and_nothing_more_is_acknowledged(
    tmp_path: Path, what: str
) -> None:
    process, port = await asyncio.to_thread(start_broker, tmp_path)
    client = await AsyncClient(f"tcp://127.0.0.1:{port}", "p").start()
    await client.publish_many("a", numbered_bodies(0, 10))
    await client.flush()
    for path in (tmp_path / "journal").glob(f"*.{what.removeprefix('cut ')}"):
        os.truncate(path, 0) if what == "cut journal" else path.unlink()
    flushed = asyncio.create_task(_published(client))
    await asyncio.to_thread(process.join, 30)
    assert process.exitcode == EXIT_LOG_FAILED
    assert not flushed.done(), "into nothing"
    flushed.cancel()
    with pytest.raises(OperatorError, match="unsent_messages"):
        await client.close(0)
    words = exit_report.read_exit_report(tmp_path / "run" / "test-1.sock")
    assert words is not None and words.code == "journal_taken"


async def _published(client: AsyncClient) -> None:
    await client.publish_many("a", numbered_bodies(10, 20))
    await client.flush()
