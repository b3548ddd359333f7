"""Quotas of users and clients against a running broker: limits, their errors, and unaffected clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_core.broker import Broker
from broker_core.client import EPOCH, AsyncClient, ReconnectPolicy
from broker_core.config import PolicyDocument
from broker_core.config.preset_settings import QUOTAS, QuotaSettings
from broker_core.connections.quotas import TokenBucket
from broker_core.errors import ClientError
from tests.broker_core.access.making import policy as access_policy
from tests.broker_core.access.making import user
from tests.support.brokers import address_of, ask, running_broker, tcp_policy
from tests.support.raw import RawClient

ONCE = ReconnectPolicy(enabled=False)


def limited_broker(*entries: dict[str, Any]) -> PolicyDocument:
    return PolicyDocument.from_dict({**tcp_policy().to_dict(), "quotas": list(entries)})


async def refusal_of(raw: RawClient, command: dict[str, Any]) -> dict[str, Any]:
    raw.send_command(command)
    error = await raw.read_until("error")
    assert error["code"] == "over_quota" and error["of"] == command["c"] and error["fix"], error
    details: dict[str, Any] = error["details"]
    return details


async def test_the_next_subscription_is_refused_with_figure_and_limit_until_one_ends(tmp_path: Path) -> None:
    async with running_broker(
        tmp_path, limited_broker({"client_subscriptions": 2, "user_subscriptions": 3})
    ) as broker:
        raw, other = await RawClient.connect(broker, "a"), await RawClient.connect(broker, "b")
        for number in range(2):
            raw.send_command({"c": "subscribe", "id": str(number), "topic": "t"})
            await raw.read_until("processed")
        third = {"c": "subscribe", "id": "2", "topic": "t"}
        assert await refusal_of(raw, third) == {
            "quota": "client_subscriptions",
            "used": 2,
            "limit": 2,
            "unit": "subscriptions",
        }
        other.send_command({"c": "subscribe", "id": "x", "topic": "t"})
        await other.read_until("processed")
        assert (await refusal_of(other, {"c": "subscribe", "id": "y", "topic": "t"}))[
            "quota"
        ] == "user_subscriptions"
        raw.send_command({"c": "unsubscribe", "id": "0"})
        await raw.read_until("processed")
        other.send_command({"c": "subscribe", "id": "y", "topic": "t"})
        await other.read_until("processed")
        raw.close()
        other.close()


async def test_a_user_has_its_connections_and_another_its_own(tmp_path: Path) -> None:
    made = access_policy(user("maria"), user("ben"), restricted=False)
    made = replace(made, quotas=(QuotaSettings(user="maria", user_connections=2),))
    async with running_broker(tmp_path, made) as broker:
        address = address_of(broker)
        async with (
            AsyncClient(address, "m1", token="maria") as first,
            AsyncClient(address, "m2", token="maria"),
            AsyncClient(address, "b1", token="ben"),
            AsyncClient(address, "b2", token="ben"),
        ):
            with pytest.raises(ClientError) as caught:
                await AsyncClient(address, "m3", token="maria", reconnect=ONCE).start()
            assert (
                caught.value.code == "connections_over_quota"
                and "2 connections of the 2" in caught.value.sentence
            )
            async with AsyncClient(address, "b3", token="ben") as third:
                await third.publish("a", "1")
                await third.flush()
            await first.close()
            async with AsyncClient(address, "m3", token="maria"):
                # A name that comes back replaces itself, and needs no room.
                async with AsyncClient(address, "m3", token="maria", reconnect=ONCE) as again:
                    assert again.connected


async def test_durables_and_replays_are_the_owners_and_those_that_are_there_go_on(tmp_path: Path) -> None:
    made = limited_broker({"user_durables": 2, "client_replays": 1})
    async with running_broker(tmp_path, made) as broker:
        raw, other = await RawClient.connect(broker, "a"), await RawClient.connect(broker, "b")
        raw.send_command({"c": "subscribe", "id": "1", "topic": "t", "durable": "one"})
        await raw.read_until("processed")
        other.send_command({"c": "subscribe", "id": "2", "topic": "t", "durable": "two"})
        await other.read_until("processed")
        third = {"c": "subscribe", "id": "3", "topic": "t", "durable": "three"}
        assert await refusal_of(other, third) == {
            "quota": "user_durables",
            "used": 2,
            "limit": 2,
            "unit": "subscriptions",
        }
        other.send_command({"c": "unsubscribe", "id": "2"})
        await other.read_until("processed")
        other.send_command({"c": "subscribe", "id": "2", "topic": "t", "durable": "two"})
        await other.read_until("processed")
        raw.send_command({"c": "subscribe", "id": "r", "topic": "t", "bookmark": EPOCH, "managed": "r1"})
        await raw.read_until("processed")
        fourth = {"c": "subscribe", "id": "r2", "topic": "t", "bookmark": EPOCH, "managed": "r2"}
        assert (await refusal_of(raw, fourth))["quota"] == "client_replays"
        raw.close()
        other.close()


async def test_shared_subscriptions_are_nobodys_and_count_as_one_users(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limited_broker({"client_durables": 1, "user_durables": 2})) as broker:
        raw = await RawClient.connect(broker, "a")
        for name in ("q.1", "q.2"):
            raw.send_command({"c": "subscribe", "id": name, "topic": name, "durable": name, "shared": True})
            await raw.read_until("processed")
        third = {"c": "subscribe", "id": "3", "topic": "q.3", "durable": "q.3", "shared": True}
        assert (await refusal_of(raw, third))["quota"] == "user_durables"
        raw.close()


async def test_what_holds_too_much_of_the_log_gets_no_company(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limited_broker({"client_pinned_bytes": 100_000})) as broker:
        raw = await RawClient.connect(broker, "a")
        raw.send_command({"c": "subscribe", "id": "1", "topic": "t", "durable": "one", "ack": "client"})
        await raw.read_until("processed")
        await raw.publish("t", [b"x" * 200_000], first=1)
        await raw.read_until("persisted")
        details = await refusal_of(raw, {"c": "subscribe", "id": "2", "topic": "t", "durable": "two"})
        assert details["quota"] == "client_pinned_bytes" and details["used"] > 200_000
        paused = {"c": "subscribe", "id": "3", "topic": "t", "bookmark": EPOCH, "paused": True}
        assert (await refusal_of(raw, paused))["quota"] == "client_pinned_bytes"
        raw.send_command({"c": "subscribe", "id": "4", "topic": "t", "bookmark": EPOCH})
        await raw.read_until("processed")
        raw.close()


async def test_topics_beyond_the_quota_are_refused_and_the_others_go_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limited_broker({"client_topics": 2})) as broker:
        async with AsyncClient(address_of(broker), "p") as client:
            for topic in ("a", "b", "a"):
                await client.publish(topic, "1")
                await client.flush()
            await client.publish("c", "1")
            with pytest.raises(ClientError) as caught:
                await client.flush()
            assert caught.value.code == "over_quota" and caught.value.details["quota"] == "client_topics"
            await client.publish("b", "2")
            await client.flush()
        assert broker.engine.frontier.durable >= 4


async def test_a_publisher_over_its_rate_is_read_more_slowly_and_loses_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limited_broker({"client_publish_rate": 500})) as broker:
        clock = broker.engine.clock
        async with (
            AsyncClient(address_of(broker), "p") as client,
            AsyncClient(address_of(broker), "r") as reader,
        ):
            subscription = await reader.subscribe("a", bookmark=EPOCH)
            began = clock.monotonic_ns()
            for at in range(8):
                await client.publish_many("a", [b"%d" % number for number in range(100 * at, 100 * at + 100)])
                await client.flush()
            # The first 500 are there at once, 300 more are to be waited for: at least as long as their rate
            # says.
            assert clock.monotonic_ns() - began >= 0.3e9
            got = [message.body async for message in _first(subscription, 800)]
            assert got == [b"%d" % number for number in range(800)]
            assert "publish_paced" in [notice.code for notice in client.notices]


async def _first(subscription: Any, number: int) -> Any:
    async for message in subscription:
        yield message
        number -= 1
        if not number:
            return


@pytest.mark.parametrize(("count", "waits"), [(5, 0.0), (10, 0.0), (15, 0.5), (110, 10.0)])
def test_a_bucket_lets_a_second_through_and_then_waits_for_what_was_too_much(
    count: int, waits: float
) -> None:
    bucket = TokenBucket()
    assert bucket.consume(count, 10, 7) == waits
    assert bucket.consume(0, 10, 7 + int(waits * 1e9)) == pytest.approx(0)


async def test_a_revision_is_in_force_at_once_and_effective_settings_say_so(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limited_broker()) as broker:
        raw = await RawClient.connect(broker, "a")
        assert await effective(broker, "client_subscriptions") == (1_000, "default")
        await ask(
            broker, "apply", policy={**limited_broker({"client_subscriptions": 1}).to_dict(), "revision": 2}
        )
        assert await effective(broker, "client_subscriptions") == (1, "quotas")
        raw.send_command({"c": "subscribe", "id": "1", "topic": "t"})
        await raw.read_until("processed")
        assert (await refusal_of(raw, {"c": "subscribe", "id": "2", "topic": "t"}))["limit"] == 1
        raw.close()


async def effective(broker: Broker, name: str) -> tuple[Any, str]:
    found = [one for one in broker.engine.guard.effective("a") if one.setting == f"quotas.{name}"]
    (one,) = found
    assert one.unit == QUOTAS[name].unit
    return one.value, one.origin
