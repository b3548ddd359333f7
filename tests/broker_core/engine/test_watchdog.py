"""The watchdog finds clients that wait for a lost signal, and ignores clients that wait for a reason.

Its clock is manual. It watches a running broker with clients on sockets, in which one signal is lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.connections.connection import Connection
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.offline import SpoolDrain
from broker_core.engine.enforcement import offline_client
from broker_core.engine.enforcement import pause_subscription as pause_by_policy
from broker_core.engine.watchdog import MAX_STANDSTILL_MS, MIN_CHECKS, Watchdog, find_stall_reason
from broker_core.replay.replay import Replay
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.manual_clock import ManualClock
from tests.support.raw import RawClient


class WatchdogScenario:
    """A broker, one client, and a watchdog with a manual clock."""

    def __init__(self, broker: Broker, writer: AsyncClient, raw: RawClient) -> None:
        self.broker, self.writer, self.raw = broker, writer, raw
        self.clock = ManualClock()
        self.watchdog = Watchdog(replace(broker.engine.facilities, clock=self.clock), broker.engine.frontier)

    @property
    def connection(self) -> Connection:
        return self.broker.engine.roster.clients["reader"]

    def findings_after(self, number: int) -> int:
        """Check all clients once per second for `number` seconds; return the number of findings so far."""
        for _ in range(number):
            self.clock.advance(1)
            self.watchdog.note_shared_work()
            for connection in self.broker.engine.roster.clients.values():
                self.watchdog.check_client(connection)
        return self.watchdog.standstills

    async def subscribe(self, **options: Any) -> None:
        self.raw.send_command({"c": "subscribe", "id": "s", "topic": "a", **options})
        await self.raw.read_until("processed")

    async def publish(self, *bodies: bytes, topic: str = "a") -> None:
        await self.writer.publish_many(topic, list(bodies))
        await self.writer.flush()

    async def block_writes(self) -> None:
        """Mark the sink as not writable, as a transport with a full kernel buffer does."""
        await until(lambda: self.connection.sink.is_writable)
        self.connection.sink.is_writable = False


@asynccontextmanager
async def watchdog_scenario(tmp_path: Path) -> AsyncIterator[WatchdogScenario]:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        yield WatchdogScenario(broker, writer, await RawClient.connect(broker, "reader"))


async def test_a_socket_that_takes_more_and_never_said_so_is_found_logged_counted_and_set_going(
    tmp_path: Path,
) -> None:
    async with watchdog_scenario(tmp_path) as one:
        await one.subscribe()
        await one.block_writes()
        await one.publish(b"1", b"2")
        assert one.findings_after(MIN_CHECKS + 3) == 0, "it waits for its peer"
        one.connection.sink.is_writable = True
        with capture_logs() as logs:
            assert one.findings_after(MIN_CHECKS - 1) == 0, "not at once"
            assert one.findings_after(1) == 1
        (told,) = [line for line in logs if line["event"] == "delivery_stands_still"]
        assert (told["why"], told["client"], told["subscriptions"]["s"]["waiting"].messages) == (
            "outbox",
            "reader",
            2,
        )
        assert await one.raw.deliveries(2) == [b"1", b"2"]
        assert one.findings_after(5) == 1


async def test_the_brokers_own_watchdog_finds_it_within_seconds_and_the_status_says_so(
    tmp_path: Path,
) -> None:
    async with (
        running_broker(tmp_path, standstills=1) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        raw = await RawClient.connect(broker, "reader")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "a"})
        await raw.read_until("processed")
        sink = broker.engine.roster.clients["reader"].sink
        sink.is_writable = False
        await writer.publish_many("a", [b"1"])
        await writer.flush()
        sink.is_writable = True  # and `on_writable` is never called
        assert await raw.deliveries(1) == [b"1"]
        assert (await ask(broker, "status"))["totals"]["standstills"] == 1


async def test_a_draining_client_whose_chunk_never_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watchdog_scenario(tmp_path) as one:
        await one.subscribe()
        await one.block_writes()
        await one.publish(b"1")
        offline_client(one.broker.engine.enforcer, one.connection)
        assert one.findings_after(MIN_CHECKS + 3) == 0, "offlined, and its peer takes nothing"

        async def never(*_: object) -> list[Any]:
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(SpoolDrain, "_read", never)
        one.connection.sink.is_writable = True
        one.connection.on_writable()
        await until(lambda: one.connection.backlog.state is ClientState.DRAINING)
        assert one.findings_after(MIN_CHECKS) == 1
        one.connection.close("shutting_down", "")


async def test_what_waits_for_the_reader_thread_is_waited_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watchdog_scenario(tmp_path) as one:
        await one.publish(b"1")

        async def never(*_: object) -> bool:
            return bool(await asyncio.get_running_loop().create_future())

        monkeypatch.setattr(Replay, "_step", never)
        await one.subscribe(bookmark="0")
        monkeypatch.setattr(one.broker.engine.reader, "pending", 1)
        seconds = MAX_STANDSTILL_MS // 1_000
        assert one.findings_after(seconds) == 0
        assert one.findings_after(1) == 1, "a disk that hangs is no reason for ever"


async def test_a_replay_that_does_not_move_and_one_whose_task_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watchdog_scenario(tmp_path) as one:
        await one.publish(b"1")

        async def never(*_: object) -> bool:
            return bool(await asyncio.get_running_loop().create_future())

        with monkeypatch.context() as patched:
            patched.setattr(Replay, "_step", never)
            await one.subscribe(bookmark="0")
        assert one.findings_after(MIN_CHECKS + 3) == 1, "once, however long it stands"
        other = await RawClient.connect(one.broker, "other")
        other.send_command({"c": "subscribe", "id": "s", "topic": "a", "bookmark": "0", "managed": "kept"})
        assert await other.deliveries(1)
        target = one.broker.engine.roster.clients["other"].subscriptions["s"]
        replay = target.serving_replay
        assert isinstance(replay, Replay) and replay.task is not None
        assert one.findings_after(MIN_CHECKS + 3) == 1, "it follows what is new"
        replay.task.cancel()
        await until(replay.task.done)
        assert one.findings_after(MIN_CHECKS) == 2


async def test_held_back_records_whose_timer_is_gone_are_found_and_delivered(tmp_path: Path) -> None:
    async with watchdog_scenario(tmp_path) as one:
        await one.subscribe(conflation="50ms", conflation_key="/id")
        await one.publish(json.dumps({"id": 1}).encode())
        conflating = one.connection.subscriptions["s"].conflating
        assert conflating is not None and conflating.ends_at
        assert not find_stall_reason(one.connection)
        conflating._cancel_timer()
        assert one.findings_after(MIN_CHECKS) == 1
        assert len(await one.raw.deliveries(1)) == 1


async def test_no_bark_at_clients_that_wait_for_a_reason(tmp_path: Path) -> None:
    async with watchdog_scenario(tmp_path) as one:
        await one.publish(*(b"%d" % number for number in range(50)))
        subscriptions: dict[str, dict[str, Any]] = {
            "idle": {"topic": "a"},
            "live": {"bookmark": "0"},
            "range": {"bookmark": "[0:99991231T000000Z]"},
            "moment": {"bookmark": "99991231T000000Z"},
            "paced": {"bookmark": "0", "rate": "1"},
            "managed": {"bookmark": "0", "managed": "m"},
            "paused": {"bookmark": "0", "paused": True},
            "window": {"bookmark": "0", "ack": "client", "prefetch": 2},
            "durable": {"durable": "d"},
            "full": {"ack": "client", "prefetch": 1},
            "held": {"conflation": "1h", "conflation_key": "topic"},
            "replay_held": {"bookmark": "0", "conflation": "1h", "conflation_key": "topic"},
            "snapshot": {"snapshot_key": "topic"},
        }
        clients = {}
        for name, options in subscriptions.items():
            clients[name] = await RawClient.connect(one.broker, name)
            clients[name].send_command({"c": "subscribe", "id": "s", "topic": "a", **options})
            await clients[name].read_until("processed")
        connections = one.broker.engine.roster.clients
        await one.subscribe()
        pause_by_policy(one.connection, one.connection.subscriptions["s"])
        await one.publish(b"a", b"b", b"c")
        stopped = await RawClient.connect(one.broker, "stopped")
        stopped.send_command({"c": "subscribe", "id": "s", "topic": "a"})
        await stopped.read_until("processed")
        connections["stopped"].sink.is_writable = False
        await one.publish(b"d", b"e")
        offline_client(one.broker.engine.enforcer, connections["stopped"])
        await until(lambda: connections["live"].subscriptions["s"].cursor.is_live)
        await asyncio.sleep(0.3)
        for name, connection in connections.items():
            assert not find_stall_reason(connection), name
        assert one.findings_after(10) == 0
