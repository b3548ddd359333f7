"""Delivered but unacknowledged messages count as backlog in limits, ages and diagnoses, also on a quiet
topic.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker_core.broker import Broker
from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with
from tests.support.steady_readers import SteadyReader, reading_steadily

BODY = b"x" * 1_000
ABORT = {
    "topic": ">",
    "abort_slow_consumer_strategy": True,
    "max_slow_duration": 1_000,
    "check_period": 500,
    "abort_connection": True,
}


def decided(broker: Broker) -> set[tuple[str, str]]:
    """Return (client, rule) of all decisions."""
    return {(one.client, one.rule) for one in broker.engine.decisions.recent}


async def subscriber(broker: Broker, name: str, **options: Any) -> RawClient:
    made = await RawClient.connect(broker, name)
    made.send_command({"c": "subscribe", "id": "s", "topic": "t", **options})
    await made.read_until("processed")
    return made


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ({"depth": 25_000}, "qpid.depth"),
        ({"message_count": 25}, "qpid.message_count"),
        ({"message_age": 700}, "qpid.message_age"),
    ],
    ids=["depth", "count", "age"],
)
async def test_qpids_limits_count_what_is_delivered_and_not_acknowledged(
    setting: dict[str, int], rule: str, tmp_path: Path
) -> None:
    """One client acknowledges nothing, and one has stopped reading: its messages lie in this host's kernel.

    A third client reads everything.
    """
    async with running_broker(tmp_path, policy_with(qpid=[{"topic": "#", **setting}])) as broker:
        silent = await subscriber(broker, "silent", ack="client", prefetch=200)
        well = await subscriber(broker, "well")
        with reading_steadily([SteadyReader(broker.statistics.transports[0]["port"], 0, 8_192)]) as (
            stopped,
        ):
            await until(lambda: stopped.name in broker.engine.roster.clients)
            feed = await RawClient.connect(broker, "feed")
            for _ in range(60):
                await feed.publish("t", [BODY])
                await well.deliveries(1)
                await asyncio.sleep(0.002)
            client = broker.engine.roster.clients.get(stopped.name)
            assert client is None or not client.account.waiting.messages, "all messages were sent"
            await until(lambda: decided(broker) >= {("silent", rule), (stopped.name, rule)}, 10)
            assert decided(broker) == {("silent", rule), (stopped.name, rule)}
            (observed,) = (one.observed for one in broker.engine.decisions.recent if one.client == "silent")
            # One message above the limit, in messages or in bytes of bodies.
            assert observed == {"depth": 26_000, "message_count": 26}.get(*setting, observed)
            silent.close()


async def test_activemqs_abort_closes_a_stopped_reader_with_and_without_a_window_and_on_a_quiet_topic(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, policy_with(activemq=[ABORT])) as broker:
        port = broker.statistics.transports[0]["port"]
        with reading_steadily([SteadyReader(port, 0, 8_192), SteadyReader(port, 20_000, 8_192)]) as (
            stopped,
            slow,
        ):
            wide = await subscriber(broker, "wide", ack="client", prefetch=32_000)
            wide._reader._transport.pause_reading()  # type: ignore[attr-defined]
            await until(lambda: len(broker.engine.roster.clients) == 3)
            feed = await RawClient.connect(broker, "feed")
            await feed.publish("t", [BODY] * 40)
            await until(lambda: (stopped.name, "activemq.max_slow_duration") in decided(broker), 10)
            assert len(decided(broker)) == 1, "the other clients read their messages"
            for _ in range(40):  # more than all buffers in between hold, and less than the window
                await feed.publish("t", [BODY * 10] * 20)
            await until(lambda: ("wide", "activemq.max_slow_duration.blocked") in decided(broker), 15)
            assert slow.name not in {name for name, _ in decided(broker)}
            wide.close()


async def test_an_application_that_hangs_with_room_in_its_window_is_named_so(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy_with()) as broker:
        hangs = await subscriber(broker, "hangs", ack="client", prefetch=100)
        feed = await RawClient.connect(broker, "feed")
        await feed.publish("t", [BODY] * 6)
        await hangs.deliveries(6)
        await asyncio.sleep(5.2)
        why = (await ask(broker, "client", name="hangs"))["why_slow"]
        assert why["cause"] == "application_hangs" and why["evidence"]["unacked_messages"] == 6
        hangs.close()
