"""Links with a group at one end: they work at any of its members."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from broker_core.broker import BrokerPaths
from broker_core.client import AsyncClient
from broker_core.config import PolicyDocument
from broker_core.group import reseed
from broker_core.group.jetstream import JetStreamLog
from broker_core.group.settings import GroupSettings
from tests.support.brokers import until
from tests.support.groups import GROUP, RunningMember, running_members, start_member
from tests.support.nats_servers import NatsServers, running_nats_servers
from tests.support.partition_proxy import running_partition_proxy
from tests.support.sites import (
    BookmarkedReader,
    Site,
    destination_settings,
    free_port,
    site_policy,
    write_link_secrets,
)


def with_link_listener(member: RunningMember, port: int) -> PolicyDocument:
    """Return the member's policy with a transport for links, as `site_policy` has it."""
    policy, other = member.broker.engine.policy, site_policy("newyork", 0, link_port=port)
    return replace(policy, transports=(*policy.transports, other.transports[1]), access=other.access)


async def publish(address: str, first: int, last: int, name: str = "feed") -> None:
    async with AsyncClient(address, name) as feed:
        for number in range(first, last + 1):
            await feed.publish("prices.a", {"n": number})
        await feed.flush()


def states(members: list[RunningMember]) -> list[str]:
    return sorted(one.broker.links.list_entries()[0].state for one in members)


async def test_a_link_into_a_group_goes_on_at_the_next_member(tmp_path: Path) -> None:
    doors = [free_port(), free_port()]
    async with running_nats_servers(tmp_path, 1) as engines, AsyncExitStack() as stack:
        b = (await stack.enter_async_context(running_members(tmp_path, engines.urls, "b")))[0]
        a = await start_member(tmp_path, "a", engines.urls)
        for member, port in zip((a, b), doors, strict=True):
            await member.broker.apply(with_link_listener(member, port))
        destination = replace(
            destination_settings("ny", 1), addresses=tuple(f"tcp://127.0.0.1:{port}" for port in doors)
        )
        london = Site(
            tmp_path / "london",
            site_policy("london", free_port(), destination),
            write_link_secrets(tmp_path, "ny"),
        )
        await london.start()
        there = BookmarkedReader(b.address)
        try:
            await publish(london.address, 1, 50)
            await until(lambda: len(there.received) == 50, seconds=30)
            await a.stop()
            await publish(london.address, 51, 100)
            await until(lambda: len(there.received) == 100, seconds=60)
            await london.kill_and_restart()
            await publish(london.address, 101, 120)
            await until(lambda: len(there.received) == 120, seconds=60)
            assert [number for _, number in there.received] == list(range(1, 121))
            bookmarks = [bookmark for bookmark, _ in there.received]
            assert all(bookmark is not None and bookmark.startswith("london|") for bookmark in bookmarks)
            assert len(set(bookmarks)) == 120
        finally:
            await there.close()
            await london.kill()


async def test_a_link_from_a_group_is_carried_by_one_member_and_then_by_another(tmp_path: Path) -> None:
    at_newyork, for_links = free_port(), free_port()
    newyork = Site(tmp_path / "newyork", site_policy("newyork", at_newyork, link_port=for_links))
    await newyork.start()
    there = BookmarkedReader(newyork.address)
    kept = write_link_secrets(tmp_path, "ny")
    try:
        async with running_nats_servers(tmp_path, 1) as engines:
            async with running_members(tmp_path, engines.urls, "b", link_secrets=kept) as (b,):
                a = await start_member(tmp_path, "a", engines.urls, link_secrets=kept)
                for member in (a, b):
                    policy = member.broker.engine.policy
                    await member.broker.apply(
                        replace(policy, destinations=(destination_settings("ny", for_links),))
                    )
                await publish(b.address, 1, 50)
                await until(lambda: len(there.received) == 50, seconds=30)
                await until(lambda: states([a, b]) == ["carrying", "standing by"], seconds=30)
                first = a if a.broker.links.list_entries()[0].state == "carrying" else b
                assert first is a, "it came first"
                await a.stop()
                await publish(b.address, 51, 100)
                await until(lambda: len(there.received) == 100, seconds=60)
                assert states([b]) == ["carrying"]
                assert [number for _, number in there.received] == list(range(1, 101))
                assert all(mark is not None and mark.startswith(f"{GROUP}|") for mark, _ in there.received)
    finally:
        await there.close()
        await newyork.kill()


async def test_publishers_of_every_member_wait_for_a_sync_destination(tmp_path: Path) -> None:
    for_links = free_port()
    newyork = Site(tmp_path / "newyork", site_policy("newyork", free_port(), link_port=for_links))
    await newyork.start()
    kept = write_link_secrets(tmp_path, "ny")
    try:
        async with (
            running_partition_proxy(for_links) as cable,
            running_nats_servers(tmp_path, 1) as engines,
            running_members(tmp_path, engines.urls, "a", "b", link_secrets=kept) as members,
        ):
            for member in members:
                policy = member.broker.engine.policy
                instance = replace(policy.instance, downgrade_after_ms=600_000)
                destination = destination_settings("ny", cable.port, durability="sync")
                await member.broker.apply(replace(policy, instance=instance, destinations=(destination,)))
            await until(lambda: states(members) == ["carrying", "standing by"], seconds=30)
            for number, member in enumerate(members):
                async with asyncio.timeout(60):
                    await publish(member.address, 10 * number + 1, 10 * number + 10)
            there = BookmarkedReader(newyork.address)
            try:
                await until(lambda: len(there.received) == 20)
                cable.answers.clear()
                waiting = [
                    asyncio.create_task(publish(member.address, 100 + number, 100 + number, f"late-{number}"))
                    for number, member in enumerate(members)
                ]
                await until(lambda: len(there.received) == 22)
                await asyncio.sleep(1.5)  # positions are told each second
                assert not any(one.done() for one in waiting)
                cable.restore()
                async with asyncio.timeout(60):
                    await asyncio.gather(*waiting)
                modes = [member.broker.links.list_entries()[0].mode for member in members]
                assert modes == ["sync", "sync"]
            finally:
                await there.close()
    finally:
        await newyork.kill()


