"""Figures that rules read of a client cost the same for any number of subscriptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.subscription_queues import SubscriptionQueue
from broker_core.delivery.window import AckMode, AckWindow
from tests.broker_core.delivery.test_backlog_law import BacklogModel, FakeSubscriber
from tests.support.call_counts import count_calls


def figures(backlog: Backlog) -> tuple[int, ...]:
    return (
        backlog.nbytes,
        backlog.messages,
        backlog.owed_messages,
        backlog.owed_bytes,
        backlog.oldest_at,
        backlog.unacked_at,
        backlog.blocked_since,
    )


@pytest.mark.parametrize("windowed", [True, False])
async def test_a_thousand_subscriptions_are_read_as_one_is(windowed: bool, tmp_path: Path) -> None:
    """Each subscription has one message in flight and one waiting."""
    costs = []
    for number in (1, 1_000):
        scene = BacklogModel(tmp_path)
        backlog, scene.socket.room = scene.backlog, 1 << 20
        batch = Batch.parse(build_single_topic_batch("p", "t", [b"1"]))
        for stream in range(10, 10 + number):
            scene.socket.got[stream] = []
            if windowed:
                backlog.queues[stream] = SubscriptionQueue(stream, AckWindow(AckMode.CLIENT, 1))
            backlog.add_subscription(FakeSubscriber(stream))
        for moment in (5, 6):
            for stream in range(10, 10 + number):
                backlog.offer(OutboxEntry(stream, batch, None, None, 0, 1, batch.nbytes, moment))
            backlog.send()
            scene.socket.room = 0 if not windowed else scene.socket.room
        backlog.update_progress()
        assert figures(backlog) == (batch.nbytes * number, number, 2 * number, 2 * number, 6, 5, 1)
        costs.append(count_calls(lambda: figures(backlog)))  # noqa: B023
        backlog.close()
    assert costs[0] == costs[1]
