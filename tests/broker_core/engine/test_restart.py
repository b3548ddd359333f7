"""A broker with clients in every state is stopped and restarted: no acknowledged record is lost."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.delivery.lifecycle import ClientState
from broker_core.engine.enforcement import offline_client
from tests.support.brokers import address_of, running_broker, until
from tests.support.raw import RawClient

EACH = 25
"""Clients in each state."""
PADDING = b"x" * 200
STATES: dict[str, dict[str, Any]] = {
    "live": {},
    "offlined": {},
    "unjournaled": {"topic": "scratch.a"},
    "draining": {},
    "replaying": {"bookmark": "0", "ack": "client", "prefetch": 3},
    "paused": {"bookmark": "0", "paused": True},
    "falling": {"bookmark": "0|1|"},
    "durable": {"durable": "kept", "ack": "client", "prefetch": 1_000},
}


@contextmanager
def no_errors_logged() -> Iterator[None]:
    """Check that no exception and no error is logged inside the block."""
    with capture_logs() as logs:
        yield
    assert [line for line in logs if line["log_level"] in ("error", "critical") or "exc_info" in line] == []


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%06d" % number + PADDING for number in range(first, first + count)]


async def subscribed(broker: Broker) -> dict[str, RawClient]:
    raws = {}
    for state, options in STATES.items():
        for number in range(EACH):
            raw = raws[f"{state}-{number}"] = await RawClient.connect(broker, f"{state}-{number}")
            raw.send_command({"c": "subscribe", "id": "s", "topic": "a", **options})
            await raw.read_until("processed")
    return raws


async def test_two_hundred_clients_in_all_states(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with no_errors_logged():
        async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
            await writer.publish_many("a", bodies(0, 100))
            await writer.flush()
            raws = await subscribed(broker)
            connections = broker.engine.roster.clients
            for name, connection in connections.items():
                if name.startswith(("offlined", "unjournaled", "draining", "falling")):
                    await until(lambda one=connection: one.sink.is_writable)
                    connection.sink.is_writable = False
            for start in range(100, 200, 20):
                await writer.publish_many("a", bodies(start, 20))
                await writer.publish_many("scratch.a", bodies(start, 20))
                await writer.flush()
            for number in range(EACH):
                for state in ("offlined", "unjournaled", "draining"):
                    offline_client(broker.engine.enforcer, connections[f"{state}-{number}"])
                # Read in part, and said so in part.
                durable = raws[f"durable-{number}"]
                assert (await durable.deliveries(100))[0][:6] == b"000100"
                durable.send_command({"c": "ack", "id": "s", "upto": 1 + number})
            await until(
                lambda: all(
                    connections[f"durable-{number}"].account.acknowledged.messages == 1 + number
                    for number in range(EACH)
                )
            )
            await until(
                lambda: (
                    not any(
                        connections[f"falling-{number}"].subscriptions["s"].cursor.is_live
                        for number in range(EACH)
                    )
                )
            )
            assert sum(one.backlog.state is ClientState.OFFLINED for one in connections.values()) == 3 * EACH
            assert len(list((tmp_path / "spool").iterdir())) == EACH, (
                "references wait in memory, as long as they are few"
            )
            for number in range(EACH):
                draining = connections[f"draining-{number}"]
                draining.sink.is_writable = True
                draining.on_writable()
            await writer.publish_many("a", bodies(200, 50))  # on its way to the disk when the broker stops
        assert not list((tmp_path / "spool").iterdir())
        said = [json.loads(bytes(frame.payload)) for frame in await last_commands(raws["live-0"])]
        assert said[-1]["code"] == "shutting_down" and said[-1]["retry_after_ms"] > 0

    with no_errors_logged():
        async with running_broker(tmp_path) as broker:
            read = broker.engine.journal.read(1, 1 << 24, 1 << 40)
            stored = [record.body[:6] for batch in read for record in batch.records() if record.topic == "a"]
            assert stored[:200] == [b"%06d" % number for number in range(200)], "acknowledged"
            raws = await subscribed(broker)
            for number in range(EACH):
                # Behind what it had acknowledged, exactly.
                again = raws[f"durable-{number}"]
                assert (await again.deliveries(1))[0][:6] == b"%06d" % (100 + 1 + number)
            async with AsyncClient(address_of(broker), "writer") as writer:
                await writer.publish_many("a", bodies(900, 1))
                await writer.flush()
            assert (await raws["live-0"].deliveries(1))[0][:6] == b"000900"
            assert (await raws["replaying-0"].deliveries(3))[0][:6] == b"000000"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == [], "nor by asyncio"


async def last_commands(raw: RawClient) -> list[Any]:
    from broker_core.protocols.native import COMMAND

    found = []
    async with asyncio.timeout(10):
        while (frame := await raw.next_frame()) is not None:
            if frame.kind == COMMAND:
                found.append(frame)
    return found
