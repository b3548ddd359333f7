"""Three NATS servers and three members under faults; the result is checked against what clients were sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import small_disks
from tests.support.group_load import HOLD_MS, LoadedGroup
from tests.support.groups import MemberProcess
from tests.support.nats_servers import free_ports, running_nats_servers
from tests.torture import groups


@asynccontextmanager
async def running_group(home: Path, engines: Sequence[str], **instance: Any) -> AsyncIterator[LoadedGroup]:
    """Three members under load."""
    names = ("a", "b", "c")
    group = LoadedGroup(
        [
            MemberProcess(home, name, engines, HOLD_MS, port, **instance)
            for name, port in zip(names, free_ports(len(names)), strict=True)
        ]
    )
    for one in group.members:
        one.start()
    group.start_loads()
    try:
        await group.wait_progress()
        yield group
    finally:
        await asyncio.gather(*(one.close() for one in group.loads))
        group.kill()


async def test_members_are_killed_one_after_the_other_and_nobody_misses_or_repeats_anything(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines, running_group(tmp_path, engines.urls) as group:
        for one in group.members:
            one.kill()
            await group.wait_progress()
            one.start()
        await group.wait_progress()
        assert await group.check_history() == []


async def test_a_member_that_stood_still_holds_nothing_of_that_time_against_the_others(
    tmp_path: Path,
) -> None:
    sync = {"sync_members": ("a", "b", "c"), "sync_topics": ("t",), "downgrade_after_ms": 4_000}
    async with (
        running_nats_servers(tmp_path, 1) as engines,
        running_group(tmp_path, engines.urls, **sync) as group,
    ):
        stopped, other = group.members[:2]
        other.freeze()  # so that something waits for it
        await asyncio.sleep(1)
        stopped.freeze()
        other.thaw()
        await asyncio.sleep(6)
        stopped.thaw()
        await group.wait_progress()
        said = (tmp_path / "a.log").read_text()
        assert "stood_still" in said
        assert "member_downgraded" not in said
        assert await group.check_history() == []


@pytest.mark.slow
async def test_the_engines_leader_and_then_everything_is_killed_and_what_was_acknowledged_is_there(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path) as engines:
        await engines.wait_ready("other")
        async with running_group(tmp_path, engines.urls) as group:
            leader = engines.number_of((await engines.wait_ready()).leader)
            engines.kill(leader)
            await group.wait_progress()
            engines.start(leader)
            await group.wait_progress()
            engines.kill()
            group.kill()
            engines.start()
            for one in group.members:
                one.start()
            await group.wait_progress()
            assert await group.check_history() == []


@pytest.mark.slow
async def test_what_is_stopped_filled_or_set_wrong_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "STOPPED_S", (3.0,))
    strikes = ["stop the engine that leads", "stop a member", "set a member's clock"]
    if not small_disks.unavailable_reason(tmp_path):
        strikes += ["fill a member's disk", "fill an engine's disk"]
    found, struck, _, acknowledged = await groups.run_group(7, strikes)
    assert (found, struck) == ([], strikes)
    assert acknowledged > 0
