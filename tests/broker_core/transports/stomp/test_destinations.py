"""Exchanges without a key, durable subscriptions of one login, and limits that hold together."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.config.transports import MAX_BODY
from tests.support.brokers import running_broker
from tests.support.stomp_client import stomp_client, stomp_policy


async def test_an_exchange_without_a_key_sends_each_message_to_each_subscription(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        async with stomp_client(broker) as one, stomp_client(broker) as other:
            for client in (one, other):
                await client.send_with_receipt("SUBSCRIBE", id="1", destination="/exchange/amq.fanout")
            await publisher.send_with_receipt("SEND", b"x", destination="/exchange/amq.fanout")
            for client in (one, other):
                found = await client.read()
                assert (found.body, found.headers["destination"]) == (b"x", "/exchange/amq.fanout")


async def test_durable_subscriptions_of_one_login_have_an_id_for_each_destination(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker) as one, stomp_client(broker) as other:
            for client, topic in ((one, "/topic/a"), (other, "/topic/b")):
                await client.send_with_receipt("SUBSCRIBE", id="1", destination=topic, durable="true")
        async with stomp_client(broker) as last:
            last.send("SEND", b"a", destination="/topic/a")
            await last.send_with_receipt("SEND", b"b", destination="/topic/b")
            await last.send_with_receipt("SUBSCRIBE", id="1", destination="/topic/b", durable="true")
            assert (await last.read()).body == b"b"
            await last.send_with_receipt("UNSUBSCRIBE", id="1")
            await last.send_with_receipt("UNSUBSCRIBE", id="1", destination="/topic/a", durable="true")
            (left,) = broker.engine.durables.list_entries()
            assert left.topic == "b"


async def test_two_programs_of_one_login_with_client_ids_do_not_collide(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        async with stomp_client(broker, client_id="a") as one, stomp_client(broker, client_id="b") as other:
            for client in (one, other):
                await client.send_with_receipt("SUBSCRIBE", id="1", destination="/topic/a", durable="true")
            await publisher.send_with_receipt("SEND", b"x", destination="/topic/a")
            assert (await one.read()).body == (await other.read()).body == b"x"


async def test_a_body_and_headers_within_their_limits_are_accepted_together(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker, "1.0") as client:
        headers = {f"h{number}": ":" * 16_000 for number in range(16)}
        client.send("SEND", b"x" * 1_000_000, destination="/topic/t", receipt="small")
        client.send(
            "SEND",
            b"x" * MAX_BODY,
            destination="/topic/t",
            content_length=MAX_BODY,
            receipt="large",
            **headers,
        )
        for number in range(150):
            client.send("SEND", b"x", destination="/topic/t", number=number, **headers)
        client.send("SEND", b"x", destination="/topic/t", receipt="last")
        found = [await client.read() for _ in range(3)]
        assert [one.headers.get("receipt-id") for one in found] == ["small", "large", "last"]


@pytest.mark.parametrize("destination", ["/queue/a b", "/topic/a b"])
async def test_a_refused_subscribe_speaks_of_subscribing(tmp_path: Path, destination: str) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        client.send("SUBSCRIBE", id="1", destination=destination)
        error = await client.read_error()
        assert b"published" not in error.body
