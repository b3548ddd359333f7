"""Publisher sessions at one broker: clients that share a name lose no records, also while the disk is
busy.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_core.batch import build_single_topic_batch
from broker_core.client import AsyncClient, ReconnectPolicy
from broker_core.client.publish_store import FilePublishStore, MemoryPublishStore, PublishStore
from broker_core.journal.publishers import SessionNumber
from broker_core.protocols.native import PUBLISH, encode_frame_header
from tests.support.brokers import address_of, running_broker, until
from tests.support.failpoints import SyncGate
from tests.support.raw import RawClient


async def stored_records(address: str) -> list[bytes]:
    async with AsyncClient(address, "reader") as client:
        subscription = await client.subscribe("t", bookmark="0")
        return [body async for batch in subscription.batches(until_completed=True) for body in batch.bodies()]


async def test_a_client_that_takes_a_name_while_anothers_messages_are_under_way_loses_none(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        first = await RawClient.connect(broker, "feed")
        gate.block()
        await first.publish("t", [b"first"] * 3, first=1)
        await until(gate.waiting.is_set)
        second = await RawClient.connect(broker, "feed")
        assert second.logon_reply["sequence"] == 0, "nothing of it is on disk"
        await second.publish("t", [b"second"] * 4, first=1)
        closing = await second.read_until("closing")
        assert (closing["code"], closing["retry_after_ms"]) == ("stale_sequence", 1_000)
        gate.release()
        third = await RawClient.connect(broker, "feed")
        while third.logon_reply["sequence"] != 3:
            third = await RawClient.connect(broker, "feed")
        await third.publish("t", [b"second"] * 4, first=4)
        assert (await third.read_until("persisted"))["sequence"] == 7
        assert await stored_records(address_of(broker)) == [b"first"] * 3 + [b"second"] * 4


async def test_what_another_client_has_on_its_way_to_the_disk_is_not_acknowledged_to_a_new_one(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        first = await RawClient.connect(broker, "feed")
        gate.block()
        await first.publish("t", [b"first"] * 3, first=1)
        await until(gate.waiting.is_set)
        second = await RawClient.connect(broker, "feed", session=9)
        await second.publish("t", [b"second"], first=4)
        gate.release()
        assert (await second.read_until("persisted"))["sequence"] == 4, "its own, and not the 3 of the other"
        assert await stored_records(address_of(broker)) == [b"first"] * 3 + [b"second"]


@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_a_publisher_whose_name_another_client_used_meanwhile_sends_what_it_has_under_new_numbers(
    tmp_path: Path, kind: str
) -> None:
    def opened() -> PublishStore:
        return MemoryPublishStore() if kind == "memory" else FilePublishStore(tmp_path / "unsent")

    async with running_broker(tmp_path / "home") as broker:
        store = opened()
        offline = AsyncClient(
            "tcp://127.0.0.1:1",
            "feed",
            publish_store=store,
            reconnect=ReconnectPolicy(first_connect_timeout=0.1, longest_delay=0.05),
        )
        starting = asyncio.create_task(offline.start())
        await asyncio.sleep(0)
        for number in range(4):
            await offline.publish("t", b"one %d" % number)
        with pytest.raises(Exception):  # noqa: B017  nobody is there
            await starting
        offline._publisher.build_pending_batch()
        async with AsyncClient(address_of(broker), "feed") as other:
            for number in range(4):
                await other.publish("t", b"other %d" % number)
            await other.flush()
        if kind == "file":
            store.close()
            store = opened()
        assert store.oldest_sequence() == 1
        async with AsyncClient(address_of(broker), "feed", publish_store=store) as client:
            flushing = asyncio.create_task(client.flush())
            await client.publish("t", b"one 4")
            await asyncio.wait_for(flushing, 30)
            await client.flush()
            assert (store.oldest_sequence(), store.last_sequence) == (0, 9)
        assert await stored_records(address_of(broker)) == [
            *(b"other %d" % number for number in range(4)),
            *(b"one %d" % number for number in range(5)),
        ]


async def test_a_connection_publishes_as_one_session_and_no_client_sets_the_proven_bit(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        for sessions, position in (((5, 6), 44), ((1 << 31 | 5,), 44)):
            client = await RawClient.connect(broker, "feed")
            begin = client.logon_reply["sequence"] + 1
            for number, session in enumerate(sessions, begin):
                built = build_single_topic_batch("feed", "t", [b"x"], number, session)
                client.write(encode_frame_header(PUBLISH, 0, len(built)) + built)
            error = await client.read_until("error")
            assert (error["code"], error["details"]["position"]) == ("bad_batch", position)
        await until(lambda: broker.engine.journal.publishers.get("feed") == (SessionNumber(5, 1),))


async def test_a_publish_as_json_counts_in_the_session_of_its_logon(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        for _ in range(2):
            client = await RawClient.connect(broker, "feed", session=5)
            client.send_command(
                {"c": "publish", "topic": "t", "text": "1", "sequence": 1, "ack": ["persisted"]}
            )
            await client.read_until("persisted")
        other = await RawClient.connect(broker, "feed", session=6)
        other.send_command({"c": "publish", "topic": "t", "text": "1", "sequence": 1, "ack": ["persisted"]})
        assert (await other.read_until("closing"))["code"] == "stale_sequence"
        assert await stored_records(address_of(broker)) == [b"1"]


async def test_what_is_published_before_the_start_behind_what_a_former_client_left_is_stored_with_it(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path / "home") as broker:
        former = AsyncClient("tcp://127.0.0.1:1", "feed", publish_store=FilePublishStore(tmp_path / "unsent"))
        await former.publish("t", b"left")
        await asyncio.sleep(0)
        former._publisher.store.close()
        client = AsyncClient(address_of(broker), "feed", publish_store=FilePublishStore(tmp_path / "unsent"))
        await client.publish("t", b"behind")
        await asyncio.sleep(0.01)
        async with client:
            await client.flush(30)
        assert await stored_records(address_of(broker)) == [b"left", b"behind"]


async def test_a_logon_names_the_session_under_which_messages_were_numbered_anew(tmp_path: Path) -> None:
    """Otherwise the reply ignores these messages, and they are stored twice."""
    gate = SyncGate()
    async with running_broker(tmp_path / "home", files=gate) as broker:
        other = await RawClient.connect(broker, "feed", session=8)
        await other.publish("t", [b"other"] * 4, first=1)
        await other.read_until("persisted")
        store = MemoryPublishStore()
        store.add(1, 2, build_single_topic_batch("feed", "t", [b"one", b"two"], 1, 7))
        late = ReconnectPolicy(first_delay=0.5, jitter=0)
        async with AsyncClient(address_of(broker), "feed", publish_store=store, reconnect=late) as client:
            await client.flush(30)
            gate.block()
            await client.publish("t", b"three")
            await until(gate.waiting.is_set)
            assert client._connector.link is not None
            client._connector.link.abort()
            gate.release()
            await until(lambda: broker.engine.dispatch.publisher_sequence("feed") == 7)
            again = await RawClient.connect(broker, "feed", session=9)
            await again.publish("t", [b"other"], first=8)
            await again.read_until("persisted")
            await client.flush(30)
        assert await stored_records(address_of(broker)) == [b"other"] * 4 + [
            b"one",
            b"two",
            b"three",
            b"other",
        ]


async def test_the_session_that_published_last_holds_the_name_also_where_one_commit_has_several_turns(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        gate.block()
        other = await RawClient.connect(broker, "other")
        await other.publish("t", [b"x"], first=1)
        await until(gate.waiting.is_set)
        under_way = broker.engine.dispatch.numbers.in_flight
        clients = []
        for batches, (session, first) in enumerate(((5, 1), (6, 4), (5, 8)), 1):
            clients.append(await RawClient.connect(broker, "feed", session=session))
            await clients[-1].publish("t", [b"%d" % session], first=first)
            while "feed" not in under_way or under_way["feed"].batches < batches:
                await asyncio.sleep(0.01)
        gate.release()
        assert (await clients[-1].read_until("persisted"))["sequence"] == 8
        told = (await RawClient.connect(broker, "feed", session=7)).logon_reply
        assert (told["sequence"], told["session"]) == (8, 5)


@pytest.mark.parametrize(("others", "forgotten"), [(3, False), (4, True)])
async def test_a_publisher_whose_session_is_forgotten_is_told_that_messages_may_be_stored_twice(
    tmp_path: Path, others: int, forgotten: bool
) -> None:
    async with running_broker(tmp_path) as broker:
        former = await RawClient.connect(broker, "feed", session=100)
        await former.publish("t", [b"one", b"two"], first=1, session=100)
        await former.read_until("persisted")
        for number in range(others):
            other = await RawClient.connect(broker, "feed", session=number + 1)
            assert "forgotten" not in other.logon_reply or number == 3
            await other.publish("t", [b"other"], first=3 + number)
            await other.read_until("persisted")
        store = MemoryPublishStore()  # as a process left it that was killed before it was answered
        store.add(1, 2, build_single_topic_batch("feed", "t", [b"one", b"two"], 1, 100))
        async with AsyncClient(address_of(broker), "feed", publish_store=store) as client:
            await client.flush(30)
            told = [notice.details for notice in client.notices if notice.code == "session_forgotten"]
        assert told == ([{"messages": 2}] if forgotten else [])
        assert (await stored_records(address_of(broker))).count(b"one") == (2 if forgotten else 1)
        async with AsyncClient(address_of(broker), "feed") as new:
            await new.publish("t", b"new")
            await new.flush(30)
            assert not new.notices, "it has repeated nothing"
