"""Sequences delivered before their records were durable, after a crash: resuming clients and their
notices.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.journal.segment import HEADER_SIZE
from broker_core.journal.segment_index import UNKNOWN_RECORDS
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.crash_copy import copy_live_directory
from tests.support.failpoints import Failpoint, Failpoints, SyncGate
from tests.support.raw import RawClient


async def live_subscriber(
    broker: Broker, name: str, bookmark: str = "0", upto: str = "completed"
) -> RawClient:
    """Return a subscriber of `t` that does not wait for the disk and has caught up."""
    client = await RawClient.connect(broker, name)
    client.send_command(
        {"c": "subscribe", "id": "s", "topic": "t", "bookmark": bookmark, "durability": "live"}
    )
    await client.read_until(upto)
    return client


async def crashed(home: Path, target: Path) -> None:
    """Leave a broker that has stored a1 and a2 (1, 2), and has shown lost3 and lost4 (3, 4) when it is
    killed.
    """
    gate = SyncGate()
    async with running_broker(home, files=gate) as broker:
        anna, live = await RawClient.connect(broker, "anna"), await live_subscriber(broker, "live")
        await anna.publish("t", [b"a1"], 1)
        assert await live.deliveries(1) == [b"a1"]
        await anna.read_until("persisted")
        await anna.publish("t", [b"a2"], 2)
        assert await live.deliveries(1) == [b"a2"]
        await anna.read_until("persisted")
        await asyncio.to_thread(copy_live_directory, home, target)
        gate.block()
        await anna.publish("t", [b"lost3"], 3)
        await anna.publish("t", [b"lost4"], 4)
        assert await live.deliveries(2) == [b"lost3", b"lost4"]
        gate.release()


async def test_a_number_that_was_shown_names_no_other_record_and_its_interval_is_no_gap(
    tmp_path: Path,
) -> None:
    await crashed(tmp_path / "home", tmp_path / "copy")
    async with running_broker(tmp_path / "copy") as broker:
        recovery = broker.engine.journal.recovery
        skipped = recovery.skipped
        assert skipped is not None and skipped[0] == 3 and recovery.clean
        status = await ask(broker, "status")
        assert status["durable_sequence"] == 2, "the newest that a record has"
        assert status["recovery"]["skipped"] == [*skipped] and status["recovery"]["clean"]
        bob = await RawClient.connect(broker, "bob")
        await bob.publish("t", [b"b1", b"b2"], 1)
        await bob.read_until("persisted")
        for bookmark in ("test-1|4|", "test-1|2|", f"test-1|{skipped[1]}|"):
            name = f"after-{bookmark.split('|')[1]}"
            resuming = await live_subscriber(broker, name, bookmark, upto="processed")
            assert await resuming.deliveries(2) == [b"b1", b"b2"]
            assert not [one for one in resuming.received_commands if one.get("c") == "gap"]
        async with AsyncClient(address_of(broker), "checker") as client:
            everything = await client.subscribe("t", bookmark="0", on_gap="error")
            found = [
                (number, body)
                async for batch in everything.batches(until_completed=True)
                for number, body in zip(batch.sequences().tolist(), batch.bodies(), strict=True)
            ]
        first = skipped[1] + 1
        assert found == [(1, b"a1"), (2, b"a2"), (first, b"b1"), (first + 1, b"b2")]


@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "lost"])
async def test_a_damaged_segment_header_makes_no_loss_of_skipped_numbers(tmp_path: Path, lost: bool) -> None:
    await crashed(tmp_path / "home", tmp_path / "copy")
    async with running_broker(tmp_path / "copy") as broker:
        skipped = broker.engine.journal.recovery.skipped
        assert skipped is not None
        bob = await RawClient.connect(broker, "bob")
        await bob.publish("t", [b"b1"], 1)
        await bob.read_until("persisted")
        path = broker.engine.journal.segments()[-1].path
    with path.open("r+b") as file:
        file.seek(0 if lost else 130)
        file.write(bytes(HEADER_SIZE if lost else 8))
    async with running_broker(tmp_path / "copy") as broker:
        journal = broker.engine.journal
        status = await ask(broker, "status")
        resuming = await live_subscriber(broker, "resuming", "test-1|2|", upto="processed")
        assert await resuming.deliveries(1) == [b"b1"]
        notices = [one for one in resuming.received_commands if one.get("c") == "gap"]
        if lost:
            (notice,) = notices
            assert (notice["from"], notice["to"]) == (f"test-1|{skipped[0]}|", f"test-1|{skipped[1]}|")
            assert notice["why"].startswith("It isn't known whether these sequences ever had records")
            (entry,) = status["recovery"]["quarantined"]
            assert entry["why"] == UNKNOWN_RECORDS
        else:
            assert notices == [] and status["recovery"]["quarantined"] == []
            assert journal.skipped() == [skipped] and journal.missing_ranges == []


async def test_a_subscriber_that_comes_back_before_anything_is_stored_misses_nothing(tmp_path: Path) -> None:
    await crashed(tmp_path / "home", tmp_path / "copy")
    async with running_broker(tmp_path / "copy") as broker:
        resuming = await live_subscriber(broker, "live", "test-1|4|")
        bob = await RawClient.connect(broker, "bob")
        await bob.publish("t", [b"b1"], 1)
        assert await resuming.deliveries(1) == [b"b1"]
        assert not [one for one in resuming.received_commands if one.get("c") in ("gap", "notice")]


async def test_a_durable_subscription_is_not_behind_by_what_was_skipped(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with running_broker(home) as broker:
        kept = await RawClient.connect(broker, "kept")
        kept.send_command({"c": "subscribe", "id": "s", "topic": "t", "durable": "d"})
        await kept.read_until("processed")
        live, anna = await live_subscriber(broker, "live"), await RawClient.connect(broker, "anna")
        kept.close()
        await until(lambda: "kept" not in broker.engine.roster.clients)
        await anna.publish("t", [b"a1"], 1)
        await live.deliveries(1)
        await anna.read_until("persisted")
        await asyncio.sleep(0)
        await asyncio.to_thread(copy_live_directory, home, tmp_path / "copy")
    async with running_broker(tmp_path / "copy") as broker:
        assert broker.engine.journal.recovery.skipped is not None
        bob = await RawClient.connect(broker, "bob")
        await bob.publish("t", [b"b1"], 1)
        await bob.read_until("persisted")
        (entry,) = await ask(broker, "durables")
        assert entry["behind"] == 2
        kept = await RawClient.connect(broker, "kept")
        kept.send_command({"c": "subscribe", "id": "s", "topic": "t", "durable": "d"})
        assert await kept.deliveries(2) == [b"a1", b"b1"]
        assert not [one for one in kept.received_commands if one.get("c") == "gap"]


class FullDisk(Failpoints):
    """A disk without space for segments while `full` is set."""

    full = False

    def pwritev(self, fd: int, buffers: object, offset: int) -> int:
        if self.full and Path(f"/proc/self/fd/{fd}").readlink().name.endswith(".journal"):
            raise OSError(errno.ENOSPC, "no room")
        return super().pwritev(fd, buffers, offset)  # type: ignore[arg-type]


async def test_numbers_of_refused_records_are_not_given_again_while_the_broker_runs(tmp_path: Path) -> None:
    disk = FullDisk()
    async with running_broker(tmp_path, files=disk) as broker:
        anna, live = await RawClient.connect(broker, "anna"), await live_subscriber(broker, "live")
        await anna.publish("t", [b"a1"], 1)
        assert await live.deliveries(1) == [b"a1"]
        await anna.read_until("persisted")
        disk.full = True
        await anna.publish("t", [b"refused"], 2)
        assert await live.deliveries(1) == [b"refused"]
        notice = await live.read_until("notice")
        assert (notice["details"]["from"], notice["details"]["to"]) == ("test-1|2|", "test-1|2|")
        disk.full = False
        bob = await RawClient.connect(broker, "bob")
        await bob.publish("t", [b"b1"], 1)
        assert await live.deliveries(1) == [b"b1"]
        await bob.read_until("persisted")
        assert broker.engine.journal.skipped() == [(2, 2)] and broker.engine.journal.missing_ranges == []
        resuming = await live_subscriber(broker, "resuming", "test-1|2|", upto="processed")
        assert await resuming.deliveries(1) == [b"b1"]


async def publish_first_live(broker: Broker) -> tuple[RawClient, RawClient]:
    """Return a publisher and a live subscriber of `t` after record 1, for which sequences were reserved."""
    anna, live = await RawClient.connect(broker, "anna"), await live_subscriber(broker, "live")
    await anna.publish("t", [b"a1"], 1)
    assert await live.deliveries(1) == [b"a1"]
    await anna.read_until("persisted")
    return anna, live


@pytest.mark.parametrize("durability", ["live", "persisted"])
async def test_a_subscriber_that_comes_back_with_a_record_in_flight_gets_no_record_twice(
    tmp_path: Path, durability: str
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        anna, live = await publish_first_live(broker)
        gate.block()
        await anna.publish("t", [b"a2", b"a3"], 2)
        assert await live.deliveries(2) == [b"a2", b"a3"]
        again = await RawClient.connect(broker, "live")
        asked = {"c": "subscribe", "topic": "t", "durability": durability}
        again.send_command({**asked, "id": "s", "bookmark": "test-1|3|"})
        await again.read_until("completed")
        await anna.publish("t", [b"a4"], 4)
        gate.release()
        await anna.publish("t", [b"a5"], 5)
        assert await again.deliveries(2) == [b"a4", b"a5"]
        assert not [one for one in again.received_commands if one["c"] in ("gap", "notice")]
        await anna.publish("t", [b"a6"], 6)
        assert await again.deliveries(1) == [b"a6"]


async def test_a_range_up_to_a_record_in_flight_ends_with_it(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        anna, live = await publish_first_live(broker)
        gate.block()
        await anna.publish("t", [b"a2", b"a3"], 2)
        await live.deliveries(2)
        asking = await RawClient.connect(broker, "asking")
        asking.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": "[0:test-1|3|]"})
        await asking.read_until("processed")
        gate.release()
        assert await asking.deliveries(3) == [b"a1", b"a2", b"a3"]
        assert (await asking.read_until("completed"))["ended"]
        assert not [one for one in asking.received_commands if one["c"] == "notice"]


async def test_a_subscriber_that_comes_back_with_a_refused_record_is_at_the_next_one(tmp_path: Path) -> None:
    disk = FullDisk()
    async with running_broker(tmp_path, files=disk) as broker:
        anna, live = await RawClient.connect(broker, "anna"), await live_subscriber(broker, "live")
        disk.full = True
        await anna.publish("t", [b"refused"], 1)
        assert await live.deliveries(1) == [b"refused"]
        await live.read_until("notice")
        disk.full = False
        again = await live_subscriber(broker, "live", "test-1|1|")
        asking = await RawClient.connect(broker, "asking")
        asking.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": "[0:test-1|1|]"})
        assert (await asking.read_until("completed"))["ended"], "it waits for no record that never comes"
        bob = await RawClient.connect(broker, "bob")
        await bob.publish("t", [b"b1"], 1)
        assert await again.deliveries(1) == [b"b1"]
        assert not [one for one in again.received_commands if one["c"] in ("gap", "notice")]


async def test_a_subscriber_that_comes_back_is_notified_when_its_record_is_refused(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        anna, live = await publish_first_live(broker)
        gate.block()
        await anna.publish("t", [b"a2"], 2)
        await until(gate.waiting.is_set)
        await anna.publish("t", [b"refused"], 3)
        assert await live.deliveries(2) == [b"a2", b"refused"]
        again = await live_subscriber(broker, "live", "test-1|3|")
        full = Failpoints(Failpoint("pwritev", 1, errno.ENOSPC))
        gate.pwritev = full.pwritev  # type: ignore[method-assign]
        gate.release()
        notice = await again.read_until("notice")
        assert notice["code"] == "not_stored"
        assert (notice["details"]["from"], notice["details"]["to"]) == ("test-1|3|", "test-1|3|")
