"""Figures of clients and of their subscriptions agree, through a running broker and raw sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.delivery.account import DiscardCause
from broker_core.documents.clients import ClientEntry, DeliveryState, Health
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule
from tests.support.stalled import StalledSubscriber

BODY = b"x" * 1_000
SILENT = 60
"""Seconds: longer than one window step of the small receive buffers takes at the floor's rate."""


async def entry_of(broker: Broker, name: str) -> ClientEntry:
    """Return a client's entry from the control socket."""
    return msgspec.convert(await ask(broker, "client", name=name), ClientEntry)


def agree(entry: ClientEntry) -> ClientEntry:
    """Check that a client's lag is its subscriptions' maximum and that all accounts add up; return the
    entry.
    """
    subscriptions = entry.subscriptions
    for key in ("lag_messages", "lag_bytes", "lag_ms", "seconds_behind"):
        assert getattr(entry, key) == max(getattr(one, key) for one in subscriptions), key
    for key in ("waiting_messages", "in_flight_messages", "unacked_messages"):
        assert getattr(entry, key) == sum(getattr(one, key) for one in subscriptions), key
    assert entry.delivery in {one.delivery for one in subscriptions}
    assert entry.health == min((one.health for one in subscriptions), key=lambda one: one.rank)
    for one in (entry, *subscriptions):
        parts = (
            one.acknowledged_messages + one.in_flight_messages + one.waiting_messages + sum(one.gone.values())
        )
        assert one.matched_messages == parts
        assert one.delivered_messages >= one.acknowledged_messages + one.in_flight_messages, (
            "less what was cut off in flight"
        )
        assert one.lost_messages == sum(one.gone[cause] for cause in one.gone if DiscardCause(cause).is_loss)
        assert one.lag_messages >= one.waiting_messages if one is not entry else True
    return entry


async def blocked_for(broker: Broker, name: str, seconds: float) -> None:
    """Wait until the client's peer has acknowledged no sent byte for `seconds`."""
    backlog, clock = broker.engine.roster.clients[name].backlog, broker.engine.clock
    await until(lambda: backlog.silent_since and clock.now_ns() - backlog.silent_since > seconds * 1e9)


def silent_before(broker: Broker, name: str, seconds: int) -> None:
    """Move the time of the last acknowledgement back, rather than wait."""
    broker.engine.roster.clients[name].backlog.silent_since -= seconds * 10**9


