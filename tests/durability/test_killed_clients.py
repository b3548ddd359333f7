"""`kill -9` of subscribers and publishers, a hundred times each, while a real broker works.

docs/protocol.md describes these programs and the basis of each guarantee.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker_core.client import EPOCH, AsyncClient
from tests.support.broker_process import start_broker
from tests.support.brokers import until
from tests.support.killed_clients import TOPIC, Forker

KILLS = 100
SHORT = 0.15
"""Seconds that a life lasts at most, on a machine that has CPU to spare."""
pytestmark = pytest.mark.slow


@pytest.fixture
def forker() -> Iterator[Forker]:
    made = Forker()
    yield made
    made.close()


@asynccontextmanager
async def broker() -> AsyncIterator[tuple[str, Path]]:
    """A broker's address, and a directory."""
    with tempfile.TemporaryDirectory(prefix="sluice-kill-") as home:
        process, port = await asyncio.to_thread(start_broker, Path(home) / "home")
        try:
            yield f"tcp://127.0.0.1:{port}", Path(home)
        finally:
            process.terminate()
            process.join()


class NumberPublisher:
    """A publisher of 1, 2, 3, … until stopped."""

    def __init__(self, client: AsyncClient) -> None:
        self.last = 0
        self._client = client
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            count = random.randint(1, 20)
            await self._client.publish_many(TOPIC, list(range(self.last + 1, self.last + 1 + count)))
            self.last += count
            await asyncio.sleep(random.uniform(0, 0.02))

    async def stop(self) -> int:
        """The last number, which is on the broker's disk."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._client.flush()
        return self.last


async def kill_often(
    forker: Forker, program: str, address: str, path: Path, progress: Callable[[], int]
) -> int:
    """Kill the program many times; return how many runs made progress. The last run keeps running."""
    useful, longest = 0, SHORT
    for _ in range(KILLS):
        before = progress()
        forker.start(program, address, path)
        await asyncio.sleep(random.uniform(0.0, longest))
        await forker.kill()
        lived = progress() > before
        useful += lived
        longest = (
            max(SHORT, longest * 0.9) if lived else min(2.0, longest * 1.1)
        )  # a busy machine takes longer to begin
    forker.start(program, address, path)
    return useful


def numbers_of(database: Path) -> list[int]:
    with contextlib.closing(sqlite3.connect(database)) as reading:
        try:
            return [number for (number,) in reading.execute("SELECT number FROM result ORDER BY row")]
        except sqlite3.OperationalError:
            return []  # it was killed before there was a table


def lines_of(path: Path) -> list[int]:
    return [int(line) for line in path.read_bytes().split()] if path.exists() else []


async def test_a_bookmark_kept_with_the_result_counts_every_record_once_and_in_order(forker: Forker) -> None:
    async with broker() as (address, home), AsyncClient(address, "load") as client:
        database = home / "results.sqlite"
        load = NumberPublisher(client)
        useful = await kill_often(
            forker, "store_bookmark_with_result", address, database, lambda: len(numbers_of(database))
        )
        last = await load.stop()
        await until(lambda: len(numbers_of(database)) >= last, 30)
        assert numbers_of(database) == list(range(1, last + 1))
        assert useful > KILLS // 4, "hardly any of them lived long enough to do something"


async def test_a_bookmark_kept_in_a_store_misses_no_record_and_repeats_few(forker: Forker) -> None:
    async with broker() as (address, home), AsyncClient(address, "load") as client:
        results = home / "results"
        load = NumberPublisher(client)
        useful = await kill_often(
            forker, "store_bookmark_separately", address, results, lambda: len(lines_of(results))
        )
        last = await load.stop()
        await until(lambda: last in lines_of(results)[-1:], 30)
        numbers = lines_of(results)
        assert all(after <= before + 1 for before, after in zip([0, *numbers], numbers, strict=False)), (
            "none is missed"
        )
        assert set(numbers) == set(range(1, last + 1))
        assert len(numbers) - last <= KILLS, (
            "a kill between the result and done() repeats one record, and no more"
        )
        assert useful > KILLS // 4


async def test_what_a_killed_publisher_had_taken_is_stored_once_and_in_order(forker: Forker) -> None:
    async with broker() as (address, home), AsyncClient(address, "checker") as client:
        subscription = await client.subscribe(TOPIC, bookmark=EPOCH)
        numbers: list[int] = []

        async def read() -> None:
            async for batch in subscription.batches():
                numbers.extend(map(int, batch.bodies()))

        reading = asyncio.create_task(read())
        useful = await kill_often(forker, "publish_numbers", address, home / "unsent", lambda: len(numbers))
        after = len(numbers) + 1_000
        await until(lambda: len(numbers) >= after, 30)
        reading.cancel()
        assert numbers == list(range(1, len(numbers) + 1))
        assert useful > KILLS // 4
