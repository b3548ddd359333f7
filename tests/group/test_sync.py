"""Synchronous members: `fully_durable` and sync topics wait for every sync member's disk, or for a
downgrade.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any

from django.core.management import call_command
from django.test import override_settings

from broker_core.client import EPOCH, AsyncClient
from broker_core.journal.files import FileSystem
from broker_core.sync_replication.manual_downgrades import ManualDowngrade, ManualDowngradeStore
from broker_core.sync_replication.sync_state import POLICY, SyncMode, SyncReplicationState
from tests.group.test_one_log import publish
from tests.support.brokers import ask, until
from tests.support.groups import RunningMember, running_members, start_member
from tests.support.nats_servers import running_nats_servers

SYNC = {"sync_members": ("a", "b", "c"), "sync_topics": ("t",)}


class SlowDisk(FileSystem):
    """A disk whose syncs wait until released."""

    def __init__(self) -> None:
        self.goes_on = Event()
        self.goes_on.set()

    def fdatasync(self, fd: int) -> None:
        self.goes_on.wait()
        super().fdatasync(fd)


class DurabilityReader:
    """A subscriber with a durability, and the messages it has received."""

    def __init__(self, member: RunningMember, durability: Any) -> None:
        self.had: list[int] = []
        self._work = asyncio.create_task(self._follow(member, durability))

    async def _follow(self, member: RunningMember, durability: Any) -> None:
        async with AsyncClient(member.address, f"follows-{durability}") as client:
            async for message in await client.subscribe("t", bookmark=EPOCH, durability=durability):
                self.had.append(message.data["n"])

    async def close(self) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)


def mode(member: RunningMember, name: str) -> str:
    return next(one.mode for one in member.member.status().members if one.name == name)


async def read_up_to_now(member: RunningMember) -> list[int]:
    """Return the numbers of a fully durable range that ends at a time in the past."""
    end = datetime.now(UTC) + timedelta(seconds=1)
    await until(lambda: datetime.now(UTC) > end)
    async with AsyncClient(member.address, "range") as client:
        bookmark = f"[0:{end:%Y%m%dT%H%M%SZ})"
        subscription = await client.subscribe("t", bookmark=bookmark, durability="fully_durable")
        return [message.data["n"] async for message in subscription]


async def at_the_terminal(member: RunningMember, change: str, name: str) -> str:
    """Return the last line that `manage.py replication` prints about a member."""

    def run() -> None:
        call_command("replication", change, name, instance="group", stdout=out)

    out = StringIO()
    with override_settings(SLUICE_RUN_DIRECTORY=member.broker.paths.control.parent):
        await asyncio.to_thread(run)
    return out.getvalue().splitlines()[-1]


async def test_a_sync_member_that_is_slow_is_waited_for_until_it_is_downgraded_by_hand(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    settings = {**SYNC, "downgrade_after_ms": 600_000}
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b", **settings) as (a, b):
            c = await start_member(tmp_path, "c", engines.urls, files=disk, **settings)
            full, plain = DurabilityReader(b, "fully_durable"), DurabilityReader(b, "persisted")
            try:
                await publish(a.address, "p", 1, 100)
                for one in (a, b, c):  # an acknowledgement means everybody's disk
                    assert one.journal.durable_sequence >= 100
                await until(lambda: full.had == plain.had == list(range(1, 101)))
                assert await read_up_to_now(b) == list(range(1, 101))
                disk.goes_on.clear()
                waits = asyncio.create_task(publish(a.address, "p", 101, 101))
                await until(lambda: 101 in plain.had)
                async with AsyncClient(a.address, "other") as other:  # what isn't marked waits for nobody
                    await other.publish("u", {})
                    await other.flush()
                assert not waits.done() and 101 not in full.had
                seen = next(one for one in a.member.status().members if one.name == "c")
                assert (seen.mode, seen.confirmed < a.journal.durable_sequence) == ("sync", True)
                await ask(a.broker, "downgrade_member", name="c", by="ada")
                async with asyncio.timeout(60):
                    await waits
                assert 101 not in full.had  # b decides for what b says
                await ask(b.broker, "downgrade_member", name="c", by="ada")
                await until(lambda: 101 in full.had)
                disk.goes_on.set()
                # By hand holds, also when it has caught up.
                await until(lambda: a.member.status().members[2].confirmed >= 101)
                assert mode(a, "c") == "downgraded"
                assert "sync" in await at_the_terminal(a, "upgrade", "c")
                said = a.member.status()
                assert (said.downgrades, said.upgrades, mode(a, "c")) == (1, 1, "sync")
                await publish(a.address, "p", 102, 102)
                assert c.journal.durable_sequence >= 102
                assert full.had == [*range(1, len(full.had) + 1)]
            finally:
                disk.goes_on.set()
                await full.close()
                await plain.close()
                await c.stop()
            assert c.acknowledgements.violations == []


async def test_a_sync_member_that_is_away_is_downgraded_after_the_time_and_upgraded_when_it_is_back(
    tmp_path: Path,
) -> None:
    settings = {**SYNC, "sync_members": ("a", "b"), "downgrade_after_ms": 1_000}
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", **settings) as (a,):
            b = await start_member(tmp_path, "b", engines.urls, **settings)
            try:
                await publish(a.address, "p", 1, 10)
                assert b.journal.durable_sequence >= 10
            finally:
                await b.stop()
            async with asyncio.timeout(60):
                await publish(a.address, "p", 11, 20)
            assert mode(a, "b") == "downgraded"
            told = await events_of(a, "member_downgraded")
            assert "b isn't waited for any more (policy)" in told and " ms" in told
            b = await start_member(tmp_path, "b", engines.urls, **settings)
            try:
                await until(lambda: mode(a, "b") == "sync")
                assert "b is waited for again (policy)" in await events_of(a, "member_upgraded")
                await publish(a.address, "p", 21, 30)
                assert b.journal.durable_sequence >= 30
            finally:
                await b.stop()


async def test_what_was_decided_by_hand_holds_over_a_restart_until_it_is_undone_by_hand(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:

        async def restarted(before: RunningMember | None) -> RunningMember:
            if before is not None:
                await before.stop()
            settings = {**SYNC, "sync_members": ("a", "c"), "downgrade_after_ms": 600_000}
            return await start_member(tmp_path, "a", engines.urls, **settings)

        a = await restarted(None)  # c was never there
        try:
            await ask(a.broker, "downgrade_member", name="c", by="ada")
            decided = a.member.status().members[1]
            a = await restarted(a)
            found = a.member.status().members[1]
            assert (found.name, found.mode, found.downgraded_by) == ("c", "downgraded", "ada")
            assert found.downgraded_at == decided.downgraded_at > 0
            await publish(a.address, "p", 1, 10)  # waits for nobody
            await ask(a.broker, "upgrade_member", name="c", by="ada")
            a = await restarted(a)
            assert (mode(a, "c"), a.member.status().members[1].downgraded_at) == ("sync", 0)
        finally:
            await a.stop()


async def test_a_file_of_downgrades_with_a_flipped_bit_says_nothing_that_nobody_said(tmp_path: Path) -> None:
    made = ManualDowngradeStore(tmp_path, "group", FileSystem())
    await made.record("c", ManualDowngrade("ada", 1), ["b", "c"])
    assert (
        ManualDowngradeStore(tmp_path, "group", FileSystem()).of
        == made.of
        == {"c": ManualDowngrade("ada", 1)}
    )
    path = tmp_path / "group.downgrades"
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert ManualDowngradeStore(tmp_path, "group", FileSystem()).of in ({}, made.of)


async def events_of(member: RunningMember, event: str) -> str:
    """Return the broker's first record of this event."""
    async with asyncio.timeout(60), AsyncClient(member.address, "events") as client:
        async for message in await client.subscribe("$SLUICE.clients", bookmark=EPOCH):
            if message.data["event"] == event:
                return str(message.data["state"])
    raise AssertionError(event)