async def publish(writer: AsyncClient, topic: str, number: int) -> None:
    for _ in range(number // 100):
        await writer.publish_many(topic, [BODY] * 100)
    await writer.flush()


async def test_a_client_that_keeps_up_has_all_it_was_sent(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "reader")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t"})
        await raw.read_until("processed")
        await publish(writer, "t", 200)
        await raw.deliveries(200)
        entry = agree(await entry_of(broker, "reader"))
        assert (entry.delivery, entry.health) == (DeliveryState.LIVE, Health.KEEPS_UP)
        assert (entry.matched_messages, entry.delivered_messages, entry.waiting_messages) == (200, 200, 0)
        assert (entry.seconds_behind, entry.caught_up_in_s) == (0.0, None)
        raw.close()


async def test_a_client_that_stops_reading_stalls_with_its_backlog_by_subscription(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        stalled = await StalledSubscriber.connect(broker, "slow", "t")
        await publish(writer, "t", 12_000)
        await until(lambda: broker.engine.roster.clients["slow"].backlog.messages)
        await blocked_for(broker, "slow", 1.1)
        entry = agree(await entry_of(broker, "slow"))
        assert (entry.delivery, entry.health) == (DeliveryState.LIVE, Health.FALLING_BEHIND), (
            "it may be between two lumps"
        )
        silent_before(broker, "slow", SILENT)
        entry = agree(await entry_of(broker, "slow"))
        assert (entry.delivery, entry.health, entry.caught_up_in_s) == (
            DeliveryState.LIVE,
            Health.STALLED,
            None,
        )
        assert entry.why_slow is not None and entry.why_slow.cause == "not_reading"
        assert entry.lag_messages == entry.waiting_messages > 0 and entry.seconds_behind >= 1
        assert entry.waiting_bytes >= 1_000 * entry.waiting_messages
        assert len(await stalled.read_bodies(12_000)) == 12_000
        await until(lambda: not broker.engine.roster.clients["slow"].backlog.messages)
        assert agree(await entry_of(broker, "slow")).health == Health.KEEPS_UP


async def test_one_that_stops_reading_isn_t_green_though_nothing_waits_here(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        stalled = await StalledSubscriber.connect(broker, "slow", "t")
        await publish(writer, "t", 100)
        await blocked_for(broker, "slow", 1.1)
        entry = agree(await entry_of(broker, "slow"))
        assert entry.waiting_messages == entry.lag_messages == 0 < entry.in_flight_messages
        assert entry.health == Health.FALLING_BEHIND, "it may be between two lumps"
        silent_before(broker, "slow", SILENT)
        entry = agree(await entry_of(broker, "slow"))
        assert entry.health == Health.STALLED
        assert entry.why_slow is not None and entry.why_slow.cause == "not_reading"
        snapshot = await broker.statistics.sample_second()
        assert {one.name: one.health for one in snapshot.clients}["slow"] == Health.STALLED
        assert len(await stalled.read_bodies(100)) == 100
        await until(lambda: not broker.engine.roster.clients["slow"].account.outstanding.messages)
        assert agree(await entry_of(broker, "slow")).health == Health.KEEPS_UP


async def test_a_rule_on_outbound_messages_counts_what_waits_here_as_one_on_bytes_does(
    tmp_path: Path,
) -> None:
    policy = policy_with(
        rule("notify", 3, signal="outbound_messages", name="messages", scope={}),
        rule("notify", 3, signal="outbound_bytes", name="bytes", scope={}),
    )
    async with running_broker(tmp_path, policy) as broker:
        async with AsyncClient(address_of(broker), "writer") as writer:
            stalled = await StalledSubscriber.connect(broker, "slow", "t")
            await publish(writer, "t", 100)
            await blocked_for(broker, "slow", 0)
            entry = agree(await entry_of(broker, "slow"))
            assert entry.outbox_messages == entry.outbox_bytes == 0 < entry.in_flight_messages
            used = {one["rule"]: one["value"] for one in await ask(broker, "forecasts", name="slow")}
            assert (used["messages"], used["bytes"]) == (0, 0)
            assert not broker.engine.decisions.total
            assert len(await stalled.read_bodies(100)) == 100


async def test_a_replay_that_stands_lags_by_all_of_the_log_before_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        await publish(writer, "t", 20_000)
        stalled = await StalledSubscriber.connect(broker, "slow", "t", bookmark="0")
        client = broker.engine.roster.clients["slow"]
        await blocked_for(broker, "slow", 1.1)
        silent_before(broker, "slow", SILENT)
        entry = agree(await entry_of(broker, "slow"))
        assert (entry.delivery, entry.health) == (DeliveryState.REPLAYING, Health.STALLED)
        assert entry.lag_messages > 15_000 and entry.lag_at_most and entry.subscriptions[0].lag_at_most
        assert (entry.caught_up_in_s, entry.caught_up_why_none) == (None, "there are too few samples")
        # Of a replay the log's records count, also those of other topics: the broker's own are among them.
        assert 0 <= entry.lag_messages + entry.delivered_messages - 20_000 < 50
        assert entry.seconds_behind >= 1
        assert len(await stalled.read_bodies(20_000)) == 20_000
        await until(lambda: not client.subscriptions["s"].cursor.is_behind and not client.backlog.messages)
        entry = agree(await entry_of(broker, "slow"))
        assert (entry.delivery, entry.lag_messages, entry.seconds_behind) == (DeliveryState.LIVE, 0, 0.0)


async def test_a_replay_that_its_client_paused_counts_what_it_is_behind(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "paused")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": "0|1|", "paused": True})
        await raw.read_until("processed")
        assert agree(await entry_of(broker, "paused")).lag_messages == 0
        await publish(writer, "t", 300)
        await asyncio.sleep(0.1)
        entry = agree(await entry_of(broker, "paused"))
        assert (entry.delivery, entry.health, entry.lag_messages) == (
            DeliveryState.PAUSED,
            Health.PAUSED,
            300,
        )
        assert 0.1 <= entry.seconds_behind < 60
        raw.send_command({"c": "resume", "ids": ["s"]})
        await raw.deliveries(300)
        await until(lambda: not broker.engine.roster.clients["paused"].subscriptions["s"].cursor.is_behind)
        assert agree(await entry_of(broker, "paused")).delivery == DeliveryState.LIVE
        raw.close()


async def test_one_that_was_live_is_behind_by_its_own_records_and_not_by_the_logs(tmp_path: Path) -> None:
    """The subscription is paused and read again while other records arrive; the reported lag equals the later
    deliveries.
    """
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "paused")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "filter": "/n > 9", "bookmark": "0|1|"})
        await raw.read_until("completed")
        raw.send_command({"c": "pause", "ids": ["s"]})
        await raw.read_until("processed")
        for number in range(30):
            await writer.publish("t", {"n": number})
        await publish(writer, "other", 500)
        entry = agree(await entry_of(broker, "paused"))
        assert (entry.lag_messages, entry.waiting_messages, entry.matched_messages) == (20, 20, 20)
        assert not entry.lag_at_most and entry.caught_up_why_none == "it is paused"
        raw.send_command({"c": "resume", "ids": ["s"]})
        assert len(await raw.deliveries(20)) == 20
        client = broker.engine.roster.clients["paused"]
        await until(
            lambda: client.subscriptions["s"].cursor.is_live and not client.account.outstanding.messages
        )
        entry = agree(await entry_of(broker, "paused"))
        assert (entry.lag_messages, entry.matched_messages, entry.acknowledged_messages) == (0, 20, 20)
        raw.close()


