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
from tests.support.manual_clock import ManualClock
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
        lane = broker.engine.roster.clients["slow"].backlog.queues[1]
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

        clock = explaining._clock = ManualClock(now)

        def why(crowded: bool = True) -> VerdictEntry | None:
            return explaining.diagnose(slow, figures, clock.now_ns(), crowded).why_slow

        first = why()
        clock.advance(4.999)
        assert first is not None and why() is first
        clock.advance(0.001)
        second = why()
        assert second is not first
        third = why(crowded=False)
        assert third is not second, "asked for one client, it is made anew"
        slow.backlog.state = ClientState.OFFLINED
        assert why() is not third
        slow.backlog.state = ClientState.LIVE
        explaining.drop_disconnected({})
        assert why() is not third
        raw.close()


async def test_rates_and_verdicts_survive_a_wall_clock_that_is_set_back(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        raw = await RawClient.connect(broker, "slow")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
        await raw.read_until("processed")
        await writer.publish_many("t", [b"x"] * 5)
        await writer.flush()
        slow, explaining = broker.engine.roster.clients["slow"], ClientDiagnostics(broker.engine)
        clock = explaining._clock = ManualClock(broker.engine.clock.now_ns())
        (figures,) = dict(
            SubscriptionStatsReader(
                broker.engine.journal, broker.engine.frontier, broker.engine.subscriptions.registry
            ).read_client(slow)
        ).values()

        def rates(lag_bytes: int) -> tuple[int, int]:
            """Rates over the next ten seconds, in which so many bytes arrive and none is read."""
            read = {"s": figures._replace(lag_bytes=lag_bytes)}
            evidence = explaining._evidence(slow, read, clock.now_ns())
            clock.advance(10)
            return evidence.taken_rate, evidence.arrival_rate

        assert [rates(0), rates(10_000)] == [(0, 0), (0, 1_000)]
        clock.set_back(3_600)
        assert [rates(20_000), rates(30_000)] == [(0, 1_000), (0, 1_000)]
        before = explaining.diagnose(slow, {"s": figures}, clock.now_ns(), crowded=True).why_slow
        clock.set_back(3_600)
        clock.advance(6)
        after = explaining.diagnose(slow, {"s": figures}, clock.now_ns(), crowded=True).why_slow
        assert after is not before, "a verdict is renewed after five seconds, whatever the wall clock says"
        raw.close()


async def test_rates_of_a_client_start_again_with_its_next_connection(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        explaining = ClientDiagnostics(broker.engine)
        raw = await RawClient.connect(broker, "slow")
        first = broker.engine.roster.clients["slow"]
        meter = explaining._meter_for(first)
        assert explaining._meter_for(first) is meter
        again = await RawClient.connect(broker, "slow")
        second = broker.engine.roster.clients["slow"]
        assert second is not first and explaining._meter_for(second) is not meter
        explaining.drop_disconnected(broker.engine.roster.clients)
        assert list(explaining._meters) == ["slow"]
        explaining.drop_disconnected({})
        assert not explaining._meters
        raw.close()
        again.close()


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
                and broker.engine.decisions.total
            )
        )
        entry = await ask(broker, "client", name="slow")
        assert entry["last_decision"]["action"] == "discard_oldest"
        # Two are delivered and not acknowledged: they count in the backlog, of which three may stay.
        assert (entry["lost_messages"], entry["lag_messages"]) == (6, 1)
        assert entry["subscriptions"][0]["lost_messages"] == 6
        raw.close()
