"""Cost of many commands of one client for the broker and another client.

    python -m bench.subscribing [--runs 3] [--only STOMP]

A raw socket sends each pile of commands in one write, to a fresh broker each time. Beside it a client of
the library publishes a message and receives it again every 2 ms. Figures: the broker's processor time for
the pile, the time to its last answer, and the other client's round trips meanwhile, median and 99th
percentile, compared with those before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from bench.processes import Process, answer, broker, go, spent
from broker_core.batch import build_single_topic_batch
from broker_core.client import AsyncClient
from broker_core.protocols.native import (
    COMMAND,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    PUBLISH,
    encode_command,
    encode_frame_header,
)

PAUSE_S = 0.002
LEAST = 20
"""Minimum round trips beside a pile."""
CALM_S = 1.0


def subscribes(number: int, client: int, durable: bool) -> Iterator[bytes]:
    """Yield subscriptions, each with its own filter and topic."""
    for n in range(number):
        more = {"durable": f"d{n}"} if durable else {"filter": f"/n = {n} AND /c = {client}"}
        yield encode_command({"c": "subscribe", "id": str(n), "topic": f"many.{client}.{n}", **more})


def publishes(number: int, name: str) -> Iterator[bytes]:
    """Yield batches of one message, each on its own topic."""
    for n in range(number):
        batch = build_single_topic_batch(name, f"topics.{n}", [b'{"n":%d}' % n], n + 1)
        yield encode_frame_header(PUBLISH, 0, len(batch)) + batch


def stomp_subscribes(number: int, kind: str, client: int) -> Iterator[bytes]:
    """Yield SUBSCRIBE frames with a receipt, each with its own destination."""
    for n in range(number):
        yield b"SUBSCRIBE\nid:%d\ndestination:/%s/%d.%d\nreceipt:%d\n\n\0" % (n, kind.encode(), client, n, n)


PILES: dict[str, Callable[[int], Iterator[bytes]]] = {
    "1,000 subscriptions": lambda client: subscribes(1_000, client, durable=False),
    "500 durable subscriptions": lambda client: subscribes(500, client, durable=True),
    "10 clients of 1,000 subscriptions each": lambda client: subscribes(1_000, client, durable=False),
    "STOMP: 1,000 queues": lambda client: stomp_subscribes(1_000, "queue", client),
    "STOMP: 10,000 queues, a thousand allowed": lambda client: stomp_subscribes(10_000, "queue", client),
    "STOMP: 10,000 topics, a thousand allowed": lambda client: stomp_subscribes(10_000, "topic", client),
    "STOMP: 5 clients of 1,000 queues each": lambda client: stomp_subscribes(1_000, "queue", client),
    "20,000 publishes, each of its own topic": lambda client: publishes(20_000, f"pile-{client}"),
    "100,000 publishes, each of its own topic": lambda client: publishes(100_000, f"pile-{client}"),
}


def clients_of(pile: str) -> int:
    """Return the number of clients that send a pile."""
    words = pile.removeprefix("STOMP: ").split()
    return int(words[0]) if words[1] == "clients" else 1


async def send(address: str, pile: str) -> None:
    """Log on the clients of a pile, wait for a line of input, send everything, and read all answers."""
    stomp = pile.startswith("STOMP")
    log_on, send_all = (stomp_logged_on, send_stomp) if stomp else (logged_on, send_one)
    links = [await log_on(address, f"pile-{client}") for client in range(clients_of(pile))]
    frames = [list(PILES[pile](client)) for client in range(len(links))]
    print_figures(ready=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await asyncio.gather(*(send_all(*link, made) for link, made in zip(links, frames, strict=True)))
    print_figures(done=True)


async def logged_on(address: str, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.removeprefix("tcp://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode_command({"c": "logon", "name": name}))
    await read_answer(reader)
    return reader, writer


async def send_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: list[bytes]) -> None:
    """Send commands; read as many answers, or until the last publish is persisted."""
    writer.write(b"".join(frames))
    found = 0
    while found < len(frames):
        ack = await read_answer(reader)
        if ack["c"] == "error":
            raise SystemExit(str(ack))
        if ack["c"] == "ack":
            found = int(ack["sequence"]) if "of" not in ack else found + (ack["ack"] == "processed")


async def stomp_logged_on(address: str, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.removeprefix("stomp://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"CONNECT\naccept-version:1.2\nclient-id:%b\n\n\0" % name.encode())
    await reader.readuntil(b"\0")
    return reader, writer


async def send_stomp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: list[bytes]) -> None:
    """Send frames; read as many receipts, or the ERROR that ends the connection."""
    writer.write(b"".join(frames))
    found = 0
    while found < len(frames) and (data := await reader.read(1 << 20)):
        found += data.count(b"RECEIPT\n")


async def read_answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Return the next answer. Deliveries are skipped."""
    while True:
        length, kind, _, _ = FRAME_HEADER.unpack(await reader.readexactly(FRAME_HEADER_SIZE))
        payload = await reader.readexactly(length)
        if kind == COMMAND:
            found: dict[str, Any] = json.loads(payload)
            return found


