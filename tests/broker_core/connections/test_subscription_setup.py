"""Subscriptions with acknowledgements against a running broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from broker_core.errors import ClientError, OperatorError
from tests.support.brokers import address_of, running_broker, until
from tests.support.raw import RawClient


def numbered_bodies(start: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def test_no_more_than_the_window_is_sent_before_an_acknowledgement(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "reader")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 3})
        await raw.read_until("processed")
        await writer.publish_many("t", numbered_bodies(1, 10))
        assert await raw.deliveries(3) == numbered_bodies(1, 3)
        backlog = broker.engine.roster.clients["reader"].backlog
        await until(lambda: backlog.messages == 7)
        assert backlog.queues[1].window.unacked_messages == 3 and backlog.queues[1].full_since
        raw.send_command({"c": "ack", "id": "s", "upto": 2})
        assert await raw.deliveries(2) == numbered_bodies(4, 2)
        raw.send_command({"c": "ack", "id": "s", "bookmark": "test-1|4|"})
        assert await raw.deliveries(2) == numbered_bodies(6, 2)
        assert backlog.queues[1].window.unacked_messages == 3
        raw.close()


async def test_single_acknowledgements_make_room_one_by_one(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "reader")
        raw.send_command(
            {"c": "subscribe", "id": "s", "topic": "scratch.t", "ack": "client-individual", "prefetch": 2}
        )
        await raw.read_until("processed")
        await writer.publish_many("scratch.t", numbered_bodies(1, 5))
        assert await raw.deliveries(2) == numbered_bodies(1, 2)
        raw.send_command({"c": "ack", "id": "s", "numbers": [[2, 2]]})
        assert await raw.deliveries(1) == [b"3"]
        raw.close()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"c": "ack", "id": "s", "upto": 1}, "bad_ack"),
        ({"c": "ack", "id": "s"}, "bad_command"),
        ({"c": "ack", "id": "s", "upto": 1, "bookmark": "0"}, "bad_command"),
        ({"c": "ack", "id": "s", "bookmark": "0"}, "bad_ack"),
        ({"c": "ack", "id": "plain", "upto": 1}, "unknown_subscription"),
        ({"c": "subscribe", "id": "x", "topic": "t", "prefetch": 5}, "bad_command"),
        ({"c": "subscribe", "id": "x", "topic": "t", "ack": "client", "prefetch": 40_000}, "bad_command"),
    ],
)
async def test_a_wrong_acknowledgement_costs_only_itself(
    tmp_path: Path, command: dict[str, object], code: str
) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "reader")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client"})
        raw.send_command({"c": "subscribe", "id": "plain", "topic": "t"})
        raw.send_command(command)
        assert (await raw.read_until("error"))["code"] == code
        raw.send_command({"c": "heartbeat"})
        await raw.read_until("heartbeat")
        raw.close()


async def test_a_full_window_does_not_hold_up_the_client_s_other_subscriptions(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        async with AsyncClient(address_of(broker), "reader") as reader:
            slow = await reader.subscribe("t", ack="client", prefetch=1, id="slow")
            plain = await reader.subscribe("t", id="plain")
            await writer.publish_many("t", numbered_bodies(1, 100))
            got = [message.body async for message in _first(plain, 100)]
            assert got == numbered_bodies(1, 100)
            assert [message.body async for message in _first(slow, 1)] == [b"1"]


async def test_the_library_acknowledges_by_itself_with_auto(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", ack="auto", prefetch=4)
            await writer.publish_many("t", numbered_bodies(1, 50))
            assert [m.body async for m in _first(subscription, 50)] == numbered_bodies(1, 50)


async def test_an_application_acknowledges_messages_in_any_order(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", ack="client-individual", prefetch=3)
            await writer.publish_many("t", numbered_bodies(1, 6))
            three = [message async for message in _first(subscription, 3)]
            assert [message.number for message in three] == [1, 2, 3]
            subscription.ack(three[2])
            subscription.ack(three[0])
            await until(lambda: subscription.received_messages == 5)
            assert broker.engine.roster.clients["reader"].backlog.queues[1].window.unacked_messages == 3


async def test_acknowledging_without_acks_is_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        subscription = await reader.subscribe("t")
        with pytest.raises(OperatorError) as caught:
            subscription.ack()
        assert caught.value.code == "no_acks"


async def test_a_replay_waits_for_acknowledgements_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        await writer.publish_many("t", numbered_bodies(1, 500))
        await writer.flush()
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", bookmark="0", ack="auto", prefetch=7)
            got = [m.body async for m in subscription.messages(until_completed=True)]
            assert got == numbered_bodies(1, 500)


async def test_an_offlined_client_with_a_window_gets_its_backlog_in_order(tmp_path: Path) -> None:
    from tests.support.brokers import tcp_policy

    policy = tcp_policy(message_memory_limit=200_000)
    async with (
        running_broker(tmp_path, policy) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("t", ack="client", prefetch=10)
            bodies = [b"%08d" % n + b"x" * 1_000 for n in range(1_000)]
            for start in range(0, 1_000, 100):
                await writer.publish_many("t", bodies[start : start + 100])
            await writer.flush()
            await until(lambda: broker.engine.roster.clients["reader"].backlog.spool is not None)
            got = []
            async with asyncio.timeout(30):
                async for message in subscription:
                    got.append(message.body)
                    subscription.ack(message)
                    if len(got) == 1_000:
                        break
            assert got == bodies
            await until(lambda: broker.engine.roster.clients["reader"].backlog.state.value == "live")


async def test_an_error_of_a_subscription_names_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        with pytest.raises(ClientError) as caught:
            await reader.subscribe("scratch.t", durable="d")
        assert caught.value.code == "not_journaled"


async def _first(subscription, number):  # type: ignore[no-untyped-def]
    left = number
    async for message in subscription:
        yield message
        left -= 1
        if not left:
            return
