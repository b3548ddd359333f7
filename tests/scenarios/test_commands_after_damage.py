"""Commands received after bytes that end the connection have no effect, even if read together with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from broker_core import batch
from broker_core.client import EPOCH, AsyncClient
from broker_core.config import TransportSettings
from broker_core.protocols.native import PUBLISH, encode_command, encode_frame_header
from tests.support.brokers import tcp_policy
from tests.support.transports_process import broker_process

KINDS = ("tcp", "websocket", "stomp", "stomp-ws")


@pytest.fixture(scope="module")
def ports() -> Iterator[dict[str, int]]:
    policy = tcp_policy()
    others = tuple(TransportSettings(kind, kind, 0) for kind in KINDS[1:])
    with broker_process(replace(policy, transports=(*policy.transports, *others))) as made:
        yield made


def wrapped(data: bytes) -> bytes:
    """Return a binary WebSocket message with an all-zero mask."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return b"\x82" + length + bytes(4) + data


def native(topic: str, body: str) -> list[bytes]:
    """Return one message as a command, and one in a batch."""
    built = batch.build_single_topic_batch("c", topic, [body.encode()])
    return [
        encode_command({"c": "publish", "topic": topic, "text": body}),
        encode_frame_header(PUBLISH, 0, len(built)) + built,
    ]


def stomp(topic: str, body: str) -> list[bytes]:
    return [f"SEND\ndestination:/topic/{topic}\n\n{body}\0".encode()] * 2


def flipped(data: bytes) -> bytes:
    """Return the data with a flipped bit in its last byte but one, inside the text of a command or batch."""
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


LOGON = encode_command({"c": "logon", "name": "c"})
CONNECT = b"CONNECT\naccept-version:1.2\nhost:a\n\n\0"
DAMAGE: dict[str, Callable[[str], bytes]] = {
    "no frame": lambda topic: b"\x01\0\0\0\x09\0\0\0x",
    "a command of which a bit was flipped": lambda topic: flipped(native(topic, "never")[0]),
    "a batch of which a bit was flipped": lambda topic: flipped(native(topic, "never")[1]),
}
STOMP_DAMAGE: dict[str, Callable[[str], bytes]] = {
    "no command": lambda topic: b"SENT\n\nnever\0",
    "no header": lambda topic: f"SEND\ndestination:/topic/{topic}\nnever\n\nnever\0".encode(),
}
CASES = [
    *((kind, what) for kind in KINDS[:2] for what in DAMAGE),
    *((kind, what) for kind in KINDS[2:] for what in STOMP_DAMAGE),
    ("websocket", "no message"),
    ("stomp-ws", "no message"),
]


@pytest.mark.parametrize(("kind", "what"), CASES)
async def test_what_is_read_behind_damage_is_not_published(
    ports: dict[str, int], kind: str, what: str
) -> None:
    topic = f"{kind}.{'.'.join(what.split())}"
    says, logon = (stomp, CONNECT) if kind.startswith("stomp") else (native, LOGON)
    damage = {**DAMAGE, **STOMP_DAMAGE}.get(what)
    reader, writer = await asyncio.open_connection("127.0.0.1", ports[kind])
    wrap: Callable[[bytes], bytes] = bytes
    if kind in ("websocket", "stomp-ws"):
        wrap = wrapped
        path = "/stomp" if kind == "stomp-ws" else "/"
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
    writer.write(wrap(logon))
    await reader.read(1)  # until the logon is answered, the broker reads one command at a time
    # Send the second half in the same WebSocket message, and in a separate one.
    damaged = damage(topic) if damage is not None else b""
    behind = says(topic, "behind")
    writer.write(
        b"".join(map(wrap, says(topic, "before")))
        + (wrap(damaged + b"".join(behind)) if damage is not None else b"\xf3\x80" + bytes(4))
        + b"".join(map(wrap, behind))
    )
    try:
        await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:
        pass
    writer.close()
    async with AsyncClient(f"tcp://127.0.0.1:{ports['tcp']}", "auditor") as auditor:
        subscription = await auditor.subscribe(topic, bookmark=EPOCH)
        await auditor.publish(topic, "last")
        got: list[bytes] = []
        async for message in subscription:
            got.append(message.body)
            if got[-1] == b"last":
                break
    assert got == [b"before", b"before", b"last"]
