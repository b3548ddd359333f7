"""A client of several groups: two real brokers, each with topics of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import (
    AsyncGroups,
    FileBookmarkStore,
    FilePublishStore,
    GroupConfig,
    MemoryPublishStore,
    ReconnectPolicy,
    SyncGroups,
)
from broker_core.config import AccessSettings, EntitlementSettings, PolicyDocument
from broker_core.errors import ClientError, OperatorError, SluiceError
from tests.support.brokers import address_of, ask, running_broker, tcp_policy

QUICK = ReconnectPolicy(first_delay=0.001, longest_delay=0.05, first_connect_timeout=1.0)


def only(name: str, *topics: str) -> PolicyDocument:
    """Return settings of an instance that accepts only these topics, as docs/group.md recommends."""
    policy = tcp_policy(name)
    transports = tuple(replace(one, restricted=True) for one in policy.transports)
    entitled = EntitlementSettings(("*",), publish=topics, subscribe=topics)
    return replace(policy, transports=transports, access=AccessSettings(entitlements=(entitled,)))


@asynccontextmanager
async def two_brokers(
    home: Path, prices: PolicyDocument | None = None
) -> AsyncIterator[tuple[Broker, Broker]]:
    async with (
        running_broker(home / "one", prices or tcp_policy("prices-1")) as one,
        running_broker(home / "two", tcp_policy("rest-1")) as two,
    ):
        yield one, two


def find_groups(one: str, two: str) -> dict[str, GroupConfig]:
    return {"prices": GroupConfig("prices.>", one), "rest": GroupConfig([">"], [two])}


def of_files(one: Broker, two: Broker, at: Path) -> dict[str, GroupConfig]:
    return {
        name: GroupConfig(
            topics,
            address_of(broker),
            publish_store=FilePublishStore(at / f"{name}.unsent"),
            bookmark_store=FileBookmarkStore(at / f"{name}.marks"),
        )
        for name, topics, broker in (("prices", "prices.>", one), ("rest", ">", two))
    }


async def test_each_topic_is_stored_by_its_group_and_a_pattern_reads_both(tmp_path: Path) -> None:
    async with (
        two_brokers(tmp_path) as (one, two),
        AsyncGroups(find_groups(address_of(one), address_of(two)), "desk", reconnect=QUICK) as client,
    ):
        for number in range(100):
            await client.publish(("prices.eu", "orders.eu")[number % 2], number)
        await client.publish_many("prices.us", [100, 101])
        await client.flush()
        assert client.find_group("prices.us") == "prices"
        everything = await client.subscribe(">", bookmark="0")
        found = [message async for message in everything.messages(until_completed=True)]
        assert everything.completed.is_set() and everything.gaps == []
        of_prices = [int(one.text) for one in found if one.instance == "prices-1"]
        assert of_prices == [*range(0, 100, 2), 100, 101]
        assert [int(one.text) for one in found if one.instance == "rest-1"] == [*range(1, 100, 2)]
        assert {one.topic for one in found if one.instance == "rest-1"} == {"orders.eu"}
        one_alone = await client.subscribe("prices.us", bookmark="0")
        assert list(one_alone.by_group) == ["prices"]
        assert [one.text async for one in one_alone.messages(until_completed=True)] == ["100", "101"]
        await client.publish("orders.eu", "live")
        async for message in everything:
            assert (message.topic, message.text) == ("orders.eu", "live")
            break
        await everything.close()
        assert [message async for message in everything] == []


async def test_a_bookmark_after_what_was_read_resumes_in_both_groups(tmp_path: Path) -> None:
    read: list[int] = []
    mark: str | None = "0"
    async with two_brokers(tmp_path) as (one, two):
        groups = find_groups(address_of(one), address_of(two))
        async with AsyncGroups(groups, "feed", reconnect=QUICK) as feed:
            for number in range(40):
                await feed.publish(("prices.eu", "orders.eu")[number % 2], number)
                if number % 8 == 7:
                    await feed.flush()  # batches of eight
        for stop_after in (1, 5, 12, 9, 13):
            async with AsyncGroups(groups, "totals", reconnect=QUICK) as client:
                subscription = await client.subscribe(">", bookmark=mark)
                async for message in subscription:
                    read.append(int(message.text))
                    mark = subscription.bookmark_after(message)
                    stop_after -= 1
                    if not stop_after:
                        break
    assert sorted(read) == list(range(40))
    assert sorted(read[::1], key=lambda number: number % 2) == [*range(0, 40, 2), *range(1, 40, 2)]


async def test_a_group_of_which_nothing_was_read_goes_on_where_it_began(tmp_path: Path) -> None:
    async with (
        two_brokers(tmp_path) as (one, two),
        AsyncGroups(find_groups(address_of(one), address_of(two)), "desk", reconnect=QUICK) as client,
    ):
        await client.publish("prices.old", "old")
        await client.publish("orders.old", "old")
        await client.flush()
        now = await client.subscribe(">", bookmark="0|1|", id="now")
        await client.publish("prices.new", "new")
        async for message in now:
            mark = now.bookmark_after(message)
            break
        await client.publish("orders.new", "new")
        await client.flush()
        again = await client.subscribe(">", bookmark=mark, id="again")
        assert [one.topic async for one in again.messages(until_completed=True)] == ["orders.new"]
        begun = await client.subscribe("prices.>", bookmark="0", id="begun")
        wide = await client.subscribe(">", bookmark=begun.subscriptions[0].instance + "|1|", id="wide")
        topics = [one.topic async for one in wide.messages(until_completed=True)]
        assert sorted(topics) == ["orders.new", "orders.old", "prices.new"]


async def test_stores_are_each_groups_own_and_go_on_after_a_restart(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (one, two):
        async with AsyncGroups(of_files(one, two, tmp_path), "desk", reconnect=QUICK) as client:
            for number in range(20):
                await client.publish(("prices.eu", "orders.eu")[number % 2], number)
            await client.flush()
            subscription = await client.subscribe(">", bookmark="MOST_RECENT")
            read = []
            async for message in subscription:
                read.append(int(message.text))
                subscription.done(message)
                if len(read) == 7:
                    break
        async with AsyncGroups(of_files(one, two, tmp_path), "desk", reconnect=QUICK) as client:
            subscription = await client.subscribe(">", bookmark="MOST_RECENT")
            async for batch in subscription.batches(until_completed=True):
                read += map(int, batch.bodies())
                subscription.done(batch)
            await client.publish("prices.eu", 20)
            await client.flush()
            assert client.clients["prices"].unacknowledged_bytes == 0
        assert sorted(read) == list(range(20))
        async with AsyncGroups(of_files(one, two, tmp_path), "desk", reconnect=QUICK) as client:
            subscription = await client.subscribe(">", bookmark="MOST_RECENT")
            assert [int(one.text) async for one in subscription.messages(until_completed=True)] == [20]


async def test_acknowledgements_go_to_the_group_that_a_message_came_from(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (one, two):
        groups = find_groups(address_of(one), address_of(two))
        async with AsyncGroups(groups, "feed", reconnect=QUICK) as feed:
            for number in range(8):
                await feed.publish(("prices.eu", "orders.eu")[number % 2], number)
                await feed.flush()
        had: list[int] = []
        for part in (5, 3):
            async with AsyncGroups(groups, "worker", reconnect=QUICK) as client:
                subscription = await client.subscribe(
                    ">", bookmark="0", ack="client-individual", durable="work"
                )
                async for message in subscription:
                    had.append(int(message.text))
                    subscription.ack(message)
                    part -= 1
                    if not part:
                        break
        assert sorted(had) == list(range(8))


async def test_an_operator_has_topics_of_other_groups_refused_by_name(tmp_path: Path) -> None:
    async with two_brokers(tmp_path, only("prices-1", "prices.>")) as (one, two):
        wrong = {
            "rest": GroupConfig(">", address_of(one)),
            "prices": GroupConfig("prices.>", address_of(two)),
        }
        async with AsyncGroups(wrong, "desk", reconnect=QUICK) as client:
            await client.publish("orders.eu", 1)
            await client.publish("prices.eu", 1)
            with pytest.raises(ClientError) as refused:
                await client.flush()
            assert refused.value.code == "not_entitled" and refused.value.details["group"] == "rest"
            with pytest.raises(ClientError) as denied:
                await client.subscribe("orders.>")
            assert denied.value.code == "not_entitled" and denied.value.details["group"] == "rest"
            assert client.clients["prices"]._subscriptions.by_id == {}
            assert (await client.subscribe("prices.>")).subscriptions  # nothing is left of what was refused


async def test_what_cant_be_is_refused(tmp_path: Path) -> None:
    async def code_of(groups: dict[str, GroupConfig], **options: object) -> str:
        with pytest.raises(SluiceError) as error:
            await AsyncGroups(groups, "desk", reconnect=QUICK, **options).start()
        return error.value.code

    async with running_broker(tmp_path / "one") as one, running_broker(tmp_path / "two") as two:
        at, there = address_of(one), address_of(two)
        assert await code_of(find_groups(at, at)) == "bad_groups"
        assert await code_of(find_groups(at, there)) == "bad_groups"  # two brokers of one instance's name
        assert await code_of(find_groups(at, there), publish_store=MemoryPublishStore()) == "bad_groups"
        assert await code_of(find_groups(at, "tcp://127.0.0.1:1")) == "broker_away"
        one_store = MemoryPublishStore()
        shared = {
            "a": GroupConfig("a", at, publish_store=one_store),
            "b": GroupConfig("b", there, publish_store=one_store),
        }
        assert await code_of(shared) == "bad_groups"
        with pytest.raises(OperatorError) as error:
            AsyncGroups(shared, "desk")
        assert error.value.fix == "Give each GroupConfig its own publish_store."
        async with AsyncGroups({"all": GroupConfig("prices.>", at)}, "desk") as client:
            with pytest.raises(OperatorError) as error:
                client.publish("orders.1", 1)
            assert error.value.code == "no_group_for_topic"
            with pytest.raises(OperatorError) as error:
                await client.subscribe("orders.>")
            assert error.value.code == "no_group_for_topic"


async def test_what_a_group_has_against_steering_is_raised_with_its_name(tmp_path: Path) -> None:
    async with (
        two_brokers(tmp_path) as (one, two),
        AsyncGroups(find_groups(address_of(one), address_of(two)), "desk", reconnect=QUICK) as client,
    ):
        live = await client.subscribe(">")
        with pytest.raises(ClientError) as error:
            await live.pause()
        assert (error.value.code, error.value.details["group"]) == ("not_steerable", "prices")
        replay = await client.subscribe(">", bookmark="0", id="replay", rate="1000")
        with pytest.raises(ClientError) as error:
            await replay.set_rate("quickly")
        assert (error.value.code, error.value.details["group"]) == ("bad_rate", "prices")
        assert [part.rate for part in replay.subscriptions] == ["1000", "1000"]


async def test_a_subscription_that_was_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    async with (
        two_brokers(tmp_path) as (one, two),
        AsyncGroups(find_groups(address_of(one), address_of(two)), "desk", reconnect=QUICK) as client,
    ):
        for number in range(100):
            await client.publish(("prices.eu", "orders.eu")[number % 2], number)
        await client.flush()
        for _ in range(3):  # a few in a row: one waits for the other's answer
            asking = asyncio.create_task(client.subscribe("~.*", bookmark="0", id="all"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asking.cancel()
            assert isinstance(
                (await asyncio.gather(asking, return_exceptions=True))[0], asyncio.CancelledError
            )
        again = await client.subscribe(">", bookmark="0", id="all")
        found = [int(message.text) async for message in again.messages(until_completed=True)]
        assert sorted(found) == list(range(100))
        await again.close()
        with pytest.raises(ClientError, match="bad_filter"):
            await client.subscribe(">", filter="/a >", id="all")
        assert [one.connections for one in client.clients.values()] == [1, 1]
        for broker in (one, two):
            (shown,) = await ask(broker, "clients")
            assert (shown["name"], shown["subscriptions"]) == ("desk", [])


async def test_a_range_of_bookmarks_isnt_for_several_groups(tmp_path: Path) -> None:
    async with (
        two_brokers(tmp_path) as (one, two),
        AsyncGroups(find_groups(address_of(one), address_of(two)), "desk", reconnect=QUICK) as client,
    ):
        await client.publish("prices.eu", 1)
        await client.flush()
        with pytest.raises(OperatorError) as error:
            await client.subscribe(">", bookmark="[prices-1|1|:0|1|)")
        assert error.value.code == "bad_groups"
        every = await client.subscribe(">", bookmark="[0:0|1|)")
        assert [one.text async for one in every] == ["1"]


async def test_a_group_that_is_away_holds_up_its_own_topics_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "two", tcp_policy("rest-1")) as two:
        async with running_broker(tmp_path / "one", tcp_policy("prices-1")) as one:
            groups = {
                "prices": GroupConfig("prices.>", address_of(one), publish_store=MemoryPublishStore(1_000)),
                "rest": GroupConfig(">", address_of(two)),
            }
            client = await AsyncGroups(groups, "desk", reconnect=QUICK).start()
            await client.publish("prices.eu", "before")
            await client.flush()
            stream = await client.subscribe(">", bookmark="0")
            messages = aiter(stream)
            assert (await anext(messages)).text == "before"
        await client.publish_many("prices.eu", [b"x" * 600] * 2)
        stuck = asyncio.ensure_future(client.publish_many("prices.eu", [b"x" * 300_000] * 2))
        for number in range(10):
            await client.publish("orders.eu", number)
            await client.clients["rest"].flush()
        assert [(await anext(messages)).text for _ in range(10)] == [str(number) for number in range(10)]
        assert not stuck.done()
        stuck.cancel()
        with pytest.raises(OperatorError, match="unsent_messages"):
            await client.close(timeout=0.1)


@contextmanager
def two_brokers_elsewhere(home: Path) -> Iterator[tuple[str, str]]:
    """Addresses of two brokers on a thread of their own."""
    ready, loops, ended = threading.Event(), [], asyncio.Event()
    addresses: list[str] = []

    async def serve() -> None:
        async with two_brokers(home) as (one, two):
            addresses.extend((address_of(one), address_of(two)))
            loops.append(asyncio.get_running_loop())
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    yield addresses[0], addresses[1]
    loops[0].call_soon_threadsafe(ended.set)
    thread.join(20)


def test_the_same_without_asyncio(tmp_path: Path) -> None:
    with two_brokers_elsewhere(tmp_path) as (one, two):
        with SyncGroups(find_groups(one, two), "feed", reconnect=QUICK) as feed:
            for number in range(1_000):
                feed.publish(("prices.eu", "orders.eu")[number % 2], number)
            feed.publish_many("orders.eu", [1_000])
            feed.flush(20)
            feed.publish("orders.eu", 1_001)  # close() sends it
            feed.clients["prices"].close()
            with pytest.raises(OperatorError, match="client_closed"):
                feed.publish("prices.eu", "late")
            feed.clients["rest"].flush(20)  # one that is closed is closed alone
            feed.publish("orders.eu", 1_002)
            with pytest.raises(OperatorError) as error:
                feed.publish("$SLUICE.x", 1)
            assert error.value.code == "no_group_for_topic" and feed.find_group("a") == "rest"
        read: list[int] = []
        mark: str | None = "0"
        for stop_after in (333, 670):
            with SyncGroups(find_groups(one, two), "totals", reconnect=QUICK) as client:
                subscription = client.subscribe(">", bookmark=mark, ack="client")
                for message in subscription:
                    read.append(int(message.text))
                    subscription.ack(message)
                    stop_after -= 1
                    if not stop_after:
                        mark = subscription.bookmark_after(message)
                        break
        assert sorted(read) == list(range(1_003))
        with SyncGroups(find_groups(one, two), "late", reconnect=QUICK) as client:
            subscription = client.subscribe(">", bookmark="0")
            found = [
                int(body) for batch in subscription.batches(until_completed=True) for body in batch.bodies()
            ]
            assert subscription.completed and sorted(found) == list(range(1_003))
            assert client.clients["prices"].instance == "prices-1"


def test_a_start_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(SluiceError) as error:
        SyncGroups(find_groups("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"), "desk", reconnect=QUICK).start()
    assert error.value.code == "broker_away" and error.value.details["group"] in ("prices", "rest")
    assert threading.active_count() == before
