"""A group of three members on three NATS servers under faults: kills, stops, and network cuts, also one-way.

Each member reaches each server, and each server every other, through its own proxy. A seed decides the
strikes. Several may overlap; after some of them everything is restored and all publishers must make progress.
At the end all messages to clients are checked against every member's journal, and the journals against each
other.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from broker_core.group.settings import NatsServerAddress
from tests.support.group_load import HOLD_MS, LoadedGroup
from tests.support.groups import MemberProcess
from tests.support.nats_servers import NatsServers, free_ports
from tests.support.partition_proxy import PartitionProxy, running_partition_proxy
from tests.support.small_disks import SmallDisk
from tests.torture.history import FaultKind, HistoryFault

NAMES: Final = ("a", "b", "c")
STRIKES: Final = 6
"""Strikes per run. NATS servers elect after 4 to 9 s of silence, so a strike is slow."""
STOPPED_S: Final = (0.5, 3.0, 10.0, 40.0)
"""Durations of a stop, from unnoticeable to longer than every timeout."""
HOUR_NS: Final = 3_600 * 10**9
SEGMENT_BYTES: Final = 1024 * 1024
"""Segment size of a journal, so that small disks hold several."""
SYNC: Final = {
    "sync_members": NAMES,
    "sync_topics": ("t",),
    "downgrade_after_ms": 1_500,
    "journal_size": SEGMENT_BYTES,
}

Strike = Callable[[], Awaitable[None]]


class ProxiedNatsServers(NatsServers):
    """NATS servers that reach each other through proxies: `routes[i, j]` is the route from i to j."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, len(NAMES))
        self.routes: dict[tuple[int, int], PartitionProxy] = {}

    def other_servers(self, number: int) -> list[NatsServerAddress]:
        return [
            one._replace(route_port=self.routes[number, to].port)
            for to, one in enumerate(self.addresses)
            if to != number
        ]


