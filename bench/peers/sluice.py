"""Sluice over TCP with its own client; topics are journaled, and the policy has a pool of 64 MiB."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

from bench.peers.peer import TOPIC, Received, Server

POOL = 64 * 2**20


@contextlib.contextmanager
def broker(pool: int, *, tls: bool = False) -> Iterator[tuple[dict[str, int], int]]:
    """Run a fresh broker with a pool of `pool` bytes; yield its ports by transport and its process id.

    With `tls` there is a transport `tcps`.
    """
    with tempfile.TemporaryDirectory(prefix="peer-") as home:
        command = [sys.executable, "-m", "bench.broker", *(["--tls"] if tls else []), home, str(pool)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield json.loads(next(line for line in process.stdout if line.startswith("{"))), process.pid
        finally:
            process.kill()
            process.wait()


class Sluice:
    name = "Sluice"
    options = "pool of 64 MiB, ClientMaxCapacity 50 %: offlined by reference, drained in order"

    def available(self) -> bool:
        return True

    @contextlib.contextmanager
    def serve(self) -> Iterator[Server]:
        with broker(POOL) as (ports, pid):
            yield Server(ports["tcp"], pid)

    def publish(self, port: int, batches: Iterator[list[bytes]]) -> None:
        from broker_core.client import SyncClient

        with SyncClient(f"tcp://127.0.0.1:{port}", "publisher") as client:
            for bodies in batches:
                client.publish_many(TOPIC, bodies)
            client.flush()

    def subscribe(self, port: int, name: str, ready: Callable[[], None], received: Received) -> None:
        from broker_core.client import AsyncClient

        async def run() -> None:
            async with AsyncClient(f"tcp://127.0.0.1:{port}", name) as client:
                subscription = await client.subscribe(TOPIC)
                ready()
                async for batch in subscription.batches():
                    received(batch.bodies())

        asyncio.run(run())