async def test_newyork_from_an_older_backup_gets_what_it_lost_from_the_next_member(tmp_path: Path) -> None:
    at_newyork, for_links = free_port(), free_port()
    home = tmp_path / "newyork"
    newyork = Site(home, site_policy("newyork", at_newyork, link_port=for_links))
    await newyork.start()
    kept = write_link_secrets(tmp_path, "ny")
    try:
        async with running_nats_servers(tmp_path, 1) as engines:
            async with running_members(tmp_path, engines.urls, "b", link_secrets=kept) as (b,):
                a = await start_member(tmp_path, "a", engines.urls, link_secrets=kept)
                for member in (a, b):
                    policy = member.broker.engine.policy
                    await member.broker.apply(
                        replace(policy, destinations=(destination_settings("ny", for_links),))
                    )
                await publish(b.address, 1, 50)
                await until(lambda: states([a, b]) == ["carrying", "standing by"], seconds=60)
                first, second = (a, b) if a.broker.links.list_entries()[0].state == "carrying" else (b, a)
                assert first is a, "it came first"
                await until(lambda: a.broker.links.list_entries()[0].behind == 0, seconds=60)
                await newyork.kill()
                shutil.copytree(home, tmp_path / "backup", ignore=shutil.ignore_patterns("*.sock"))
                await newyork.start()
                await publish(second.address, 51, 100)
                await until(lambda: a.broker.links.list_entries()[0].behind == 0, seconds=60)
                told = second.broker.engine.managed.get("link.ny")
                await until(lambda: second.broker.engine.managed.get("link.ny").carried >= 100, seconds=60)
                await newyork.kill()
                await a.stop()
                shutil.rmtree(home)
                shutil.move(tmp_path / "backup", home)
                await newyork.start()
                await publish(second.address, 101, 120, "feed-2")
                there = BookmarkedReader(newyork.address)
                try:
                    await until(lambda: len(there.received) >= 120, seconds=90)
                    assert [number for _, number in there.received] == list(range(1, 121))
                finally:
                    await there.close()
                entry = second.broker.links.list_entries()[0]
                assert entry.set_back_at and entry.set_back_has < entry.set_back_had, told
    finally:
        await newyork.kill()


async def init_group(home: Path, servers: NatsServers) -> None:
    """Make a new log at the log service, which continues the journal in `home`."""
    paths = BrokerPaths.in_home(home, GROUP)
    places = reseed.SegmentDirectories(paths.journal, paths.archive)
    engine = JetStreamLog(GroupSettings(GROUP, home.name, servers.urls))
    plan = reseed.plan_init(places, GROUP, home.name, await reseed.find_stream(engine))
    await reseed.init_group(plan, places, None, engine, "now", lambda _: None)


async def wait_for_link(member: RunningMember, state: str, code: str = "") -> None:
    def is_there() -> bool:
        link = member.broker.links.list_entries()[0]
        assert code or link.code != "link_gap", link.why
        return (link.state, link.code) == (state, code) and (state == "away" or not link.behind)

    await until(is_there, seconds=60)


async def test_a_group_from_an_older_backup_carries_nothing_although_its_log_passed_the_other_side(
    tmp_path: Path,
) -> None:
    at_newyork, for_links = free_port(), free_port()
    newyork = Site(tmp_path / "newyork", site_policy("newyork", at_newyork, link_port=for_links))
    await newyork.start()
    kept = write_link_secrets(tmp_path, "ny")

    async def start(name: str, servers: NatsServers) -> RunningMember:
        destinations = (destination_settings("ny", for_links),)
        member = await start_member(
            tmp_path, name, servers.urls, link_secrets=kept, destinations=destinations
        )
        await until(member.is_taking_part, seconds=60)
        return member

    try:
        async with running_nats_servers(tmp_path, 1) as servers:
            a = await start("a", servers)
            await publish(a.address, 1, 50)
            await wait_for_link(a, "carrying")
            await a.stop()
            shutil.copytree(tmp_path / "a", tmp_path / "backup")
            a = await start("a", servers)
            await publish(a.address, 51, 200)
            await wait_for_link(a, "carrying")
            await a.stop()
        # The log service lost everything. Nothing is missing in the journal that continues.
        (tmp_path / "second").mkdir()
        async with running_nats_servers(tmp_path / "second", 1) as servers:
            await init_group(tmp_path / "a", servers)
            for first in (201, 301):
                a = await start("a", servers)
                await publish(a.address, first, first + 99)
                await wait_for_link(a, "carrying")
                await a.stop()
        shutil.rmtree(tmp_path / "a")
        shutil.move(tmp_path / "backup", tmp_path / "a")
        await newyork.kill()  # so that the log passes it before the two have met
        (tmp_path / "third").mkdir()
        async with running_nats_servers(tmp_path / "third", 1) as servers:
            await init_group(tmp_path / "a", servers)
            a = await start("a", servers)
            await publish(a.address, 1_001, 1_600, "other")
            await a.stop()
            await newyork.start()
            for _ in range(2):
                a = await start("a", servers)
                await wait_for_link(a, "away", "link_gap")
                await a.stop()
    finally:
        await newyork.kill()