def confirming(downgrade_after_ms: int = 30_000) -> SyncReplicationState:
    made = SyncReplicationState("a", 0, 0.0)
    made.apply_policy(("a", "b", "c"), downgrade_after_ms, 0.0)
    made.mark_start_unconfirmed()
    return made


def test_what_all_have_is_confirmed_and_never_taken_back() -> None:
    made = confirming()
    made.on_local_durable(10, 1.0)
    made.on_peer_confirmed("b", 10, 1.1)
    assert made.upto == 0
    made.on_peer_confirmed("c", 7, 1.2)
    assert made.upto == 7
    made.on_peer_confirmed("c", 0, 1.3)  # it came back with less
    assert made.upto == 7
    made.on_local_durable(11, 1.4)
    made.on_peer_confirmed("c", 11, 1.5)
    assert made.upto == 10


def test_time_in_which_nothing_can_be_heard_is_counted_against_nobody() -> None:
    made = confirming()
    made.on_local_durable(10, 1.0)
    made.on_peer_confirmed("c", 10, 1.0)
    assert made.check_timeouts(20.0) == []
    assert made.check_timeouts(40.0, ["b", "c"]) == []
    assert made.check_timeouts(69.0) == []
    (change,) = made.check_timeouts(71.0)
    assert (change.name, change.mode, change.confirmed, change.durable) == ("b", SyncMode.DOWNGRADED, 0, 10)
    assert (made.upto, made.downgraded_by("b"), made.downgrades["b"]) == (10, POLICY, 1)


def test_time_in_which_this_process_stood_still_is_counted_against_nobody() -> None:
    made = confirming()
    made.on_local_durable(10, 1.0)
    made.exclude_pause(40.0, 41.5)
    assert made.check_timeouts(41.5) == []
    assert made.check_timeouts(70.5) == []
    made.exclude_pause(0.5, 71.0)
    assert [change.name for change in made.check_timeouts(72.0)] == ["b", "c"]


def test_a_member_that_is_repeatedly_late_stays_downgraded() -> None:
    made = confirming(downgrade_after_ms=10_000)
    made.on_peer_confirmed("c", 1_000, 0.0)
    made.on_local_durable(1, 0.0)
    assert made.check_timeouts(11.0)
    made.on_local_durable(2, 11.0)
    assert made.on_peer_confirmed("b", 1, 12.0) is None  # it had waited for longer than half the time
    made.on_local_durable(3, 12.0)
    change = made.on_peer_confirmed("b", 2, 13.0)
    assert change is not None and (change.mode, change.by) == (SyncMode.SYNC, POLICY)


def test_a_member_that_was_restarted_has_the_whole_time_to_confirm_again() -> None:
    made = confirming()
    made.on_local_durable(10, 1.0)
    made.on_peer_confirmed("b", 10, 1.0)
    made.on_peer_confirmed("c", 10, 1.0)
    made.on_peer_confirmed("b", 0, 500.0)
    assert made.check_timeouts(529.0) == []
    assert [one.name for one in made.check_timeouts(531.0)] == ["b"]


def test_a_member_that_the_policy_lists_no_more_holds_nothing() -> None:
    made = confirming()
    made.on_local_durable(5, 1.0)
    made.apply_policy((), 30_000, 2.0)
    assert made.upto == 5 and not made.is_required and made.mode("b") is SyncMode.ASYNC
