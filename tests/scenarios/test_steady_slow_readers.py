"""Readers at a steady pace, with receive buffers of every size, under XAP's default limit of 5,000
bytes/s.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from broker_core.broker import Broker
from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with
from tests.support.steady_readers import SteadyReader, reading_steadily

pytestmark = pytest.mark.serial
ABOVE = (10_000, 20_000, 50_000, 100_000)
BUFFERS = (8_192, 32_768, 131_072, None)
SECONDS = 32
"""The floor's step of a default buffer lasts 26 s; the one below the floor is acted on 3 s later."""
PUBLISHED = 300_000
"""Bytes a second."""
BODY = b"x" * 5_000


async def publish(broker: Broker) -> None:
    """Publish steadily, more than any reader reads."""
    feed, began, sent = await RawClient.connect(broker, "feed"), time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began) * PUBLISHED / len(BODY)) - sent
        if due:
            await feed.publish("t", [BODY] * due)
            sent += due
        await asyncio.sleep(0.1)


async def verdicts(
    broker: Broker, names: list[str], found: dict[str, Counter[str]], healths: Counter[tuple[str, str]]
) -> None:
    """Count each reader's causes once a second, as an operator's page would, with the health beside each."""
    while True:
        for name in names:
            entry = await ask(broker, "client", name=name)
            why = entry["why_slow"]
            if why is not None:
                found.setdefault(name, Counter())[why["cause"]] += 1
                healths[why["cause"], entry["health"]] += 1
        await asyncio.sleep(1)


async def test_only_those_below_the_floor_are_acted_on_and_no_steady_reader_is_said_not_to_read(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, policy_with(xap=[{"enabled": True}])) as broker:
        port = broker.statistics.transports[0]["port"]
        steady = [SteadyReader(port, rate, buffer) for rate in ABOVE for buffer in BUFFERS]
        # With a small buffer these readers read everything, wait, and then receive one window of data.
        steady += [SteadyReader(port, 10_000, buffer, reads_a_second=1) for buffer in BUFFERS]
        below = [SteadyReader(port, 1_000, 8_192), SteadyReader(port, 1_000, None)]
        with reading_steadily([*steady, *below]):
            await until(lambda: len(broker.engine.roster.clients) == len(steady) + len(below))
            found: dict[str, Counter[str]] = {}
            healths: Counter[tuple[str, str]] = Counter()
            tasks = [
                asyncio.create_task(publish(broker)),
                asyncio.create_task(verdicts(broker, [one.name for one in steady], found, healths)),
            ]
            try:
                await asyncio.sleep(SECONDS)
            finally:
                for task in tasks:
                    task.cancel()
            acted_on = {decision.client for decision in broker.engine.decisions.recent}
    assert acted_on == {one.name for one in below}
    assert found.keys() == {one.name for one in steady}
    wrong = {
        name: causes
        for name, causes in found.items()
        if causes["not_reading"] or not 2 * causes["reading_slowly"] > causes.total()
    }
    assert not wrong
    said = {health for _, health in healths}
    assert "stalled" not in said, healths
    assert {cause for cause, health in healths if health == "keeps up"} <= {"keeps_up"}, healths
    assert healths["reading_slowly", "falling behind"] > healths.total() / 2, healths
