"""Durable subscriptions: stored while their client is disconnected and across restarts, until deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from broker_core.client import AsyncClient
from broker_core.delivery.account import DiscardCause
from broker_core.errors import ClientError
from broker_core.replay.positions import store
from tests.broker_core.journal.support import FailingFiles
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.crash_copy import copy_live_directory
from tests.support.raw import RawClient


def numbered_bodies(start: int, count: int) -> list[bytes]:
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
            await writer.publish_many("t", numbered_bodies(1, 5))
            assert await take(subscription, 3) == numbered_bodies(1, 3)
            await until(
                lambda: broker.engine.roster.clients["reader"].backlog.queues[1].window.unacked_messages == 2
            )
        await writer.publish_many("t", numbered_bodies(6, 5))
        await writer.flush()
        (durable,) = await ask(broker, "durables")
        assert (durable["client"], durable["name"], durable["connected"]) == ("reader", "orders", False)
        assert durable["bookmark"] == "test-1|3|"
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", durable="orders", ack="client")
            assert await take(subscription, 7) == numbered_bodies(4, 7)


@pytest.mark.parametrize("mode", ["client", "client-individual"])
async def test_what_is_acknowledged_and_left_at_once_does_not_come_again(tmp_path: Path, mode: str) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", durable="orders", ack=mode)
            await writer.publish_many("t", numbered_bodies(1, 5))
            assert await take(subscription, 3) == numbered_bodies(1, 3)
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", durable="orders", ack=mode)
            assert await take(subscription, 2) == numbered_bodies(4, 2)


async def test_it_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        async with AsyncClient(address_of(broker), "reader") as reader:
            await reader.subscribe("t", durable="orders")
        async with AsyncClient(address_of(broker), "writer") as writer:
            await writer.publish_many("t", numbered_bodies(1, 4))
            await writer.flush()
    async with running_broker(tmp_path) as broker:
        (durable,) = await ask(broker, "durables")
        assert durable["name"] == "orders"
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", durable="orders")
            assert await take(subscription, 4) == numbered_bodies(1, 4)


async def test_the_journal_is_kept_for_it_and_says_for_whom(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        async with AsyncClient(address_of(broker), "reader") as reader:
            await reader.subscribe("t", durable="orders")
        for _ in range(4):
            await writer.publish_many("t", [b"x" * 100_000] * 5)
        await writer.flush()
        await until(lambda: broker.engine.journal.segments()[0].state == "sealed")
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
        await until(lambda: not broker.engine.roster.clients["reader"].subscriptions)
        assert len(await ask(broker, "durables")) == 1
        subscription = await reader.subscribe("t", durable="orders")
        await subscription.close(delete=True)
        await until(lambda: not broker.engine.roster.clients["reader"].subscriptions)
        assert await ask(broker, "durables") == []


async def test_a_deletion_is_acknowledged_when_it_is_on_disk(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "home") as broker:
        reader = await RawClient.connect(broker, "reader")
        reader.send_command({"c": "subscribe", "id": "s", "topic": "t", "durable": "orders"})
        await reader.read_until("processed")
        reader.send_command({"c": "unsubscribe", "id": "s", "delete": True})
        assert (await reader.read_until("processed"))["of"] == "unsubscribe"
        # What a crash in this moment would leave.
        copy_live_directory(tmp_path / "home", tmp_path / "crashed")
    async with running_broker(tmp_path / "crashed") as broker:
        assert await ask(broker, "durables") == []


async def test_one_that_an_operator_deletes_leaves_its_subscription_and_its_client_alone(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        client = await RawClient.connect(broker, "reader")
        for id in ("s", "other"):
            client.send_command({"c": "subscribe", "id": id, "topic": "t", "durable": id})
            await client.read_until("processed")
        await ask(broker, "durable_delete", client="reader", name="s")
        client.send_command({"c": "unsubscribe", "id": "s", "delete": True})
        assert (await client.read_until("processed"))["of"] == "unsubscribe"
        assert set(broker.engine.roster.clients["reader"].subscriptions) == {"other"}
        assert [one["name"] for one in await ask(broker, "durables")] == ["other"]
        client.close()


async def test_the_subscription_of_one_that_another_member_deleted_moves_no_later_one_of_that_name(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        client = await RawClient.connect(broker, "reader")
        client.send_command({"c": "subscribe", "id": "s", "topic": "t", "durable": "orders", "ack": "client"})
        await client.read_until("processed")
        kept = broker.engine.position_store
        former = kept.durables["reader", "orders"]
        kept.remove(former, publish=False)
        kept.add_replicated(msgspec.structs.replace(former, position=1, created_at=former.created_at + 1))
        await writer.publish_many("t", numbered_bodies(1, 5))
        await client.deliveries(5)
        client.send_command({"c": "ack", "id": "s", "upto": 5})
        client.send_command({"c": "heartbeat"})
        await client.read_until("heartbeat")
        await broker.engine.durables.record_positions()
        client.send_command({"c": "unsubscribe", "id": "s", "delete": True})
        assert (await client.read_until("processed"))["of"] == "unsubscribe"
        assert [one["bookmark"] for one in await ask(broker, "durables")] == ["test-1|0|"]
        client.close()


@pytest.mark.parametrize(("topic", "code"), [("other", "durable_differs"), ("t", "durable_in_use")])
async def test_one_name_is_one_subscription(tmp_path: Path, topic: str, code: str) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        await reader.subscribe("t", durable="orders", id="one")
        with pytest.raises(ClientError) as caught:
            await reader.subscribe(topic, durable="orders", id="two")
        assert caught.value.code == code


async def test_a_new_one_may_begin_in_the_past(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        await writer.publish_many("t", numbered_bodies(1, 3))
        await writer.flush()
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", durable="orders", bookmark="0")
            assert await take(subscription, 3) == numbered_bodies(1, 3)


@pytest.mark.parametrize("how", ["unsubscribed", "cancelled", "disconnected"])
async def test_one_that_ends_in_the_middle_of_its_replay_goes_on_there(tmp_path: Path, how: str) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        await writer.publish_many("t", numbered_bodies(1, 500))
        await writer.flush()
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe(
                "t", durable="orders", bookmark="0", rate="100", ack="client"
            )
            got = await take(subscription, 5)
            client = broker.engine.roster.clients["reader"]
            await until(
                lambda: client.subscriptions[subscription.id].position(broker.engine.frontier.durable) > 5
            )
            if how == "unsubscribed":
                await subscription.close()
            elif how == "cancelled":
                client.end(client.subscriptions[subscription.id], DiscardCause.CANCELLED, "a test")
            else:
                client.close("operator_disconnect", "a test")
            await until(
                lambda: not any(durable.connected for durable in broker.engine.durables.list_entries())
            )
            (durable,) = broker.engine.durables.list_entries()
            assert 5 <= int(durable.bookmark.split("|")[1]) < 500
        async with AsyncClient(address_of(broker), "reader") as reader:
            got += await take(await reader.subscribe("t", durable="orders", ack="client"), 495)
            assert sorted(set(map(int, got))) == list(range(1, 501))


async def test_a_conflated_one_keeps_what_it_held_back(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        async with AsyncClient(address_of(broker), "reader") as reader:
            await reader.subscribe("t", durable="orders", conflation="1h", conflation_key="/id")
            await writer.publish_many("t", [b'{"id":1,"n":%d}' % n for n in range(10)])
            await writer.flush()
            held = next(iter(broker.engine.roster.clients["reader"].subscriptions.values()))
            await until(lambda: held.conflating.first_sequence)
            first = held.conflating.first_sequence
        await until(lambda: "reader" not in broker.engine.roster.clients)
        (durable,) = broker.engine.durables.list_entries()
        assert durable.bookmark == f"test-1|{first - 1}|"
        assert durable.behind >= 10


async def test_fifty_clients_that_subscribe_durably_at_once_all_do(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        clients = [AsyncClient(address_of(broker), f"reader-{number}") for number in range(50)]
        await asyncio.gather(*(client.__aenter__() for client in clients))
        await asyncio.gather(*(client.subscribe("t", durable="orders") for client in clients))
        assert {one["client"] for one in await ask(broker, "durables")} == {
            f"reader-{number}" for number in range(50)
        }
        await asyncio.gather(*(client.__aexit__(None, None, None) for client in clients))
    async with running_broker(tmp_path) as broker:
        assert len(await ask(broker, "durables")) == 50


async def test_many_of_one_client_share_the_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes, write = [], store.replace_durably
    monkeypatch.setattr(store, "replace_durably", lambda *arguments: (writes.append(1), write(*arguments)))
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        await asyncio.gather(
            *(reader.subscribe(f"t.{number}", durable=f"d{number}") for number in range(200))
        )
        assert len(await ask(broker, "durables")) == 200
        assert len(writes) <= 20


async def test_one_that_cannot_be_stored_is_refused_and_is_none(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        files = broker.engine.position_store._files = FailingFiles()
        files.fail = lambda name: name == "pwritev"
        asked = [reader.subscribe("t", durable="orders", id=id) for id in ("one", "two")]
        for refused in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(refused, ClientError)
            assert refused.code == "not_kept"
        assert await ask(broker, "durables") == []
        assert not broker.engine.journal.pins()
        files.fail = lambda name: False
        await reader.subscribe("t", durable="orders")
        assert len(await ask(broker, "durables")) == 1


async def test_one_of_two_concurrent_creators_gets_the_subscription(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        asked = [reader.subscribe("t", durable="orders", id=id) for id in ("one", "two")]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [one.code for one in answers if isinstance(one, ClientError)] == ["durable_in_use"]
        assert len(broker.engine.roster.clients["reader"].subscriptions) == 1
