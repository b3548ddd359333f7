"""`kill -9` of a real broker with a shared subscription: every record is acknowledged by a consumer.

A record is redelivered only if its acknowledgement was not saved yet.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from tests.support.broker_process import start_broker

pytestmark = pytest.mark.slow
MESSAGES = 200
"""Messages per life."""


class QueueConsumersRun:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.published = 0
        self.acked: dict[int, int] = {}
        """Numbers, and their sequences in the log."""
        self.saved: set[int] = set()
        """Sequences that the position file has as done."""

    async def one(self, kept_share: float) -> None:
        """Run one life: two consumers acknowledge part of what they receive, then the broker is killed."""
        process, port = await asyncio.to_thread(start_broker, self.home)
        address = f"tcp://127.0.0.1:{port}"
        try:
            async with AsyncClient(address, "writer") as writer:
                async with AsyncClient(address, "one") as one, AsyncClient(address, "two") as two:
                    reading = [
                        asyncio.create_task(self._consume(client, kept_share)) for client in (one, two)
                    ]
                    await writer.publish_many("t", [b"%d" % (self.published + n) for n in range(MESSAGES)])
                    await writer.flush()
                    self.published += MESSAGES
                    async with asyncio.timeout(60):
                        while len(self.acked) < self.published * (1 if kept_share == 1 else 0.5):
                            await asyncio.sleep(0.01)
                    acked = dict(self.acked)
                    async with asyncio.timeout(60):
                        while not self._are_saved(acked.values()):
                            await asyncio.sleep(0.05)
                    self.saved |= acked.keys()
                    process.kill()
                    for task in reading:
                        task.cancel()
        finally:
            end(process)

    def _are_saved(self, sequences: Iterable[int]) -> bool:
        """Return whether the position file has all these sequences as done."""
        (kept,) = json.loads(next(self.home.rglob("*.kept.json")).read_bytes())["kept"]
        done = kept["sharing"]["done"]
        return all(
            one < kept["position"] or any(first <= one <= last for first, last in done) for one in sequences
        )

    async def _consume(self, client: AsyncClient, kept_share: float) -> None:
        saved = set(self.saved)
        subscription = await client.subscribe(
            "t", durable="jobs", shared=True, bookmark="0", ack="client-individual", max_deliveries=0
        )
        async for message in subscription:
            number = int(message.body)
            assert number not in saved, "what is known to be acknowledged doesn't come again"
            if random.random() < kept_share:
                subscription.ack(message)
                self.acked[number] = int(message.bookmark.split("|")[1])


def end(process: BaseProcess) -> None:
    process.kill()
    process.join()


async def test_everything_is_acknowledged_by_somebody_in_spite_of_kills() -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-queue-") as home:
        lives = QueueConsumersRun(Path(home))
        for _ in range(2):
            await lives.one(0.7)
        await lives.one(1)
        assert lives.acked.keys() == set(range(3 * MESSAGES))
        assert len(lives.saved) >= MESSAGES
