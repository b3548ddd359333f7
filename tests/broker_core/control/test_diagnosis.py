"""Diagnosis in a client's entry: why it is behind, what is forecast, and what was discarded."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from broker_core.client import AsyncClient
from broker_core.control.diagnosis import ClientDiagnostics
from broker_core.control.subscription_stats import SubscriptionStatsReader
from broker_core.delivery.lifecycle import ClientState
from broker_core.documents.clients import VerdictEntry
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule


async def test_a_client_that_keeps_up_needs_no_explanation(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "reader") as reader:
        await reader.subscribe("t")
        entry = await ask(broker, "client", name="reader")
        assert entry["why_slow"] is None and entry["forecast"] is None and entry["last_decision"] is None


async def test_one_that_does_not_acknowledge_is_said_to_acknowledge_slowly(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "slow")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
        await raw.read_until("processed")
        await writer.publish_many("t", [b"x"] * 5)
        await writer.flush()
        lane = broker.engine.roster.clients["slow"].backlog.lanes[1]
        await until(lambda: lane.full_since and broker.engine.clock.now_ns() - lane.full_since > 5_000_000)
        entry = await ask(broker, "client", name="slow")
        assert entry["why_slow"]["cause"] == "slow_acks"
        assert (entry["unacked_messages"], entry["lag_messages"], entry["matched_messages"]) == (2, 3, 5)
        (subscription,) = entry["subscriptions"]
        assert (subscription["ack"], subscription["prefetch"], subscription["unacked_messages"]) == (
            "client",
            2,
            2,
        )
        raw.close()


async def test_a_busy_loop_and_a_busy_disk_are_said_to_be_ours(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        await writer.publish_many("t", [b"x"] * 5)
        await writer.flush()
        raw = await RawClient.connect(broker, "slow")
        held, reader, clock = threading.Event(), broker.engine.reader, broker.engine.clock
        reading = reader.run(held.wait)  # the disk is at somebody else's
        raw.send_command(
            {"c": "subscribe", "id": "s", "topic": "t", "bookmark": "0", "ack": "client", "prefetch": 2}
        )
        await until(lambda: reader.pending == 2)
        asked_at = clock.monotonic_ms()
        await until(lambda: clock.monotonic_ms() - asked_at > 200)
        held.set()
        await reading
        await raw.deliveries(2)
        why = (await ask(broker, "client", name="slow"))["why_slow"]
        assert why["cause"] == "disk_busy" and why["evidence"]["disk_ms"] >= 200
        loop, over = asyncio.get_running_loop(), threading.Event()

        def hog() -> None:
            time.sleep(0.3)
            if not over.is_set():
                loop.call_soon(hog)

        hog()
        why = (await ask(broker, "client", name="slow"))["why_slow"]
        over.set()
        assert why["cause"] == "broker_busy" and why["evidence"]["loop_late_ms"] >= 250
        raw.close()


async def test_in_a_crowd_an_explanation_is_kept_for_five_seconds_and_no_longer_than_the_state(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "slow")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
        await raw.read_until("processed")
        await writer.publish_many("t", [b"x"] * 5)
        await writer.flush()
        slow, explaining, now = (
            broker.engine.roster.clients["slow"],
            ClientDiagnostics(broker.engine),
            broker.engine.clock.now_ns(),
        )
        figures = dict(
            SubscriptionStatsReader(
                broker.engine.journal, broker.engine.frontier, broker.engine.subscriptions.registry
            ).read_client(slow)
        )

        def why(at: int, crowded: bool = True) -> VerdictEntry | None:
            return explaining.diagnose(slow, figures, at, crowded).why_slow

        first = why(now)
        later = now + 4_999_000_000
        assert first is not None and why(later) is first
        assert why(now + 5_000_000_000) is not first
        second = why(later, crowded=False)
        assert second is not first, "asked for one client, it is made anew"
        slow.backlog.state = ClientState.OFFLINED
        assert why(later) is not second
        slow.backlog.state = ClientState.LIVE
        explaining.forget({})
        assert why(later) is not second
        raw.close()


async def test_a_decision_is_in_the_client_s_entry_with_what_it_lost(tmp_path: Path) -> None:
    policy = policy_with(rule("discard_oldest", 3))
    async with (
        running_broker(tmp_path, policy) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        raw = await RawClient.connect(broker, "slow")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
        await raw.read_until("processed")
        await writer.publish_many("t", [b"x"] * 9)
        await until(
            lambda: (
                broker.engine.roster.clients["slow"].account.lost_volume.messages
                and broker.engine.decisions.made
            )
        )
        entry = await ask(broker, "client", name="slow")
        assert entry["last_decision"]["action"] == "discard_oldest"
        # Two are delivered and not acknowledged: they count in the backlog, of which three may stay.
        assert (entry["lost_messages"], entry["lag_messages"]) == (6, 1)
        assert entry["subscriptions"][0]["lost_messages"] == 6
        raw.close()
