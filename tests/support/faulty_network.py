"""A bad network between a client and a broker: a TCP proxy that injects faults.

It cuts, freezes, trickles, garbles, delays and goes half-open (Jepsen calls this a nemesis). A seed decides
which fault comes when. Each fault affects one direction or both and starts after some bytes of a connection.
Each combination is injected once; after that the network is good. The proxy runs on a loop in its own thread,
so that no blocking test delays it.

Garbling overwrites bytes at random: batches and commands have checksums that detect it.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import product

MEAN_BYTES = 8_000
"""Mean number of bytes of a connection between two faults."""
FROZEN_S, DELAYED_S = 0.3, 0.02
TRICKLED_BYTES = 2_000
GARBLED_BYTES = 32


class NetworkFault(StrEnum):
    CUT = "cut"
    """In one direction it is an end of the stream, in both a reset."""
    FREEZE = "freeze"
    TRICKLE = "trickle"
    GARBLE = "garble"
    DELAY = "delay"
    HALF_OPEN = "half-open"
    """Data is lost silently from now on."""


class Direction(StrEnum):
    UP = "to the broker"
    DOWN = "from the broker"
    BOTH = "both ways"


def seed_of_the_day() -> int:
    """Return SLUICE_SEED, or a random seed; print it so that a failure can be repeated."""
    seed = int(os.environ.get("SLUICE_SEED") or random.SystemRandom().randrange(2**32))
    print(f"SLUICE_SEED={seed}")
    return seed


class FaultyNetwork:
    """A proxy that injects each network fault once; `injected` lists them in order."""

    def __init__(self, port: int, seed: int) -> None:
        self.injected: list[tuple[NetworkFault, Direction]] = []
        self.port = 0
        self._target = port
        self._random = random.Random(seed)
        self.pending_faults = list(product(NetworkFault, Direction))
        self._random.shuffle(self.pending_faults)

    @property
    def faults_left(self) -> int:
        return len(self.pending_faults)

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        await _Connection(self, self._random, (reader, writer), upstream).run()

    def next_fault(self) -> tuple[NetworkFault, Direction] | None:
        if not self.pending_faults:
            return None
        self.injected.append(self.pending_faults.pop())
        return self.injected[-1]


class _Connection:
    def __init__(
        self,
        network: FaultyNetwork,
        chance: random.Random,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        broker: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._network, self._random = network, chance
        self._pipes = {Direction.UP: (client[0], broker[1]), Direction.DOWN: (broker[0], client[1])}
        self._acts: dict[Direction, list[NetworkFault]] = {Direction.UP: [], Direction.DOWN: []}
        self._swallows: set[Direction] = set()
        self._left = self._gap()

    def _gap(self) -> float:
        return self._random.expovariate(1 / MEAN_BYTES)

    async def run(self) -> None:
        await asyncio.gather(*(self._pump(way) for way in self._pipes), return_exceptions=True)
        self._abort()

    def _abort(self) -> None:
        for _, writer in self._pipes.values():
            writer.transport.abort()

    async def _pump(self, way: Direction) -> None:
        reader, writer = self._pipes[way]
        while data := await reader.read(16_384):
            self._left -= len(data)
            if self._left <= 0 and (chosen := self._network.next_fault()) is not None:
                self._left = self._gap()
                act, ways = chosen
                for one in self._pipes if ways is Direction.BOTH else (ways,):
                    self._acts[one].append(act)
                if act is NetworkFault.CUT and ways is Direction.BOTH:
                    self._abort()
                    return
            while self._acts[way]:
                data = await self._play(self._acts[way].pop(0), way, data)
            if way not in self._swallows:
                writer.write(data)
                await writer.drain()
        writer.write_eof()

    async def _play(self, act: NetworkFault, way: Direction, data: bytes) -> bytes:
        _, writer = self._pipes[way]
        if way in self._swallows:
            # Data after a gap could look valid if it starts at a frame boundary. Networks do not drop bytes
            # inside a stream, so forward nothing more.
            return data
        match act:
            case NetworkFault.CUT:
                writer.write_eof()
                self._swallows.add(way)
            case NetworkFault.HALF_OPEN:
                self._swallows.add(way)
            case NetworkFault.FREEZE:
                await asyncio.sleep(FROZEN_S)
            case NetworkFault.DELAY:
                await asyncio.sleep(DELAYED_S)
            case NetworkFault.TRICKLE:
                for at in range(min(len(data), TRICKLED_BYTES)):
                    writer.write(data[at : at + 1])
                    await asyncio.sleep(0)
                return data[TRICKLED_BYTES:]
            case NetworkFault.GARBLE:
                at = self._random.randrange(max(len(data) - GARBLED_BYTES, 0) + 1)
                noise = self._random.randbytes(len(data[at : at + GARBLED_BYTES]))
                return data[:at] + noise + data[at + len(noise) :]
        return data


@contextmanager
def faulty_network(port: int, seed: int) -> Iterator[FaultyNetwork]:
    """Run a faulty proxy to a port of this machine until the block ends."""
    made = FaultyNetwork(port, seed)
    listens = threading.Event()
    ends: asyncio.Event
    loop: asyncio.AbstractEventLoop

    async def serve() -> None:
        nonlocal ends, loop
        ends, loop = asyncio.Event(), asyncio.get_running_loop()
        async with await made.listen():
            listens.set()
            await ends.wait()

    def run() -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(serve())

    thread = threading.Thread(target=run, name="faulty-network")
    thread.start()
    listens.wait()
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(ends.set)
        thread.join()
