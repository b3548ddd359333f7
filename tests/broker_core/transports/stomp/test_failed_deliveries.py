"""What counts as a failed delivery of a queue's message."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from tests.support.brokers import ask, running_broker, until
from tests.support.stomp_client import StompClient, stomp_client, stomp_policy

HEADERS = {
    "id": "1",
    "destination": "/queue/jobs",
    "ack": "client-individual",
    "prefetch_count": 1,
    "x_sluice_max_deliveries": 3,
}


async def consume(client: StompClient) -> bytes:
    await client.send_with_receipt("SUBSCRIBE", **HEADERS)
    return (await client.read()).body


@pytest.mark.parametrize("end", ["takeover", "operator", "reset"])
async def test_an_end_that_is_not_the_consumers_own_is_no_failure(tmp_path: Path, end: str) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as publisher:
        await publisher.send_with_receipt("SEND", b"good", destination="/queue/jobs")
        for _ in range(6):
            async with stomp_client(broker, client_id="worker") as client:
                await client.send_with_receipt("SUBSCRIBE", **HEADERS)
                if end == "reset":
                    await until(lambda: any(one["unacknowledged"] for one in shared(broker)))
                    raw = client.writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.writer.transport.abort()
                else:
                    assert (await client.read()).body == b"good"
                if end == "operator":
                    await ask(broker, "disconnect", name="worker", reason="tidying")
                    await client.read_error()
                if end == "takeover":
                    async with stomp_client(broker, client_id="worker"):
                        await client.read_error()
            await until(lambda: "worker" not in broker.engine.roster.clients)
        async with stomp_client(broker) as last:
            assert await consume(last) == b"good"
            await last.send_with_receipt("SUBSCRIBE", id="dead", destination="/queue/dead.jobs")
            assert not broker.engine.journal.may_contain_topic("queue.dead.jobs", 1)


def shared(broker) -> list[dict[str, int]]:  # type: ignore[no-untyped-def]
    return [{"unacknowledged": one.unacknowledged} for one in broker.engine.durables.list_entries()]


async def test_a_dead_letter_names_the_causes_of_its_failures(tmp_path: Path) -> None:
    """The causes survive a restart of the broker."""
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        await client.send_with_receipt("SEND", b"poison", destination="/queue/jobs")
        await client.send_with_receipt("SUBSCRIBE", **HEADERS)
        client.send("NACK", id=(await client.read()).headers["ack"])
        assert (await client.read()).headers["redelivered"] == "true"
        await client.send_with_receipt("DISCONNECT")
    async with running_broker(tmp_path, stomp_policy()) as broker, stomp_client(broker) as client:
        await client.send_with_receipt("SUBSCRIBE", **HEADERS)
        client.send("NACK", id=(await client.read()).headers["ack"])
        await client.send_with_receipt("SUBSCRIBE", id="dead", destination="/queue/dead.jobs")
        found = await client.read()
        assert (found.body, found.headers["x-sluice-dead-letter-failures"]) == (
            b"poison",
            "rejected, consumer_ended, rejected",
        )
