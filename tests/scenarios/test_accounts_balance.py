"""A long random run against a real broker: every message is delivered, in the ledger, or queued.

At most 20 s.

Clients with and without windows are offlined, discarded from, cancelled and dropped, under several rules at
once. Received messages are compared with the broker's figures.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.errors import SluiceError
from tests.support.brokers import address_of, running_broker, until
from tests.support.rules import policy_with, rule

SECONDS = 3.0
CLIENTS = 6


class RandomReader:
    """A client that reads at random times and counts."""

    def __init__(self, client: AsyncClient, chance: random.Random) -> None:
        self.client, self.chance = client, chance
        self.received = 0
        self.task: asyncio.Task[None] | None = None

    async def run(self, topic: str, **options: Any) -> None:
        subscription = await self.client.subscribe(topic, **options)
        with suppress(SluiceError):
            async for batch in subscription.batches():
                self.received += batch.count
                if options.get("ack"):
                    subscription.ack()
                if self.chance.random() < 0.2:
                    await asyncio.sleep(self.chance.random() / 5)


def balance(broker: Broker, name: str) -> tuple[int, int]:
    """Return the matched volume and the sum of its parts."""
    connection = broker.engine.roster.clients[name]
    account, spool = connection.account, connection.backlog.spool
    queued = connection.backlog.messages + (spool.messages if spool is not None else 0)
    return account.matched.messages, sum(
        one.messages for one in (account.acknowledged, account.in_flight, account.discarded_volume)
    ) + queued


async def publish(writer: AsyncClient, chance: random.Random) -> int:
    """Publish bursts to a journaled and an unjournaled topic; return the number of messages per topic."""
    number, end = 0, asyncio.get_running_loop().time() + SECONDS
    while asyncio.get_running_loop().time() < end:
        count = chance.randint(1, 60)
        for topic in ("t", "scratch.t"):
            await writer.publish_many(
                topic, [b"%08d" % n + b"x" * 400 for n in range(number, number + count)]
            )
        number += count
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() / 20)
    await writer.flush()
    return number


async def test_every_message_of_a_random_run_is_delivered_in_the_ledger_or_queued(tmp_path: Path) -> None:
    chance = random.Random(20261121)
    rules = [
        rule("discard_oldest", 400, topic="scratch.t") | {"name": "discard"},
        rule("conflate", 300, topic="t") | {"name": "conflate"},
    ]
    policy = policy_with(*rules, pool={"message_memory_limit": 600_000})
    async with (
        running_broker(tmp_path, policy) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        readers = []
        for number in range(CLIENTS):
            reader = RandomReader(
                await AsyncClient(address_of(broker), f"r{number}", max_unread_bytes=20_000).start(), chance
            )
            options: dict[str, Any] = {"ack": "client", "prefetch": 50} if number % 2 else {}
            reader.task = asyncio.create_task(reader.run("t" if number % 3 else "scratch.t", **options))
            readers.append(reader)
        await until(
            lambda: all(len(broker.engine.roster.clients[f"r{n}"].subscriptions) == 1 for n in range(CLIENTS))
        )
        published = await publish(writer, chance)
        for _ in range(50):
            for number in range(CLIENTS):
                matched, accounted = balance(broker, f"r{number}")
                assert matched == accounted == published, f"r{number}"
            await asyncio.sleep(0.01)
        backlogs = [broker.engine.roster.clients[f"r{number}"].backlog for number in range(CLIENTS)]
        for reader in readers:
            reader.chance = random.Random(0)
        await until(lambda: all(not b.messages and b.offline is None for b in backlogs), 60)
        await until(
            lambda: [r.received for r in readers] == [b.account.delivered.messages for b in backlogs], 20
        )
        lost = sum(backlog.account.lost_volume.messages for backlog in backlogs)
        assert lost and broker.engine.ledger.messages == lost, (
            "the run must lose messages, otherwise it tests nothing"
        )
        for reader in readers:
            await reader.client.close()
            assert reader.task is not None
            reader.task.cancel()
