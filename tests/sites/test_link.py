"""A link between two real brokers: each record once, in order, under its own bookmark, whichever of them is
killed.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from broker_core.client.connector import ReconnectPolicy
from broker_core.errors import ClientError
from tests.support.brokers import address_of, ask, running_broker, tcp_policy, until
from tests.support.sites import (
    BookmarkedReader,
    Site,
    destination_settings,
    free_port,
    site_policy,
    wait_for_link_status,
    write_link_secrets,
)


async def behind(address: str, bookmark: str, number: int) -> list[tuple[str | None, int]]:
    """Read `number` messages after a bookmark; return bookmark and number of each."""
    had: list[tuple[str | None, int]] = []
    async with AsyncClient(address, "goes-on") as client:
        async for message in await client.subscribe("prices.a", bookmark=bookmark):
            had.append((message.bookmark, message.data["n"]))
            if len(had) == number:
                break
    return had


async def test_each_record_arrives_once_in_order_under_its_own_bookmark_through_a_kill_of_either_side(
    tmp_path: Path,
) -> None:
    at_london, at_newyork, for_links = free_port(), free_port(), free_port()
    newyork = Site(tmp_path / "newyork", site_policy("newyork", at_newyork, link_port=for_links))
    destination = destination_settings("ny", for_links, topic="prices.>", filter="/n > 1")
    london = Site(
        tmp_path / "london", site_policy("london", at_london, destination), write_link_secrets(tmp_path, "ny")
    )
    await newyork.start()
    await london.start()
    there, here = BookmarkedReader(newyork.address), BookmarkedReader(london.address)
    try:
        async with (
            AsyncClient(london.address, "feed") as feed,
            AsyncClient(newyork.address, "local") as local,
        ):
            number = 0

            async def publish(times: int) -> None:
                nonlocal number
                for _ in range(times):
                    number += 1
                    await feed.publish("prices.a", {"n": number})
                    await feed.publish("other", {"n": number})
                    await asyncio.sleep(0)
                await feed.flush()

            await publish(200)
            await local.publish("prices.own", {"n": 0})
            await until(lambda: len(there.received) > 50)
            await asyncio.gather(publish(300), newyork.kill_and_restart())
            await until(lambda: len(there.received) > 300)
            await asyncio.gather(publish(300), london.kill_and_restart())
            await publish(200)
            await until(lambda: len(here.received) == 1_000 and len(there.received) >= 1_000)
        carried = [(bookmark, n) for bookmark, n in here.received if n > 1]
        assert [one for one in there.received if one[1]] == carried
        assert [n for _, n in carried] == list(range(2, 1_001))
        assert {bookmark.split("|")[0] for bookmark, _ in carried if bookmark} == {"london"}
        # Where one stopped at one site one goes on at the other, by the record's own bookmark.
        middle = str(there.received[500][0])
        elsewhere = [await behind(site.address, middle, 400) for site in (newyork, london)]
        assert elsewhere[0] == elsewhere[1] == [one for one in there.received[501:] if one[1]][:400]
    finally:
        await there.close()
        await here.close()
        await london.kill()
        await newyork.kill()


async def test_a_destination_comes_into_force_says_why_it_waits_carries_and_gives_its_place_up(
    tmp_path: Path,
) -> None:
    at_newyork, for_links = free_port(), free_port()
    newyork = Site(tmp_path / "newyork", site_policy("newyork", at_newyork, link_port=for_links))
    await newyork.start()
    policy = tcp_policy()
    linked = replace(
        policy, revision=2, destinations=(destination_settings("ny", for_links, topic="prices.>"),)
    )
    path = write_link_secrets(tmp_path)
    async with running_broker(tmp_path / "here", policy, link_secrets=path) as broker:
        try:
            async with AsyncClient(address_of(broker), "feed") as feed:
                for number in range(1, 11):
                    await feed.publish("prices.a", {"n": number})
                await feed.flush()
                await broker.apply(linked)
                refused = await wait_for_link_status(broker, state="away", code="bad_logon")
                assert refused["behind"] == broker.engine.frontier.durable and "token" in refused["why"]
                write_link_secrets(tmp_path, "ny")
                carried = await wait_for_link_status(broker, state="carrying", behind=0, carried=10)
                assert (carried["instance"], carried["mode"]) == ("newyork", "async")
                clients = await ask(broker, "clients")
                assert {"feed", "link.ny"} <= {one["name"] for one in clients}
                assert [one["name"] for one in await ask(broker, "replays")] == ["link.ny"]
                # Another topic: it goes on from its place, with what comes.
                wider = replace(
                    linked, revision=3, destinations=(destination_settings("ny", for_links, topic=">"),)
                )
                await broker.apply(wider)
                await feed.publish("news", {"n": 11})
                await feed.flush()
                await wait_for_link_status(broker, state="carrying", carried=1)
                # What isn't taken there holds up what is behind it, until somebody decides.
                await feed.publish("elsewhere", {"n": 0})
                await feed.publish("news", {"n": 12})
                await feed.flush()
                held = await wait_for_link_status(broker, state="away", code="link_refused")
                assert held["behind"] >= 2 and "not_entitled" in held["why"]
                await broker.apply(
                    replace(
                        linked,
                        revision=4,
                        destinations=(destination_settings("ny", for_links, topic="news"),),
                    )
                )
                await wait_for_link_status(broker, state="carrying", carried=1)
            there = BookmarkedReader(newyork.address, ">")
            await until(lambda: len(there.received) == 12)
            assert [n for _, n in there.received] == list(range(1, 13))
            await there.close()
            await broker.apply(replace(policy, revision=5))
            assert (await ask(broker, "links"))["links"] == [] and await ask(broker, "replays") == []
        finally:
            await newyork.kill()


async def test_a_link_whose_filter_leaves_everything_out_is_not_behind(tmp_path: Path) -> None:
    at_newyork, for_links = free_port(), free_port()
    newyork = Site(tmp_path / "newyork", site_policy("newyork", at_newyork, link_port=for_links))
    await newyork.start()
    narrow = destination_settings("ny", for_links, topic="prices.>", filter="/n > 1000")
    policy = replace(tcp_policy(), destinations=(narrow,))
    path = write_link_secrets(tmp_path, "ny")
    async with running_broker(tmp_path / "here", policy, link_secrets=path) as broker:
        try:
            began = await wait_for_link_status(broker, state="carrying")
            assert 0 < began["since"] <= time.time() * 1_000
            async with AsyncClient(address_of(broker), "feed") as feed:
                for number in range(1, 51):
                    await feed.publish("prices.a", {"n": number})
                await feed.flush()
                await wait_for_link_status(broker, behind=0)
                for _ in range(5):
                    await feed.publish("prices.a", {"n": 0})
                    await feed.flush()
                    await asyncio.sleep(0.4)
                    found = await wait_for_link_status(broker, behind=0)
                    assert (found["behind_ms"], found["carried"]) == (0, 0)
                assert found["position"] == f"{broker.engine.instance}|{broker.engine.frontier.durable}|"
                assert (await ask(broker, "status"))["problems"] == []
            await newyork.kill()
            away = await wait_for_link_status(broker, state="away")
            assert away["since"] >= began["since"]
            async with asyncio.timeout(30):
                while not (told := (await ask(broker, "status"))["problems"]):
                    await asyncio.sleep(0.1)
            assert [(one["subject"], one["severe"], one["since"]) for one in told] == [
                ("link.ny", False, away["since"])
            ]
            assert told[0]["message"] and told[0]["fix"]
        finally:
            await newyork.kill()


async def test_two_ways_dont_loop_and_only_who_may_is_a_link(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(4)]
    path = write_link_secrets(tmp_path, "other")
    east = Site(
        tmp_path / "east",
        site_policy("east", ports[0], destination_settings("other", ports[3]), link_port=ports[1]),
        path,
    )
    west = Site(
        tmp_path / "west",
        site_policy("west", ports[2], destination_settings("other", ports[1]), link_port=ports[3]),
        path,
    )
    await east.start()
    await west.start()
    try:
        async with AsyncClient(east.address, "feed") as a, AsyncClient(west.address, "feed") as b:
            for number in range(1, 101):
                await a.publish("t", {"n": number})
                await b.publish("t", {"n": -number})
            await a.flush()
            await b.flush()
            readers = BookmarkedReader(east.address, "t"), BookmarkedReader(west.address, "t")
            await until(lambda: all(len(reader.received) >= 200 for reader in readers))
            await a.publish("t", {"n": 0})
            await a.flush()
            await until(
                lambda: all(
                    ("east", 0) in [(str(m).split("|")[0], n) for m, n in r.received] for r in readers
                )
            )
        for reader in readers:
            assert len(reader.received) == 201 == len(set(reader.received))
            assert [n for _, n in reader.received if n > 0] == list(range(1, 101))
            assert [n for _, n in reader.received if n < 0] == list(range(-1, -101, -1))
            await reader.close()
        assert sorted(map(str, readers[0].received)) == sorted(map(str, readers[1].received))
        with pytest.raises(ClientError) as refused:
            await AsyncClient(east.address, "site.west", reconnect=ReconnectPolicy(enabled=False)).start()
        assert refused.value.code == "bad_client_name"
    finally:
        await east.kill()
        await west.kill()


async def test_a_record_that_the_destination_refuses_is_not_passed_over_and_arrives_when_it_may(
    tmp_path: Path,
) -> None:
    """Records after the refused one are not stored there: their sequences would cover it."""
    at_newyork, for_links = free_port(), free_port()
    there = site_policy("newyork", at_newyork, link_port=for_links)
    destination = destination_settings("ny", for_links, topic=">")
    policy = replace(tcp_policy(), destinations=(destination,))
    async with (
        running_broker(tmp_path / "there", there) as newyork,
        running_broker(tmp_path / "here", policy, link_secrets=write_link_secrets(tmp_path, "ny")) as broker,
        AsyncClient(address_of(broker), "feed") as feed,
    ):
        await wait_for_link_status(broker, state="carrying")
        for number, topic in enumerate(("news", "elsewhere", "news", "elsewhere", "news"), 1):
            await feed.publish(topic, {"n": number})
            feed._publisher.flush_batch()
        await feed.flush()
        await wait_for_link_status(broker, state="away", code="link_refused")
        await asyncio.sleep(2)  # it tries again
        held = await wait_for_link_status(broker, state="away", code="link_refused")
        assert held["set_back_at"] is None, "the destination has lost nothing"
        assert newyork.engine.dispatch.publisher_sequence("site.test-1") <= 2
        rights = replace(there.access.entitlements[0], publish=(">",))
        access = replace(there.access, entitlements=(rights,))
        await newyork.apply(replace(there, revision=2, access=access))
        await wait_for_link_status(broker, state="carrying", behind=0)
        reader = BookmarkedReader(f"tcp://127.0.0.1:{at_newyork}", ">")
        await until(lambda: len(reader.received) >= 5)
        assert [number for _, number in reader.received] == [1, 2, 3, 4, 5]
        await reader.close()


async def test_a_link_shows_no_lag_since_the_last_record_it_carried(tmp_path: Path) -> None:
    """Records that the filter excludes arrived long after that record: they add no lag."""
    at_newyork, for_links = free_port(), free_port()
    newyork = Site(tmp_path / "newyork", site_policy("newyork", at_newyork, link_port=for_links))
    await newyork.start()
    narrow = destination_settings("ny", for_links, topic="prices.>", filter="/n > 1000")
    policy = replace(tcp_policy(), destinations=(narrow,))
    path = write_link_secrets(tmp_path, "ny")
    async with running_broker(tmp_path / "here", policy, link_secrets=path) as broker:
        try:
            await wait_for_link_status(broker, state="carrying")
            async with AsyncClient(address_of(broker), "feed") as feed:
                await feed.publish("prices.a", {"n": 2_000})
                await feed.flush()
                await wait_for_link_status(broker, carried=1, behind=0)
                carried_at = time.time()
                await asyncio.sleep(4)
                began, shown = time.time(), []
                for _ in range(200):
                    await feed.publish("prices.a", {"n": 0})
                    await feed.flush()
                    (link,) = (await ask(broker, "links"))["links"]
                    shown.append(link["behind_ms"])
            assert max(shown) <= 1_000 * (time.time() - began), (max(shown), began - carried_at)
        finally:
            await newyork.kill()
