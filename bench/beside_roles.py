"""The processes of `bench.beside`: publisher, subscriber and idle clients."""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from bench.contenders import CONTENDERS, Way
from bench.latency import body, pace, percentiles
from bench.roles import orders

BATCH = 512
WARM_S = 0.5
AT_ONCE = 20
"""Idle clients that connect at the same time."""
END = b"end"
Figures = dict[str, float]


def run(main: Coroutine[Any, Any, None], timers: bool) -> None:
    """Run a coroutine to its end.

    `timers`: on a loop whose timers have microsecond resolution, as in `bench.latency`.
    """
    if timers:
        with asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())
        ) as runner:
            runner.run(main)
    else:
        uvloop.run(main)


async def batches(seconds: float) -> AsyncIterator[list[bytes]]:
    """Yield the same batch again and again for `seconds`."""
    bodies, until = orders(BATCH), time.monotonic() + seconds
    while time.monotonic() < until:
        yield bodies
        await asyncio.sleep(0)  # let the client's tasks run
    yield [END]


async def singles(seconds: float, rate: int) -> AsyncIterator[list[bytes]]:
    async for due in pace(WARM_S + seconds, rate):
        yield [body(due)]
    yield [END]


def publish(pipe: Connection, way: Way, port: int, topic: str, seconds: float, rate: int) -> None:
    sent, started = 0, 0.0

    async def counted() -> AsyncIterator[list[bytes]]:
        nonlocal sent, started
        async for found in singles(seconds, rate) if rate else batches(seconds):
            started = started or time.monotonic()
            sent += len(found)
            yield found

    run(way.publish(port, topic, counted()), rate > 0)
    pipe.send({"sent": sent - 1, "started": started})
    os._exit(0)


class Tally:
    """Counter of received messages, until the end message."""

    def __init__(self, timed: bool) -> None:
        self._timed = timed
        self.count = self.nbytes = 0
        self.last = 0.0
        self.latencies: list[int] = []
        self.ended = asyncio.Event()

    def __call__(self, bodies: Sequence[bytes]) -> None:
        now = time.monotonic_ns()
        if bodies[-1] == END:
            self.ended.set()
            bodies = bodies[:-1]
        if self._timed:
            self.latencies += [now - int(body[:20]) for body in bodies]
        self.nbytes += sum(map(len, bodies))  # touch every body
        self.count += len(bodies)
        self.last = now / 1e9


def subscribe(
    pipe: Connection, way: Way, port: int, topic: str, replay: bool, limit: float, rate: int
) -> None:
    async def main() -> None:
        tally = Tally(rate > 0)
        requested_at = time.monotonic()
        reading = asyncio.create_task(way.subscribe(port, topic, lambda: pipe.send("ready"), tally, replay))
        ended = asyncio.create_task(tally.ended.wait())
        await asyncio.wait((reading, ended), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
        figures = {"asked": requested_at, "received": tally.count, "last": tally.last}
        if rate:
            figures |= percentiles(tally.latencies[int(WARM_S * rate) :])
        pipe.send(figures)
        os._exit(0)  # don't wait for the libraries' shutdown

    run(main(), rate > 0)


def idle(pipe: Connection, peer: str, port: int, number: int) -> None:
    async def main() -> None:
        connections: list[object] = []
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(name: int) -> None:
            async with slots:
                connections.append(await CONTENDERS[peer].idle(port, name))

        await asyncio.gather(*map(one, range(number)))
        pipe.send("ready")
        await asyncio.Event().wait()

    run(main(), False)
