"""Slow lines: a frame that takes longer than the heartbeats allow arrives on the first connection, in both
directions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import connect

from broker_core.client import AsyncClient
from broker_core.config import PolicyDocument, TransportSettings
from broker_core.protocols.native import PUBLISH, encode_command, encode_frame_header
from tests.support.brokers import tcp_policy
from tests.support.throttled_proxy import throttled_proxy
from tests.support.transports_process import broker_process

HEARTBEAT_MS = 200
"""The broker allows 2 * 200 + 1,000 ms of silence, the client library 400 ms."""
BYTES_PER_SECOND = 20_000
BODY = b"x" * 80_000
"""Four seconds on the line."""
STOMP_BODY = b"x" * 120_000
"""Six seconds: STOMP's heart-beats are a second at least, so 3 s of silence are allowed."""


def every_transport() -> PolicyDocument:
    policy = tcp_policy()
    kinds = ("websocket", "stomp", "stomp-ws")
    transports = (*policy.transports, *(TransportSettings(kind, kind, 0) for kind in kinds))
    return replace(policy, transports=transports)


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    with broker_process(every_transport()) as made:
        yield made


@pytest.fixture(scope="module")
def hasty_ports() -> Iterator[dict[str, int]]:
    with broker_process(every_transport(), frame_grace_ms=1_000) as made:
        yield made


def address(kind: str, port: int) -> str:
    return f"tcp://127.0.0.1:{port}" if kind == "tcp" else f"ws://127.0.0.1:{port}/"


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
async def test_a_large_batch_is_published_over_a_slow_line_on_one_connection(
    ports: dict[str, int], kind: str
) -> None:
    with throttled_proxy(ports[kind], BYTES_PER_SECOND) as line:
        async with AsyncClient(address(kind, line.port), f"up-{kind}", heartbeat_ms=HEARTBEAT_MS) as client:
            await client.publish(f"up.{kind}", BODY)
            async with asyncio.timeout(60):
                await client.flush()
            assert (client.connections, line.connections) == (1, 1)


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
async def test_a_large_delivery_arrives_over_a_slow_line_on_one_connection(
    ports: dict[str, int], kind: str
) -> None:
    with throttled_proxy(ports[kind], BYTES_PER_SECOND) as line:
        async with (
            AsyncClient(address(kind, line.port), f"down-{kind}", heartbeat_ms=HEARTBEAT_MS) as reader,
            AsyncClient(address("tcp", ports["tcp"]), f"writer-{kind}") as writer,
        ):
            subscription = await reader.subscribe(f"down.{kind}")
            await writer.publish(f"down.{kind}", BODY)
            await writer.flush()
            async with asyncio.timeout(60):
                message = await anext(aiter(subscription))
            assert message.body == BODY
            assert (reader.connections, line.connections) == (1, 1)


class StompBytes:
    """STOMP as bytes, over TCP or in the messages of a WebSocket."""

    def __init__(self, send: Any, receive: Any) -> None:
        self.send, self._receive, self.received = send, receive, b""

    async def until(self, wanted: bytes) -> None:
        """Read until these bytes arrive.

        Raises EOFError with all received bytes if the connection ends before.
        """
        while wanted not in self.received:
            try:
                data = await self._receive()
            except Exception as end:
                raise EOFError(self.received) from end
            if not data:
                raise EOFError(self.received)
            self.received += data if isinstance(data, bytes) else data.encode()


@asynccontextmanager
async def stomp(kind: str, port: int) -> AsyncIterator[StompBytes]:
    if kind == "stomp":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def write(data: bytes) -> None:
            writer.write(data)

        yield StompBytes(write, lambda: reader.read(65_536))
        writer.close()
    else:
        async with connect(
            f"ws://127.0.0.1:{port}/stomp", ping_interval=None, max_size=None, close_timeout=0.1
        ) as socket:

            async def send(data: bytes) -> None:
                sending.append(asyncio.create_task(socket.send(data)))

            sending: list[asyncio.Task[None]] = []
            yield StompBytes(send, socket.recv)


@pytest.mark.parametrize("kind", ["stomp", "stomp-ws"])
async def test_a_large_send_of_stomp_arrives_over_a_slow_line(ports: dict[str, int], kind: str) -> None:
    with throttled_proxy(ports[kind], BYTES_PER_SECOND) as line:
        async with stomp(kind, line.port) as client:
            await client.send(b"CONNECT\naccept-version:1.2\nhost:here\nheart-beat:1000,0\n\n\0")
            await client.until(b"CONNECTED")
            head = f"SEND\ndestination:/topic/{kind}\nreceipt:r\ncontent-length:{len(STOMP_BODY)}\n\n"
            await client.send(head.encode() + STOMP_BODY + b"\0")
            async with asyncio.timeout(60):
                await client.until(b"receipt-id:r")


@pytest.mark.parametrize("kind", ["stomp", "stomp-ws"])
async def test_a_stomp_client_that_takes_a_large_message_slowly_is_alive(
    ports: dict[str, int], kind: str
) -> None:
    """The client itself sends nothing meanwhile: its kernel acknowledges the broker's data."""
    with throttled_proxy(ports[kind], BYTES_PER_SECOND) as line:
        async with (
            stomp(kind, line.port) as client,
            AsyncClient(address("tcp", ports["tcp"]), f"sender-{kind}") as writer,
        ):
            await client.send(b"CONNECT\naccept-version:1.2\nhost:here\nheart-beat:1000,0\n\n\0")
            await client.until(b"CONNECTED")
            await client.send(f"SUBSCRIBE\nid:s\ndestination:/topic/to.{kind}\nreceipt:r\n\n\0".encode())
            await client.until(b"receipt-id:r")
            await writer.publish(f"to.{kind}", STOMP_BODY)
            await writer.flush()
            async with asyncio.timeout(60):
                await client.until(STOMP_BODY)


@pytest.mark.parametrize("kind", ["tcp", "websocket", "stomp", "stomp-ws"])
async def test_a_client_whose_frame_never_ends_is_closed(hasty_ports: dict[str, int], kind: str) -> None:
    """The client sends a byte every 50 ms and has not agreed to heartbeats."""
    port = hasty_ports[kind]
    if kind.startswith("stomp"):
        async with stomp(kind, port) as client:
            await client.send(b"CONNECT\naccept-version:1.2\nhost:here\n\n\0")
            await client.until(b"CONNECTED")
            await client.send(b"SEND\ndestination:/topic/a\ncontent-length:100000\n\n")
            await drip(client, b"frame_timeout")
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = StompBytes(writer.write, lambda: reader.read(65_536))
    logon = encode_command({"c": "logon", "name": f"drip-{kind}"})
    if kind == "websocket":
        writer.write(
            b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await raw.until(b"\r\n\r\n")
        writer.write(b"\x82" + bytes([0x80 | len(logon)]) + bytes(4) + logon)
        begun = b"\x02\xff" + (100_000).to_bytes(8) + bytes(4)  # header of the first fragment
    else:
        writer.write(logon)
        begun = encode_frame_header(PUBLISH, 0, 100_000)
    await raw.until(b"processed")
    writer.write(begun)
    await drip(raw, b"frame_timeout")
    writer.close()


async def drip(client: StompBytes, wanted: bytes) -> None:
    """Send a byte every 50 ms until the expected bytes arrive."""
    reading = asyncio.create_task(client.until(wanted))
    async with asyncio.timeout(60):
        while not reading.done():
            sent = client.send(b"\0")
            if sent is not None:
                await sent
            await asyncio.sleep(0.05)
    await reading
