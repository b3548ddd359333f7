"""Latency of single messages: `python -m bench.latency [--runs 3] [--seconds 8] [--rates 1000,5000]`.

Single `publish()` calls of 100 bytes at a steady rate. Publisher, broker and subscriber are Python
processes of their own. The time of a message counts from when it is due, even if the publisher is late,
until the subscriber's application has it. The messages are durable: delivered after `fdatasync`. Beside it,
in the same run:

* `live`: the same messages to a subscription that doesn't wait for the disk
* a bare forwarder in asyncio without a protocol, which writes each read to a file, syncs it and sends it
  on: the best possible in Python
* one at a time: the next message is published when the subscriber has the last one (closed loop); and
  publish and flush

Figures are medians of the runs, in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.processes import Process, answer, broker, go

SIZE = 100
WARM_S = 1.0
"""Seconds that aren't counted, because of first sockets, segments and caches."""
console = Console(stderr=True)
Figures = dict[str, float]


def percentiles(nanoseconds: list[int]) -> Figures:
    p50, p99, p999 = np.percentile(nanoseconds, [50, 99, 99.9]) / 1e6
    return {"p50": float(p50), "p99": float(p99), "p99.9": float(p999)}


def body(due: int) -> bytes:
    return b"%020d" % due + b"x" * (SIZE - 20)


# Roles, each run in a separate process.


async def pace(seconds: float, rate: int) -> Any:
    """Yield each due time in ns when it is reached."""
    start, number = time.monotonic_ns(), int(seconds * rate)
    for count in range(number):
        due = start + count * 1_000_000_000 // rate
        if (early := due - time.monotonic_ns()) > 0:
            await asyncio.sleep(early / 1e9)
        yield due


async def publish(address: str, seconds: float, rate: int) -> None:
    from broker_core.client import AsyncClient

    async with AsyncClient(address, "publisher") as client:
        async for due in pace(WARM_S + seconds, rate):
            await client.publish("bench", body(due))
        await client.flush()
        await client.publish("bench", b"end")
        await client.flush()


async def subscribe(address: str, durability: str, rate: int) -> None:
    from broker_core.client import NOW, AsyncClient

    async with AsyncClient(address, "subscriber") as client:
        how: dict[str, Any] = {} if durability == "durable" else {"bookmark": NOW, "durability": durability}
        subscription = await client.subscribe("bench", **how)
        print_figures(ready=True)
        latencies: list[int] = []
        async for message in subscription:
            if message.body == b"end":
                break
            latencies.append(time.monotonic_ns() - int(message.body[:20]))
        print_figures(**percentiles(latencies[int(WARM_S * rate) :]))


async def closed_loop(address: str, number: int) -> None:
    """Send one message at a time: until it is delivered, and until it is acknowledged."""
    from broker_core.client import AsyncClient

    async with AsyncClient(address, "publisher") as client, AsyncClient(address, "subscriber") as reader:
        messages = aiter(await reader.subscribe("bench"))
        delivered, flushed = [], []
        for _ in range(number):
            began = time.monotonic_ns()
            await client.publish("bench", body(began))
            await anext(messages)
            delivered.append(time.monotonic_ns() - began)
        await client.flush()
        for _ in range(number):
            began = time.monotonic_ns()
            await client.publish("other", body(began))
            await client.flush()
            flushed.append(time.monotonic_ns() - began)
        print_figures(delivered=percentiles(delivered), flushed=percentiles(flushed))


class Forwarder(asyncio.Protocol):
    """Forwarder that writes all data to the file, syncs it, and sends it to the other connection."""

    peers: list[asyncio.Transport] = []
    file: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peers.append(transport)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        os.write(self.file, data)
        os.fdatasync(self.file)
        self.peers[0].write(data)


