"""`kill -9` of a real broker with a durable subscription: no record is missed.

Redelivery is limited to what the saved position allows.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from tests.support.broker_process import start_broker

pytestmark = pytest.mark.slow
KILLS = 5
SAVED_WITHIN_S = 2.5
"""Positions are saved once a second (docs/decisions.md); on a busy machine the second and the disk take
longer.
"""


class DurableReaderRun:
    """Numbered messages over several restarts of a broker; received and acknowledged ones, with times."""

    def __init__(self, home: Path) -> None:
        self.home, self.published, self.acked = home, 0, dict[int, float]()
        self.received: list[list[int]] = []
        self.killed_at = 0.0
        self.most_acked = -1
        """In all lives before this one."""

    async def until_killed(self, seconds: float) -> None:
        process, port = await asyncio.to_thread(start_broker, self.home)
        try:
            async with AsyncClient(f"tcp://127.0.0.1:{port}", "writer") as writer:
                async with AsyncClient(f"tcp://127.0.0.1:{port}", "reader") as reader:
                    reading = asyncio.create_task(self._read(reader))
                    await self._write(writer, seconds)
                    kill(process)
                    self.killed_at = asyncio.get_running_loop().time()
                    reading.cancel()
        finally:
            kill(process)

    async def _write(self, writer: AsyncClient, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await writer.publish_many("t", [b"%d" % n for n in range(self.published, self.published + 20)])
            await writer.flush()  # what isn't durable may be missing: that is another test's matter
            self.published += 20
            await asyncio.sleep(0.01)

    async def _read(self, reader: AsyncClient) -> None:
        mine: list[int] = []
        self.received.append(mine)
        subscription = await reader.subscribe(
            "t", durable="orders", ack="client", bookmark="0" if not self.published else None
        )
        async for message in subscription:
            mine.append(int(message.body))
            if random.random() < 0.9:  # what is acknowledged late, or never, comes again
                subscription.ack(message)
                self.acked[mine[-1]] = asyncio.get_running_loop().time()

    async def read_backlog(self) -> None:
        """Run the last life, in which the whole backlog is delivered."""
        process, port = await asyncio.to_thread(start_broker, self.home)
        try:
            async with AsyncClient(f"tcp://127.0.0.1:{port}", "writer") as writer:
                async with AsyncClient(f"tcp://127.0.0.1:{port}", "reader") as reader:
                    reading = asyncio.create_task(self._read(reader))
                    await self._write(writer, 0.1)
                    async with asyncio.timeout(30):
                        while not self.received[-1] or self.received[-1][-1] < self.published - 1:
                            await asyncio.sleep(0.02)
                    reading.cancel()
        finally:
            kill(process)


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


async def test_after_kills_nothing_is_missed_and_only_what_an_old_position_allows_comes_twice() -> None:
    random.seed()
    with tempfile.TemporaryDirectory(prefix="sluice-durable-") as home:
        life = DurableReaderRun(Path(home))
        for _ in range(KILLS):
            acked, killed_at, life.acked = life.acked, life.killed_at, {}
            await life.until_killed(random.uniform(0.3, 3.5))
            check(life, acked, killed_at)
        acked, killed_at, life.acked = life.acked, life.killed_at, {}
        await life.read_backlog()
        check(life, acked, killed_at)
        assert set().union(*life.received) == set(range(life.published)), "nothing is missed"
        assert len(life.received) == KILLS + 1 and life.published > 200


def check(life: DurableReaderRun, acked: dict[int, float], killed_at: float) -> None:
    """Check that the records of a life are in order without a gap, and start where the saved position allows.

    Acknowledgements are cumulative. `acked` are those of the previous life, with their times.
    """
    life.most_acked = max(life.most_acked, *acked) if acked else life.most_acked
    mine = life.received[-1]
    if mine:
        assert mine == list(range(mine[0], mine[0] + len(mine)))
        assert mine[0] <= life.most_acked + 1
        assert mine[0] > max((n for n, at in acked.items() if at < killed_at - SAVED_WITHIN_S), default=-1)
