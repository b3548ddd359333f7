"""WebSocket transport of a real broker process: daphne, Channels, and back-pressure in both directions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import websockets
from websockets.frames import Frame, Opcode

from broker_core.batch import build_single_topic_batch
from broker_core.client import AsyncClient
from broker_core.protocols.native import PUBLISH, encode_command, encode_frame_header

ROOT = Path(__file__).parents[3]


@dataclass
class RunningBroker:
    tcp: int
    websocket: int
    control: Path

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.websocket}/"

    async def ask(self, do: str, **fields: Any) -> Any:
        reader, writer = await asyncio.open_unix_connection(str(self.control), limit=1 << 24)
        try:
            writer.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            answer = json.loads(await reader.readline())
        finally:
            writer.close()
        assert answer["ok"], answer
        return answer["result"]

    async def resident_bytes(self) -> int:
        pid = (await self.ask("status"))["pid"]
        line = next(
            line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
        )
        return int(line.split()[1]) * 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """Run `manage.py runbroker` with its own database."""
    with tempfile.TemporaryDirectory(prefix="sluice-ws-") as home:
        made = RunningBroker(free_port(), free_port(), Path(home) / "run" / "sluice-1.sock")
        environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"} | {
            "SLUICE_HOME": home,
            "SLUICE_TCP_PORT": str(made.tcp),
            "SLUICE_WEBSOCKET_PORT": str(made.websocket),
            "SLUICE_STOMP_PORT": "0",
            "SLUICE_STOMP_WS_PORT": "0",
            "DJANGO_SETTINGS_MODULE": "console.project.settings",
        }
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)
        process = subprocess.Popen(
            [sys.executable, "manage.py", "runbroker"],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            asyncio.run(_ready(made, process))
            yield made
        finally:
            process.terminate()
            assert process.wait(20) == 0, "the broker did not stop cleanly"


async def _ready(made: RunningBroker, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(40):
        while not made.control.exists():
            assert process.poll() is None, "the broker process ended"
            await asyncio.sleep(0.05)


@asynccontextmanager
async def text_client(broker: RunningBroker, name: str) -> AsyncIterator[Any]:
    async with websockets.connect(broker.url, max_queue=1, compression=None) as socket_:
        await socket_.send(json.dumps({"c": "logon", "name": name}))
        assert json.loads(await socket_.recv())["of"] == "logon"
        yield socket_


async def test_a_person_can_publish_and_subscribe_with_json_text(broker: RunningBroker) -> None:
    async with text_client(broker, "person") as person:
        await person.send(json.dumps({"c": "subscribe", "id": "s", "topic": "hello.>"}))
        assert json.loads(await person.recv())["stream"] == 1
        await person.send(json.dumps({"c": "publish", "topic": "hello.world", "data": {"x": 1}}))
        message = json.loads(await person.recv())
        assert (message["sub"], message["topic"], message["data"]) == ("s", "hello.world", {"x": 1})


async def test_texts_have_no_credit(broker: RunningBroker) -> None:
    async with text_client(broker, "uncounted") as person:
        await person.send(json.dumps({"c": "subscribe", "id": "s", "topic": "hello.>", "credit": 1}))
        error = json.loads(await person.recv())
        assert (error["code"], error["of"], error["details"]["field"]) == (
            "bad_command",
            "subscribe",
            "credit",
        )


async def test_a_wrong_first_command_closes_with_its_own_code(broker: RunningBroker) -> None:
    async with websockets.connect(broker.url) as client:
        await client.send(json.dumps({"c": "flush", "id": "1"}))
        with pytest.raises(websockets.ConnectionClosed) as caught:
            while True:
                await client.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 4100


@pytest.mark.parametrize("message", [b"\0" * 80_000, "x" * 80_000], ids=["frames", "text"])
async def test_a_large_message_before_the_logon_is_not_taken(
    broker: RunningBroker, message: bytes | str
) -> None:
    async with websockets.connect(broker.url) as client:
        said = []
        with pytest.raises(websockets.ConnectionClosed) as caught:
            await client.send(message)
            while True:
                said.append(await client.recv())
        client.transport.abort()  # the broker has stopped reading and waits for a reply to its close frame
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 4001
        assert b'"code":"frame_too_large"' in said[0] and b'"limit":65544' in said[0]


async def test_after_the_logon_a_message_may_be_large(broker: RunningBroker) -> None:
    async with AsyncClient(broker.url, "large") as client:
        await client.publish_many("large", [b"x" * 3_000_000])
        await client.flush()


async def test_others_on_the_machine_may_not_look_into_its_files(broker: RunningBroker) -> None:
    home = broker.control.parent.parent
    made = [path for path in home.rglob("*") if path.name.startswith("sluice-1.") or path.is_dir()]
    assert made and not [path for path in made if not path.is_socket() and path.stat().st_mode & 0o007]


async def test_half_a_frame_in_a_binary_message_closes_the_connection(broker: RunningBroker) -> None:
    async with websockets.connect(broker.url) as client:
        await client.send(b"\x10\0\0\0\x01\0")
        with pytest.raises(websockets.ConnectionClosed) as caught:
            while True:
                await client.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 4000


async def test_a_browser_that_stops_reading_keeps_its_backlog_in_the_outbox_and_not_in_the_server(
    broker: RunningBroker,
) -> None:
    async with (
        text_client(broker, "stalled") as stalled,
        AsyncClient(f"tcp://127.0.0.1:{broker.tcp}", "w1") as writer,
    ):
        await stalled.send(json.dumps({"c": "subscribe", "id": "s", "topic": "stall"}))
        await stalled.recv()
        stalled.transport.pause_reading()
        before = await broker.resident_bytes()
        for _ in range(300):
            await writer.publish_many("stall", [b'"' + b"x" * 1_000 + b'"'] * 100)
        await writer.flush()
        client = await broker.ask("client", name="stalled")
        assert client["outbox_bytes"] > 20_000_000, (
            "the backlog must be in the outbox, where policy rules see it"
        )
        assert await broker.resident_bytes() - before < client["outbox_bytes"] + 32 * 1024 * 1024
        stalled.transport.resume_reading()
        for _ in range(30_000):
            await stalled.recv()
        assert (await broker.ask("client", name="stalled"))["lag_messages"] == 0


UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def stalled_socket(broker: RunningBroker, name: str) -> socket.socket:
    """Connect a client with a small receive buffer that subscribes and then stops reading."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    made.connect(("127.0.0.1", broker.websocket))
    made.sendall(UPGRADE)
    for command in ({"c": "logon", "name": name}, {"c": "subscribe", "id": "s", "topic": "crowd"}):
        made.recv(4_096)  # the reply to the previous request
        text = json.dumps(command).encode()
        made.sendall(bytes((0x81, 0x80 | len(text), 0, 0, 0, 0)) + text)
    made.recv(4_096)
    return made