async def test_a_pause_by_an_operator_is_one_too_and_another_subscription_goes_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "paused")
        for id, topic in (("s", "t"), ("other", "u")):
            raw.send_command({"c": "subscribe", "id": id, "topic": topic})
            await raw.read_until("processed")
        await ask(broker, "pause", name="paused", subscription="s")
        await publish(writer, "t", 100)
        await publish(writer, "u", 200)
        await raw.deliveries(200)
        entry = agree(await entry_of(broker, "paused"))
        held, going = entry.subscriptions
        assert (held.delivery, held.health, held.lag_messages, held.paused) == (
            DeliveryState.PAUSED,
            Health.PAUSED,
            100,
            True,
        )
        assert (going.delivery, going.health, going.lag_messages) == (DeliveryState.LIVE, Health.KEEPS_UP, 0)
        assert (entry.delivery, entry.lag_messages, entry.waiting_messages) == (DeliveryState.LIVE, 100, 100)
        await ask(broker, "pause", name="paused")
        assert agree(await entry_of(broker, "paused")).delivery == DeliveryState.PAUSED
        raw.close()


async def test_the_lag_of_two_is_the_greater_one(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "slow")
        for id, topic in (("s", "t"), ("other", "u")):
            raw.send_command({"c": "subscribe", "id": id, "topic": topic, "ack": "client", "prefetch": 10})
            await raw.read_until("processed")
        await publish(writer, "t", 100)
        await publish(writer, "u", 300)
        await until(lambda: broker.engine.roster.clients["slow"].backlog.messages == 380)
        entry = agree(await entry_of(broker, "slow"))
        assert [one.lag_messages for one in entry.subscriptions] == [90, 290]
        assert (entry.lag_messages, entry.waiting_messages, entry.in_flight_messages) == (290, 380, 20)
        raw.close()


