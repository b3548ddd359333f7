"""What three engines and three members go through, and what is left of it: held against what clients were told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.engines import free_ports, running_engines
from tests.support.group_load import HOLD_MS, Group
from tests.support.groups import MemberProcess


@asynccontextmanager
async def running_group(home: Path, engines: Sequence[str]) -> AsyncIterator[Group]:
    """Three members under load."""
    names = ("a", "b", "c")
    group = Group(
        [
            MemberProcess(home, name, engines, HOLD_MS, port)
            for name, port in zip(names, free_ports(len(names)), strict=True)
        ]
    )
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
        assert await group.judge() == []


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
            assert await group.judge() == []
