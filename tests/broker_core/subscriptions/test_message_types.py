"""Keys and filters of a running broker read a body by its topic's message type, wherever they stand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.config import JournaledTopic, PolicyDocument
from broker_core.delivery.keep_latest import keep_latest
from broker_core.subscriptions.keys import parse_key
from tests.support.brokers import address_of, ask, running_broker, tcp_policy, until
from tests.support.raw import RawClient
from tests.support.stalled import StalledSubscriber

BODIES = {
    "legacy": lambda id, price: f"Symbol={id}|Price={price}|".encode(),
    "orders": lambda id, price: b'{"Symbol":"%s","Price":%d}' % (id.encode(), price),
}
PRICES = [("IBM", 1), ("MSFT", 2), ("IBM", 3), ("SUN", 4), ("MSFT", 5)]
LATEST = [("IBM", 3), ("SUN", 4), ("MSFT", 5)]
topics = pytest.mark.parametrize("topic", BODIES)


def typed_policy() -> PolicyDocument:
    policy = tcp_policy()
    entries = (JournaledTopic("legacy", "nvfix", separator="|"), JournaledTopic(">"))
    return replace(policy, instance=replace(policy.instance, journaled_topics=entries))


def bodies(topic: str, prices: list[tuple[str, int]]) -> list[bytes]:
    return [BODIES[topic](*price) for price in prices]


async def publish(broker: Broker, topic: str, prices: list[tuple[str, int]] = PRICES) -> None:
    async with AsyncClient(address_of(broker), "feed") as feed:
        await feed.publish_many(topic, bodies(topic, prices))
        await feed.flush()


async def received(broker: Broker, number: int, **subscribe: object) -> list[bytes]:
    client = await RawClient.connect(broker, "reader")
    client.send_command({"c": "subscribe", "id": "s", **subscribe})
    got = await client.deliveries(number)
    client.close()
    await until(lambda: "reader" not in broker.engine.roster.clients)
    return got


@topics
async def test_a_snapshot_starts_with_the_last_record_of_each_key(tmp_path: Path, topic: str) -> None:
    async with running_broker(tmp_path, typed_policy()) as broker:
        await publish(broker, topic)
        found = await received(broker, 3, topic=topic, snapshot_key="/Symbol")
        assert found == bodies(topic, LATEST)
        found = await received(broker, 1, topic=topic, snapshot_key="/Symbol", filter="/Price > 4")
        assert found == bodies(topic, [("MSFT", 5)])


@topics
async def test_conflation_keeps_the_last_of_each_key(tmp_path: Path, topic: str) -> None:
    async with running_broker(tmp_path, typed_policy()) as broker:
        await publish(broker, topic)
        found = await received(
            broker, 3, topic=topic, bookmark="0", conflation="1ms", conflation_key="/Symbol"
        )
        assert sorted(found) == sorted(bodies(topic, LATEST))


@topics
async def test_what_waits_is_conflated_by_the_key_it_was_subscribed_with(tmp_path: Path, topic: str) -> None:
    async with running_broker(tmp_path, typed_policy()) as broker:
        _stalled = await StalledSubscriber.connect(broker, "slow", topic, snapshot_key="/Symbol")
        connection = broker.engine.roster.clients["slow"]
        (target,) = connection.subscriptions.values()
        ids = [f"S{number}".ljust(2_000, ".") for number in range(7)]
        for number in range(20):  # more than the kernels take
            await publish(broker, topic, [(id, number) for id in ids] * 50)
        lane = connection.backlog.ensure_queue(target.subscription.stream)
        key_of = parse_key("/Symbol").key_of_record(target.subscription.decoder_of)
        keep_latest(connection.backlog, broker.engine.facilities, target.stream, key_of, "a rule")
        await until(lambda: not lane.is_conflating)
        assert [entry.count for entry in lane.peek()][-1] == lane.messages == 7
        assert lane.peek()[-1].batch.bodies() == bodies(topic, [(id, 19) for id in ids])


@topics
async def test_browsing_finds_by_content(tmp_path: Path, topic: str) -> None:
    async with running_broker(tmp_path, typed_policy()) as broker:
        await publish(broker, topic)
        found = await ask(broker, "browse", topic=">", filter="/Symbol = 'MSFT' AND /Price < 5")
        assert [message["bookmark"] for message in found["messages"]] == ["test-1|2|"]


async def test_a_key_that_is_none_is_refused_also_where_it_is_not_needed_yet(tmp_path: Path) -> None:
    async with running_broker(tmp_path, typed_policy()) as broker:
        client = await RawClient.connect(broker, "reader")
        client.send_command(
            {"c": "subscribe", "id": "s", "topic": "orders", "bookmark": "0", "snapshot_key": "Symbol"}
        )
        assert (await client.read_until("error"))["code"] == "bad_key"
        client.close()
