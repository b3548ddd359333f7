"""Durable subscriptions: kept while their client is away, over a restart, until they are deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from broker_core.errors import ClientError
from tests.support.brokers import address_of, ask, running_broker, until


def numbered(start: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def take(subscription, number):  # type: ignore[no-untyped-def]
    got = []
    async for message in subscription:
        got.append(message.body)
        subscription.ack(message)
        if len(got) == number:
            break
    return got


async def test_what_came_while_the_client_was_away_is_delivered_when_it_returns(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", durable="orders", ack="client")
            await writer.publish_many("t", numbered(1, 5))
            assert await take(subscription, 3) == numbered(1, 3)
            await until(lambda: broker.host.clients["reader"].backlog.lanes.unacked == 2)
        await writer.publish_many("t", numbered(6, 5))
        await writer.flush()
        (durable,) = await ask(broker, "durables")
        assert (durable["client"], durable["name"], durable["connected"]) == ("reader", "orders", False)
        assert durable["bookmark"] == "test-1|3|"
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", durable="orders", ack="client")
            assert await take(subscription, 7) == numbered(4, 7)


async def test_it_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        async with AsyncClient(address_of(broker), "reader") as reader:
            await reader.subscribe("t", durable="orders")
        async with AsyncClient(address_of(broker), "writer") as writer:
            await writer.publish_many("t", numbered(1, 4))
            await writer.flush()
    async with running_broker(tmp_path) as broker:
        (durable,) = await ask(broker, "durables")
        assert durable["name"] == "orders"
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", durable="orders")
            assert await take(subscription, 4) == numbered(1, 4)


async def test_the_journal_is_kept_for_it_and_says_for_whom(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        async with AsyncClient(address_of(broker), "reader") as reader:
            await reader.subscribe("t", durable="orders")
        for _ in range(4):
            await writer.publish_many("t", [b"x" * 100_000] * 5)
        await writer.flush()
        await until(lambda: broker.host.journal.segments()[0].state == "sealed")
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert plan["chosen"] == []
        assert any("durable subscription orders of reader" in one["why"] for one in plan["skipped"])
        await ask(broker, "durable_delete", client="reader", name="orders")
        assert await ask(broker, "durables") == []
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert plan["chosen"]


async def test_unsubscribing_keeps_it_and_deleting_does_not(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        subscription = await reader.subscribe("t", durable="orders")
        await subscription.close()
        await until(lambda: not broker.host.clients["reader"].subscriptions)
        assert len(await ask(broker, "durables")) == 1
        subscription = await reader.subscribe("t", durable="orders")
        await subscription.close(delete=True)
        await until(lambda: not broker.host.clients["reader"].subscriptions)
        assert await ask(broker, "durables") == []


@pytest.mark.parametrize(("topic", "code"), [("other", "durable_differs"), ("t", "durable_in_use")])
async def test_one_name_is_one_subscription(tmp_path: Path, topic: str, code: str) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        await reader.subscribe("t", durable="orders", id="one")
        with pytest.raises(ClientError) as caught:
            await reader.subscribe(topic, durable="orders", id="two")
        assert caught.value.code == code


async def test_a_new_one_may_begin_in_the_past(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        await writer.publish_many("t", numbered(1, 3))
        await writer.flush()
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", durable="orders", bookmark="0")
            assert await take(subscription, 3) == numbered(1, 3)


@pytest.mark.parametrize("how", ["unsubscribed", "cancelled", "disconnected"])
async def test_one_that_ends_in_the_middle_of_its_replay_goes_on_there(tmp_path: Path, how: str) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        await writer.publish_many("t", numbered(1, 500))
        await writer.flush()
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", durable="orders", bookmark="0", rate="100", ack="client")
            got = await take(subscription, 5)
            client = broker.host.clients["reader"]
            await until(lambda: client.backlog.position_of(client.subscriptions[subscription.id]) > 5)
            if how == "unsubscribed":
                await subscription.close()
            elif how == "cancelled":
                client.cancel(client.subscriptions[subscription.id], "a test")
            else:
                client.close("operator_disconnect", "a test")
            await until(lambda: not any(durable["connected"] for durable in broker.host.durables.listed()))
            (durable,) = broker.host.durables.listed()
            assert 5 <= int(durable["bookmark"].split("|")[1]) < 500
        async with AsyncClient(address_of(broker), "reader") as reader:
            got += await take(await reader.subscribe("t", durable="orders", ack="client"), 495)
            assert sorted(set(map(int, got))) == list(range(1, 501))


async def test_a_conflated_one_keeps_what_it_held_back(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        async with AsyncClient(address_of(broker), "reader") as reader:
            await reader.subscribe("t", durable="orders", conflation="1h", conflation_key="/id")
            await writer.publish_many("t", [b'{"id":1,"n":%d}' % n for n in range(10)])
            await writer.flush()
            held = next(iter(broker.host.clients["reader"].subscriptions.values()))
            await until(lambda: held.held_from)
            first = held.held_from
        await until(lambda: "reader" not in broker.host.clients)
        (durable,) = broker.host.durables.listed()
        assert durable["bookmark"] == f"test-1|{first - 1}|"
        assert durable["behind"] >= 10
