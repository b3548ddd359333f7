"""Pause, resume, rates, conflation and managed replays by the client library, with a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient, FileBookmarkStore, Subscription
from broker_core.errors import ClientError
from tests.support.brokers import address_of, running_broker, until


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        for first in range(0, 300, 30):
            await writer.publish_many(
                "a", [b'{"id":%d,"n":%d}' % (n % 3, n) for n in range(first, first + 30)]
            )
        await writer.flush()
        yield broker


async def take_batches(subscription: Subscription, number: int) -> list[int]:
    """Read whole batches until `number` messages are read."""
    sequences: list[int] = []
    async with asyncio.timeout(10):
        while len(sequences) < number:
            for batch, _ in await subscription.next_batches():
                sequences += batch.sequences().tolist()
    return sequences


async def test_subscriptions_are_paused_and_resumed_alone_and_together(broker: Broker) -> None:
    async with AsyncClient(address_of(broker), "reader") as client:
        one = await client.subscribe("a", bookmark="0", id="one", paused=True)
        two = await client.subscribe("a", bookmark="0", id="two", paused=True, filter="/id = 1")
        assert one.paused
        await client.resume([one, two])
        assert await take_batches(one, 300) == list(range(1, 301))
        assert await take_batches(two, 100) == list(range(2, 301, 3))
        await one.pause()
        await one.set_rate("2X", "1s")
        assert (one.paused, one.rate) == (True, "2X")
        with pytest.raises(ClientError) as refused:
            await one.set_rate("fast")
        assert (refused.value.code, one.rate) == ("bad_rate", "2X")


async def test_what_was_steered_holds_on_the_next_connection(broker: Broker) -> None:
    async with AsyncClient(address_of(broker), "reader") as client:
        subscription = await client.subscribe("a", bookmark="0", rate="200")
        firsts = await take_batches(subscription, 20)
        await subscription.pause()
        await subscription.set_rate(None)
        broker.engine.roster.clients["reader"].close("operator_disconnect", "a test")
        await until(lambda: client.connections == 2 and client.connected)
        await until(
            lambda: (
                "reader" in broker.engine.roster.clients
                and bool(broker.engine.roster.clients["reader"].subscriptions)
            )
        )
        (target,) = broker.engine.roster.clients["reader"].subscriptions.values()
        assert (target.cursor.is_paused, target.rate) == (True, None)
        await subscription.resume()
        rest = await take_batches(subscription, 300 - len(firsts))
        assert firsts + rest == list(range(1, 301))


async def test_a_managed_replay_goes_on_in_the_next_process(broker: Broker, tmp_path: Path) -> None:
    got: list[int] = []
    for _ in range(3):
        store = FileBookmarkStore(tmp_path / "marks")
        async with AsyncClient(address_of(broker), "auditor", bookmark_store=store) as client:
            subscription = await client.subscribe("a", bookmark="MOST_RECENT", managed="audit", id="audit")
            async with asyncio.timeout(10):
                async for message in subscription:
                    got.append(message.sequence)
                    subscription.done(message)
                    if len(got) % 100 == 0:
                        break
    assert got == list(range(1, 301))


async def test_a_cancelled_managed_replay_says_so_to_its_reader(broker: Broker) -> None:
    async with AsyncClient(address_of(broker), "reader") as client:
        subscription = await client.subscribe("a", bookmark="0", managed="audit", rate="50")
        await take_batches(subscription, 5)
        broker.engine.managed.cancel("audit")
        with pytest.raises(ClientError) as ended:
            await take_batches(subscription, 300)
        assert ended.value.code == "replay_cancelled"


async def test_a_conflated_subscription_gets_the_last_of_each_key(broker: Broker) -> None:
    async with AsyncClient(address_of(broker), "reader") as client:
        subscription = await client.subscribe("a", bookmark="0", conflation="24h", conflation_key="/id")
        last = [message.data["n"] async for message in subscription.messages(until_completed=True)]
        assert last == [297, 298, 299]
