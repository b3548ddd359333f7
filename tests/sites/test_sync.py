"""Sync destinations: an acknowledged record is at the other site, or the destination was downgraded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from broker_core.broker import Broker
from broker_core.client import EPOCH, AsyncClient
from broker_core.client.connector import ReconnectPolicy
from broker_core.client.publish_store import MemoryPublishStore
from broker_core.config import PolicyDocument
from broker_core.errors import OperatorError
from console.broker_addresses import BrokerAddress
from tests.support.brokers import address_of, ask, running_broker, tcp_policy, until
from tests.support.partition_proxy import PartitionProxy, running_partition_proxy
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

PATIENT = ReconnectPolicy(logon_timeout=60.0)


def sync_policy(port: int, downgrade_after_ms: int = 600_000, **options: Any) -> PolicyDocument:
    policy = tcp_policy()
    instance = replace(policy.instance, downgrade_after_ms=downgrade_after_ms)
    return replace(
        policy,
        instance=instance,
        destinations=(destination_settings("ny", port, durability="sync", **options),),
    )


@asynccontextmanager
async def newyork_at(home: Path) -> AsyncIterator[tuple[Site, PartitionProxy]]:
    """New York, and the line to it."""
    for_links = free_port()
    there = Site(home / "newyork", site_policy("newyork", free_port(), link_port=for_links))
    await there.start()
    try:
        async with running_partition_proxy(for_links) as cable:
            yield there, cable
    finally:
        await there.kill()


class AcknowledgedPublisher:
    """A publisher whose messages are acknowledged one by one."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.last = 0

    async def publish(self, topic: str = "prices.a") -> asyncio.Task[None]:
        """The next one; done when it is acknowledged as persisted."""
        self.last += 1
        await self._client.publish(topic, {"n": self.last})
        return asyncio.create_task(self._client.flush())


async def has(there: Site, number: int, seconds: float = 60.0) -> None:
    """Until a subscriber there has had that many."""
    reader = BookmarkedReader(there.address)
    try:
        await until(lambda: len(reader.received) >= number, seconds)
        assert [n for _, n in reader.received] == list(range(1, number + 1))
    finally:
        await reader.close()


async def up_to_now(address: str, topic: str = "prices.>") -> list[int]:
    """Return the numbers of a fully durable range that ends at a time in the past."""
    end = datetime.now(UTC) + timedelta(seconds=1)
    await until(lambda: datetime.now(UTC) > end)
    async with AsyncClient(address, "range") as client:
        bookmark = f"[0:{end:%Y%m%dT%H%M%SZ})"
        subscription = await client.subscribe(topic, bookmark=bookmark, durability="fully_durable")
        return [message.data["n"] async for message in subscription]


class FullyDurableReader:
    """A subscriber with durability `fully_durable`, and the messages it has received."""

    def __init__(self, address: str, topic: str = "prices.>") -> None:
        self.had: list[int] = []
        self._work = asyncio.create_task(self._read(address, topic))

    async def _read(self, address: str, topic: str) -> None:
        async with AsyncClient(address, "full") as client:
            async for message in await client.subscribe(topic, bookmark=EPOCH, durability="fully_durable"):
                self.had.append(message.data["n"])

    async def close(self) -> None:
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)


async def test_an_acknowledgement_waits_for_the_other_site_and_nothing_else_does(tmp_path: Path) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        policy = sync_policy(cable.port, topic="prices.>", filter="/n < 100")
        async with running_broker(
            tmp_path / "here", policy, link_secrets=write_link_secrets(tmp_path, "ny")
        ) as broker:
            address = address_of(broker)
            here, full = BookmarkedReader(address), FullyDurableReader(address)
            try:
                async with AsyncClient(address, "feed") as feed, AsyncClient(address, "other") as other:
                    publishing = AcknowledgedPublisher(feed)
                    await (await publishing.publish())
                    seen = await wait_for_link_status(broker, state="carrying", mode="sync")
                    assert seen["confirmed"] >= 1
                    await has(newyork, 1)
                    await until(lambda: full.had == [1])
                    cable.answers.clear()  # New York has it, and can't say so
                    waits = await publishing.publish()
                    await until(lambda: len(here.received) == 2)  # local subscribers don't wait
                    await has(newyork, 2)
                    for topic, body in (("news", {"n": 1}), ("prices.b", {"n": 100})):
                        await other.publish(topic, body)  # not its topic, not its filter
                        async with asyncio.timeout(60):
                            await other.flush()
                    behind = await publishing.publish("news")  # its own acknowledgements stay in order
                    await asyncio.sleep(0.3)
                    assert not waits.done() and not behind.done() and full.had == [1]
                    assert broker.engine.dispatch.publisher_sequence("feed") == 1
                    cable.restore()
                    async with asyncio.timeout(60):
                        await asyncio.gather(waits, behind)
                    await until(lambda: full.had == [1, 2, 100])
            finally:
                await here.close()
                await full.close()


