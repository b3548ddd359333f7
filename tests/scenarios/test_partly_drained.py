"""A client that drains part of its spool and stops again.

Sent entries are returned to its pool, the rest waits, and no record is sent twice.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.spool import file_queue
from tests.support.brokers import running_broker, tcp_policy, until
from tests.support.raw import RawClient
from tests.support.stalled import StalledSubscriber

RECORDS = 12_000
"""More than the kernel's buffers take at once, several times over."""
PART = 64 * 1024


def in_step(broker: Broker) -> bool:
    """Return whether guard and pool have the spool's real size."""
    use, backlog = broker.engine.guard.find_usage("slow"), broker.engine.roster.clients["slow"].backlog
    assert use is not None
    return use.disk == backlog.spool_bytes == use.pool.disk_used


async def test_what_has_left_a_spool_is_its_pools_again_while_the_rest_waits_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_queue, "PART_BYTES", PART)
    policy = tcp_policy(message_memory_limit=200_000, message_disk_limit=100_000_000)
    policy = replace(policy, instance=replace(policy.instance, unjournaled_topics=("t",)))
    async with running_broker(tmp_path, policy) as broker:
        slow, feed = (
            await StalledSubscriber.connect(broker, "slow", "t"),
            await RawClient.connect(broker, "feed"),
        )
        published = 0

        async def publish(number: int) -> None:
            nonlocal published
            for _ in range(0, number, 50):
                numbers = range(published, published + 50)
                await feed.publish("t", [b"%08d" % one + bytes(1_500) for one in numbers], published + 1)
                published += 50

        await publish(RECORDS)
        client = broker.engine.roster.clients["slow"]
        use = broker.engine.guard.find_usage("slow")
        assert use is not None
        await until(lambda: client.account.matched.messages == RECORDS and in_step(broker))
        assert client.backlog.state is ClientState.OFFLINED and use.disk > 10 * PART
        got = list[int]()
        for _ in range(2):
            before = use.disk
            while use.disk > before - 2 * PART:
                got += await slow.read_numbers(50)
            assert 0 < use.disk < before, "a part of the spool was sent, and the rest is retained"
            assert client.backlog.state in (ClientState.DRAINING, ClientState.OFFLINED)
            await until(lambda: in_step(broker))
            await publish(100)
        while len(got) < published:
            got += await slow.read_numbers(1)
        assert got == list(range(published))
        await until(lambda: client.backlog.state is ClientState.LIVE and use.disk == 0 and in_step(broker))
        feed.close()
