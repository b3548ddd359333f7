"""A message for a queue whose topic is not journaled is refused on every path: no consumer could get it."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_core.batch import build_batch
from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.config import JournaledTopic
from broker_core.errors import ClientError
from broker_core.protocols.native import PUBLISH, encode_frame_header
from tests.support.brokers import address_of, ask, running_broker, tcp_policy
from tests.support.failpoints import Failpoint, Failpoints
from tests.support.raw import RawClient
from tests.support.stomp_client import stomp_client, stomp_policy

POLICY = stomp_policy(
    replace(
        tcp_policy(),
        instance=replace(
            tcp_policy().instance,
            journaled_topics=(
                JournaledTopic("kept.>"),
                JournaledTopic("queue.orders"),
                JournaledTopic("queue.some", "json", "/n > 0"),
            ),
        ),
    )
)


async def in_the_log(broker: Broker) -> list[bytes]:
    """All bodies that a replay brings."""
    async with AsyncClient(address_of(broker), "checker") as client:
        subscription = await client.subscribe(">", bookmark="0")
        return [body async for batch in subscription.batches(until_completed=True) for body in batch.bodies()]


@pytest.mark.parametrize("destination", ["/queue/z", "z", "/amq/queue/z", "/queue/dead.orders"])
async def test_a_send_to_a_queue_that_no_journal_keeps_gets_an_error_and_no_receipt(
    tmp_path: Path, destination: str
) -> None:
    async with running_broker(tmp_path, POLICY) as broker, stomp_client(broker) as client:
        await client.send_with_receipt("SEND", b"a", destination="/queue/orders")
        client.send("SEND", b"b", destination="/queue/orders")
        client.send("SEND", b"nowhere", destination=destination, receipt="z")
        error = await client.read_error()
        assert (error.headers["message"], error.headers["receipt-id"]) == ("not_journaled", "z")
        await broker.engine.dispatch.barrier()
        assert await in_the_log(broker) == [b"a", b"b"]


async def test_a_transaction_with_such_a_send_is_refused_and_stores_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path, POLICY) as broker, stomp_client(broker) as client:
        client.send("BEGIN", transaction="t")
        client.send("SEND", b"1", destination="/queue/orders", transaction="t")
        client.send("SEND", b"2", destination="/queue/z", transaction="t")
        assert (await client.read_error()).headers["message"] == "not_journaled"
        async with stomp_client(broker) as other:
            other.send("BEGIN", transaction="t")
            other.send("SEND", b'{"n":1}', destination="/queue/some", transaction="t")
            other.send("SEND", b'{"n":0}', destination="/queue/some", transaction="t")
            other.send("COMMIT", transaction="t", receipt="c")
            error = await other.read_error()
            assert (error.headers["message"], error.headers["receipt-id"]) == ("not_journaled", "c")
        assert await in_the_log(broker) == []


async def test_a_record_of_a_queue_that_the_journals_filter_leaves_out_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, POLICY) as broker, stomp_client(broker) as client:
        await client.send_with_receipt("SEND", b'{"n":1}', destination="/queue/some")
        client.send("SEND", b'{"n":0}', destination="/queue/some", receipt="r")
        error = await client.read_error()
        assert (error.headers["message"], error.headers["receipt-id"]) == ("not_journaled", "r")
        assert await in_the_log(broker) == [b'{"n":1}']


async def test_native_publishers_are_refused_too_and_go_on_behind_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path, POLICY) as broker:
        everything = await RawClient.connect(broker, "everything")
        everything.send_command({"c": "subscribe", "id": "s", "topic": ">"})
        await everything.read_until("processed")
        anna = await RawClient.connect(broker, "anna")
        await anna.publish("queue.z", [b"0"], 1)
        refused = await anna.read_until("error")
        assert (refused["code"], refused["first"], refused["sequence"]) == ("not_journaled", 1, 1)
        assert refused["details"]["topic"] == "queue.z"
        built = build_batch("anna", ["kept.a", "queue.z"], [b"1", b"2"], first_publisher_sequence=2)
        anna.write(encode_frame_header(PUBLISH, 0, len(built)) + built)
        refused = await anna.read_until("error")
        assert (refused["first"], refused["sequence"]) == (2, 3), "all of the batch, or nothing"
        anna.send_command({"c": "publish", "id": "p", "topic": "queue.z", "text": "3", "ack": ["persisted"]})
        assert (await anna.read_until("error"))["id"] == "p"
        anna.send_command({"c": "skip", "sequence": 3})
        await anna.publish("kept.a", [b"4"], 4)
        assert (await anna.read_until("persisted"))["sequence"] == 4
        await anna.publish("scratch.a", [b"5"], 5)
        assert await everything.deliveries(2) == [b"4", b"5"], "topics promise nothing beyond who listens"
        assert await in_the_log(broker) == [b"4"]


async def test_a_batch_that_is_refused_takes_no_name_and_leaves_the_claim_to_the_next(tmp_path: Path) -> None:
    async with running_broker(tmp_path, POLICY) as broker:
        first = await RawClient.connect(broker, "anna", session=1)
        await first.publish("kept.a", [b"1"], 1)
        await first.read_until("persisted")
        second = await RawClient.connect(broker, "anna", session=2)
        await second.publish("queue.z", [b"nowhere"], 2)
        assert (await second.read_until("error"))["code"] == "not_journaled"
        second.send_command({"c": "skip", "sequence": 2})
        await second.publish("kept.a", [b"3"], 3)
        assert (await second.read_until("persisted"))["sequence"] == 3, "nobody else has published since"
        assert await in_the_log(broker) == [b"1", b"3"]


async def test_the_client_library_tells_of_the_refusal(tmp_path: Path) -> None:
    rejected: list[Any] = []
    async with running_broker(tmp_path, POLICY) as broker:
        async with AsyncClient(address_of(broker), "anna", on_rejection=rejected.append) as client:
            await client.publish("queue.z", b"nowhere")
            with pytest.raises(ClientError) as refused:
                await client.flush()
            await client.publish("queue.orders", b"somewhere")
            await client.flush()
        assert refused.value.code == "not_journaled" and len(rejected) == 1
        assert await in_the_log(broker) == [b"somewhere"]


async def test_what_operators_publish_is_refused_or_stored_when_it_is_answered(tmp_path: Path) -> None:
    refusing = Failpoint("pwritev", 3, errno.ENOSPC)
    async with running_broker(tmp_path, POLICY, files=Failpoints(refusing)) as broker:
        with pytest.raises(AssertionError, match="not_journaled"):
            await ask(broker, "publish", topic="queue.z", data=1)
        with pytest.raises(AssertionError, match="not_journaled"):
            await ask(broker, "publish_bytes", topic="queue.z", body="MQ==")
        stored = 0
        for _ in range(8):
            try:
                await ask(broker, "publish", topic="kept.a", data=stored)
            except AssertionError as refused:
                assert "not_stored" in str(refused)
            else:
                stored += 1
                assert broker.engine.journal.stored_sequence >= stored, "before it is answered"
        assert await in_the_log(broker) == [b"%d" % n for n in range(stored)]
