"""Leases and snapshots: after a cancellation, a subscriber takes the current state and continues without a
gap (seed 001).
"""

from __future__ import annotations

from pathlib import Path

from broker_core.client import AsyncClient
from tests.support.brokers import address_of, running_broker, until
from tests.support.raw import RawClient


async def test_a_lease_that_is_not_renewed_ends_that_subscription_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "reader")
        raw.send_command({"c": "subscribe", "id": "leased", "topic": "t", "lease_ms": 1_000})
        raw.send_command({"c": "subscribe", "id": "other", "topic": "t"})
        cancelled = await raw.read_until("cancelled")
        assert (cancelled["id"], cancelled["code"]) == ("leased", "lease_expired")
        assert list(broker.engine.roster.clients["reader"].subscriptions) == ["other"]
        raw.send_command({"c": "renew", "id": "leased"})
        assert (await raw.read_until("error"))["code"] == "unknown_subscription"
        raw.close()


async def test_a_renewed_lease_goes_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        subscription = await reader.subscribe("t", lease_ms=4_000)
        target = broker.engine.roster.clients["reader"].subscriptions[subscription.id]
        before = broker.engine.leases._leases[target][1]
        await until(lambda: broker.engine.leases._leases[target][1] > before + 1_000)


async def test_the_snapshot_is_the_last_record_of_each_key_and_the_log_goes_on_behind_it(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        for number in range(30):
            await writer.publish("prices", {"id": number % 3, "n": number})
        await writer.flush()
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("prices", snapshot_key="/id")
            for number in range(30, 33):
                await writer.publish("prices", {"id": 0, "n": number})
            got = []
            async for message in subscription:
                got.append(message.data["n"])
                if got[-1] == 32:
                    break
            assert got == [27, 28, 29, 30, 31, 32]
            assert subscription.resumed is not None and subscription.resumed.missed == 27


async def test_a_filter_holds_for_the_snapshot_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        for number in range(9):
            await writer.publish("prices", {"id": number % 3, "n": number})
        await writer.flush()
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe("prices", filter="/id > 0", snapshot_key="/id")
            await writer.publish("prices", {"id": 1, "n": 100})
            got = []
            async for message in subscription:
                got.append(message.data["n"])
                if got[-1] == 100:
                    break
            assert got == [7, 8, 100]


async def test_a_cancelled_subscriber_comes_back_with_a_snapshot_and_no_gap(tmp_path: Path) -> None:
    from tests.support.rules import policy_with, rule

    policy = policy_with(rule("cancel_subscription", topic="prices"))
    async with (
        running_broker(tmp_path, policy) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        async with AsyncClient(address_of(broker), "reader") as reader:
            subscription = await reader.subscribe(
                "prices", snapshot_key="/id", lease_ms=60_000, ack="client", prefetch=2
            )
            for number in range(40):
                await writer.publish("prices", {"id": number % 4, "n": number})
                await writer.flush()
            latest: dict[int, int] = {}
            async for message in subscription:
                latest[message.data["id"]] = message.data["n"]
                subscription.ack(message)
                if latest == {0: 36, 1: 37, 2: 38, 3: 39}:
                    break
            assert broker.engine.roster.clients["reader"].subscriptions.keys() == {subscription.id}