async def forward() -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as home:
        Forwarder.file = os.open(f"{home}/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        # Preallocate, as the journal does: then a sync writes no metadata.
        os.posix_fallocate(Forwarder.file, 0, 64 * 2**20)
        os.lseek(Forwarder.file, 0, os.SEEK_SET)
        server = await asyncio.get_running_loop().create_server(Forwarder, "127.0.0.1", 0)
        print_figures(port=server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()


async def forward_publish(port: int, seconds: float, rate: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    async for due in pace(WARM_S + seconds, rate):
        writer.write(body(due))
    writer.write(b"e" * SIZE)
    await writer.drain()
    await asyncio.sleep(1)


async def forward_subscribe(port: int, rate: int) -> None:
    reader, _ = await asyncio.open_connection("127.0.0.1", port)
    print_figures(ready=True)
    latencies: list[int] = []
    while (found := await reader.readexactly(SIZE))[:1] != b"e":
        latencies.append(time.monotonic_ns() - int(found[:20]))
    print_figures(**percentiles(latencies[int(WARM_S * rate) :]))


def print_figures(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def role(words: list[str]) -> None:
    """Run a role, on a loop whose timers have microsecond resolution.

    epoll's timers have whole milliseconds, so messages would arrive in groups.
    """
    match words:
        case ["publish", address, seconds, rate]:
            main = publish(address, float(seconds), int(rate))
        case ["subscribe", address, durability, rate]:
            main = subscribe(address, durability, int(rate))
        case ["closed-loop", address, number]:
            main = closed_loop(address, int(number))
        case ["forward"]:
            main = forward()
        case ["forward-publish", port, seconds, rate]:
            main = forward_publish(int(port), float(seconds), int(rate))
        case ["forward-subscribe", port, rate]:
            main = forward_subscribe(int(port), int(rate))
        case _:
            raise SystemExit(f"no role {words}")
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(main)


# The runs.


@contextmanager
def started(module: str, *words: object) -> Iterator[Process]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def role_of(*words: object) -> AbstractContextManager[Process]:
    return started("bench.latency", "--role", *words)


def paced(durability: str, seconds: float, rate: int) -> Figures:
    with broker() as (addresses, _):
        address = addresses["tcp"]
        with role_of("subscribe", address, durability, rate) as subscriber:
            answer(subscriber)
            with role_of("publish", address, seconds, rate):
                return answer(subscriber)


def traced(seconds: float, rate: int) -> dict[str, Figures]:
    """Return the times of a batch between the traced stations in the broker."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-bench-") as home,
        started("bench.traced_broker", home) as process,
    ):
        assert process.stdout is not None
        ports = next(json.loads(line) for line in process.stdout if line.startswith("{"))  # skip log lines
        address = f"tcp://127.0.0.1:{ports['tcp']}"
        with role_of("subscribe", address, "durable", rate) as subscriber:
            answer(subscriber)
            with role_of("publish", address, seconds, rate):
                answer(subscriber)
                go(process)
                return answer(process)


def bare(seconds: float, rate: int) -> Figures:
    with role_of("forward") as forwarder:
        port = answer(forwarder)["port"]
        with role_of("forward-subscribe", port, rate) as subscriber:
            answer(subscriber)
            with role_of("forward-publish", port, seconds, rate):
                return answer(subscriber)


def one_at_a_time(number: int) -> dict[str, Figures]:
    with broker() as (addresses, _), role_of("closed-loop", addresses["tcp"], number) as role:
        return answer(role)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="that count, of each case (default 8)")
    parser.add_argument("--rates", default="1000,5000", help="messages a second (default 1000,5000)")
    parser.add_argument(
        "--trace", action="store_true", help="instead, where the time goes inside the broker, at each rate"
    )
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        role(options.role)
        return
    if options.trace:
        for rate in map(int, options.rates.split(",")):
            steps = traced(options.seconds, rate)
            table = Table(title=f"From one station to the next, {rate:,} messages a second, ms")
            for heading in ("", "p50", "p99"):
                table.add_column(heading, justify="left" if not heading else "right")
            for station, figures in steps.items():
                table.add_row(station, f"{figures['p50']:.3f}", f"{figures['p99']:.3f}")
            Console().print(table)
        return
    found: dict[str, list[Figures]] = {}
    for _ in range(options.runs):
        for rate in map(int, options.rates.split(",")):
            cases = {
                f"durable, {rate:,}/s": partial(paced, "durable", options.seconds, rate),
                f"live, {rate:,}/s": partial(paced, "live", options.seconds, rate),
                f"bare forwarder, {rate:,}/s": partial(bare, options.seconds, rate),
            }
            for name, measure in cases.items():
                found.setdefault(name, []).append(measure())
                console.print(name, found[name][-1])
        single = one_at_a_time(2_000)
        for name, figures in single.items():
            found.setdefault(f"one at a time, {name}", []).append(figures)
            console.print(name, figures)
    table = Table(title=f"Latency of single messages of {SIZE} bytes, ms")
    for heading in ("", "p50", "p99", "p99.9", "p99 least", "p99 most"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        p99 = [run["p99"] for run in runs]
        table.add_row(
            name, *(f"{value:.2f}" for value in middle.values()), f"{min(p99):.2f}", f"{max(p99):.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
