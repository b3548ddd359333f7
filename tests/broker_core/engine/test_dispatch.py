"""Publishing that waits, is repeated, is refused, or is not journaled: what is stored and acknowledged."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.client.publish_store import MemoryPublishStore
from broker_core.config import JournaledTopic
from broker_core.config.destinations import DestinationSettings
from broker_core.engine import dispatch as dispatch_module
from broker_core.engine import publisher_numbers
from broker_core.errors import ClientError
from broker_core.journal.commit_log import PENDING_HIGH_BYTES
from tests.support.brokers import address_of, running_broker, tcp_policy, until
from tests.support.failpoints import Failpoint, Failpoints, SyncGate
from tests.support.raw import RawClient

MIB = 1024 * 1024
SMALL = replace(tcp_policy(), instance=replace(tcp_policy().instance, journal_size=32 * 1024))
BY_CONTENT = replace(
    tcp_policy(),
    instance=replace(tcp_policy().instance, journaled_topics=(JournaledTopic("orders", "json", "/n > 0"),)),
)


async def stored_bodies(broker: Broker, topic: str = ">") -> list[bytes]:
    """Return all bodies that a replay from the beginning delivers."""
    async with AsyncClient(address_of(broker), "reader") as client:
        subscription = await client.subscribe(topic, bookmark="0")
        return [body async for batch in subscription.batches(until_completed=True) for body in batch.bodies()]


async def test_publishers_are_not_read_from_while_more_waits_for_the_disk_than_should(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        dispatch = broker.engine.dispatch
        names = ("p", "q", "r", "s")
        publishers = [await RawClient.connect(broker, name) for name in names]
        gate.block()
        await publishers[0].publish("a", [b"first"], 1)
        await until(gate.waiting.is_set)
        sending = [
            asyncio.create_task(one.publish("a", [b"%d" % n + bytes(MIB)], n))
            for n in range(2, 9)
            for one in publishers
        ]
        await until(lambda: dispatch.is_congested)
        members = [broker.engine.roster.clients[name] for name in names]
        await until(
            lambda: (
                not any(member.publishing._reading for member in members if member.publishing.pending_batches)
            )
        )
        pending = dispatch._log._pending_bytes  # type: ignore[attr-defined]
        assert PENDING_HIGH_BYTES < pending < PENDING_HIGH_BYTES + len(names) * 2 * MIB < 28 * MIB, (
            "and no more"
        )
        reader = await RawClient.connect(broker, "reader")
        reader.send_command({"c": "heartbeat"})
        assert (await reader.next_command())["c"] == "heartbeat", "others are answered meanwhile"
        gate.release()
        await asyncio.gather(*sending)
        for one in publishers:
            while (await one.read_until("persisted"))["sequence"] < 8:
                pass
        assert not dispatch.is_congested
        assert all(member.publishing._reading for member in members)
        assert len(await stored_bodies(broker, "a")) == 1 + 7 * len(names)


async def test_a_publisher_paused_by_unjournaled_messages_resumes_when_they_are_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, BY_CONTENT, files=gate) as broker:
        dispatch = broker.engine.dispatch
        publisher = await RawClient.connect(broker, "p")
        gate.block()
        await publisher.publish("orders", [b'{"n": 1}'], 1)
        await until(gate.waiting.is_set)
        monkeypatch.setattr(dispatch_module, "PENDING_HIGH_BYTES", 1_000)
        await publisher.publish("orders", [b'{"n": 0, "x": "%s"}' % (b"x" * 2_000)], 2)
        await until(lambda: dispatch.is_congested)
        assert dispatch._trailing_bytes > 2_000 and not dispatch._log.is_full
        member = broker.engine.roster.clients["p"]
        await publisher.publish("orders", [b'{"n": 0}'], 3)
        await until(lambda: not member.publishing._reading)
        gate.release()
        while (await publisher.read_until("processed"))["sequence"] < 3:
            pass
        await until(lambda: member.publishing._reading)
        assert dispatch._trailing_bytes == 0 and not dispatch.is_congested
        assert member.publishing.pending_batches == 0, "what waited behind counts no more"
        assert await stored_bodies(broker, "orders") == [b'{"n": 1}']


@pytest.mark.parametrize(
    ("known", "sent"), [(2, range(1, 5)), (2, range(2, 5)), (2, range(3, 5)), (4, range(1, 5))]
)
async def test_of_a_batch_that_was_stored_in_part_the_rest_is(
    tmp_path: Path, known: int, sent: range
) -> None:
    async with running_broker(tmp_path) as broker:
        publisher = await RawClient.connect(broker, "p")
        await publisher.publish("a", [b"%d" % n for n in range(1, known + 1)], 1)
        assert (await publisher.read_until("persisted"))["sequence"] == known
        await publisher.publish("a", [b"%d" % n for n in sent], sent.start)
        assert (await publisher.read_until("persisted"))["sequence"] == 4
        assert await stored_bodies(broker, "a") == [b"1", b"2", b"3", b"4"]
        dispatch = broker.engine.dispatch
        assert dispatch.messages_in == known + len(sent), "what came, repeats too"
        assert dispatch.bytes_in == sum(
            len(build_single_topic_batch("p", "a", [b"%d" % n for n in numbers], 1))
            for numbers in (range(known), sent)
        )


async def test_a_batch_in_another_name_or_with_a_number_too_far_stores_nothing_and_says_where(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        publisher = await RawClient.connect(broker, "p")
        member = broker.engine.roster.clients["p"]
        for name, first, position in (("q", 1, None), ("p", publisher_numbers.MAX_JUMP + 1, 72)):
            batch = Batch.parse(build_single_topic_batch(name, "a", [b"x"], first))
            if name != "p":
                batch.header = batch.header._replace(publisher=member_hash("p"))
            with pytest.raises(ClientError) as caught:
                broker.engine.dispatch.publish(member, batch, ())  # type: ignore[arg-type]
            assert caught.value.code == "bad_batch"
            assert caught.value.details.get("position") == position
        await publisher.publish("a", [b"mine"], publisher_numbers.MAX_JUMP)
        assert (await publisher.read_until("persisted"))["sequence"] == publisher_numbers.MAX_JUMP
        assert await stored_bodies(broker, "a") == [b"mine"]


def member_hash(name: str) -> int:
    from broker_core.batch import hash64

    return hash64(name)


async def test_the_brokers_own_words_go_to_who_listens_journaled_or_not(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        listener = await RawClient.connect(broker, "listener")
        listener.send_command({"c": "subscribe", "id": "s", "topic": ">"})
        await listener.read_until("processed")
        broker.engine.dispatch.publish_system_record("scratch.word", [b"not kept"])
        assert await listener.deliveries(1) == [b"not kept"], "at once, without any other traffic"
        broker.engine.dispatch.publish_system_record("word", [b"kept"])
        assert await listener.deliveries(1) == [b"kept"]
        assert await stored_bodies(broker, ">") == [b"kept"]


async def test_what_no_journal_keeps_is_delivered_and_processed_without_the_disk(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        listener, publisher = await RawClient.connect(broker, "l"), await RawClient.connect(broker, "p")
        listener.send_command({"c": "subscribe", "id": "s", "topic": "scratch.>"})
        await listener.read_until("processed")
        gate.block()
        await publisher.publish("scratch.a", [b"1", b"2"], 1)
        assert await listener.deliveries(2) == [b"1", b"2"]
        answer = await publisher.read_until("processed")
        assert (answer["first"], answer["sequence"]) == (1, 2)
        await publisher.publish("scratch.a", [b"1", b"2"], 1)
        assert (await publisher.read_until("processed"))["sequence"] == 2, (
            "a repeat is answered and not delivered"
        )
        await publisher.publish("scratch.a", [b"3"], 3)
        assert await listener.deliveries(1) == [b"3"]
        gate.release()


async def test_a_group_that_fails_in_its_middle_is_stored_once_when_it_comes_again(tmp_path: Path) -> None:
    """The group spans several segments, and the disk is full at the second.

    No part of it may stay, and no record be lost.
    """
    gate = SyncGate()
    full = Failpoints(Failpoint("pwritev", 6, errno.ENOSPC, times=2))
    gate.pwritev = full.pwritev  # type: ignore[method-assign]
    async with running_broker(tmp_path, SMALL, files=gate) as broker:
        store = MemoryPublishStore()
        async with AsyncClient(address_of(broker), "p", publish_store=store) as client:
            await client.publish_many("a", [b"0"])
            await client.flush()
            gate.block()
            await client.publish_many("a", [b"1"])
            await until(gate.waiting.is_set)
            for n in range(2, 8):
                await client.publish_many("a", [b"%d" % n + bytes(12 * 1024)])
                await asyncio.sleep(0)
            log = broker.engine.dispatch._log
            await until(lambda: len(log._stamped) >= 7)  # type: ignore[attr-defined]
            full.calls["pwritev .journal"] = (
                3  # of the group that comes the third write is refused, and the next
            )
            gate.release()
            await client.flush()
            assert full.calls["pwritev .journal"] >= 6, "it was met"
            assert client.connections >= 2, "its publisher was told and came back"
        assert [body.rstrip(b"\0") for body in await stored_bodies(broker, "a")] == [
            b"%d" % n for n in range(8)
        ]
        assert not broker.engine.journal.missing_ranges
    async with running_broker(tmp_path, SMALL) as broker:
        assert broker.engine.journal.recovery.clean
        assert len(await stored_bodies(broker, "a")) == 8


async def test_there_is_live_traffic_when_a_batch_comes_and_when_it_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        publisher = await RawClient.connect(broker, "p")
        said: list[int] = []
        share = broker.engine.share
        monkeypatch.setattr(share, "on_live_traffic", lambda: said.append(broker.engine.frontier.durable))
        gate.block()
        before = broker.engine.frontier.durable
        await publisher.publish("a", [b"1"], 1)
        await until(gate.waiting.is_set)
        assert said == [before]
        assert (broker.engine.frontier.stamped, broker.engine.frontier.durable) == (before + 1, before)
        gate.release()
        await publisher.read_until("persisted")
        assert said == [before, before + 1]


async def test_a_repeat_waits_for_its_own_group_and_not_for_anothers(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        other = await RawClient.connect(broker, "q")
        first = await RawClient.connect(broker, "p", session=7)
        gate.block()
        await other.publish("a", [b"of q"], 1)
        await until(gate.waiting.is_set)
        await first.publish("a", [b"1"], 1)
        again = await RawClient.connect(broker, "p", session=7)
        await again.publish("a", [b"1"], 1)
        await until(lambda: broker.engine.dispatch.numbers.repeats)
        gate.release()
        gate.block()
        assert (await other.read_until("persisted"))["sequence"] == 1
        again.send_command({"c": "heartbeat"})
        assert (await again.next_command())["c"] == "heartbeat", "and nothing before it"
        await until(gate.waiting.is_set)
        gate.release()
        assert (await again.read_until("persisted"))["sequence"] == 1
        assert await stored_bodies(broker, "a") == [b"of q", b"1"]


async def test_after_a_full_disk_nothing_is_left_of_what_was_under_way(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, BY_CONTENT, files=gate) as broker:
        dispatch = broker.engine.dispatch
        first = await RawClient.connect(broker, "p", session=7)
        gate.block()
        await first.publish("orders", [b'{"n": 1}'], 1)
        await until(gate.waiting.is_set)
        # Of the next group the write fails.
        await first.publish("orders", [b'{"n": 2}', b'{"n": 0}'], 2)
        await first.publish("orders", [b'{"n": 0}'], 4)
        again = await RawClient.connect(broker, "p", session=7)
        await again.publish("orders", [b'{"n": 2}'], 2)
        await until(lambda: dispatch.numbers.repeats)
        full = Failpoints(Failpoint("pwritev", 1, errno.ENOSPC))
        gate.pwritev = full.pwritev  # type: ignore[method-assign]
        gate.release()
        assert (await again.read_until("error"))["code"] == "disk_full"
        await until(lambda: "p" not in broker.engine.roster.clients)
        assert (dispatch.numbers.repeats, dispatch.numbers.in_flight, dispatch._trailing_bytes) == ({}, {}, 0)
        assert broker.engine.frontier.stamped == broker.engine.frontier.durable
        third = await RawClient.connect(broker, "p", session=7)
        await third.publish("orders", [b'{"n": 2}', b'{"n": 0}'], 2)
        assert (await third.read_until("persisted"))["sequence"] == 3
        assert await stored_bodies(broker, "orders") == [b'{"n": 1}', b'{"n": 2}']


async def test_more_repeats_than_are_kept_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_numbers, "MAX_REPEATS", 2)
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        publisher = await RawClient.connect(broker, "p")
        gate.block()
        await publisher.publish("a", [b"1"], 1)
        await until(gate.waiting.is_set)
        again = {"c": "publish", "topic": "a", "sequence": 1, "text": "1", "ack": ["persisted"]}
        for number in range(3):
            publisher.send_command({**again, "id": str(number)})
        refused = await publisher.read_until("error")
        assert (refused["code"], refused["id"]) == ("too_many_repeats", "2")
        gate.release()
        said = [await publisher.read_until("persisted") for _ in range(4)]
        assert sorted(one["id"] for one in said if "id" in one) == ["0", "1"]
        assert await stored_bodies(broker, "a") == [b"1"]


async def test_dead_letters_are_kept_when_they_are_on_disk_and_not_when_it_refuses_them(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        publisher, dispatch = await RawClient.connect(broker, "p"), broker.engine.dispatch
        await publisher.publish("a", [b"poison"], 1)
        await publisher.read_until("persisted")
        (batch,) = [one for one in broker.engine.journal.read(1, MIB, 1 << 40) if "a" in one.topics]
        full = Failpoints(Failpoint("pwritev", 1, errno.ENOSPC))
        for number, pwritev, kept in ((2, full.pwritev, False), (3, gate.pwritev, True)):
            gate.block()
            await publisher.publish("a", [b"before"], number)
            await until(gate.waiting.is_set)
            burying = asyncio.create_task(dispatch.publish_dead_letters(batch, "q", {}))
            await until(lambda: len(dispatch._log._stamped) == 2)  # type: ignore[attr-defined]
            assert not burying.done(), "nobody is told of what isn't on disk"
            gate.pwritev = pwritev  # type: ignore[method-assign]
            gate.release()
            assert await burying is kept
        letters = [body for one in broker.engine.journal.read(1, MIB, 1 << 40) for body in one.bodies()]
        assert letters.count(b"poison") == 2, "the record, and one letter"


async def test_behind_what_another_broker_had_first_comes_what_waited_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path, BY_CONTENT) as broker:
        dispatch, taken = broker.engine.dispatch, list[Any]()
        publisher, reader = await RawClient.connect(broker, "p"), await RawClient.connect(broker, "r")
        reader.send_command({"c": "subscribe", "id": "s", "topic": "orders"})
        await reader.read_until("processed")
        with monkeypatch.context() as patched:
            patched.setattr(dispatch._log, "append", lambda *pending: taken.extend(pending))
            await publisher.publish("orders", [b'{"n": 1}'], 1)
            await publisher.publish("orders", [b'{"n": 0}'], 2)
            await until(lambda: dispatch._trailing_bytes > 0)
        (pending,) = taken
        dispatch.on_duplicate(pending)
        assert (await publisher.read_until("processed"))["sequence"] == 2
        assert (await publisher.read_until("persisted"))["sequence"] >= 1
        assert await reader.deliveries(1) == [b'{"n": 0}']
        member = broker.engine.roster.clients["p"]
        assert (member.publishing.pending_batches, dispatch._trailing_bytes, dispatch.numbers.in_flight) == (
            0,
            0,
            {},
        )


async def reconnect_behind_batches(broker: Broker) -> RawClient:
    """Reconnect the client `p`, and publish an unjournaled message behind its former connection's batches.

    The message has number 3. A flush follows it.
    """
    again = await RawClient.connect(broker, "p", session=7)
    passed = {"c": "publish", "topic": "orders", "sequence": 3, "data": {"n": 0}, "ack": ["processed"]}
    again.send_command({**passed, "id": "third"})
    again.send_command({"c": "flush", "id": "all"})
    await until(lambda: broker.engine.dispatch._trailing_bytes > 0)
    return again


async def test_an_unjournaled_message_behind_a_former_connections_batch_is_acknowledged(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, BY_CONTENT, files=gate) as broker:
        reader, former = await RawClient.connect(broker, "r"), await RawClient.connect(broker, "p", session=7)
        reader.send_command({"c": "subscribe", "id": "s", "topic": "orders"})
        await reader.read_until("processed")
        gate.block()
        await former.publish("orders", [b'{"n": 1}', b'{"n": 2}'], 1)
        await until(gate.waiting.is_set)
        again = await reconnect_behind_batches(broker)
        gate.release()
        while (said := await again.read_until("processed")).get("id") != "third":
            pass
        assert said["of"] == "publish"
        assert (await again.read_until("completed"))["id"] == "all"
        assert await reader.deliveries(3) == [b'{"n": 1}', b'{"n": 2}', b'{"n":0}']
        assert broker.engine.roster.clients["p"].publishing.pending_batches == 0


async def test_an_unjournaled_message_behind_a_batch_that_the_disk_refuses_is_refused_too(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, BY_CONTENT, files=gate) as broker:
        former = await RawClient.connect(broker, "p", session=7)
        gate.block()
        await former.publish("orders", [b'{"n": 1}'], 1)
        await until(gate.waiting.is_set)
        await former.publish("orders", [b'{"n": 2}'], 2)  # of this group the write fails
        again = await reconnect_behind_batches(broker)
        full = Failpoints(Failpoint("pwritev", 1, errno.ENOSPC))
        gate.pwritev = full.pwritev  # type: ignore[method-assign]
        gate.release()
        refused = await again.read_until("error")
        assert (refused["code"], refused["first"], refused["sequence"]) == ("disk_full", 3, 3)
        assert (await again.read_until("closing"))["code"] == "disk_full"
        await until(lambda: "p" not in broker.engine.roster.clients)


@pytest.mark.parametrize("refused", [False, True])
async def test_a_repeated_unjournaled_message_is_answered_only_when_it_is_delivered(
    tmp_path: Path, refused: bool
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, BY_CONTENT, files=gate) as broker:
        reader, former = await RawClient.connect(broker, "r"), await RawClient.connect(broker, "p", session=7)
        reader.send_command({"c": "subscribe", "id": "s", "topic": "orders"})
        await reader.read_until("processed")
        other = await RawClient.connect(broker, "q")
        gate.block()
        await other.publish("orders", [b'{"n": 9}'], 1)
        await until(gate.waiting.is_set)
        await former.publish("orders", [b'{"n": 1}'], 1)
        await former.publish("orders", [b'{"n": 0}'], 2)
        await until(lambda: broker.engine.dispatch._trailing_bytes > 0)
        again = await RawClient.connect(broker, "p", session=7)
        await again.publish("orders", [b'{"n": 0}'], 2)
        again.send_command({"c": "flush", "id": "all"})
        await until(lambda: broker.engine.dispatch.numbers.repeats)
        if refused:
            full = Failpoints(Failpoint("pwritev", 1, errno.ENOSPC))
            gate.pwritev = full.pwritev  # type: ignore[method-assign]
        gate.release()
        if refused:
            assert (await again.next_command())["code"] == "disk_full"
            again = await RawClient.connect(broker, "p", session=7)
            await again.publish("orders", [b'{"n": 1}'], 1)
            await again.publish("orders", [b'{"n": 0}'], 2)
        said = await again.read_until("processed")
        assert (said["first"], said["sequence"]) == (2, 2)
        assert await reader.deliveries(3) == [b'{"n": 9}', b'{"n": 1}', b'{"n": 0}']
        if not refused:
            assert (await again.read_until("completed"))["id"] == "all"
            persisted = [one for one in again.received_commands if one.get("ack") == "persisted"]
            assert [one["sequence"] for one in persisted] == [1], "of the batch before it"
        member = broker.engine.roster.clients["p"]
        await until(
            lambda: member.publishing.pending_batches == 0 and not broker.engine.dispatch.numbers.repeats
        )


async def test_a_delivered_message_behind_an_unconfirmed_batch_is_answered_when_a_write_fails(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    away = DestinationSettings("ny", ("tcp://127.0.0.1:1",), durability="sync")
    async with running_broker(tmp_path, replace(BY_CONTENT, destinations=(away,)), files=gate) as broker:
        dispatch, former = broker.engine.dispatch, await RawClient.connect(broker, "p", session=7)
        gate.block()
        await former.publish("orders", [b'{"n": 1}'], 1)
        await until(gate.waiting.is_set)
        again = await reconnect_behind_batches(broker)
        gate.release()
        await until(lambda: dispatch._unconfirmed and dispatch._trailing_bytes == 0)
        full = Failpoints(Failpoint("pwritev", 1, errno.ENOSPC))
        gate.pwritev = full.pwritev  # type: ignore[method-assign]
        other = await RawClient.connect(broker, "q")
        await other.publish("orders", [b'{"n": 2}'], 1)
        assert (await other.read_until("error"))["code"] == "disk_full"
        assert (await again.read_until("processed"))["id"] == "third"
        assert (await again.read_until("completed"))["id"] == "all"
        assert broker.engine.roster.clients["p"].publishing.pending_batches == 0


async def test_an_unjournaled_message_behind_a_superseded_batch_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path, BY_CONTENT) as broker:
        dispatch, taken = broker.engine.dispatch, list[Any]()
        former = await RawClient.connect(broker, "p", session=7)
        with monkeypatch.context() as patched:
            patched.setattr(dispatch._log, "append", lambda *pending: taken.extend(pending))
            await former.publish("orders", [b'{"n": 1}', b'{"n": 2}'], 1)
            await until(lambda: taken)
            again = await reconnect_behind_batches(broker)
        connection = broker.engine.roster.clients["p"]
        (pending,) = taken
        dispatch.superseded(pending)
        assert (await again.read_until("closing"))["code"] == "stale_sequence"
        assert (connection.publishing.pending_batches, dispatch._trailing_bytes) == (0, 0)


async def test_a_delivery_that_fails_ends_its_own_client_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("put in by the test")

    async with running_broker(tmp_path) as broker:
        unlucky, lucky = await RawClient.connect(broker, "unlucky"), await RawClient.connect(broker, "lucky")
        for one in (unlucky, lucky):
            one.send_command({"c": "subscribe", "id": "s", "topic": "a"})
            await one.read_until("processed")
        (subscription,) = broker.engine.roster.clients["unlucky"].subscriptions.values()
        monkeypatch.setattr(
            type(subscription), "receive", _only_of("lucky", type(subscription).receive, fails)
        )
        publisher = await RawClient.connect(broker, "p")
        await publisher.publish("a", [b"1"], 1)
        assert (await publisher.read_until("persisted"))["sequence"] == 1
        assert await lucky.deliveries(1) == [b"1"]
        assert (await unlucky.read_until("closing"))["code"] == "internal_error"


def _only_of(name: str, real: Any, otherwise: Any) -> Any:
    def receive(subscription: Any, *rest: Any) -> None:
        (real if subscription.peer.name == name else otherwise)(subscription, *rest)

    return receive
