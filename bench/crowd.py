"""Many stalled clients: `python -m bench.crowd [--stalled 2000] [--healthy 50]`.

The stalled WebSocket clients subscribe and then stop reading, beside healthy ones, in one broker with a small
pool. Figures: throughput and latency of the healthy clients, the broker's memory compared with its pool, and
the final states of the stalled clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import uvloop

from bench.isolation import ended, line, resident, start
from bench.peers.sluice import broker
from broker_core.client import AsyncClient
from broker_core.protocols.native import encode_command

TOPIC = "crowd"
SMALL = 16 * 1024


async def stalled(port: int, number: int, stomp: bool = False) -> None:
    """Open WebSockets, subscribe, and never read again. `stomp`: to a STOMP transport."""
    import socket

    writers = []
    for name in range(number):
        client_socket = socket.socket()
        client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        client_socket.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client_socket, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=client_socket, limit=SMALL)
        writer.write(
            b"GET /stomp HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        native = (
            encode_command({"c": "logon", "name": f"stalled-{name}"}),
            encode_command({"c": "subscribe", "id": "s", "topic": TOPIC}),
        )
        frames = (
            b"CONNECT\naccept-version:1.2\nclient-id:stalled-%d\n\n\0" % name,
            b"SUBSCRIBE\nid:s\ndestination:/topic/%b\nreceipt:r\n\n\0" % TOPIC.encode(),
        )
        for message in frames if stomp else native:
            writer.write(binary_frame(message))
            await reader.read(1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writers.append(writer)
    print('{"ready": true}', flush=True)
    await asyncio.Event().wait()


def binary_frame(payload: bytes) -> bytes:
    """Return a masked WebSocket message (RFC 6455), with a mask of zeros."""
    assert len(payload) < 126
    return bytes((0x82, 0x80 | len(payload), 0, 0, 0, 0)) + payload


async def healthy(port: int, number: int) -> None:
    """Run clients that read, in one process, and collect the latencies of all."""
    import signal

    latencies: list[int] = []
    counts = [0] * number

    async def read(index: int) -> None:
        async with AsyncClient(f"ws://127.0.0.1:{port}/", f"healthy-{index}") as client:
            subscription = await client.subscribe(TOPIC)
            ready.append(index)
            async for batch in subscription.batches():
                bodies = batch.bodies()
                latencies.append(time.monotonic_ns() - int(bodies[0][:20]))
                counts[index] += len(bodies)

    ready: list[int] = []
    tasks = [asyncio.create_task(read(index)) for index in range(number)]
    while len(ready) < number:  # noqa: ASYNC110  every client of this process counts itself in
        await asyncio.sleep(0.05)
    print('{"ready": true}', flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    latencies.sort()
    print(
        json.dumps(
            {
                "least": min(counts),
                "most": max(counts),
                "p50_us": latencies[len(latencies) // 2] // 1_000,
                "p99_us": latencies[len(latencies) * 99 // 100] // 1_000,
            }
        ),
        flush=True,
    )
    for task in tasks:
        task.cancel()


async def publish(port: int, seconds: float, rate: int) -> None:
    async with AsyncClient(f"tcp://127.0.0.1:{port}", "publisher") as client:
        started, sent, each = time.monotonic(), 0, max(1, rate // 20)
        while sent < rate * seconds:
            await asyncio.sleep(max(0.0, started + sent / rate - time.monotonic()))
            await client.publish_many(TOPIC, [b"%020d" % time.monotonic_ns() + b"x" * 980] * each)
            sent += each
        await client.flush()
        print(json.dumps({"sent": sent, "seconds": time.monotonic() - started}), flush=True)


def measure(
    number: int, reading: int, seconds: float, rate: int, pool: int, stomp: bool = False
) -> dict[str, Any]:
    """Run stalled and healthy clients against one broker; return the figures."""
    with broker(pool) as (ports, pid):
        processes = []
        try:
            processes.append(
                readers := start("bench.crowd", "--role", "healthy", ports["websocket"], reading)
            )
            line(readers)
            processes.append(
                crowd := start(
                    "bench.crowd",
                    "--role",
                    "stalled",
                    ports["stomp-ws" if stomp else "websocket"],
                    number,
                    int(stomp),
                )
            )
            line(crowd)
            before = peak = resident(pid)
            processes.append(writer := start("bench.crowd", "--role", "publish", ports["tcp"], seconds, rate))
            while writer.poll() is None:
                peak = max(peak, resident(pid))
                time.sleep(0.2)
            sent = line(writer)
            time.sleep(2)
            return {**ended(readers), **sent, "grown_mib": (peak - before) / 2**20}
        finally:
            for process in processes:
                process.kill()
                process.wait()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description=__doc__)
    parser.add_argument("--stalled", type=int, default=2_000)
    parser.add_argument("--healthy", type=int, default=50)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--rate", type=int, default=200, help="messages a second of 1,000 bytes (default 200)"
    )
    parser.add_argument("--pool", type=int, default=64, help="MiB of the broker's pool (default 64)")
    parser.add_argument("--stomp", action="store_true", help="the stalled ones speak STOMP")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        role, *words = options.role
        work = {
            "stalled": lambda: stalled(int(words[0]), int(words[1]), words[2] == "1"),
            "healthy": lambda: healthy(int(words[0]), int(words[1])),
            "publish": lambda: publish(int(words[0]), float(words[1]), int(words[2])),
        }
        uvloop.run(work[role]())
        return
    for number in (0, options.stalled):
        runs = [
            measure(number, options.healthy, options.seconds, options.rate, options.pool << 20, options.stomp)
            for _ in range(options.runs)
        ]
        found = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        print(
            f"{number} stalled, {options.healthy} healthy: "
            + ", ".join(f"{key} {value:,.1f}" for key, value in found.items())
        )


if __name__ == "__main__":
    main()