async def test_a_publisher_that_reconnects_gets_no_early_acknowledgement(tmp_path: Path) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        policy = sync_policy(cable.port)
        async with running_broker(
            tmp_path / "here", policy, link_secrets=write_link_secrets(tmp_path, "ny")
        ) as broker:
            address, store = address_of(broker), MemoryPublishStore()
            first = AsyncClient(address, "feed", publish_store=store)
            await first.start()
            await first.publish("prices.a", {"n": 1})
            await first.flush()
            cable.cut()
            await first.publish("prices.a", {"n": 2})
            await until(lambda: broker.engine.dispatch._unconfirmed_counts.get("feed") == 1)
            # The same publisher, from elsewhere: it sends again what its store has, under its number.
            async with AsyncClient(address, "feed", publish_store=store) as second:
                logon = broker.engine.dispatch.publisher_sequence("feed")
                assert logon == 1
                again = asyncio.create_task(second.flush())
                await asyncio.sleep(0.3)
                assert not again.done(), "a repeat waits like the first"
                cable.restore()
                async with asyncio.timeout(60):
                    await again
            await has(newyork, 2)
            await first.close()


async def test_a_destination_that_is_away_is_downgraded_with_figures_and_upgraded_when_it_has_caught_up(
    tmp_path: Path,
) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        policy = sync_policy(cable.port, downgrade_after_ms=1_000, topic="prices.>")
        async with running_broker(
            tmp_path / "here", policy, link_secrets=write_link_secrets(tmp_path, "ny")
        ) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                publishing = AcknowledgedPublisher(feed)
                await (await publishing.publish())
                await wait_for_link_status(broker, mode="sync", state="carrying")
                cable.cut()
                began = asyncio.get_running_loop().time()
                async with asyncio.timeout(60):
                    await (await publishing.publish())
                assert asyncio.get_running_loop().time() - began > 0.9
                seen = await wait_for_link_status(broker, mode="downgraded", downgraded_by="policy")
                assert (seen["downgrades"], seen["downgraded_at"]) == (1, None)
                async with asyncio.timeout(60):  # nobody waits any more
                    for _ in range(50):
                        await (await publishing.publish())
                assert await up_to_now(address_of(broker)) == list(range(1, 53))
                cable.restore()
                seen = await wait_for_link_status(broker, mode="sync", state="carrying", upgrades=1)
                await has(newyork, 52)
                await (await publishing.publish())
                await has(newyork, 53)
            told = await events_of(broker)
            assert [event for event, _ in told] == ["link_downgraded", "link_upgraded"]
            assert "link.ny isn't waited for any more (policy): it has confirmed record" in told[0][1]
            assert "link.ny is waited for again (policy)" in told[1][1]


async def at_the_terminal(broker: Broker, change: str, name: str) -> str:
    """Return the output of `manage.py replication` for a link."""

    def run() -> None:
        call_command("replication", change, name, instance="test-1", stdout=out)

    out = StringIO()
    here = BrokerAddress("test-1", "", broker.paths.control)
    with override_settings(SLUICE_BROKERS=(here,)):
        await asyncio.to_thread(run)
    return next(line.strip() for line in out.getvalue().splitlines() if line.startswith("link.ny "))


async def events_of(broker: Broker) -> list[tuple[str, str]]:
    """Return the broker's own records about links."""
    found = []
    async with asyncio.timeout(60), AsyncClient(address_of(broker), "events") as client:
        async for message in await client.subscribe("$SLUICE.clients", bookmark=EPOCH):
            if message.data["event"].startswith("link_"):
                found.append((message.data["event"], message.data["state"]))
                if len(found) == 2:
                    break
    return found


async def test_by_hand_holds_over_a_restart_until_it_is_undone_by_hand(tmp_path: Path) -> None:
    async with newyork_at(tmp_path) as (newyork, cable):
        cable.cut()
        policy, path = sync_policy(cable.port), write_link_secrets(tmp_path, "ny")
        async with running_broker(tmp_path / "here", policy, link_secrets=path) as broker:
            async with AsyncClient(address_of(broker), "feed") as feed:
                waits = await AcknowledgedPublisher(feed).publish()
                await until(lambda: broker.engine.dispatch._unconfirmed_counts.get("feed") == 1)
                assert not waits.done()
                (one,) = (await ask(broker, "downgrade_link", name="ny", by="ada"))["links"]
                assert (one["mode"], one["downgraded_by"]) == ("downgraded", "ada")
                async with asyncio.timeout(60):
                    await waits
        async with running_broker(tmp_path / "here", policy, link_secrets=path) as broker:
            again = await link_status(broker)
            assert (again["mode"], again["downgraded_by"]) == ("downgraded", "ada")
            assert again["downgraded_at"] == one["downgraded_at"]
            async with AsyncClient(address_of(broker), "feed"):
                pass  # its logon waits for nobody
            cable.restore()
            await wait_for_link_status(broker, state="carrying", behind=0)
            await has(newyork, 1)
            assert (await link_status(broker))["mode"] == "downgraded", (
                "by hand holds, also when it has caught up"
            )
            said = await at_the_terminal(broker, "upgrade", "ny")
            assert said.startswith("link.ny") and said.endswith("sync")
            assert (await link_status(broker))["mode"] == "sync"
            with pytest.raises(AssertionError, match="unknown_member"):
                await ask(broker, "upgrade_link", name="paris", by="ada")


