"""A group of three members on three engines, struck while its clients go on: processes killed and stopped, networks cut, also one way.

Each member reaches each engine, and each engine every other, through a cable of its own. What strikes and whom follows from the seed; several strikes may
overlap, and after some of them everything is mended and everybody has to get on. At the end everything that anybody was told is held against every
member's journal, and the journals against each other.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from broker_core.group.engine_config import EngineAddress
from tests.support.cables import Cable, running_cable
from tests.support.engines import Engines, free_ports
from tests.support.group_load import HOLD_MS, Group
from tests.support.groups import MemberProcess
from tests.torture.history import Fault, Kind

NAMES: Final = ("a", "b", "c")
STRIKES: Final = 6
"""Of one run. Engines elect after 4 to 9 s of silence, so a strike takes its time."""
SYNC: Final = {"sync_members": NAMES, "sync_topics": ("t",), "downgrade_after_ms": 1_500}

Strike = Callable[[], Awaitable[None]]


class CabledEngines(Engines):
    """Servers that reach each other through cables: `routes[i, j]` is how i speaks to j."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, len(NAMES))
        self.routes: dict[tuple[int, int], Cable] = {}

    def others_of(self, number: int) -> list[EngineAddress]:
        return [
            one._replace(route_port=self.routes[number, to].port)
            for to, one in enumerate(self.addresses)
            if to != number
        ]


class _Struck:
    """One group over its strikes."""

    def __init__(self, home: Path, chance: random.Random) -> None:
        self.home, self.chance = home, chance
        self.engines = CabledEngines(home)
        self.lines: dict[tuple[int, int], Cable] = {}
        """How a member speaks to an engine."""
        self.group = Group([])
        self.struck: list[str] = []
        self.faults: list[Fault] = []

    async def run(self, strikes: int) -> list[Fault]:
        async with AsyncExitStack() as stack:
            for i, one in enumerate(self.engines.addresses):
                for j in range(len(NAMES)):
                    self.lines[j, i] = await stack.enter_async_context(running_cable(one.port))
                    if i != j:
                        cable = await stack.enter_async_context(running_cable(one.route_port))
                        self.engines.routes[j, i] = cable
            stack.callback(self.engines.kill)
            self.engines.start()
            await self.engines.ready("other")
            self.group.members = [self._member(j, port) for j, port in enumerate(free_ports(len(NAMES)))]
            stack.callback(self.group.kill)
            for one in self.group.members:
                one.start()
            self.group.load(durable=True)
            stack.push_async_callback(self._close)
            await self.group.goes_on()
            for _ in range(strikes):
                await self._strike()
            await self._mend()
            return self.faults + await self.group.judge()

    async def _close(self) -> None:
        await asyncio.gather(*(one.close() for one in self.group.loads))

    def _member(self, j: int, port: int) -> MemberProcess:
        urls = [f"nats://127.0.0.1:{self.lines[j, i].port}" for i in range(len(NAMES))]
        return MemberProcess(self.home, NAMES[j], urls[j:] + urls[:j], HOLD_MS, port, **SYNC)

    async def _strike(self) -> None:
        # Of one kind one at a time: nothing can be stopped that was killed.
        kinds: list[dict[str, Strike]] = [
            {"kill a member": self._kill_member, "stop a member": self._stop_member},
            {"cut a member off": self._cut_member, "let a member speak one way": self._half_cut_member},
            {
                "kill an engine": self._kill_engine,
                "kill all engines": self._kill_engines,
                "stop an engine": self._stop_engine,
            },
            {"cut an engine off": self._cut_engine, "let an engine speak one way": self._half_cut_engine},
        ]
        strikes = [
            self.chance.choice(list(kind.items()))
            for kind in self.chance.sample(kinds, self.chance.choice((1, 1, 2)))
        ]
        chosen = [name for name, _ in strikes]
        self.struck += chosen
        await asyncio.gather(*(strike() for _, strike in strikes))
        await self._mend()
        try:
            for name, one in zip(NAMES, self.group.members, strict=True):
                assert one.ended_with is None, f"{name} ended by itself with {one.ended_with}"
            await self.group.goes_on()
        except (TimeoutError, AssertionError) as problem:
            self.faults.append(Fault(Kind.UNEXPLAINED, f"nobody gets on after {chosen}: {problem!r}"))
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
        assert one.ended_with is None, f"a member ended by itself with {one.ended_with}"
        one.freeze()
        await self._a_while(6.0)
        one.thaw()

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

    async def _kill_engines(self) -> None:
        self.engines.kill()
        await self._a_while(2.0)
        self.engines.start()

    async def _stop_engine(self) -> None:
        number = self.chance.randrange(len(NAMES))
        self.engines.freeze(number)
        await self._a_while(8.0)
        self.engines.thaw(number)

    async def _cut_engine(self) -> None:
        number = self.chance.randrange(len(NAMES))
        for (i, j), cable in self.engines.routes.items():
            if number in (i, j):
                cable.cut()
        await self._a_while(8.0)

    async def _half_cut_engine(self) -> None:
        """It hears the others, and they don't hear it; or the other way round."""
        number, hears = self.chance.randrange(len(NAMES)), self.chance.random() < 0.5
        for (i, j), cable in self.engines.routes.items():
            if number in (i, j):
                # A route carries both ways, whoever has made it.
                out = (i == number) == hears
                (cable.requests if out else cable.answers).clear()
        await self._a_while(8.0)

    async def _mend(self) -> None:
        for cable in (*self.lines.values(), *self.engines.routes.values()):
            cable.mend()


async def run_group(seed: int, strikes: int = STRIKES) -> tuple[list[Fault], list[str], int, int]:
    """One run: what was wrong, what struck, records in the log, and those that were acknowledged."""
    home = Path(tempfile.mkdtemp(prefix="g-"))
    struck = _Struck(home, random.Random(f"group {seed}"))
    try:
        found = await struck.run(strikes)
    except (TimeoutError, AssertionError) as problem:
        found = struck.faults or [Fault(Kind.UNEXPLAINED, f"it came to no end: {problem!r}")]
    if not found:
        shutil.rmtree(home, ignore_errors=True)
    last = struck.group.last
    return (
        found,
        struck.struck,
        len(last.log) if last is not None else 0,
        sum(last.acknowledged.values()) if last is not None else 0,
    )
