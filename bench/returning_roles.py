"""Processes of the returning benchmark; see `bench.roles`.

A body starts with its number, to check the order.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from bench.replay_roles import Drain, connect

APART = 512


def print_figures(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


async def publish(address: str, topic: str, number: int, size: int, batch: int) -> None:
    """Publish numbered messages in batches.

    Small batches are flushed one by one, because the library would join them.
    """
    from broker_core.client import AsyncClient

    padding = b"x" * (size - 12)
    async with AsyncClient(address, "publisher") as client:
        for first in range(0, number, batch):
            await client.publish_many(topic, [b"%012d" % n + padding for n in range(first, first + batch)])
            if batch < APART:
                await client.flush()
        await client.flush()
        print_figures(sent=number)


async def subscribe(address: str, name: str, topic: str, number: int, bookmark: str = "") -> None:
    """Subscribe, wait for a line on standard input, then read `number` messages in order."""
    from broker_core.client import AsyncClient

    async with AsyncClient(address, name) as client:
        subscription = None if bookmark else await client.subscribe(topic)
        print_figures(ready=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        requested_at, received = time.monotonic(), 0
        if subscription is None:
            subscription = await client.subscribe(topic, bookmark=bookmark)
        async for found in subscription.batches():
            bodies = found.bodies()
            if int(bodies[0][:12]) != received or int(bodies[-1][:12]) != received + len(bodies) - 1:
                raise SystemExit(f"out of order behind {received}: {bodies[0][:12]!r}")
            received += len(bodies)
            if received >= number:
                break
        print_figures(asked=requested_at, last=time.monotonic(), received=received)
        # The benchmark queries the broker about this client meanwhile.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def drain(address: str, name: str, topic: str, number: int, bookmark: str = "") -> None:
    """Read the same messages with a bare socket, which walks frame headers and drops the rest."""
    reading = Drain()
    connection = None if bookmark else connect(address, name, topic=topic)
    while connection is not None and reading.commands < 2:
        reading.read(connection)
    print_figures(ready=True)
    sys.stdin.readline()
    requested_at = time.monotonic()
    connection = connection or connect(address, name, bookmark, topic=topic)
    while reading.records < number:
        if not reading.read(connection):
            raise SystemExit("the broker closed the connection")
    print_figures(asked=requested_at, last=time.monotonic(), received=reading.records)
    sys.stdin.readline()
