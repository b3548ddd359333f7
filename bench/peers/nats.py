"""NATS core, through nats-py."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.peers.peer import TOPIC, Received, Server, free_port, installed, running

CONFIGURATION = """
max_pending: 16777216
write_deadline: "2s"
"""


def serve(configuration: str) -> contextlib.AbstractContextManager[Server]:
    port = free_port()

    def command(home: Path) -> list[str]:
        (home / "nats.conf").write_text(f"host: 127.0.0.1\nport: {port}\n{configuration}")
        return [installed("nats-server") or "", "-c", str(home / "nats.conf")]

    return running(command, port)


class Nats:
    name = "NATS core"
    options = "max_pending 16 MB, write_deadline 2s: the connection is closed"

    def available(self) -> bool:
        return installed("nats-server") is not None and importlib.util.find_spec("nats") is not None

    def serve(self) -> contextlib.AbstractContextManager[Server]:
        return serve(CONFIGURATION)

    def publish(self, port: int, batches: Iterator[list[bytes]]) -> None:
        import nats

        async def run() -> None:
            client = await nats.connect(f"nats://127.0.0.1:{port}")
            for bodies in batches:
                for body in bodies:
                    await client.publish(TOPIC, body)
                await client.flush()
            await client.close()

        asyncio.run(run())

    def subscribe(self, port: int, name: str, ready: Callable[[], None], received: Received) -> None:
        import nats

        async def run() -> None:
            client = await nats.connect(f"nats://127.0.0.1:{port}", name=name, allow_reconnect=False)
            subscription = await client.subscribe(TOPIC)
            await client.flush()
            ready()
            async for message in subscription.messages:
                received([message.data])

        asyncio.run(run())
