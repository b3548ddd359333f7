"""A log service restored from an older copy: no member continues on the shorter log."""

from __future__ import annotations

import shutil
from pathlib import Path

from broker_core.broker import BrokerPaths
from broker_core.client import AsyncClient
from broker_core.group import reseed
from broker_core.group.jetstream import JetStreamLog
from broker_core.group.settings import GroupSettings
from tests.group.test_one_log import publish, read
from tests.group.test_states import HOLD_MS, refusal_of
from tests.support.brokers import until
from tests.support.groups import GROUP, running_members, start_member
from tests.support.nats_servers import NatsServers, running_nats_servers
from tests.support.sites import free_port


def copy_server(servers: NatsServers, to: Path) -> None:
    """Copy the only server's files while it is down."""
    servers.kill()
    shutil.copytree(servers.home / "engine-1", to)
    servers.start()


def restore_server(servers: NatsServers, backup: Path) -> None:
    servers.kill()
    shutil.rmtree(servers.home / "engine-1")
    shutil.copytree(backup, servers.home / "engine-1")
    servers.start()


async def test_a_member_that_was_away_takes_nothing_when_another_has_applied_more_than_the_log_has(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as servers:
        async with running_members(tmp_path, servers.urls, "a", "b", hold_ms=HOLD_MS) as (a, b):
            await publish(a.address, "p", 1, 20)
            await until(lambda: b.journal.durable_sequence == a.journal.durable_sequence)
        copy_server(servers, tmp_path / "backup")
        async with running_members(tmp_path, servers.urls, "a", hold_ms=HOLD_MS) as (a,):
            for first in range(21, 121, 10):
                await publish(a.address, "p", first, first + 9)
            restore_server(servers, tmp_path / "backup")
            await until(lambda: a.state == "engine_lost")
            async with running_members(tmp_path, servers.urls, "b", hold_ms=HOLD_MS) as (b,):
                await until(lambda: b.state == "engine_lost")
                assert "a has applied" in b.member.status().why
                assert await refusal_of(b, "q") == "behind"
                assert len(await read(a.address, "reader", 120)) == 120


async def test_a_member_does_not_go_on_when_other_entries_stand_where_those_were_that_it_applied(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as servers:
        async with running_members(tmp_path, servers.urls, "a", "b", hold_ms=HOLD_MS) as (a, b):
            await publish(a.address, "p", 1, 20)
            await until(lambda: b.journal.durable_sequence == a.journal.durable_sequence)
        copy_server(servers, tmp_path / "backup")
        async with running_members(tmp_path, servers.urls, "a", hold_ms=HOLD_MS) as (a,):
            await publish(a.address, "p", 21, 30)
        restore_server(servers, tmp_path / "backup")
        async with running_members(tmp_path, servers.urls, "b", hold_ms=HOLD_MS) as (b,):
            for first in range(1, 201, 20):  # until the log is longer than it was
                await publish(b.address, "other", first, first + 19)
            async with running_members(tmp_path, servers.urls, "a", hold_ms=HOLD_MS) as (a,):
                await until(lambda: a.state == "engine_lost")
                assert "isn't the one" in a.member.status().why
                assert await refusal_of(a, "q") == "behind"
                # Of two members that differ neither goes on.
                await until(lambda: not b.is_taking_part())
                assert await refusal_of(b, "q2") == "behind"
        # An operator may choose either journal.
        engine = JetStreamLog(GroupSettings(GROUP, "a", servers.urls))
        found = await reseed.find_stream(engine)
        for name, other in (("a", True), ("b", False)):
            paths = BrokerPaths.in_home(tmp_path / name, GROUP)
            own = reseed.SegmentDirectories(paths.journal, paths.archive)
            assert await reseed.has_other_entries(engine, found, own, GROUP) is other
        own = reseed.SegmentDirectories(BrokerPaths.in_home(tmp_path / "a", GROUP).journal)
        plan = reseed.plan_init(own, GROUP, "a", found, replace=True, other_entries=True)
        await reseed.init_group(plan, own, found, engine, "now", lambda _: None)
        async with running_members(tmp_path, servers.urls, "a", hold_ms=HOLD_MS) as (a,):
            await publish(a.address, "q3", 1, 5)
            assert len(await read(a.address, "reader", 35)) == 35


async def test_a_member_whose_newest_entry_is_in_the_log_goes_on_after_any_batch(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as servers:
        for first in (1, 6, 11):
            async with running_members(tmp_path, servers.urls, "a", "b", hold_ms=HOLD_MS) as (a, b):
                await publish(a.address, "p", first, first + 4)
                await publish(b.address, "p", first, first + 4)  # repeats, in part or whole
                assert a.is_taking_part() and b.is_taking_part()


async def test_a_member_that_lags_takes_records_while_those_that_had_more_are_down_and_nothing_is_deleted(
    tmp_path: Path,
) -> None:
    """Publishers notice it, and both journals keep what was acknowledged."""
    async with running_nats_servers(tmp_path, 1) as servers:
        doors = (free_port(), free_port())
        async with running_members(tmp_path, servers.urls, "a", "b", hold_ms=HOLD_MS) as (a, b):
            await publish(a.address, "p", 1, 20)
            await until(lambda: b.journal.durable_sequence == a.journal.durable_sequence)
        copy_server(servers, tmp_path / "backup")
        publisher = AsyncClient([f"tcp://127.0.0.1:{door}" for door in doors], "p")
        a = await start_member(tmp_path, "a", servers.urls, hold_ms=HOLD_MS, port=doors[0])
        await publisher.start()
        for number in range(21, 31):
            await publisher.publish("t", {"by": "p", "n": number})
        await publisher.flush()
        await a.stop()
        restore_server(servers, tmp_path / "backup")
        b = await start_member(tmp_path, "b", servers.urls, hold_ms=HOLD_MS, port=doors[1])
        await publisher.publish("t", {"by": "p", "n": 31})
        await publisher.flush()
        (missing,) = [one for one in publisher.notices if one.code == "acknowledged_missing"]
        assert missing.details == {"known": 20, "acknowledged": 30}
        await publisher.close()
        a = await start_member(tmp_path, "a", servers.urls, hold_ms=HOLD_MS)
        await until(lambda: a.state == "engine_lost" and not b.is_taking_part())
        assert [one[2] for one in await read(a.address, "reader", 30)] == list(range(1, 31))
        assert [one[2] for one in await read(b.address, "reader", 21)] == [*range(1, 21), 31]
        await a.stop()
        await b.stop()