async def test_of_a_crowd_that_stops_reading_the_server_holds_a_message_each(broker: RunningBroker) -> None:
    crowd = [await asyncio.to_thread(stalled_socket, broker, f"crowd-{number}") for number in range(300)]
    try:
        async with AsyncClient(f"tcp://127.0.0.1:{broker.tcp}", "w2") as writer:
            await writer.publish_many("warm", [b"{}"] * 100)
            await writer.flush()
            before = await broker.resident_bytes()
            for _ in range(100):
                await writer.publish_many("crowd", [b'"' + b"x" * 998 + b'"'] * 4)
                await writer.flush()
        assert (await broker.ask("client", name="crowd-0"))["outbox_messages"] > 200, (
            "the clients must not read"
        )
        # Each connection costs 4 KB and its share of the outboxes. With Twisted's own limit it costs more
        # than 64 KiB.
        assert await broker.resident_bytes() - before < 300 * 20 * 1024 + 4 * 1024 * 1024
    finally:
        for one in crowd:
            one.close()


def framed(message: bytes, rng: random.Random) -> bytes:
    """Encode a message as one frame, or as fragments with pings between them."""
    if rng.random() < 0.5:
        return Frame(Opcode.BINARY, message).serialize(mask=True)
    at = rng.randrange(len(message))
    parts = (
        Frame(Opcode.BINARY, message[:at], fin=False),
        Frame(Opcode.PING, b"p"),
        Frame(Opcode.CONT, message[at:]),
    )
    return b"".join(part.serialize(mask=True) for part in parts)


@pytest.mark.parametrize("seed", [1, 2])
async def test_messages_come_in_order_however_they_are_framed_and_cut(
    broker: RunningBroker, seed: int
) -> None:
    rng, topic = random.Random(seed), f"framed-{seed}"
    bodies = [b"%d" % number + b"x" * rng.choice((0, 30, 400, 3_000, 70_000)) for number in range(150)]
    logon = encode_command({"c": "logon", "name": f"raw-{seed}"})
    frames: list[bytes] = []
    for body in bodies:
        batch = build_single_topic_batch(f"raw-{seed}", topic, [body])
        frames.append(encode_frame_header(PUBLISH, 0, len(batch)) + bytes(batch))
    wire = b"".join(framed(frame, rng) for frame in frames)
    async with AsyncClient(f"tcp://127.0.0.1:{broker.tcp}", f"framed-reader-{seed}") as reader:
        subscription = await reader.subscribe(topic)
        raw_reader, raw = await asyncio.open_connection("127.0.0.1", broker.websocket)
        raw.write(UPGRADE)
        await raw_reader.readuntil(b"\r\n\r\n")
        raw.write(Frame(Opcode.BINARY, logon).serialize(mask=True))
        assert b"logon" in await raw_reader.read(4_096)
        sending = asyncio.create_task(in_pieces(raw, wire, rng))
        answers = asyncio.create_task(raw_reader.read(-1))
        seen: list[bytes] = []
        async with asyncio.timeout(30):
            async for found in subscription.batches():
                seen += found.bodies()
                if len(seen) == len(bodies):
                    break
        assert seen == bodies
        await sending
        raw.close()
        assert b"error" not in await answers


async def in_pieces(raw: asyncio.StreamWriter, wire: bytes, rng: random.Random) -> None:
    at = 0
    while at < len(wire):
        piece = rng.choice((1, 3, 100, 5_000, 300_000))
        raw.write(wire[at : at + piece])
        at += piece
        await raw.drain()
        await asyncio.sleep(0)


async def test_frames_over_a_websocket_carry_whole_batches(broker: RunningBroker) -> None:
    async with AsyncClient(broker.url, "ws-reader") as reader, AsyncClient(broker.url, "ws-writer") as writer:
        subscription = await reader.subscribe("frames")
        for start in range(0, 50_000, 500):
            await writer.publish_many("frames", [b"%d" % n for n in range(start, start + 500)])
        seen: list[bytes] = []
        async with asyncio.timeout(20):
            async for found in subscription.batches():
                seen += found.bodies()
                if len(seen) == 50_000:
                    break
        assert seen == [b"%d" % n for n in range(50_000)]
