"""Cost of hostile clients, and their effect on a well-behaved one.

    python -m bench.hostile [--seconds 5] [--elsewhere]

    before logon    many connections that send 15 MiB each without a logon, again and again, on each transport
    the others      attacks by clients that are logged on, or never are, one attack after the other

For each attack: the broker's resident memory before, at most and after, and the time from publish to
delivery of a well-behaved client, 200 times a second. The attackers are separate processes. On two cores
they also take processor time from the broker. So compare with the row `nobody`, and use a quiet machine.
With `--elsewhere` they attack another broker on the machine, which shows the machine's share of the effect.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from bench.peers.sluice import broker
from bench.processes import BIG, resident
from broker_core import batch
from broker_core.client import AsyncClient
from broker_core.protocols.native import COMMAND, PUBLISH, encode_command, encode_frame_header

SENT = 15 * 1024 * 1024
CHUNK = b"x" * 65_536
PAUSE_S = 0.005
"""Seconds between two messages of the well-behaved client."""
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
HEADS = {
    "tcp": encode_frame_header(COMMAND, 0, SENT),
    "websocket": UPGRADE.format(path="/").encode() + b"\x82\xff" + SENT.to_bytes(8, "big") + bytes(4),
    "stomp": b"CONNECT\ncontent-length:%d\n\n" % SENT,
    "stomp-ws": UPGRADE.format(path="/stomp").encode() + b"\x82\xff" + SENT.to_bytes(8, "big") + bytes(4),
}
SMALL = {
    "tcp": encode_frame_header(COMMAND, 0, 65_000) + b"x" * 60_000,
    "websocket": UPGRADE.format(path="/").encode() + b"\x82\xfe\xfd\xe8" + bytes(4) + b"x" * 60_000,
    "stomp": b"CONNECT\ncontent-length:65000\n\n" + b"x" * 60_000,
    "stomp-ws": UPGRADE.format(path="/stomp").encode() + b"\x82\xfe\xfd\xe8" + bytes(4) + b"x" * 60_000,
}
"""The beginning of a first frame of permitted size."""
Attack = Callable[[str, int, int], Awaitable[None]]


@contextlib.asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def repeated(one: Callable[[str, int, int], Awaitable[None]]) -> Attack:
    """Return an attack of `number` parallel clients, each of which starts again when it is refused."""

    async def attack(host: str, port: int, number: int) -> None:
        async def again(index: int) -> None:
            while True:
                with contextlib.suppress(OSError, EOFError):
                    await one(host, port, index)
                await asyncio.sleep(0.05)

        await asyncio.gather(*map(again, range(number)))

    return attack


def pouring(head: bytes) -> Attack:
    """Return an attack that sends 15 MiB after `head` as far as accepted, and then stays connected."""

    async def one(host: str, port: int, _: int) -> None:
        async with connected(host, port) as (reader, writer):
            request, request_end, first = head.rpartition(b"\r\n\r\n")
            if request_end:  # a WebSocket server ignores data before its upgrade answer
                writer.write(request + request_end)
                await reader.readuntil(request_end)
            writer.write(first)
            for _ in range(SENT // len(CHUNK)):
                writer.write(CHUNK)
                await writer.drain()
            await reader.read()

    return repeated(one)


async def _logs_on(host: str, port: int, index: int) -> None:
    async with connected(host, port) as (reader, writer):
        writer.write(encode_command({"c": "logon", "name": f"again-{index}"}))
        await reader.read(1)


async def _garbage(host: str, port: int, index: int) -> None:
    async with connected(host, port) as (reader, writer):
        writer.write(encode_command({"c": "logon", "name": f"bad-{index}"}) + b"\xff" * 1_000)
        await reader.read()


async def _commands(host: str, port: int, index: int) -> None:
    """Subscribe, unsubscribe, publish and send invalid commands, as fast as the broker reads."""
    async with connected(host, port) as (reader, writer):
        writer.write(encode_command({"c": "logon", "name": f"busy-{index}"}))
        many = b"".join(
            encode_command(command)
            for number in range(50)
            for command in (
                {"c": "subscribe", "id": str(number), "topic": f"x.{number}.>", "filter": f"/a > {number}"},
                {"c": "publish", "topic": f"busy.{index}", "data": number},
                {"c": "unsubscribe", "id": str(number)},
                {"c": "nonsense"},
            )
        )

        async def read() -> None:
            while await reader.read(1 << 16):
                pass

        reading = asyncio.create_task(read())
        while not reading.done():
            writer.write(many)
            await writer.drain()


async def _publishes(host: str, port: int, index: int) -> None:
    """Publish large batches as fast as possible, and read nothing."""
    async with connected(host, port) as (_, writer):
        writer.write(encode_command({"c": "logon", "name": f"pours-{index}"}))
        await asyncio.sleep(0.2)
        built = batch.build_single_topic_batch(f"pours-{index}", f"scratch.{index}", [b"x" * 1_000] * 200)
        frame = encode_frame_header(PUBLISH, 0, len(built)) + built
        while True:
            writer.write(frame)
            await writer.drain()


async def _reads_nothing(host: str, port: int, index: int) -> None:
    """Subscribe to everything and stop reading."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 12)
    writer.write(encode_command({"c": "logon", "name": f"stalled-{index}"}))
    writer.write(encode_command({"c": "subscribe", "id": "s", "topic": ">"}))
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(3_600)
    writer.close()


