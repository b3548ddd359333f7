"""Writes to a client that does not read are coalesced into chunks.

This costs others little, and the client nothing when it reads again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.connections.connection import Connection
from broker_core.delivery.backlog import COALESCE_BYTES
from broker_core.delivery.sink import MIN_OBSERVED_BYTES
from tests.support.brokers import address_of, running_broker, until
from tests.support.stalled import StalledSubscriber


class SendCounter:
    """Counts writes to a client."""

    def __init__(self, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        hand: Any = connection.sink.send_entries

        def send(entries: Sequence[Any]) -> Any:
            self.times += 1
            return hand(entries)

        monkeypatch.setattr(connection.sink, "send_entries", send)


async def publish_numbered(client: AsyncClient, number: int, *, first: int, size: int = 100) -> int:
    """Publish messages in event-loop iterations of their own; return the next number."""
    for count in range(first, first + number):
        await client.publish("a", b"%08d" % count + b"x" * size)
        await client.flush()
    return first + number


async def publish_until_idle(broker: Broker, connection: Connection, client: AsyncClient, first: int) -> int:
    """Publish until the broker finds that the client does not read."""
    resting = broker.engine.policy_loop._not_reading
    async with asyncio.timeout(20):
        while connection not in resting:
            first = await publish_numbered(client, 1, first=first, size=MIN_OBSERVED_BYTES // 8)
            await asyncio.sleep(0.005)
    return first


async def _check_chunked_writes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running_broker(home) as broker,
        AsyncClient(address_of(broker), "good") as good,
    ):
        stalled = await StalledSubscriber.connect(broker, "stalled", "a")
        mine = await good.subscribe("a")
        connection, healthy = (broker.engine.roster.clients[name] for name in ("stalled", "good"))
        first = await publish_until_idle(broker, connection, good, 0)
        assert healthy not in broker.engine.policy_loop._not_reading
        # Many that come while its turn hasn't: nothing is written for it, and the other has each at once.
        told, others = SendCounter(connection, monkeypatch), SendCounter(healthy, monkeypatch)
        monkeypatch.setattr(broker.engine.policy_loop, "_check_nonreading_client", lambda _: None)
        await asyncio.sleep(0)
        number = COALESCE_BYTES // 1_000
        after = await publish_numbered(good, number // 2, first=first)
        assert (told.times, others.times) == (0, number // 2)
        waits = connection.backlog.account.waiting.messages
        assert waits >= number // 2  # in its account as what it is
        monkeypatch.undo()
        # It reads again: all, once, in order, also what waited, and it is no longer one of those.
        assert await stalled.read_numbers(after) == list(range(after))
        assert await _check_normal_writes(broker, connection, good, stalled, after)
        async for message in mine:
            if int(message.body[:8]) == after - 1:
                break


async def _check_normal_writes(
    broker: Broker, connection: Connection, client: AsyncClient, stalled: StalledSubscriber, first: int
) -> bool:
    async with asyncio.timeout(20):
        while connection in broker.engine.policy_loop._not_reading:
            following = await publish_numbered(client, 1, first=first)
            assert await stalled.read_numbers(1) == [first]
            first = following
    return True


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_comes_for_who_reads_nothing_waits_for_a_lump_and_is_all_there_when_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: Any
) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(_check_chunked_writes(tmp_path, monkeypatch))


async def test_a_lump_is_handed_over_and_counted_by_policy_at_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "good") as good:
        stalled = await StalledSubscriber.connect(broker, "stalled", "a")
        connection = broker.engine.roster.clients["stalled"]
        await publish_until_idle(broker, connection, good, 0)
        use = broker.engine.guard.find_usage("stalled")
        assert use is not None
        for _ in range(40):  # more than its socket takes
            await good.publish("a", b"x" * COALESCE_BYTES)
            await good.flush()
            assert connection.backlog.nbytes - use.memory < COALESCE_BYTES
        assert use.memory > COALESCE_BYTES
        assert (await stalled.read_numbers(1))[0] == 0


async def test_a_client_that_disconnects_while_idle_is_removed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "good") as good:
        stalled = await StalledSubscriber.connect(broker, "stalled", "a")
        connection = broker.engine.roster.clients["stalled"]
        await publish_until_idle(broker, connection, good, 0)
        connection.close("operator_disconnect", "gone")
        await until(lambda: "stalled" not in broker.engine.roster.clients)
        assert not broker.engine.policy_loop._not_reading
        assert (await stalled.read_commands())[-1]["c"] == "closing"
