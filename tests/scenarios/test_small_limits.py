"""Limits on one client's memory that are below the size of one read of a replay.

A client that stops reading a replay and resumes triggers none of them, over each transport. At most 30 s.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import websockets

from broker_core.batch import Batch
from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.config import PolicyDocument, TransportSettings
from broker_core.protocols.native import DELIVER, encode_command
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.frames import FedReader
from tests.support.raw import RawClient
from tests.support.rules import policy_with
from tests.support.stalled import StalledSubscriber
from tests.support.stomp_client import StompClient, stomp_client, stomp_policy
from tests.support.transports_process import broker_process

NUMBER, EACH = 5_000, 20
BODIES = [b"%08d" % number + b"x" * 600 for number in range(NUMBER)]


def memory_limit_policy(limit: int) -> PolicyDocument:
    """Return a policy that disconnects clients with more than `limit` bytes in memory."""
    ladder = [{"action": "disconnect"}]
    return policy_with(
        {"name": "memory", "scope": {}, "signal": "outbound_bytes", "limit": limit, "ladder": ladder}
    )


async def publish(address: str, topic: str = "t") -> None:
    async with AsyncClient(address, "writer") as writer:
        for start in range(0, NUMBER, EACH):
            await writer.publish_many(topic, BODIES[start : start + EACH])
        await writer.flush()


async def stopped(broker: Broker, name: str) -> None:
    """Wait until the socket has accepted no byte for so long that the replay has released its read data."""
    backlog = broker.engine.roster.clients[name].backlog
    clock = backlog._facilities.clock
    await until(lambda: backlog.unwritable_since and clock.now_ns() - backlog.unwritable_since > 100_000_000)


async def stalled_stomp(client: StompClient, **headers: Any) -> None:
    transport: Any = client.writer.transport
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    client.send("SUBSCRIBE", id="s", **headers)
    await client.writer.drain()
    transport.pause_reading()


async def read_stomp(client: StompClient) -> list[int]:
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    return [int((await client.read()).body[:8]) for _ in range(NUMBER)]


@pytest.mark.parametrize("limit", [4_096, 64 * 1024])
async def test_a_stopped_replay_is_within_the_smallest_limit(tmp_path: Path, limit: int) -> None:
    """The client stays connected even if the limit comes into force while the replay is stopped."""
    plain, small = stomp_policy(policy_with()), stomp_policy(memory_limit_policy(limit))
    async with (
        running_broker(tmp_path, plain) as broker,
        stomp_client(broker, client_id="stomp") as stomp,
        stomp_client(broker, client_id="consumer") as consumer,
    ):
        await consumer.send_with_receipt("SUBSCRIBE", id="made", destination="/queue/q")
        await consumer.send_with_receipt("UNSUBSCRIBE", id="made")
        await publish(address_of(broker))
        await publish(address_of(broker), "queue.q")
        early = {"early": await StalledSubscriber.connect(broker, "early", "t", bookmark="0")}
        await stalled_stomp(stomp, destination="/topic/t", x_sluice_bookmark="0")
        await asyncio.gather(*(stopped(broker, name) for name in ("early", "stomp")))
        await ask(broker, "apply", policy=replace(small, revision=2).to_dict())
        late = {
            name: await StalledSubscriber.connect(broker, name, "t", bookmark="0", **how)
            for name, how in {"late": {}, "paced": {"rate": "1GB"}}.items()
        }
        await stalled_stomp(consumer, destination="/queue/q")
        await asyncio.gather(*(stopped(broker, name) for name in (*late, "consumer")))
        for one in (early | late).values():
            assert await one.read_numbers(NUMBER) == list(range(NUMBER))
        assert await read_stomp(stomp) == list(range(NUMBER))
        assert await read_stomp(consumer) == list(range(NUMBER))
        assert await ask(broker, "decisions") == []


async def test_behind_a_full_window_one_record_waits(tmp_path: Path) -> None:
    """One waiting record shows that the window blocks delivery; only it counts."""
    async with running_broker(tmp_path, memory_limit_policy(4_096)) as broker:
        await publish(address_of(broker))
        reader = await RawClient.connect(broker, "reader")
        window = {"ack": "client", "prefetch": 400}
        reader.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": "0", **window})
        bodies: list[bytes] = []
        while len(bodies) < NUMBER:
            bodies += await reader.deliveries(min(400, NUMBER - len(bodies)))
            backlog = broker.engine.roster.clients["reader"].backlog
            if len(bodies) < NUMBER:
                await until(lambda backlog=backlog: backlog.messages == 1)
            reader.send_command({"c": "ack", "id": "s", "upto": len(bodies)})
        assert bodies == BODIES
        assert await ask(broker, "decisions") == []


async def test_a_full_window_over_websocket_is_within_the_smallest_limit() -> None:
    policy, frames, bodies = memory_limit_policy(4_096), FedReader(), list[bytes]()
    policy = replace(policy, transports=(*policy.transports, TransportSettings("websocket", "websocket", 0)))
    with broker_process(policy) as ports:
        await publish(f"tcp://127.0.0.1:{ports['tcp']}")
        async with websockets.connect(f"ws://127.0.0.1:{ports['websocket']}/") as client:
            await client.send(encode_command({"c": "logon", "name": "reader"}))
            window = {"ack": "client", "prefetch": 10}
            await client.send(
                encode_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": "0", **window})
            )
            while len(bodies) < 200:
                message = await client.recv()
                assert isinstance(message, bytes)
                found = [frame for frame in frames.feed(message) if frame.kind == DELIVER]
                bodies += [body for frame in found for body in Batch.parse(frame.payload).bodies()]
                if found and len(bodies) % 10 == 0:
                    await client.send(encode_command({"c": "ack", "id": "s", "upto": len(bodies)}))
    assert bodies == BODIES[:200]
