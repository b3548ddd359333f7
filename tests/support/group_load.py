"""Publishers and readers over the members of a group, and the check of their history.

The history must have no fault, and the members' journals must be equal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial

from broker_core.client import EPOCH, AsyncClient, ReconnectPolicy
from broker_core.journal.journal import Journal
from tests.support.brokers import until
from tests.support.groups import MemberProcess, hash_log
from tests.torture.history import FaultKind, History, HistoryFault, ReaderHistory, Record, check

QUICK = ReconnectPolicy(first_delay=0.02, longest_delay=0.2, first_connect_timeout=120)
PATIENCE_S = 150
"""Elections wait for silence, and on a busy machine for each other."""
HOLD_MS = 2_000
"""Shorter than an election: waiting publishes are then refused and repeated, and must be stored once."""


class MemberLoad:
    """A publisher and a subscriber of the client library, with all members as addresses."""

    def __init__(self, addresses: Sequence[str], name: str, *, durable: bool = False) -> None:
        self.name = name
        self._addresses = list(addresses)
        self.published = self.durable = 0
        self.reader = ReaderHistory(f"{name}-reader")
        self.durable_reader = ReaderHistory(f"{name}-kept")
        """Reader with a durable position: it may restart at that position, but misses nothing."""
        self.readers = [self.reader] + [self.durable_reader] * durable
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._publish()), asyncio.create_task(self._read())]
        if durable:
            self._tasks.append(asyncio.create_task(self._read_durable()))

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

    async def _read_durable(self) -> None:
        addresses = self._addresses[-1:] + self._addresses[:-1]
        async with AsyncClient(addresses, self.durable_reader.name, reconnect=QUICK) as client:
            async for message in await client.subscribe("t", bookmark=EPOCH, durable="d"):
                self.durable_reader.back = client.connections - 1
                self.durable_reader.records.append(
                    Record(int(message.bookmark.split("|")[1]), message.data["by"], message.data["n"])
                )

    async def wait_progress(self, number: int = 100) -> None:
        """Wait until `number` more records are durable."""
        wanted = self.durable + number
        await until(lambda: self.durable >= wanted or self._tasks[0].done(), PATIENCE_S)
        assert not self._tasks[0].done(), self._tasks[0].exception()

    async def finish(self) -> None:
        """Stop publishing, and read all records."""
        self._stop.set()
        async with asyncio.timeout(PATIENCE_S):
            await self._tasks[0]
        for reader in self.readers:
            await until(partial(self._has_all, reader), PATIENCE_S)

    def _has_all(self, reader: ReaderHistory) -> bool:
        return any(one[1:3] == (self.name, self.published) for one in reversed(reader.records))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class LoadedGroup:
    """Members as processes, and loads that fail over between them."""

    def __init__(self, members: list[MemberProcess]) -> None:
        self.members = members
        self.loads: list[MemberLoad] = []
        self.last_history: History | None = None
        """The history that was checked."""

    def start_loads(self, *, durable: bool = False) -> None:
        """Start one load for each member, which connects to that member first."""
        addresses = [one.address for one in self.members]
        self.loads = [
            MemberLoad(addresses[number:] + addresses[:number], f"p{number}", durable=durable)
            for number in range(len(addresses))
        ]

    async def wait_progress(self) -> None:
        """Wait until every publisher has made progress, at any member."""
        await asyncio.gather(*(one.wait_progress() for one in self.loads))

    def kill(self) -> None:
        for one in self.members:
            one.kill()

    async def check_history(self) -> list[HistoryFault]:
        """Finish the loads, end the members, and check the history against every journal."""
        await asyncio.gather(*(one.finish() for one in self.loads))
        readers = [reader for one in self.loads for reader in one.readers]
        wanted = max(reader.records[-1].sequence for reader in readers)
        for reader in readers:
            await until(partial(_has_reached, reader, wanted), PATIENCE_S)
        for number, member in enumerate(self.members):
            # A member that answers has applied every record that any member has acknowledged. Each client has
            # its own name: a member whose clock is ahead may notify others of its logon after the next logon.
            async with AsyncClient(member.address, f"last-{number}") as client:
                subscription = await client.subscribe("t", bookmark=f"group|{wanted - 1}|")
                async with asyncio.timeout(PATIENCE_S):
                    await anext(aiter(subscription))
        self.kill()
        # The members were killed one after another, so later ones have recorded disconnects of earlier
        # clients.
        common = min(self._last_sequences())
        assert common >= wanted
        contents, found = set(), list[HistoryFault]()
        for member in self.members:
            journal = member.open_journal()
            try:
                contents.add(hash_log(journal, common))
                history = History(
                    published={one.name: one.published for one in self.loads},
                    acknowledged={one.name: one.durable for one in self.loads},
                    readers=readers,
                    log=load_records(journal),
                )
            finally:
                journal.close()
            self.last_history = history
            found += check(history)
        if len(contents) > 1:
            found.append(
                HistoryFault(FaultKind.UNEXPLAINED, f"the members' journals differ: {sorted(contents)}")
            )
        return found

    def _last_sequences(self) -> list[int]:
        """Return the last sequence of each member's journal."""
        ends = []
        for member in self.members:
            journal = member.open_journal()
            ends.append(journal.next_sequence - 1)
            journal.close()
        return ends


def _has_reached(reader: ReaderHistory, sequence: int) -> bool:
    return reader.records[-1].sequence >= sequence


def load_records(journal: Journal) -> list[Record]:
    """Return the test's records of a journal.

    The broker's own records about clients are left out.
    """
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
