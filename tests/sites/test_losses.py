"""Effects of each loss on a link, as docs/sites.md lists them: broken lines, a full disk, old backups."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.config import PolicyDocument
from broker_core.config.destinations import DestinationSettings
from tests.sites.test_sync import has, newyork_at, sync_policy
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.failpoints import Failpoint, Failpoints
from tests.support.partition_proxy import PartitionProxy
from tests.support.sites import (
    BookmarkedReader,
    Site,
    destination_settings,
    free_port,
    link_status,
    site_policy,
    wait_for_link_status,
    write_link_secrets,
)

LINES: dict[str, Callable[[PartitionProxy], None]] = {
    "cut": lambda cable: cable.cut(),
    "frozen": lambda cable: (cable.requests.clear(), cable.answers.clear()),
    # type: ignore[dict-item,return-value]
    "one way there": lambda cable: cable.answers.clear(),
    "one way back": lambda cable: cable.requests.clear(),
}


_SOCKETS = shutil.ignore_patterns("*.sock")


async def publish(client: AsyncClient, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await client.publish("prices.a", {"n": number})
    await client.flush()


@pytest.mark.parametrize("how", LINES)
@pytest.mark.parametrize("durability", ["async", "sync"])
async def test_a_line_that_breaks_is_noticed_and_costs_nothing(
    tmp_path: Path, how: str, durability: str
) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        policy = sync_policy(cable.port, downgrade_after_ms=500)
        (destination,) = policy.destinations
        policy = _to(policy, DestinationSettings("ny", destination.addresses, durability=durability))
        async with running_broker(
            tmp_path / "here", policy, link_secrets=write_link_secrets(tmp_path, "ny")
        ) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 1, 100)
                await wait_for_link_status(broker, state="carrying", behind=0)
                LINES[how](cable)
                await publish(feed, 101, 200)
                # Also where nothing is ever answered: heartbeats notice it within 10 s.
                away = await wait_for_link_status(broker, state="away")
                assert away["code"] and away["why"]
                assert away["mode"] == ("downgraded" if durability == "sync" else "async")
                cable.cut()  # whatever the proxy still holds of the old line never comes
                cable.restore()
                await wait_for_link_status(broker, state="carrying", behind=0)
                await publish(feed, 201, 210)
                await has(newyork, 210)


def _to(policy: PolicyDocument, *destinations: DestinationSettings) -> PolicyDocument:
    return replace(policy, destinations=destinations)


async def test_a_destination_whose_disk_is_full_has_everything_when_there_is_room(tmp_path: Path) -> None:
    at, for_links = free_port(), free_port()
    # It refuses from its 4th write on, forty times.
    full = Failpoints(Failpoint("pwritev", 4, errno.ENOSPC, times=40))
    there = _to(site_policy("test-1", at, link_port=for_links))
    async with running_broker(tmp_path / "there", there, files=full):
        london = Site(
            tmp_path / "london",
            site_policy("london", free_port(), destination_settings("ny", for_links)),
            write_link_secrets(tmp_path, "ny"),
        )
        await london.start()
        reader = BookmarkedReader(f"tcp://127.0.0.1:{at}")
        try:
            async with AsyncClient(london.address, "feed") as feed:
                for first in range(1, 200, 20):
                    await publish(feed, first, first + 19)
                await until(lambda: len(reader.received) >= 200, seconds=120)
            assert full.calls["pwritev .journal"] > 10, "it was refused"
            assert [n for _, n in reader.received] == list(range(1, 201))
        finally:
            await reader.close()
            await london.kill()


async def test_newyork_from_an_older_backup_gets_again_what_it_lost_and_nothing_twice(
    tmp_path: Path,
) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        policy = _to(sync_policy(cable.port), destination_settings("ny", cable.port))
        async with running_broker(
            tmp_path / "here", policy, link_secrets=write_link_secrets(tmp_path, "ny")
        ) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 1, 100)
                await has(newyork, 100)
                await newyork.kill()
                shutil.copytree(tmp_path / "newyork", tmp_path / "backup", ignore=_SOCKETS)
                await newyork.start()
                await publish(feed, 101, 200)
                await has(newyork, 200)
                await wait_for_link_status(broker, state="carrying", behind=0)
                await newyork.kill()
                shutil.rmtree(tmp_path / "newyork")
                shutil.move(tmp_path / "backup", tmp_path / "newyork")
                await publish(feed, 201, 210)
                await newyork.start()
                await has(newyork, 210)
                await wait_for_link_status(broker, state="carrying", behind=0, gaps=0)


async def test_london_from_an_older_backup_says_that_the_other_side_has_more(tmp_path: Path) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        policy = _to(sync_policy(cable.port), destination_settings("ny", cable.port))
        path, home = write_link_secrets(tmp_path, "ny"), tmp_path / "here"
        async with running_broker(home, policy, link_secrets=path) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 1, 50)
                await has(newyork, 50)
        shutil.copytree(home, tmp_path / "backup", ignore=_SOCKETS)
        async with running_broker(home, policy, link_secrets=path) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 51, 200)
                await has(newyork, 200)
        shutil.move(home, tmp_path / "newer")
        shutil.copytree(tmp_path / "backup", home)
        async with running_broker(home, policy, link_secrets=path) as broker:
            refused = await wait_for_link_status(broker, state="away", code="link_gap")
            assert "restore its log" in refused["fix"] and refused["behind"] >= 0
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 51, 52)  # publishing goes on here, and isn't carried
            assert (await link_status(broker))["code"] == "link_gap"
        shutil.rmtree(home)
        shutil.move(tmp_path / "newer", home)
        async with running_broker(home, policy, link_secrets=path) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 201, 210)
            await wait_for_link_status(broker, state="carrying", behind=0)
        await has(newyork, 210)


async def test_london_from_an_older_backup_carries_nothing_although_its_log_passed_the_other_side(
    tmp_path: Path,
) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        policy = _to(sync_policy(cable.port), destination_settings("ny", cable.port))
        path, home = write_link_secrets(tmp_path, "ny"), tmp_path / "here"
        async with running_broker(home, policy, link_secrets=path) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 1, 50)
                await has(newyork, 50)
                # A copy of a running broker, whose link is carrying.
                shutil.copytree(home, tmp_path / "backup", ignore=_SOCKETS)
                await publish(feed, 51, 200)
                await has(newyork, 200)
        shutil.move(home, tmp_path / "newer")
        shutil.copytree(tmp_path / "backup", home)
        await newyork.kill()  # so that the log passes it before the two have met
        for first in (1_001, 2_001):  # and a restart without having met
            async with running_broker(home, policy, link_secrets=path) as broker:
                async with AsyncClient(address_of(broker), f"other-{first}") as feed:
                    await publish(feed, first, first + 300)
        await newyork.start()
        for _ in range(2):
            async with running_broker(home, policy, link_secrets=path) as broker:
                refused = await wait_for_link_status(broker, state="away", code="link_gap")
                assert "older copy" in refused["fix"] and refused["behind"] > 0
                async with AsyncClient(address_of(broker), "feed") as feed:
                    await publish(feed, 51, 52)
        shutil.rmtree(home)
        shutil.move(tmp_path / "newer", home)
        async with running_broker(home, policy, link_secrets=path) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 201, 210)
            await wait_for_link_status(broker, state="carrying", behind=0)
        await has(newyork, 210)


async def test_newyork_from_an_older_backup_gets_what_it_lost_although_london_was_restarted(
    tmp_path: Path,
) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        policy = _to(sync_policy(cable.port), destination_settings("ny", cable.port))
        path, home = write_link_secrets(tmp_path, "ny"), tmp_path / "here"
        async with running_broker(home, policy, link_secrets=path) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 1, 100)
                await has(newyork, 100)
                await newyork.kill()
                shutil.copytree(tmp_path / "newyork", tmp_path / "backup", ignore=_SOCKETS)
                await newyork.start()
                await publish(feed, 101, 200)
                await has(newyork, 200)
                await wait_for_link_status(broker, state="carrying", behind=0)
        await newyork.kill()
        shutil.rmtree(tmp_path / "newyork")
        shutil.move(tmp_path / "backup", tmp_path / "newyork")
        await newyork.start()
        async with running_broker(home, policy, link_secrets=path) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 201, 210)
                await has(newyork, 210)
            told = await wait_for_link_status(broker, state="carrying", behind=0, gaps=0)
            assert told["set_back_at"] and told["set_back_has"] < told["set_back_had"]
        async with running_broker(home, policy, link_secrets=path) as broker:
            again = await wait_for_link_status(broker, state="carrying", behind=0)
            marks = ("set_back_at", "set_back_had", "set_back_has")
            assert [again[mark] for mark in marks] == [told[mark] for mark in marks], "it outlives a restart"


async def wait_for_carrying(broker: Broker, name: str) -> None:
    """Wait until a link carries everything. Fail at once if it reports `link_gap`."""
    async with asyncio.timeout(60):
        while True:
            links = {one["name"]: one for one in (await ask(broker, "links"))["links"]}
            assert links[name]["code"] != "link_gap", links[name]["why"]
            if links[name]["state"] == "carrying" and not links[name]["behind"]:
                return
            await asyncio.sleep(0.05)


async def test_two_destinations_lead_to_one_instance_in_turn(tmp_path: Path) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        policy, path = sync_policy(cable.port), write_link_secrets(tmp_path, "ny", "backup")

        def enable(name: str) -> PolicyDocument:
            both = (destination_settings(one, cable.port, enabled=one == name) for one in ("ny", "backup"))
            return _to(policy, *both)

        async with running_broker(tmp_path / "here", enable("ny"), link_secrets=path) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 1, 50)
                await wait_for_carrying(broker, "ny")
                await broker.apply(enable("backup"))
                await publish(feed, 51, 100)
                await wait_for_carrying(broker, "backup")
        async with running_broker(tmp_path / "here", enable("ny"), link_secrets=path) as broker:
            await wait_for_carrying(broker, "ny")
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 101, 150)
                await broker.apply(enable("backup"))
                await wait_for_carrying(broker, "backup")
                await publish(feed, 151, 200)
                await wait_for_carrying(broker, "backup")
                # The other one's position is removed. The limit stays known, also to the next process.
                await broker.apply(_to(policy, destination_settings("ny", cable.port, enabled=False)))
        async with running_broker(tmp_path / "here", enable("ny"), link_secrets=path) as broker:
            await wait_for_carrying(broker, "ny")
        await has(newyork, 200)


async def test_a_destination_that_stood_by_takes_over_from_one_that_is_removed(tmp_path: Path) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        policy, path = sync_policy(cable.port), write_link_secrets(tmp_path, "ny", "renamed")
        old, new = (destination_settings(one, cable.port) for one in ("ny", "renamed"))
        async with running_broker(tmp_path / "here", _to(policy, old), link_secrets=path) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                await publish(feed, 1, 50)
                await wait_for_carrying(broker, "ny")
                await broker.apply(_to(policy, old, new))
                await publish(feed, 51, 100)
                await wait_for_carrying(broker, "ny")
                await broker.apply(_to(policy, new))
                await wait_for_carrying(broker, "renamed")
        await has(newyork, 100)