class _GroupRun:
    """A group during the strikes of one run."""

    def __init__(self, home: Path, chance: random.Random) -> None:
        self.home, self.chance = home, chance
        self.engines = ProxiedNatsServers(home)
        self.lines: dict[tuple[int, int], PartitionProxy] = {}
        """Proxies from members to NATS servers, by their numbers."""
        self.group = LoadedGroup([])
        self.disks: dict[str, SmallDisk] = {}
        """Disks of members and NATS servers by name; empty without the right to mount."""
        self.struck: list[str] = []
        self.faults: list[HistoryFault] = []

    async def run(self, strikes: int | Sequence[str]) -> list[HistoryFault]:
        async with AsyncExitStack() as stack:
            for i, one in enumerate(self.engines.addresses):
                for j in range(len(NAMES)):
                    self.lines[j, i] = await stack.enter_async_context(running_partition_proxy(one.port))
                    if i != j:
                        cable = await stack.enter_async_context(running_partition_proxy(one.route_port))
                        self.engines.routes[j, i] = cable
            with suppress(RuntimeError):  # without root, no disk is filled
                for name in (*NAMES, *(one.name for one in self.engines.addresses)):
                    self.disks[name] = disk = SmallDisk(self.home / name)
                    stack.callback(disk.close)
            stack.callback(self.engines.kill)
            self.engines.start()
            await self.engines.wait_ready("other")
            self.group.members = [self._member(j, port) for j, port in enumerate(free_ports(len(NAMES)))]
            stack.callback(self.group.kill)
            for one in self.group.members:
                one.start()
            self.group.start_loads(durable=True)
            stack.push_async_callback(self._close)
            await self.group.wait_progress()
            for one in [self._by_chance] * strikes if isinstance(strikes, int) else strikes:
                await self._strike(one() if callable(one) else {one: self._named()[one]})
            await self._mend()
            return self.faults + await self.group.check_history()

    async def _close(self) -> None:
        await asyncio.gather(*(one.close() for one in self.group.loads))

    def _member(self, j: int, port: int) -> MemberProcess:
        urls = [f"nats://127.0.0.1:{self.lines[j, i].port}" for i in range(len(NAMES))]
        return MemberProcess(self.home, NAMES[j], urls[j:] + urls[:j], HOLD_MS, port, **SYNC)

    def _kinds(self) -> list[dict[str, Strike]]:
        """Return strikes by type; only one of a type is active, since a killed process cannot be stopped."""
        kinds: list[dict[str, Strike]] = [
            {
                "kill a member": self._kill_member,
                "stop a member": self._stop_member,
                "set a member's clock": self._set_clock,
            },
            {"cut a member off": self._cut_member, "let a member speak one way": self._half_cut_member},
            {
                "kill an engine": self._kill_engine,
                "kill two engines": self._kill_two_engines,
                "kill all engines": self._kill_engines,
                "stop an engine": self._stop_engine,
                "stop the engine that leads": self._stop_leader,
            },
            {"cut an engine off": self._cut_engine, "let an engine speak one way": self._half_cut_engine},
        ]
        if self.disks:
            kinds[0]["fill a member's disk"] = self._fill_member
            kinds[2]["fill an engine's disk"] = self._fill_engine
        return kinds

    def _named(self) -> dict[str, Strike]:
        return {name: strike for kind in self._kinds() for name, strike in kind.items()}

    def _by_chance(self) -> dict[str, Strike]:
        kinds = self.chance.sample(self._kinds(), self.chance.choice((1, 1, 2)))
        return dict(self.chance.choice(list(kind.items())) for kind in kinds)

    async def _strike(self, strikes: dict[str, Strike]) -> None:
        chosen = list(strikes)
        self.struck += chosen
        await asyncio.gather(*(strike() for strike in strikes.values()))
        await self._mend()
        try:
            for name, one in zip(NAMES, self.group.members, strict=True):
                assert one.exit_code is None, f"{name} ended unexpectedly with {one.exit_code}"
            await self.group.wait_progress()
        except (TimeoutError, AssertionError) as problem:
            self.faults.append(
                HistoryFault(FaultKind.UNEXPLAINED, f"nobody gets on after {chosen}: {problem!r}")
            )
            raise

    async def _a_while(self, most: float) -> None:
        await asyncio.sleep(self.chance.uniform(0.1, most))

    async def _kill_member(self) -> None:
        one = self.chance.choice(self.group.members)
        one.kill()
        await self._a_while(2.0)
        one.start()

    async def _stop_member(self) -> None:
        one = self.chance.choice(self.group.members)
        assert one.exit_code is None, f"a member ended unexpectedly with {one.exit_code}"
        one.freeze()
        await self._stopped()
        one.thaw()

    async def _stopped(self) -> None:
        await asyncio.sleep(self.chance.choice(STOPPED_S))

    async def _set_clock(self) -> None:
        """Set a member's clock; some stay wrong for the rest of the run."""
        one = self.chance.choice(self.group.members)
        one.set_clock(self.chance.choice((-HOUR_NS, 0, HOUR_NS)))
        await self._a_while(3.0)

    async def _fill_member(self) -> None:
        disk = self.disks[self.chance.choice(NAMES)]
        disk.fill()
        await self._a_while(6.0)
        disk.free()

    async def _cut_member(self) -> None:
        j = self.chance.randrange(len(NAMES))
        for i in range(len(NAMES)):
            self.lines[j, i].cut()
        await self._a_while(5.0)

    async def _half_cut_member(self) -> None:
        j, gate = self.chance.randrange(len(NAMES)), self.chance.choice(("requests", "answers"))
        for i in range(len(NAMES)):
            getattr(self.lines[j, i], gate).clear()
        await self._a_while(8.0)

    async def _kill_engine(self) -> None:
        number = self.chance.randrange(len(NAMES))
        self.engines.kill(number)
        await self._a_while(3.0)
        self.engines.start(number)

    async def _kill_two_engines(self) -> None:
        numbers = self.chance.sample(range(len(NAMES)), 2)
        self.engines.kill(*numbers)
        await self._a_while(8.0)
        self.engines.start(*numbers)

    async def _kill_engines(self) -> None:
        self.engines.kill()
        await self._a_while(2.0)
        self.engines.start()

    async def _stop_engine(self) -> None:
        number = self.chance.randrange(len(NAMES))
        self.engines.freeze(number)
        await self._stopped()
        self.engines.thaw(number)

    async def _stop_leader(self) -> None:
        number = self.engines.number_of((await self.engines.wait_ready()).leader)
        self.engines.freeze(number)
        await self._stopped()
        self.engines.thaw(number)

    async def _fill_engine(self) -> None:
        """Fill a NATS server's disk and restart it: NATS disables JetStream in a server that could not write,
        until a restart.
        """
        number = self.chance.randrange(len(NAMES))
        disk = self.disks[self.engines.addresses[number].name]
        disk.fill()
        await self._a_while(8.0)
        disk.free()
        self.engines.kill(number)
        self.engines.start(number)

    async def _cut_engine(self) -> None:
        number = self.chance.randrange(len(NAMES))
        for (i, j), cable in self.engines.routes.items():
            if number in (i, j):
                cable.cut()
        await self._a_while(8.0)

    async def _half_cut_engine(self) -> None:
        """Cut one direction of all routes of a NATS server."""
        number, hears = self.chance.randrange(len(NAMES)), self.chance.random() < 0.5
        for (i, j), cable in self.engines.routes.items():
            if number in (i, j):
                # A route carries both directions, whichever server opened it.
                out = (i == number) == hears
                (cable.requests if out else cable.answers).clear()
        await self._a_while(8.0)

    async def _mend(self) -> None:
        for cable in (*self.lines.values(), *self.engines.routes.values()):
            cable.restore()


async def run_group(
    seed: int, strikes: int | Sequence[str] = STRIKES
) -> tuple[list[HistoryFault], list[str], int, int]:
    """Run a group with `strikes` random strikes, or with the given ones.

    Returns faults, strikes, records in the log, and acknowledged records.
    """
    home = Path(tempfile.mkdtemp(prefix="g-"))
    struck = _GroupRun(home, random.Random(f"group {seed}"))
    try:
        found = await struck.run(strikes)
    except (TimeoutError, AssertionError) as problem:
        found = struck.faults or [HistoryFault(FaultKind.UNEXPLAINED, f"it came to no end: {problem!r}")]
    if not found:
        shutil.rmtree(home, ignore_errors=True)
    last = struck.group.last_history
    return (
        found,
        struck.struck,
        len(last.log) if last is not None else 0,
        sum(last.acknowledged.values()) if last is not None else 0,
    )