async def test_every_subscription_of_an_offlined_client_is_offlined(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        stalled = await StalledSubscriber.connect(broker, "slow", "t")
        await publish(writer, "t", 8_000)
        client = broker.engine.roster.clients["slow"]
        await until(lambda: client.backlog.silent_since)
        assert (await ask(broker, "offline", name="slow"))["state"] == "offlined"
        await publish(writer, "t", 1_000)
        entry = agree(await entry_of(broker, "slow"))
        assert {one.delivery for one in entry.subscriptions} == {entry.delivery} == {DeliveryState.OFFLINED}
        assert entry.lag_messages == entry.spool_messages + entry.outbox_messages > 1_000
        assert len(await stalled.read_bodies(9_000)) == 9_000
        await until(lambda: client.backlog.state.value == "live")
        assert agree(await entry_of(broker, "slow")).lag_messages == 0


async def test_discards_are_reported_by_cause(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy_with(rule("discard_oldest", 3))) as broker:
        async with AsyncClient(address_of(broker), "writer") as writer:
            raw = await RawClient.connect(broker, "slow")
            raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
            await raw.read_until("processed")
            await writer.publish_many("t", [BODY] * 9)
            await until(lambda: broker.engine.roster.clients["slow"].account.lost_volume.messages)
            entry = agree(await entry_of(broker, "slow"))
            assert (entry.gone, entry.waiting_messages, entry.in_flight_messages) == ({"discarded": 6}, 1, 2)
            raw.close()


async def test_lists_and_snapshots_say_the_same_as_one_client(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "paused")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": "0|1|", "paused": True})
        await raw.read_until("processed")
        await publish(writer, "t", 100)
        page: dict[str, Any] = await ask(broker, "clients_page", delivery="paused", health="paused")
        assert (page["total"], page["clients"][0]["lag_messages"]) == (1, 100)
        assert (await ask(broker, "clients_page", sort=""))["clients"][0]["name"] == "paused", (
            "the worst first"
        )
        snapshot = await ask(broker, "snapshot")
        assert snapshot["status"]["clients_by_state"]["paused"] == 1
        raw.close()


async def test_an_account_adds_up_in_bytes_of_bodies_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "slow")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 10})
        await raw.read_until("processed")
        await publish(writer, "t", 300)
        await until(lambda: broker.engine.roster.clients["slow"].backlog.messages == 290)
        raw.send_command({"c": "ack", "id": "s", "upto": 4})
        await until(lambda: broker.engine.roster.clients["slow"].backlog.messages == 286)
        entry = agree(await entry_of(broker, "slow"))
        for one in (entry, *entry.subscriptions):
            assert (one.matched_bytes, one.acknowledged_bytes) == (300_000, 4_000)
            assert (one.in_flight_bytes, one.waiting_bytes, one.gone_bytes) == (10_000, 286_000, 0)
        raw.close()


async def test_what_no_application_acknowledges_is_in_flight_until_its_kernel_has_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        stalled = await StalledSubscriber.connect(broker, "slow", "t")
        await publish(writer, "t", 8_000)
        await until(lambda: broker.engine.roster.clients["slow"].backlog.silent_since)
        assert agree(await entry_of(broker, "slow")).in_flight_messages > 0
        await stalled.read_bodies(8_000)
        while (entry := agree(await entry_of(broker, "slow"))).in_flight_messages:
            await asyncio.sleep(0.01)
        assert entry.acknowledged_messages == 8_000


async def test_what_ended_subscriptions_lost_stays_in_their_client_s_account_by_cause(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy_with(rule("discard_oldest", 3))) as broker:
        async with AsyncClient(address_of(broker), "writer") as writer:
            raw = await RawClient.connect(broker, "slow")
            raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
            raw.send_command({"c": "subscribe", "id": "other", "topic": "u"})
            await raw.read_until("processed")
            await raw.read_until("processed")
            await writer.publish_many("t", [BODY] * 9)
            await until(lambda: broker.engine.roster.clients["slow"].account.lost_volume.messages == 6)
            raw.send_command({"c": "unsubscribe", "id": "s"})
            await raw.read_until("processed")
            entry = await entry_of(broker, "slow")
            assert entry.gone == {"discarded": 6, "kept_in_log": 3}
            assert (entry.matched_messages, entry.lost_messages) == (9, 6) and not entry.in_flight_messages
            raw.close()