def _hello() -> bytes:
    """Return the first message of a TLS handshake."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


async def _handshakes(host: str, port: int, number: int) -> None:
    """Begin `number` handshakes with one byte each, then complete all at the same time; repeat."""
    hello = _hello()

    async def start_handshake() -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(hello[:1])
            return reader, writer
        return None

    while True:
        there = [
            one
            for one in await asyncio.gather(*(start_handshake() for _ in range(number)))
            if one is not None
        ]
        await asyncio.sleep(0.5)  # until the broker has read each first byte
        for _, writer in there:
            writer.write(hello[1:])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                answered = (reader.read(1) for reader, _ in there)
                await asyncio.gather(*answered, return_exceptions=True)
        for _, writer in there:
            writer.transport.abort()


ATTACKS: dict[str, tuple[str, Attack, int]] = {
    **{f"15 MiB before logon, {kind}": (kind, pouring(head), 2_000) for kind, head in HEADS.items()},
    **{f"60 KB of a first frame, {kind}": (kind, pouring(head), 2_000) for kind, head in SMALL.items()},
    "logons, again and again": ("tcp", repeated(_logs_on), 200),
    "garbage behind a logon": ("tcp", repeated(_garbage), 200),
    "commands, good and bad, as fast as read": ("tcp", repeated(_commands), 8),
    "batches, poured in": ("tcp", repeated(_publishes), 2),
    "subscribers of all that read nothing": ("tcp", repeated(_reads_nothing), 500),
    "TLS handshakes, finished at once": ("tcps", _handshakes, 1_000),
}
"""Transport, attack and number of connections."""


class Beside:
    """Well-behaved client, and the memory of its broker."""

    def __init__(self, client: AsyncClient, pid: int) -> None:
        self._client, self._pid = client, pid

    async def measure(self, seconds: float) -> dict[str, float]:
        """Publish and receive for `seconds`; return latencies and the broker's memory."""
        waits: list[float] = []
        peak = 0
        subscription = await self._client.subscribe("good", id="good")

        async def read() -> None:
            async for message in subscription:
                waits.append(time.monotonic() - float(message.body))

        reading = asyncio.create_task(read())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._client.publish("good", repr(time.monotonic()))
            await asyncio.sleep(PAUSE_S)
            peak = max(peak, resident(self._pid))
        await self._client.flush()
        await asyncio.sleep(0.2)
        reading.cancel()
        await subscription.close()
        waits.sort()
        return {
            "p50": 1_000 * waits[len(waits) // 2],
            "p99": 1_000 * waits[int(len(waits) * 0.99)],
            "most": peak,
        }


def attackers(name: str, address: str, number: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "bench.hostile",
        "--attack",
        name,
        "--at",
        address,
        "--connections",
        str(number),
    ]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


async def run(connections: int, seconds: float, only: str, *, elsewhere: bool = False) -> Table:
    """Run all attacks, or the one named `only`; return the table."""
    aimed = ", all at another broker" if elsewhere else ""
    table = Table(title=f"{connections:,} connections at most, {seconds:g} s each{aimed}")
    for heading in ("attack", "connections", "p50 ms", "p99 ms", "MiB more, at most", "MiB more, after"):
        table.add_column(heading, justify="left" if heading == "attack" else "right")
    for name in ("nobody", *ATTACKS):
        if only not in name and name != "nobody":
            continue
        with (
            broker(BIG, tls=True) as (ports, pid),
            broker(BIG, tls=True) if elsewhere else nullcontext((ports, pid)) as (aims, _),
        ):
            kind, _, number = ATTACKS.get(name, ("tcp", None, 0))
            number = min(number, connections)
            async with AsyncClient(f"tcp://127.0.0.1:{ports['tcp']}", "good") as client:
                beside = Beside(client, pid)
                await beside.measure(1.0)
                started = resident(pid)
                process = attackers(name, f"tcp://127.0.0.1:{aims[kind]}", number) if number else None
                try:
                    await asyncio.sleep(1.0 if process is not None else 0)
                    found = await beside.measure(seconds)
                finally:
                    if process is not None:
                        process.kill()
                        process.wait()
                await beside.measure(2.0)
                after, peak = ((nbytes - started) / 2**20 for nbytes in (resident(pid), found["most"]))
                found["most"] = peak
        table.add_row(
            name,
            f"{number:,}",
            f"{found['p50']:.1f}",
            f"{found['p99']:.1f}",
            f"{found['most']:.0f}",
            f"{after:.0f}",
        )
        print(json.dumps({"attack": name, "connections": number, **found, "after": after}), flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=2_000, help="of an attack at most (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each (%(default)s)")
    parser.add_argument("--only", default="", help="attacks whose names hold this")
    parser.add_argument("--elsewhere", action="store_true", help="attack another broker beside")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--at", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.attack is not None:
        at = urlsplit(arguments.at)
        asyncio.run(
            ATTACKS[arguments.attack][1](str(at.hostname), at.port or 0, arguments.connections)  # type: ignore[arg-type]
        )
        return
    Console(stderr=True).print(
        asyncio.run(
            run(arguments.connections, arguments.seconds, arguments.only, elsewhere=arguments.elsewhere)
        )
    )


if __name__ == "__main__":
    main()
