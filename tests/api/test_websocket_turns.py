"""A WebSocket with thousands of messages does not delay another client's few messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import websockets

from broker_core.client import EPOCH, AsyncClient
from broker_core.config import TransportSettings, default_policy
from broker_core.protocols.native import MAX_FRAMES, encode_command
from tests.support.transports_process import broker_process

PUBLISHES = MAX_FRAMES - 1
"""And a flush are as many as one WebSocket message may have."""


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    transports = (TransportSettings("ws", "websocket", 0), TransportSettings("tcp", "tcp", 0))
    with broker_process(replace(default_policy("test-1"), transports=transports)) as made:
        yield made


def messages(topic: str) -> list[dict[str, Any]]:
    return [{"c": "publish", "topic": topic, "data": number} for number in range(PUBLISHES)]


async def text_messages(busy: Any, topic: str) -> None:
    """Send each command in its own WebSocket message, as fast as possible."""
    for one in messages(topic):
        await busy.send(json.dumps(one))
    await busy.send(json.dumps({"c": "flush", "id": "all"}))


async def one_binary_message(busy: Any, topic: str) -> None:
    """Send all commands in a single WebSocket message."""
    await busy.send(b"".join(map(encode_command, [*messages(topic), {"c": "flush", "id": "all"}])))


@pytest.mark.parametrize("send", [text_messages, one_binary_message])
async def test_a_websockets_publishes_leave_turns_to_others(
    ports: dict[str, int], send: Callable[[Any, str], Any]
) -> None:
    topic, url, answers = send.__name__, f"ws://127.0.0.1:{ports['ws']}/", 0
    logon = {"c": "logon", "name": f"busy-{topic}"}
    async with websockets.connect(url) as busy, websockets.connect(url) as other, asyncio.timeout(60):
        await busy.send(json.dumps(logon) if send is text_messages else encode_command(logon))
        await busy.recv()
        await other.send(json.dumps({"c": "logon", "name": f"other-{topic}"}))
        await other.recv()
        sending = asyncio.create_task(send(busy, topic))
        done = asyncio.create_task(_completed(busy))
        while not done.done():
            await other.send('{"c":"heartbeat"}')
            await other.recv()
            answers += 1
        await sending
    assert answers > 50
    assert await published(ports, topic) == list(range(PUBLISHES))


async def test_what_a_websocket_sent_before_it_was_closed_is_published_whole_and_in_order(
    ports: dict[str, int],
) -> None:
    async with websockets.connect(f"ws://127.0.0.1:{ports['ws']}/") as busy:
        await busy.send(json.dumps({"c": "logon", "name": "leaving"}))
        await busy.recv()
        for one in messages("left"):
            await busy.send(json.dumps(one))
    assert await published(ports, "left") == list(range(PUBLISHES))


async def _completed(busy: Any) -> None:
    while b"completed" not in (said if isinstance(said := await busy.recv(), bytes) else said.encode()):
        pass


async def published(ports: dict[str, int], topic: str) -> list[int]:
    """Return the numbers published on a topic, once all have arrived."""
    found: list[int] = []
    async with (
        AsyncClient(f"tcp://127.0.0.1:{ports['tcp']}", f"reader-{topic}") as reader,
        asyncio.timeout(60),
    ):
        subscription = await reader.subscribe(topic, bookmark=EPOCH)
        async for got in subscription.batches():
            found += [int(body) for body in got.bodies()]
            if len(found) >= PUBLISHES:
                return found
    return found
