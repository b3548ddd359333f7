"""Quotas on topics: temporary topics count for their owner, and idle ones do not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker_core.config import PolicyDocument
from broker_core.connections import quotas
from broker_core.connections.quotas import RecentTopics
from tests.support.brokers import running_broker, tcp_policy, until
from tests.support.stomp_client import stomp_client, stomp_policy


def limited(**limits: int) -> PolicyDocument:
    return stomp_policy(PolicyDocument.from_dict({**tcp_policy().to_dict(), "quotas": [limits]}))


async def test_answers_to_temporary_topics_do_not_count_for_the_responder(tmp_path: Path) -> None:
    policy = limited(client_topics=3, user_topics=6)
    async with running_broker(tmp_path, policy) as broker, stomp_client(broker) as responder:
        await responder.send_with_receipt("SUBSCRIBE", id="1", destination="/topic/ask")
        for number in range(12):
            async with stomp_client(broker, client_id=f"asker{number}") as asker:
                asker.send("SEND", b"?", destination="/topic/ask", reply_to="/temp-queue/r")
                reply_to = (await responder.read()).headers["reply-to"]
                await responder.send_with_receipt("SEND", b"!", destination=reply_to)
                assert (await asker.read()).body == b"!"
            await until(lambda name=f"asker{number}": name not in broker.engine.roster.clients)
        (usage,) = broker.engine.quotas._users.values()
        assert not usage.temporary_topics and not broker.engine.quotas._temporary_topics


async def test_temporary_topics_count_for_their_owner(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limited(client_topics=3)) as broker, stomp_client(broker) as asker:
        for number in range(2):
            await asker.send_with_receipt("SEND", destination="/topic/ask", reply_to=f"/temp-queue/{number}")
        asker.send("SEND", destination="/topic/ask", reply_to="/temp-queue/2", receipt="r")
        error = await asker.read_error()
        assert (error.headers["message"], error.headers["x-sluice-quota"]) == ("over_quota", "client_topics")
        assert b"leaves the count" in error.body


async def test_idle_topics_leave_the_count(tmp_path: Path, monkeypatch: Any) -> None:
    now = [1_000_000_000_000]
    async with running_broker(tmp_path, limited(client_topics=2)) as broker, stomp_client(broker) as client:
        monkeypatch.setattr(broker.engine.quotas, "_now", lambda: now[0])
        for number in range(8):
            await client.send_with_receipt("SEND", destination=f"/topic/t{number}")
            await client.send_with_receipt("SEND", destination="/topic/always")
            now[0] += 2 * quotas.TOPIC_IDLE_NS


def test_a_topic_counts_for_one_to_two_intervals() -> None:
    topics = RecentTopics()
    topics.begin_interval(10)
    topics.add({"a", "b"})
    topics.begin_interval(11)
    assert len(topics) == 2 and topics.count_new({"a", "c"}) == 1
    topics.add({"a"})
    assert len(topics) == 2
    topics.begin_interval(12)
    assert (topics.current, topics.previous) == (set(), {"a"})
    topics.begin_interval(20)
    assert len(topics) == 0
