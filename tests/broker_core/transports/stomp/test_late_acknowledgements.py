"""Ids of messages and of acknowledgements, across reconnects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.brokers import ask, running_broker, until
from tests.support.stomp_client import StompClient, stomp_client, stomp_policy

QUEUE = "/queue/a"
INDIVIDUAL = {"id": "1", "destination": QUEUE, "ack": "client-individual", "prefetch_count": 1}


async def acknowledge_late(client: StompClient, frame: str, ack: str) -> None:
    """Send an acknowledgement that the broker must pass over, and wait until it was executed."""
    await client.send_with_receipt(frame, id=ack, requeue="false")


@pytest.mark.parametrize("frame", ["ACK", "NACK"])
async def test_an_acknowledgement_of_an_ended_connection_settles_no_message(
    tmp_path: Path, frame: str
) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        for body in (b"m0", b"m1"):
            await publisher.send_with_receipt("SEND", body, destination=QUEUE)
        async with stomp_client(broker, client_id="w1") as first:
            await first.send_with_receipt("SUBSCRIBE", **INDIVIDUAL)
            lost = await first.read()
            assert lost.body == b"m0"
        async with stomp_client(broker, client_id="w2") as second:
            await second.send_with_receipt("SUBSCRIBE", **INDIVIDUAL)
            assert (await second.read()).body == b"m0"
            async with stomp_client(broker, client_id="w1") as third:
                await third.send_with_receipt("SUBSCRIBE", **INDIVIDUAL)
                assert (await third.read()).body == b"m1"
                await acknowledge_late(third, frame, lost.headers["ack"])
                (queue,) = await ask(broker, "durables")
                assert queue["unacknowledged"] == 2
            await until(lambda: "w1" not in broker.engine.roster.clients)
            async with stomp_client(broker, client_id="w4") as fourth:
                await fourth.send_with_receipt("SUBSCRIBE", **INDIVIDUAL)
                again = await fourth.read()
                assert (again.body, again.headers["redelivered"]) == (b"m1", "true")


async def test_a_late_cumulative_acknowledgement_covers_no_message(tmp_path: Path) -> None:
    headers = {"id": "1", "destination": "/topic/t", "ack": "client", "durable_subscription_name": "d"}
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        async with stomp_client(broker, client_id="c") as first:
            await first.send_with_receipt("SUBSCRIBE", **headers)
            for number in range(10):
                await publisher.send_with_receipt("SEND", b"m%d" % number, destination="/topic/t")
            found = [await first.read() for _ in range(10)]
            await first.send_with_receipt("ACK", id=found[3].headers["ack"])
        await until(lambda: "c" not in broker.engine.roster.clients)
        async with stomp_client(broker, client_id="c") as second:
            await second.send_with_receipt("SUBSCRIBE", **headers)
            assert [(await second.read()).body for _ in range(6)] == [b"m%d" % n for n in range(4, 10)]
            await second.send_with_receipt("ACK", id=found[4].headers["ack"])
            await second.send_with_receipt("ACK", id=found[9].headers["ack"])
        await until(lambda: "c" not in broker.engine.roster.clients)
        async with stomp_client(broker, client_id="c") as third:
            await third.send_with_receipt("SUBSCRIBE", **headers)
            assert [(await third.read()).body for _ in range(6)] == [b"m%d" % n for n in range(4, 10)]


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
async def test_message_ids_are_unique_and_the_same_at_redelivery(tmp_path: Path, version: str) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        for number in range(3):
            await publisher.send_with_receipt("SEND", b"%d" % number, destination=QUEUE)
        ids: dict[bytes, set[str]] = {}
        for _ in range(2):
            async with stomp_client(broker, version) as a, stomp_client(broker, version) as b:
                async with stomp_client(broker, version) as c:
                    for client in (a, b, c):
                        await client.send_with_receipt("SUBSCRIBE", **INDIVIDUAL)
                        found = await client.read()
                        ids.setdefault(found.body, set()).add(found.headers["message-id"])
                        assert found.headers["message-id"] == found.headers["x-sluice-bookmark"]
            await until(lambda: (broker.engine.durables.list_entries() or [None])[0].consumers == 0)
        assert len(ids) == 3 and all(len(one) == 1 for one in ids.values())


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_older_versions_settle_exactly_the_message_that_they_name(tmp_path: Path, version: str) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        for body in (b"m0", b"m1"):
            await publisher.send_with_receipt("SEND", body, destination=QUEUE)
        async with stomp_client(broker, version) as first:
            await first.send_with_receipt("SUBSCRIBE", **INDIVIDUAL)
            lost = await first.read()
        await until(lambda: not any(one.consumers for one in broker.engine.durables.list_entries()))
        async with stomp_client(broker, version) as second, stomp_client(broker, version) as third:
            await second.send_with_receipt("SUBSCRIBE", **INDIVIDUAL)
            again = await second.read()
            assert again.body == b"m0"
            await third.send_with_receipt("SUBSCRIBE", **INDIVIDUAL)
            assert (await third.read()).body == b"m1"
            await third.send_with_receipt("ACK", message_id=lost.headers["message-id"], subscription="1")
            assert (await ask(broker, "durables"))[0]["unacknowledged"] == 2
            await second.send_with_receipt("ACK", message_id=again.headers["message-id"], subscription="1")
            assert (await ask(broker, "durables"))[0]["unacknowledged"] == 1


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
async def test_unjournaled_messages_have_ids_of_their_own_and_are_acknowledged(
    tmp_path: Path, version: str
) -> None:
    name = "ack" if version == "1.2" else "message-id"
    ids: list[str] = []
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        for _ in range(2):
            async with stomp_client(broker, version) as client:
                await client.send_with_receipt(
                    "SUBSCRIBE", id="1", destination="/topic/scratch.a", ack="client", prefetch_count=2
                )
                publisher.write(b"".join(b"SEND\ndestination:/topic/scratch.a\n\n%d\0" % n for n in range(5)))
                for number in range(5):
                    found = await client.read()
                    assert found.body == b"%d" % number
                    ids.append(found.headers["message-id"])
                    key = "id" if version == "1.2" else "message_id"
                    client.send("ACK", **{key: found.headers[name]})
    assert len(set(ids)) == 10
