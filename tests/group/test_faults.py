"""What three engines and three members go through, and what is left of it: held against what clients were told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker_core.client import EPOCH, AsyncClient, ReconnectPolicy
from broker_core.journal.journal import Journal
from tests.support.brokers import until
from tests.support.engines import free_ports, running_engines
from tests.support.groups import MemberProcess, content_of
from tests.torture.history import History, Reader, Record, check

QUICK = ReconnectPolicy(first_delay=0.02, longest_delay=0.2, first_connect_timeout=120)
PATIENCE_S = 150
"""Elections wait for silence, and on a busy machine for each other."""
HOLD_MS = 2_000
"""Less than an election takes: what waits is refused then, comes back, and must be there once."""


class Load:
    """A publisher and a subscriber of the client library, with all members as their addresses."""

    def __init__(self, addresses: Sequence[str], name: str) -> None:
        self.name = name
        self._addresses = list(addresses)
        self.published = self.durable = 0
        self.reader = Reader(f"{name}-reader")
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._publish()), asyncio.create_task(self._read())]

    async def _publish(self) -> None:
        async with AsyncClient(self._addresses, self.name, reconnect=QUICK) as client:
            while not self._stop.is_set():
                for _ in range(20):
                    self.published += 1
                    await client.publish("t", {"by": self.name, "n": self.published})
                await client.flush()
                self.durable = self.published
                await asyncio.sleep(0.002)

    async def _read(self) -> None:
        addresses = self._addresses[1:] + self._addresses[:1]
        async with AsyncClient(addresses, self.reader.name, reconnect=QUICK) as client:
            async for message in await client.subscribe("t", bookmark=EPOCH):
                self.reader.records.append(
                    Record(int(message.bookmark.split("|")[1]), message.data["by"], message.data["n"])
                )

    async def goes_on(self, number: int = 100) -> None:
        """Wait until so many more are durable."""
        wanted = self.durable + number
        await until(lambda: self.durable >= wanted or self._tasks[0].done(), PATIENCE_S)
        assert not self._tasks[0].done(), self._tasks[0].exception()

    async def end(self) -> None:
        """Publish no more, and read what there is."""
        self._stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await self._tasks[0]
        await until(
            lambda: sum(one.publisher == self.name for one in self.reader.records) >= self.published,
            PATIENCE_S,
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Group:
    """Members as processes, and loads that move from one to the other."""

    def __init__(self, home: Path, engines: Sequence[str], *names: str) -> None:
        self.members = [
            MemberProcess(home, name, engines, HOLD_MS, port)
            for name, port in zip(names, free_ports(len(names)), strict=True)
        ]
        self.loads: list[Load] = []

    def load(self) -> None:
        """A load for each member, which begins there."""
        addresses = [one.address for one in self.members]
        self.loads = [
            Load(addresses[number:] + addresses[:number], f"p{number}") for number in range(len(addresses))
        ]

    async def goes_on(self) -> None:
        """Every publisher gets on, wherever it is by now."""
        await asyncio.gather(*(one.goes_on() for one in self.loads))

    def kill(self) -> None:
        for one in self.members:
            one.kill()

    async def judge(self) -> None:
        """End the loads and the members, and hold everything that was said against every journal."""
        await asyncio.gather(*(one.end() for one in self.loads))
        wanted = max(one.reader.records[-1].sequence for one in self.loads)
        for member in self.members:
            # Whoever is answered has applied what any member has acknowledged.
            async with AsyncClient(member.address, "last") as client:
                subscription = await client.subscribe("t", bookmark=f"group|{wanted - 1}|")
                async with asyncio.timeout(PATIENCE_S):
                    await anext(aiter(subscription))
        self.kill()
        contents = set()
        for member in self.members:
            journal = member.opened()
            try:
                contents.add(content_of(journal))
                history = History(
                    published={one.name: one.published for one in self.loads},
                    acknowledged={one.name: one.durable for one in self.loads},
                    readers=[one.reader for one in self.loads],
                    log=records_of(journal),
                )
            finally:
                journal.close()
            assert check(history) == []
        assert len(contents) == 1


def records_of(journal: Journal) -> list[Record]:
    """What the publishers of this file have there; the broker's own records tell of clients that came and went."""
    found: list[Record] = []
    at, last = 1, journal.next_sequence - 1
    while batches := journal.read(at, 1 << 20, last):
        for batch in batches:
            for one in batch.records():
                if one.topic == "t":
                    said = json.loads(one.body)
                    found.append(Record(one.sequence, said["by"], said["n"], batch.accepted_at))
        at = batches[-1].last_sequence + 1
    return found


@asynccontextmanager
async def running_group(home: Path, engines: Sequence[str]) -> AsyncIterator[Group]:
    """Three members under load."""
    group = Group(home, engines, "a", "b", "c")
    for one in group.members:
        one.start()
    group.load()
    try:
        await group.goes_on()
        yield group
    finally:
        await asyncio.gather(*(one.close() for one in group.loads))
        group.kill()


async def test_members_are_killed_one_after_the_other_and_nobody_misses_or_repeats_anything(
    tmp_path: Path,
) -> None:
    async with running_engines(tmp_path, 1) as engines, running_group(tmp_path, engines.urls) as group:
        for one in group.members:
            one.kill()
            await group.goes_on()
            one.start()
        await group.goes_on()
        await group.judge()


@pytest.mark.slow
async def test_the_engines_leader_and_then_everything_is_killed_and_what_was_acknowledged_is_there(
    tmp_path: Path,
) -> None:
    async with running_engines(tmp_path) as engines:
        await engines.ready("other")
        async with running_group(tmp_path, engines.urls) as group:
            leader = engines.number_of((await engines.ready()).leader)
            engines.kill(leader)
            await group.goes_on()
            engines.start(leader)
            await group.goes_on()
            engines.kill()
            group.kill()
            engines.start()
            for one in group.members:
                one.start()
            await group.goes_on()
            await group.judge()
