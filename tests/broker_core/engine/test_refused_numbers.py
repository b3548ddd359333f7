"""A refused publisher sequence is covered by no acknowledgement, on this connection or a later one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_core.access import Rights
from broker_core.batch import build_batch
from broker_core.broker import Broker
from broker_core.client import AsyncClient, FilePublishStore, MemoryPublishStore, Rejection, SyncClient
from broker_core.config import JournaledTopic
from broker_core.errors import ClientError
from broker_core.protocols.native import PUBLISH, encode_frame_header
from tests.support.brokers import address_of, running_broker, tcp_policy, until
from tests.support.failpoints import SyncGate
from tests.support.raw import RawClient
from tests.support.stomp_client import stomp_client, stomp_policy

KEPT, REFUSED, UNKEPT = "kept.a", "queue.z", "scratch.a"
POLICY = stomp_policy(
    replace(
        tcp_policy(), instance=replace(tcp_policy().instance, journaled_topics=(JournaledTopic("kept.>"),))
    )
)
"""A message to `queue.z` is refused: no journal keeps it."""


async def stored_bodies(broker: Broker) -> list[bytes]:
    """Return all bodies that a replay delivers."""
    async with AsyncClient(address_of(broker), "checker") as client:
        subscription = await client.subscribe(">", bookmark="0")
        return [body async for batch in subscription.batches(until_completed=True) for body in batch.bodies()]


async def refusal(client: RawClient) -> tuple[str, int, int]:
    error = await client.read_until("error")
    return error["code"], error["first"], error["sequence"]


@pytest.mark.parametrize("behind", [KEPT, UNKEPT])
async def test_a_number_behind_a_refused_one_is_not_taken_and_covers_nothing(
    tmp_path: Path, behind: str
) -> None:
    async with running_broker(tmp_path, POLICY) as broker:
        first = await RawClient.connect(broker, "feed", session=5)
        await first.publish(REFUSED, [b"1", b"2"], 1)
        await first.publish(behind, [b"3"], 3)
        assert await refusal(first) == ("not_journaled", 1, 2)
        assert await refusal(first) == ("refused_before", 3, 3)
        again = await RawClient.connect(broker, "feed", session=5)
        assert again.logon_reply["sequence"] == 0 and "stored" not in again.logon_reply
        await again.publish(REFUSED, [b"1", b"2"], 1)
        assert await refusal(again) == ("not_journaled", 1, 2), "no repeat"
        assert await stored_bodies(broker) == []


async def test_a_client_goes_on_when_it_has_read_the_refusals(tmp_path: Path) -> None:
    async with running_broker(tmp_path, POLICY) as broker:
        client = await RawClient.connect(broker, "feed", session=5)
        await client.publish(KEPT, [b"1"], 1)
        await client.publish(REFUSED, [b"2"], 2)
        await client.publish(KEPT, [b"3"], 3)
        await client.publish(REFUSED, [b"4"], 4)
        assert [await refusal(client) for _ in range(3)] == [
            ("not_journaled", 2, 2),
            ("refused_before", 3, 3),
            ("not_journaled", 4, 4),
        ]
        client.send_command({"c": "skip", "sequence": 2})
        error = await client.read_until("error")
        assert (error["code"], error["of"], error["details"]["refused"]) == ("refused_before", "skip", 4)
        client.send_command({"c": "skip", "sequence": 4})
        await client.publish(KEPT, [b"3"], 3)
        await client.publish(KEPT, [b"5"], 5)
        while (await client.read_until("persisted"))["sequence"] < 5:
            pass
        again = await RawClient.connect(broker, "feed", session=5)
        assert again.logon_reply["stored"] == 5
        assert await stored_bodies(broker) == [b"1", b"3", b"5"]


async def test_messages_without_a_number_are_taken_behind_a_refused_one(tmp_path: Path) -> None:
    async with running_broker(tmp_path, POLICY) as broker:
        client = await RawClient.connect(broker, "feed")
        await client.publish(REFUSED, [b"1"], 1)
        await client.publish(KEPT, [b"unnumbered"])
        client.send_command({"c": "publish", "topic": KEPT, "text": "one", "ack": ["persisted"], "id": "p"})
        assert (await client.read_until("persisted"))["id"] == "p"
        assert await stored_bodies(broker) == [b"unnumbered", b"one"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": REFUSED, "text": "1"}, "not_journaled"),
        ({"topic": "bad..topic", "text": "1"}, "bad_topic"),
        ({"topic": KEPT}, "bad_command"),
        ({"topic": KEPT, "text": "1", "acks": []}, "bad_command"),
    ],
)
async def test_a_numbered_message_as_json_is_refused_with_its_number_however_wrong_it_is(
    tmp_path: Path, fields: dict[str, Any], code: str
) -> None:
    async with running_broker(tmp_path, POLICY) as broker:
        client = await RawClient.connect(broker, "feed", session=5)
        client.send_command({"c": "publish", "sequence": 1, **fields})
        client.send_command({"c": "publish", "sequence": 2, "topic": KEPT, "text": "2", "ack": ["persisted"]})
        assert await refusal(client) == (code, 1, 1)
        assert await refusal(client) == ("refused_before", 2, 2)
        again = await RawClient.connect(broker, "feed", session=5)
        assert again.logon_reply["sequence"] == 0
        assert await stored_bodies(broker) == []


async def test_a_batch_with_one_refused_record_is_refused_whole_and_what_is_behind_it_too(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, POLICY) as broker:
        client = await RawClient.connect(broker, "feed", session=5)
        built = build_batch("feed", [KEPT, REFUSED], [b"1", b"2"], None, 1, session=5)
        client.write(encode_frame_header(PUBLISH, 0, len(built)) + built)
        await client.publish(KEPT, [b"3"], 3)
        assert await refusal(client) == ("not_journaled", 1, 2)
        assert await refusal(client) == ("refused_before", 3, 3)
        assert await stored_bodies(broker) == []


async def test_stored_records_of_a_refused_batch_are_not_reported_as_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, POLICY) as broker:
        first = await RawClient.connect(broker, "feed", session=5)
        await first.publish(KEPT, [b"1", b"2"], 1)
        await first.read_until("persisted")
        again = await RawClient.connect(broker, "feed", session=5)
        built = build_batch("feed", [KEPT, KEPT, KEPT, REFUSED], [b"1", b"2", b"3", b"4"], None, 1, session=5)
        again.write(encode_frame_header(PUBLISH, 0, len(built)) + built)
        assert await refusal(again) == ("not_journaled", 3, 4)
        assert await stored_bodies(broker) == [b"1", b"2"]


async def test_a_send_behind_a_refused_one_gets_no_receipt(tmp_path: Path) -> None:
    async with running_broker(tmp_path, POLICY) as broker, stomp_client(broker) as client:
        client.send("SEND", b"1", destination="/queue/z")
        client.send("SEND", b"2", destination="/topic/kept.a", receipt="r")
        assert (await client.read_error()).headers["message"] == "not_journaled"
        with pytest.raises(EOFError):
            await client.read()
        assert await stored_bodies(broker) == []


def open_store(kind: str, path: Path) -> MemoryPublishStore | FilePublishStore:
    return MemoryPublishStore() if kind == "memory" else FilePublishStore(path, sync=kind == "synced")


@pytest.mark.parametrize("kind", ["memory", "file", "synced"])
async def test_the_client_library_tells_what_was_refused_and_gets_the_rest_through_once_in_order(
    tmp_path: Path, kind: str
) -> None:
    told: list[Rejection] = []
    store = open_store(kind, tmp_path / "unsent")
    async with running_broker(tmp_path / "home", POLICY) as broker:
        async with AsyncClient(
            address_of(broker), "feed", publish_store=store, on_rejection=told.append
        ) as client:
            for number in range(1, 201):
                await client.publish(REFUSED if number % 7 == 0 else KEPT, b"%d" % number)
                if number % 3 == 0:
                    await asyncio.sleep(0)
            with pytest.raises(ClientError, match="not_journaled"):
                await client.flush(60)
            assert (store.oldest_sequence(), client.connections) == (0, 1)
            await client.publish(KEPT, b"last")
            await client.flush(60)
        # All messages of one turn are one batch: what was refused with it is told, too.
        refused = [int(body) for rejection in told for _, body in rejection.messages]
        taken = [int(body) for body in await stored_bodies(broker) if body != b"last"]
        assert sorted(refused + taken) == list(range(1, 201))
        assert refused == sorted(refused) and taken == sorted(taken)
        assert set(range(7, 201, 7)) <= set(refused) and len(refused) <= 3 * (200 // 7)
        assert (await stored_bodies(broker))[-1] == b"last"
        assert {rejection.error.code for rejection in told} == {"not_journaled"}


async def test_a_burst_of_refusals_is_sent_again_once(tmp_path: Path) -> None:
    """Each batch after a refused one is judged on its own, so that not every refusal starts another
    resend.
    """
    async with running_broker(tmp_path, POLICY) as broker:
        async with AsyncClient(address_of(broker), "feed") as client:
            for number in range(300):
                await client.publish(REFUSED if number % 2 else KEPT, b"%d" % number)
                client._publisher.build_pending_batch()
            with pytest.raises(ClientError, match="not_journaled"):
                await client.flush(60)
            assert broker.engine.dispatch.messages_in < 3 * 300
        assert len(await stored_bodies(broker)) == 150


async def test_a_flush_behind_a_refusal_waits_for_what_is_sent_again(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, POLICY, files=gate) as broker:
        async with AsyncClient(address_of(broker), "feed", on_rejection=lambda rejection: None) as client:
            await client.publish(REFUSED, b"1")
            await asyncio.sleep(0)
            gate.block()
            await client.publish(KEPT, b"2")
            flushed = asyncio.create_task(client.flush(60))
            await until(gate.waiting.is_set)
            await asyncio.sleep(0.1)
            assert not flushed.done() and client.unacknowledged_bytes
            gate.release()
            with pytest.raises(ClientError, match="not_journaled"):
                await flushed
        assert await stored_bodies(broker) == [b"2"]


async def test_a_client_that_missed_a_refusal_gets_it_on_its_next_connection(
    tmp_path: Path,
) -> None:
    told: list[Rejection] = []
    async with running_broker(tmp_path, POLICY) as broker:
        async with AsyncClient(address_of(broker), "feed", on_rejection=told.append) as client:
            link = client._connector.link
            assert link is not None
            link.on_frames = lambda link, frames: None  # the network swallows what the broker says
            for number, topic in enumerate((KEPT, REFUSED, KEPT)):
                await client.publish(topic, b"%d" % number)
                await asyncio.sleep(0)
            await until(lambda: broker.engine.dispatch.messages_in == 3)
            await broker.engine.dispatch.barrier()
            link.abort()
            with pytest.raises(ClientError, match="not_journaled"):
                await client.flush(60)
            assert client.connections == 2
        assert [rejection.messages for rejection in told] == [[(REFUSED, b"1")]]
        assert await stored_bodies(broker) == [b"0", b"2"]


async def test_a_client_killed_before_it_was_told_is_told_in_its_next_life(tmp_path: Path) -> None:
    told: list[Rejection] = []
    async with running_broker(tmp_path / "home", POLICY) as broker:
        raw = await RawClient.connect(broker, "feed", session=5)  # the life that was killed
        store = FilePublishStore(tmp_path / "unsent")
        for number, topic in ((1, KEPT), (2, REFUSED), (3, KEPT)):
            built = build_batch("feed", [topic], [b"%d" % number], None, number, session=5)
            store.add(number, number, built)
            raw.write(encode_frame_header(PUBLISH, 0, len(built)) + built)
        await until(lambda: broker.engine.dispatch.messages_in == 3)
        await broker.engine.dispatch.barrier()
        raw.close()
        async with AsyncClient(
            address_of(broker), "feed", publish_store=store, on_rejection=told.append
        ) as client:
            with pytest.raises(ClientError, match="not_journaled"):
                await client.flush(60)
        assert [rejection.messages for rejection in told] == [[(REFUSED, b"2")]]
        assert await stored_bodies(broker) == [b"1", b"3"]


async def test_a_mistake_in_on_rejection_ends_no_connection(tmp_path: Path) -> None:
    def fail(rejection: Rejection) -> None:
        raise KeyError(rejection.first)

    async with running_broker(tmp_path, POLICY) as broker:
        async with AsyncClient(address_of(broker), "feed", on_rejection=fail) as client:
            await client.publish(REFUSED, b"1")
            await asyncio.sleep(0)
            await client.publish(KEPT, b"2")
            with pytest.raises(ClientError, match="not_journaled"):
                await client.flush(60)
            assert client.connections == 1
        assert await stored_bodies(broker) == [b"2"]


async def test_the_sync_client_reports_refused_messages_and_publishes_the_rest(tmp_path: Path) -> None:
    told: list[Rejection] = []

    def publish(address: str) -> None:
        with SyncClient(address, "feed", on_rejection=told.append) as client:
            for number in range(20):
                client.publish(REFUSED if number % 5 == 0 else KEPT, b"%d" % number)
            with pytest.raises(ClientError, match="not_journaled"):
                client.flush(60)

    async with running_broker(tmp_path, POLICY) as broker:
        await asyncio.to_thread(publish, address_of(broker))
        refused = [body for rejection in told for _, body in rejection.messages]
        taken = await stored_bodies(broker)
        assert sorted(map(int, refused + taken)) == list(range(20))
        assert {b"0", b"5", b"10", b"15"} <= set(refused)


async def test_a_repeat_of_what_was_taken_is_acknowledged_though_it_is_no_longer_allowed(
    tmp_path: Path,
) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, POLICY, files=gate) as broker:
        first = await RawClient.connect(broker, "feed", session=5)
        gate.block()
        await first.publish(KEPT, [b"1", b"2"], 1)
        await until(gate.waiting.is_set)
        again = await RawClient.connect(broker, "feed", session=5)
        assert again.logon_reply["sequence"] == 0, "it is on its way to the disk"
        broker.engine.roster.clients["feed"].rights = Rights([])
        await again.publish(KEPT, [b"1", b"2"], 1)
        await again.publish(KEPT, [b"3"], 3)
        assert await refusal(again) == ("not_entitled", 3, 3)
        gate.release()
        assert (await again.read_until("persisted"))["sequence"] == 2
        assert await stored_bodies(broker) == [b"1", b"2"]
