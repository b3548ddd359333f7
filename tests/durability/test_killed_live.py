"""`kill -9` of a real broker with a subscriber that receives records before they are on disk.

It stores its own bookmark.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from broker_core.client import AsyncClient, FileBookmarkStore
from broker_core.errors import SluiceError
from broker_core.journal.journal import Journal
from broker_core.protocols import replies
from tests.support.broker_process import start_broker
from tests.support.brokers import tcp_policy
from tests.support.failpoints import Failpoint

pytestmark = pytest.mark.slow
KILLS = 24
HANGS_S = 600.0


class LiveReaderRun:
    """Several lives of one broker: records delivered to the live subscriber, and records acknowledged as
    persisted.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.number = home, 0
        self.shown: dict[int, set[bytes]] = {}
        self.persisted: set[bytes] = set()
        self.gaps: list[replies.DecisionNotice | replies.GapNotice] = []
        self.lost_early = 0

    async def until_killed(self, at: int) -> None:
        """Run one life: from write number `at` the disk hangs, and shortly after the broker is killed."""
        hang = Failpoint("pwritev", at, delay_s=HANGS_S) if at else Failpoint("rename", 1, delay_s=0.0)
        process, port = await asyncio.to_thread(start_broker, self.home, hang)
        self.number += 1
        try:
            reading = asyncio.create_task(self._read(port))
            writing = [asyncio.create_task(self._write(port, f"w{self.number}-{n}")) for n in range(3)]
            await asyncio.sleep(random.uniform(0.2, 0.5))
            kill(process)
            for task in (reading, *writing):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, SluiceError, OSError):
                    await task
        finally:
            kill(process)

    async def _write(self, port: int, name: str) -> None:
        async with AsyncClient(f"tcp://127.0.0.1:{port}", name) as writer:
            for number in range(100_000):
                body = f"{name}:{number}".encode()
                with contextlib.suppress(TimeoutError):
                    await writer.publish("t", body)
                    await asyncio.wait_for(writer.flush(), 0.05)
                    self.persisted.add(body)

    async def _read(self, port: int) -> None:
        store = FileBookmarkStore(self.home.with_suffix(".bookmarks"))
        async with AsyncClient(f"tcp://127.0.0.1:{port}", "screen", bookmark_store=store) as reader:
            subscription = await reader.subscribe("t", bookmark="MOST_RECENT", durability="live", id="s")
            async for message in subscription:
                self.shown.setdefault(message.sequence, set()).add(message.body)
                subscription.done(message)

    async def read_log(self) -> dict[int, bytes]:
        """Run the last life; return all records of the log by number, after the subscriber has had time to
        read them.
        """
        process, port = await asyncio.to_thread(start_broker, self.home)
        self.number += 1
        try:
            async with AsyncClient(f"tcp://127.0.0.1:{port}", "last") as writer:
                await writer.publish("t", b"the end")
                await asyncio.wait_for(writer.flush(), 60)
                reading = asyncio.create_task(self._read(port))
                async with asyncio.timeout(60):
                    while not any(b"the end" in bodies for bodies in self.shown.values()):
                        await asyncio.sleep(0.05)
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading
            log: dict[int, bytes] = {}
            async with AsyncClient(f"tcp://127.0.0.1:{port}", "checker") as checker:
                subscription = await checker.subscribe("t", bookmark="0", on_gap="error")
                async with asyncio.timeout(60):
                    async for batch in subscription.batches(until_completed=True):
                        log |= zip(batch.sequences().tolist(), batch.bodies(), strict=True)
            return log
        finally:
            process.terminate()
            process.join()


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


async def test_a_live_subscriber_with_a_bookmark_store_gets_every_persisted_record_after_kills() -> None:
    random.seed()
    with tempfile.TemporaryDirectory(prefix="sluice-live-") as directory:
        life = LiveReaderRun(Path(directory) / "home")
        for _ in range(KILLS):
            await life.until_killed(random.choice((0, 3, 5, 10, 30)))
        log = await life.read_log()
        policy = tcp_policy()
        journal = Journal.open(life.home / "journal", policy.instance.name)
        skipped, holes, reason = journal.skipped(), journal.missing_ranges, journal.recovery.reason
        journal.close()
    stored = set(log.values())
    assert life.persisted <= stored, "another test's matter"
    assert all(len(bodies) == 1 for bodies in life.shown.values()), "a number was shown for two records"
    renamed = {n for n, bodies in life.shown.items() if n in log and bodies != {log[n]}}
    assert not renamed, "numbers that were shown name other records"
    early = {n for n in life.shown if n not in log}
    assert early, "no kill took back what had been shown: the test shows nothing"
    missed = [n for n in log if n not in life.shown]
    assert not missed, "records of the log that the subscriber never got"
    assert all(any(first <= n <= last for first, last in skipped) for n in early)
    assert holes == [] and reason == "", "what was skipped is no damage"
