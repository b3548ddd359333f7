"""A sync link between two brokers, struck under load.

Either side is killed, or the line is cut, frozen or one-way. Downgrades are disabled, so every record
reported as persisted is at the other site. At the end the line is cut under load and London is lost for
good. Then the records at New York are checked against all acknowledged records and against London's own log.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from broker_core.client import EPOCH, AsyncClient, ReconnectPolicy
from broker_core.client.publish_store import MemoryPublishStore
from broker_core.config import AccessSettings, EntitlementSettings, PolicyDocument
from tests.support.brokers import until
from tests.support.partition_proxy import running_partition_proxy
from tests.support.sites import Site, destination_settings, free_port, site_policy, write_link_secrets
from tests.torture.history import FaultKind, History, HistoryFault, ReaderHistory, body_of, check, topic_of

STRIKES: Final = 8
PATIENCE_S: Final = 150
PUBLISHERS: Final = ("p0", "p1")
QUICK: Final = ReconnectPolicy(
    first_delay=0.02, longest_delay=0.2, first_connect_timeout=120, logon_timeout=120
)
NEVER_MS: Final = 3_600_000

Strike = Callable[[], Awaitable[None]]


def _policy(policy: PolicyDocument) -> PolicyDocument:
    """Return the policy with small segments, without downgrades, and with a link that may publish
    everything.
    """
    instance = replace(policy.instance, downgrade_after_ms=NEVER_MS)
    access = AccessSettings(policy.access.users, (EntitlementSettings(("link",), publish=(">",)),))
    return replace(policy, instance=instance, access=access if policy.access.users else policy.access)


class _SiteRun:
    """Two sites during the strikes of one run."""

    def __init__(self, home: Path, chance: random.Random) -> None:
        self._home, self._chance = home, chance
        self.history = History()
        self.struck: list[str] = []
        self._there = ReaderHistory("newyork")
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self, strikes: int) -> list[HistoryFault]:
        """Perform the strikes; return the faults."""
        for_links = free_port()
        async with AsyncExitStack() as stack:
            self._cable = await stack.enter_async_context(running_partition_proxy(for_links))
            self._newyork = Site(
                self._home / "newyork", _policy(site_policy("newyork", free_port(), link_port=for_links))
            )
            link = destination_settings("ny", self._cable.port, durability="sync")
            kept = write_link_secrets(self._home, "ny")
            self._london = Site(
                self._home / "london", _policy(site_policy("london", free_port(), link)), kept
            )
            for one in (self._newyork, self._london):
                await one.start()
                stack.push_async_callback(one.kill)
            stack.push_async_callback(self._close)
            self._tasks = [asyncio.create_task(self._publish(name)) for name in PUBLISHERS]
            self._tasks.append(asyncio.create_task(self._read(self._newyork, self._there)))
            await self._wait_progress()
            for _ in range(strikes):
                await self._strike()
            return await self._judge()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _publish(self, name: str) -> None:
        history, store = self.history, MemoryPublishStore()
        history.published[name] = history.acknowledged[name] = 0
        async with AsyncClient(self._london.address, name, reconnect=QUICK, publish_store=store) as client:
            while True:
                for _ in range(20):
                    number = history.published[name] = history.published[name] + 1
                    await client.publish(topic_of(number), body_of(name, number))
                flushed = asyncio.ensure_future(client.flush())
                try:
                    while not flushed.done():
                        await asyncio.wait([flushed], timeout=0.01)
                        self._note(name, store)
                    await flushed
                finally:
                    flushed.cancel()

    def _note(self, name: str, store: MemoryPublishStore) -> None:
        oldest = store.oldest_sequence()
        done = oldest - 1 if oldest else store.last_sequence
        self.history.acknowledged[name] = max(done, self.history.acknowledged[name])

    async def _read(self, where: Site, reader: ReaderHistory) -> None:
        async with AsyncClient(where.address, reader.name, reconnect=QUICK) as client:
            async for message in await client.subscribe("t.>", bookmark=EPOCH):
                sequence = int(str(message.bookmark).split("|")[1])
                record = self.history.record(sequence, message.topic, bytes(message.body))
                if record is not None:
                    reader.records.append(record)

    async def _wait_progress(self) -> None:
        """Wait until both publishers make progress; with both sites up, this needs the link."""
        wanted = {name: self.history.acknowledged.get(name, 0) + 100 for name in PUBLISHERS}
        await until(
            lambda: (
                any(task.done() for task in self._tasks)
                or all(self.history.acknowledged.get(name, 0) >= least for name, least in wanted.items())
            ),
            PATIENCE_S,
        )
        for task in self._tasks:
            assert not task.done(), task.exception()

    async def _strike(self) -> None:
        strikes: dict[str, Strike] = {
            "kill london": self._london.kill_and_restart,
            "kill newyork": self._newyork.kill_and_restart,
            "kill both": self._kill_both_sites,
            "cut the line": self._cut,
            "freeze the line": lambda: self._stop_one_direction("requests", "answers"),
            "one way there": lambda: self._stop_one_direction("answers"),
            "one way back": lambda: self._stop_one_direction("requests"),
            "cut and kill london": self._cut_and_kill,
        }
        chosen = self._chance.choice(list(strikes))
        self.struck.append(chosen)
        await asyncio.sleep(self._chance.uniform(0.0, 0.3))
        await strikes[chosen]()
        self._cable.restore()
        try:
            await self._wait_progress()
        except TimeoutError:
            raise AssertionError(f"nobody gets on after {chosen}") from None

    async def _kill_both_sites(self) -> None:
        await asyncio.gather(self._london.kill_and_restart(), self._newyork.kill_and_restart())

    async def _cut(self) -> None:
        self._cable.cut()
        await asyncio.sleep(self._chance.uniform(0.0, 2.0))

    async def _stop_one_direction(self, *gates: str) -> None:
        """Stop one direction for a while, sometimes until heartbeats detect it."""
        for gate in gates:
            getattr(self._cable, gate).clear()
        await asyncio.sleep(self._chance.choice((0.2, 2.0, 12.0)))

    async def _cut_and_kill(self) -> None:
        self._cable.cut()
        await asyncio.sleep(self._chance.uniform(0.0, 0.5))
        await self._london.kill_and_restart()

    async def _judge(self) -> list[HistoryFault]:
        """Lose London while its publishers continue, then check New York alone, then London's own log."""
        self._cable.cut()
        await asyncio.sleep(0.3)
        await self._london.kill()
        await self._close()
        there, here = ReaderHistory("newyork-at-the-end"), ReaderHistory("london-at-the-end")
        await self._read_all(self._newyork, there)
        alone = replace(self.history, log=there.records, readers=[self._there])
        found = [HistoryFault(one.kind, f"newyork: {one.sentence}") for one in self._complete(alone)]
        await self._london.start()
        self._cable.restore()
        await self._read_all(self._london, here)
        # After its restart, London forwards the records that it had accepted but not sent.
        last = here.records[-1].sequence
        await until(lambda: self._has_come(there, last), PATIENCE_S)
        whole = replace(self.history, log=here.records, readers=[there])
        return found + check(whole)

    @staticmethod
    def _has_come(reader: ReaderHistory, last: int) -> bool:
        return bool(reader.records) and reader.records[-1].sequence >= last

    def _complete(self, alone: History) -> list[HistoryFault]:
        self._there.complete = False  # the reader was stopped early
        return check(alone)

    async def _read_all(self, where: Site, reader: ReaderHistory) -> None:
        """Read all existing records, then live ones."""
        wanted = max(self.history.acknowledged.values())
        self._tasks.append(asyncio.create_task(self._read(where, reader)))
        async with AsyncClient(where.address, "counter", reconnect=QUICK) as client:
            number = 0
            async for batch in (await client.subscribe("t.>", bookmark=EPOCH)).batches(until_completed=True):
                number += batch.count
        assert number >= wanted, (
            f"{reader.name}: {number} records, but one publisher has {wanted} acknowledged"
        )
        await until(lambda: len(reader.records) >= number, PATIENCE_S)


async def run_sites(seed: int, strikes: int = STRIKES) -> tuple[list[HistoryFault], list[str], int, int]:
    """Perform one run.

    Returns faults, strikes, published records, and acknowledged records.
    """
    home = Path(tempfile.mkdtemp(prefix="s-"))
    struck = _SiteRun(home, random.Random(f"sites {seed}"))
    try:
        found = await struck.run(strikes)
    except (TimeoutError, AssertionError) as problem:
        found = [HistoryFault(FaultKind.UNEXPLAINED, f"it came to no end after {struck.struck}: {problem!r}")]
    if not found:
        shutil.rmtree(home, ignore_errors=True)
    history = struck.history
    return found, struck.struck, sum(history.published.values()), sum(history.acknowledged.values())