async def test_what_an_earlier_process_had_unconfirmed_is_told_when_it_is_there(tmp_path: Path) -> None:
    """Restarted with records that New York lacks, London acknowledges none of them before New York has them;
    other publishers log on.
    """
    async with newyork_at(tmp_path) as (newyork, cable):
        at_london = free_port()
        policy = sync_policy(cable.port, topic="prices.>")
        policy = replace(policy, transports=tuple(replace(one, port=at_london) for one in policy.transports))
        london = Site(tmp_path / "here", policy, write_link_secrets(tmp_path, "ny"))
        await london.start()
        feed = AsyncClient(london.address, "feed", reconnect=PATIENT)
        here = BookmarkedReader(london.address)
        try:
            await feed.start()
            publishing = AcknowledgedPublisher(feed)
            await (await publishing.publish())
            await has(newyork, 1)
            cable.cut()
            waits = await publishing.publish()
            await until(lambda: len(here.received) == 2)  # it is on London's disk
            await london.kill_and_restart()
            async with AsyncClient(london.address, "subscriber") as subscriber:
                async for message in await subscriber.subscribe("prices.>", bookmark=EPOCH):
                    if message.data["n"] == 2:
                        break  # who hasn't published logs on, and reads
            await asyncio.sleep(1.0)
            assert not waits.done()
            cable.restore()
            async with asyncio.timeout(60):
                await waits
            await has(newyork, 2)
            await (await publishing.publish())
            await has(newyork, 3)
        finally:
            await here.close()
            await feed.close()
            await london.kill()


def without_downgrade(policy: PolicyDocument) -> PolicyDocument:
    """Return the policy with downgrades disabled."""
    return replace(policy, instance=replace(policy.instance, downgrade_after_ms=600_000))


async def test_two_sync_links_in_opposite_directions_dont_wait_for_each_other(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(4)]
    path = write_link_secrets(tmp_path, "other")
    east_to, west_to = (
        destination_settings("other", ports[3], durability="sync"),
        destination_settings("other", ports[1], durability="sync"),
    )
    east = Site(
        tmp_path / "east", without_downgrade(site_policy("east", ports[0], east_to, link_port=ports[1])), path
    )
    west = Site(
        tmp_path / "west", without_downgrade(site_policy("west", ports[2], west_to, link_port=ports[3])), path
    )
    await east.start()
    await west.start()
    try:
        async with AsyncClient(east.address, "feed") as a, AsyncClient(west.address, "feed") as b:
            async with asyncio.timeout(120):  # less than the downgrade's ten minutes
                for number in range(1, 21):
                    await a.publish("t", {"n": number})
                    await b.publish("t", {"n": -number})
                    await asyncio.gather(a.flush(), b.flush())
        for one in (east, west):
            reader = BookmarkedReader(one.address, "t")
            await until(lambda reader=reader: len(reader.received) == 40)  # type: ignore[misc]
            await reader.close()
    finally:
        await east.kill()
        await west.kill()


async def test_a_destination_that_is_switched_off_or_taken_out_holds_nobody(tmp_path: Path) -> None:
    policy = sync_policy(free_port())
    async with running_broker(tmp_path / "here", policy) as broker:
        async with AsyncClient(address_of(broker), "feed") as feed:
            waits = await AcknowledgedPublisher(feed).publish()
            await until(lambda: broker.engine.dispatch._unconfirmed_counts.get("feed") == 1)
            off = tuple(replace(one, enabled=False) for one in policy.destinations)
            await broker.apply(replace(policy, revision=2, destinations=off))
            async with asyncio.timeout(60):
                await waits
            assert (await link_status(broker))["mode"] == "async"
            await broker.apply(replace(policy, revision=3))
            waits = await AcknowledgedPublisher(feed).publish()
            await until(lambda: broker.engine.dispatch._unconfirmed_counts.get("feed") == 1)
            await broker.apply(replace(policy, revision=4, destinations=()))
            async with asyncio.timeout(60):
                await waits


def test_a_link_that_begins_now_isnt_sync_before_it_has_begun() -> None:
    document = sync_policy(1, begin="now").to_dict()
    with pytest.raises(OperatorError) as refused:
        PolicyDocument.from_dict(document)
    assert "begin oldest" in refused.value.details["problems"][0]
    assert PolicyDocument.from_dict(sync_policy(1).to_dict()).destinations[0].is_sync
