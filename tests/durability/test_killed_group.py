"""Two groups that share the topics; one is killed under load.

The other's topics continue, and no record is lost, doubled or out of order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from broker_core.client import (
    AsyncGroups,
    FileBookmarkStore,
    FilePublishStore,
    GroupConfig,
    GroupsSubscription,
    ReconnectPolicy,
)
from broker_core.config import PolicyDocument
from tests.support.broker_process import start_broker
from tests.support.brokers import tcp_policy, until

pytestmark = pytest.mark.slow
QUICK = ReconnectPolicy(first_delay=0.01, longest_delay=0.2)
TOPICS = ("prices.eu", "prices.us", "orders.eu", "orders.us")
KILLS = 3


def policy_of(name: str) -> PolicyDocument:
    """Return a policy with a port that stays the same over a restart."""
    policy = tcp_policy(name)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = int(held.getsockname()[1])
    return replace(policy, transports=(replace(policy.transports[0], port=port),))


class TopicPublishers:
    """Publishers of numbers to each topic, one task each, which count acknowledgements per group."""

    def __init__(self, client: AsyncGroups) -> None:
        self.client = client
        self.published = dict.fromkeys(TOPICS, 0)
        self.flushed = dict.fromkeys(TOPICS, 0)
        self.ends = False

    async def run(self, topic: str) -> None:
        group = self.client.clients[self.client.find_group(topic)]
        while not self.ends:
            for _ in range(50):
                self.published[topic] += 1
                await self.client.publish(topic, self.published[topic])
            number = self.published[topic]
            await group.flush()
            self.flushed[topic] = number


async def read(stream: GroupsSubscription, found: dict[str, list[int]]) -> None:
    async for message in stream:
        found[message.topic].append(int(message.text))
        stream.done(message)


async def wait_progress(load: TopicPublishers, topics: tuple[str, ...], found: dict[str, list[int]]) -> None:
    """Wait until 500 more records of each topic are acknowledged and received."""
    goal = {topic: load.flushed[topic] + 500 for topic in topics}
    await until(lambda: all(min(load.flushed[topic], len(found[topic])) >= goal[topic] for topic in topics))


async def killed_under_load(home: Path) -> None:
    policies = {"prices": policy_of("prices-1"), "orders": policy_of("orders-1")}
    processes = {name: start_broker(home / name, policy=policy)[0] for name, policy in policies.items()}
    groups = {
        name: GroupConfig(
            f"{name}.>",
            f"tcp://127.0.0.1:{policy.transports[0].port}",
            publish_store=FilePublishStore(home / f"{name}.unsent"),
            bookmark_store=FileBookmarkStore(home / f"{name}.marks"),
        )
        for name, policy in policies.items()
    }
    found: dict[str, list[int]] = defaultdict(list)
    async with AsyncGroups(groups, "desk", reconnect=QUICK) as client:
        load = TopicPublishers(client)
        reading = asyncio.create_task(read(await client.subscribe(">", bookmark="MOST_RECENT"), found))
        publishing = [asyncio.create_task(load.run(topic)) for topic in TOPICS]
        await wait_progress(load, TOPICS, found)
        for killed, other in (("prices", "orders"), ("orders", "prices")) * KILLS:
            process = processes[killed]
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            await until(lambda group=client.clients[killed]: not group.connected)
            stood = {topic: load.flushed[topic] for topic in TOPICS if topic.startswith(killed)}
            await wait_progress(load, (f"{other}.eu", f"{other}.us"), found)
            assert {topic: load.flushed[topic] for topic in stood} == stood, "acknowledged by nobody"
            processes[killed] = start_broker(home / killed, policy=policies[killed])[0]
            await wait_progress(load, TOPICS, found)
        load.ends = True
        await asyncio.gather(*publishing)
        await client.flush()
        await until(lambda: all(len(found[topic]) >= load.published[topic] for topic in TOPICS))
        assert not reading.done()
        reading.cancel()
        for topic in TOPICS:
            whole = list(range(1, load.published[topic] + 1))
            assert found[topic] == whole, f"{topic}: the subscriber"
            replayed = await client.subscribe(topic, bookmark="0", id=f"all of {topic}")
            assert [int(one.text) async for one in replayed.messages(until_completed=True)] == whole
    for process in processes.values():
        process.kill()
        process.join()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_the_others_topics_go_on_when_one_is_killed(run: object, tmp_path: Path) -> None:
    assert callable(run)
    run(killed_under_load(tmp_path))
