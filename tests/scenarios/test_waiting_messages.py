"""A rule on `waiting_messages` sees what a reader of the log has not been sent, as its entry counts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import NOW
from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with
from tests.support.stalled import StalledSubscriber

MESSAGES, LIMIT, BODY = 600, 200, b"x" * 4_000
NOTIFY = [{"action": "notify"}]


async def publish_more(feed: RawClient, number: int) -> None:
    for start in range(0, number, 20):
        await feed.publish("t", [b"%08d %s" % (start + n, BODY) for n in range(20)])
    feed.send_command({"c": "flush", "id": "f"})
    await feed.read_until("completed")


def decisions_on(broker: Broker, client: str) -> set[tuple[str, str]]:
    return {(one.rule, one.reason) for one in broker.engine.decisions.recent if one.client == client}


@pytest.mark.parametrize("scope", [{}, {"topic": "t"}], ids=["of clients", "of subscriptions"])
async def test_a_reader_of_the_log_that_stops_is_acted_on_by_what_waits_in_the_log(
    tmp_path: Path, scope: dict[str, str]
) -> None:
    rules = [
        {"name": signal, "signal": signal, "limit": LIMIT, "ladder": NOTIFY, "scope": scope}
        for signal in ("waiting_messages", "backlog_messages")
    ]
    async with running_broker(tmp_path, policy_with(*rules)) as broker:
        reader = await StalledSubscriber.connect(broker, "reader", "t", bookmark=NOW)
        feed = await RawClient.connect(broker, "feed")
        await until(lambda: broker.engine.roster.clients["reader"].subscriptions["s"].cursor.is_live)
        await publish_more(feed, MESSAGES)
        await until(lambda: decisions_on(broker, "reader"))
        assert decisions_on(broker, "reader") == {("waiting_messages", "slow_client_backlog")}
        (decision,) = [one for one in broker.engine.decisions.recent if one.client == "reader"]
        assert f"it hasn't been sent {decision.observed:,} messages, over " in decision.sentence
        (entry,) = [one for one in await ask(broker, "clients") if one["name"] == "reader"]
        (forecast,) = [
            one
            for one in await ask(broker, "forecasts", name="reader")
            if one["signal"] == "waiting_messages"
        ]
        assert LIMIT < decision.observed <= entry["waiting_messages"] == forecast["value"] < MESSAGES
        assert len(await reader.read_bodies(MESSAGES)) == MESSAGES
        use = broker.engine.guard.find_usage("reader")
        await until(lambda: use is not None and use.waiting_messages == 0)


async def test_a_pause_that_outgrows_the_limit_is_acted_on_again_after_it_was_read(tmp_path: Path) -> None:
    rule = {"name": "r", "signal": "waiting_messages", "limit": LIMIT, "ladder": NOTIFY}
    async with running_broker(tmp_path, policy_with(rule)) as broker:
        reader, feed = await RawClient.connect(broker, "reader"), await RawClient.connect(broker, "feed")
        reader.send_command({"c": "subscribe", "id": "s", "topic": "t", "bookmark": NOW})
        await reader.read_until("completed")
        decisions = broker.engine.decisions.recent
        for number in (1, 2):
            reader.send_command({"c": "pause", "ids": ["s"]})
            await until(lambda: broker.engine.roster.clients["reader"].subscriptions["s"].is_paused)
            await publish_more(feed, LIMIT)
            assert len(decisions) == number - 1, "a backlog equal to the limit does not exceed it"
            await publish_more(feed, 20)
            await until(lambda: len(decisions) == number)  # noqa: B023 (awaited here)
            assert decisions[-1].observed == LIMIT + 20
            reader.send_command({"c": "resume", "ids": ["s"]})
            assert len(await reader.deliveries(LIMIT + 20)) == LIMIT + 20
            await until(lambda: not broker.engine.guard.find_usage("reader").rule_states)  # type: ignore[union-attr]
