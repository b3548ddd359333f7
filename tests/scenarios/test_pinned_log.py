"""Records pinned by a client are one figure, whatever pins them; preview, tick and forecast agree on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from broker_core.broker import Broker
from broker_core.client import EPOCH
from broker_core.config import PolicyDocument
from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with

WAYS: dict[str, dict[str, Any]] = {
    "pause": {"bookmark": EPOCH, "paused": True},
    "durable": {"durable": "d", "bookmark": EPOCH, "ack": "client", "prefetch": 1},
    "managed": {"bookmark": EPOCH, "managed": "m", "paused": True},
    "replay": {"bookmark": EPOCH, "rate": "1"},
}
QUIET: dict[str, dict[str, Any]] = {"live": {}, "follower": {"bookmark": EPOCH}}
LIMIT = 100_000
LADDER = [{"action": "notify"}, {"action": "cancel_subscription", "after_ms": 60_000}]
POLICIES = {
    "a rule for clients": policy_with(
        {"name": "r", "signal": "pinned_bytes", "limit": LIMIT, "ladder": LADDER}
    ),
    "one for subscriptions": policy_with(
        {"name": "r", "signal": "pinned_bytes", "limit": LIMIT, "ladder": LADDER, "scope": {"topic": ">"}}
    ),
    "the quota": policy_with(quotas=[{"client_pinned_bytes": LIMIT}]),
    "a rule beyond it": policy_with(
        {"name": "r", "signal": "pinned_bytes", "limit": 10**9, "ladder": LADDER}
    ),
}


def pinned_records(broker: Broker, name: str) -> int:
    use = broker.engine.guard.find_usage(name)
    assert use is not None
    return use.pinned_bytes


def client_actions(decisions: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    return {
        (one["client"], one["subscription"], one["rule"], one["action"], one["signal"]) for one in decisions
    }


async def holding(broker: Broker) -> list[RawClient]:
    """Connect one client for each way of pinning the log from its beginning, and clients that pin nothing."""
    feed = await RawClient.connect(broker, "feed")
    await feed.publish("t", [b"x" * 20_000] * 10, first=1)
    await feed.read_until("persisted")
    clients = [feed]
    for name, way in (WAYS | QUIET).items():
        client = await RawClient.connect(broker, name)
        client.send_command({"c": "subscribe", "id": "s", "topic": "t", **way})
        await client.read_until("processed")
        clients.append(client)
    await until(lambda: all(pinned_records(broker, name) > 2 * LIMIT for name in WAYS))
    await until(lambda: broker.engine.roster.clients["follower"].subscriptions["s"].cursor.is_live)
    return clients


async def test_every_way_of_keeping_the_log_is_seen_and_acted_on_as_the_preview_said(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy_with()) as broker:
        clients = await holding(broker)
        whole = pinned_records(broker, "pause")
        assert {name: pinned_records(broker, name) for name in WAYS} == dict.fromkeys(WAYS, whole)
        assert {pinned_records(broker, name) for name in QUIET} == {0}
        second = {"c": "subscribe", "id": "2", "topic": "t", **WAYS["pause"]}
        clients[1].send_command(second)
        await clients[1].read_until("processed")
        assert pinned_records(broker, "pause") == whole, "records pinned twice count once"
        for revision, (case, policy) in enumerate(POLICIES.items(), 2):
            await comes_true(broker, case, replace(policy, revision=revision))
        for client in clients:
            client.close()


async def comes_true(broker: Broker, case: str, policy: PolicyDocument) -> None:
    decisions = broker.engine.decisions
    effect, before = await ask(broker, "preview", policy=policy.to_dict()), len(decisions.recent)
    await ask(broker, "apply", policy=policy.to_dict())
    # A warning is recorded after the broker has notified the client.
    await until(lambda: len(decisions.recent) >= before + effect["acted_on_in_all"])
    made = msgspec.to_builtins(list(decisions.recent))[before:]
    assert client_actions(made) == client_actions(effect["acted_on"]), case
    (forecast,) = [
        one for one in await ask(broker, "forecasts", name="replay") if one["signal"] == "pinned_bytes"
    ]
    if "beyond" in case:
        assert not made and forecast["percent"] < 1 and forecast["why_none"]
        return
    assert {one["client"] for one in made} == set(WAYS), case
    assert {one["reason"] for one in made} == {"slow_client_pinned"} and {one["unit"] for one in made} == {
        "bytes"
    }
    assert all(
        one["observed"] > 2 * LIMIT and "the log retained for it is" in one["sentence"] for one in made
    )
    assert forecast["percent"] > 200


async def test_a_pause_that_outgrows_the_quota_by_what_others_publish_is_warned_and_loses_nothing(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, POLICIES["the quota"]) as broker:
        holder, feed = await RawClient.connect(broker, "holder"), await RawClient.connect(broker, "feed")
        holder.send_command({"c": "subscribe", "id": "s", "topic": "t", **WAYS["pause"]})
        await holder.read_until("processed")
        await feed.publish("t", [b"x" * 20_000] * 3, first=1)
        await feed.read_until("persisted")
        assert 60_000 < pinned_records(broker, "holder") < LIMIT
        await feed.publish("t", [b"x" * 20_000] * 3, first=4)
        warning = await holder.read_until("notice")
        assert warning["code"] == "slow_client_pinned" and warning["observed"] > LIMIT == warning["limit"]
        holder.send_command({"c": "resume", "ids": ["s"]})
        assert len(await holder.deliveries(6)) == 6
        await until(lambda: pinned_records(broker, "holder") == 0)
        holder.close()
        feed.close()


async def test_a_connected_client_is_warned_of_its_users_pinned_records_while_others_publish(
    tmp_path: Path,
) -> None:
    """Names without an owner belong to one common user. A claimed name takes its pinned records along."""
    async with running_broker(tmp_path, policy_with(quotas=[{"user_pinned_bytes": LIMIT}])) as broker:
        feed, away = await RawClient.connect(broker, "feed"), await RawClient.connect(broker, "away")
        away.send_command({"c": "subscribe", "id": "s", "topic": "t", **WAYS["durable"]})
        await away.read_until("processed")
        away.close()
        await until(lambda: broker.engine.guard.find_usage("away") is None)
        there = await RawClient.connect(broker, "there")
        use = broker.engine.guard.find_usage("there")
        assert use is not None
        await feed.publish("t", [b"x" * 20_000] * 10, first=1)
        warning = await there.read_until("notice")
        assert warning["code"] == "slow_client_pinned" and warning["observed"] > LIMIT == warning["limit"]
        assert use.pinned_bytes == 0 and use.user_pinned_bytes > 2 * LIMIT
        broker.engine.owners.claim("away", "ann")
        assert use.user_pinned_bytes == 0
        broker.engine.owners.claim("there", "ann")
        assert use.user_pinned_bytes > 2 * LIMIT
        there.close()
        feed.close()