async def neighbour(address: str) -> None:
    """Measure round trips of one message at a time, in ms.

    First without load, then from a line of input to the next.
    """
    loop = asyncio.get_running_loop()
    async with AsyncClient(address, "neighbour") as client:
        subscription = await client.subscribe("neighbour")
        messages = aiter(subscription)

        async def trip() -> float:
            began = time.perf_counter()
            await client.publish("neighbour", b"x")
            await anext(messages)
            elapsed = time.perf_counter() - began
            await asyncio.sleep(PAUSE_S)
            return elapsed * 1_000

        until = time.monotonic() + CALM_S
        calm = [await trip() for _ in iter(lambda: time.monotonic() < until, False)]
        print_figures(ready=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        word = loop.run_in_executor(None, sys.stdin.readline)
        beside: list[float] = []
        while not word.done() or len(beside) < LEAST:
            beside.append(await trip())
        print_figures(calm=calm, beside=beside)


def print_figures(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def measure(pile: str) -> dict[str, Any]:
    """Run one pile on a fresh broker."""
    with broker() as (addresses, pid):
        address = addresses["tcp"]
        neighbour_process = part("neighbour", address, pile)
        sender = part("send", addresses["stomp"] if pile.startswith("STOMP") else address, pile)
        try:
            answer(neighbour_process)
            answer(sender)
            before, began = spent(pid), time.perf_counter()
            go(neighbour_process)
            go(sender)
            answer(sender)
            elapsed, cost = time.perf_counter() - began, spent(pid) - before
            go(neighbour_process)
            trips = answer(neighbour_process)
        finally:
            for process in (neighbour_process, sender):
                process.kill()
                process.wait()
    return {"cost_ms": 1_000 * cost, "took_ms": 1_000 * elapsed, **trips}


def part(word: str, address: str, pile: str) -> Process:
    """Start one of the processes beside the broker."""
    command = [sys.executable, "-m", "bench.subscribing", word, address, pile]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.subscribing", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=3, help="runs of each; the medians are printed (default 3)"
    )
    parser.add_argument("--only", default="", help="piles that begin so")
    arguments = parser.parse_args()
    runs = arguments.runs
    table = Table(
        "at once",
        "broker's CPU ms",
        "last answer ms",
        "neighbour p50 ms",
        "p99 ms",
        "worst",
        "calm p50",
        "p99",
    )
    for pile in [pile for pile in PILES if pile.startswith(arguments.only)]:
        found = [measure(pile) for _ in range(runs)]
        cost, elapsed = (statistics.median(one[key] for one in found) for key in ("cost_ms", "took_ms"))
        trips = [
            statistics.median(float(np.percentile(one[key], at)) for one in found)
            for key, at in (("beside", 50), ("beside", 99), ("beside", 100), ("calm", 50), ("calm", 99))
        ]
        table.add_row(pile, f"{cost:,.0f}", f"{elapsed:,.0f}", *(f"{trip:.1f}" for trip in trips))
    Console().print(table)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["send", address, pile]:
            uvloop.run(send(address, pile))
        case ["neighbour", address, _]:
            uvloop.run(neighbour(address))
        case _:
            main()
