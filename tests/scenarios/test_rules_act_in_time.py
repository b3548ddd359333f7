"""Time from crossing a limit to the action, on real clocks: at most the worst case that the decision
states.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from broker_core.client import AsyncClient
from broker_core.documents.system_records import DecisionEntry
from tests.support.brokers import address_of, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with

pytestmark = pytest.mark.serial
NOTIFY = [{"action": "notify"}]
LOOKS = 6
"""Maximum number of checks that a decision needs here; each can be as late as the loop."""


async def watch(late: list[float]) -> None:
    """Record how late the loop runs, in ms.

    On a machine without spare CPU, the checks are as late as this task.
    """
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.02)
        late.append((time.monotonic() - before) * 1_000 - 20)


async def decided(tmp_path: Path, *rules: dict[str, Any], **presets: Any) -> tuple[DecisionEntry, int, float]:
    """Return the first decision about a client whose window of two stays full.

    The third and fourth message wait for it. Also returned: the earliest publish time, and the latest time
    that counts on this machine, in ms.
    """
    policy = policy_with(*rules, **presets)
    async with (
        running_broker(tmp_path, policy) as broker,
        AsyncClient(address_of(broker), "writer") as writer,
    ):
        slow = await RawClient.connect(broker, "slow")
        slow.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
        await slow.read_until("processed")
        late = [0.0]
        watching = asyncio.create_task(watch(late))
        before = time.time_ns() // 1_000_000
        for number in range(4):
            await writer.publish_many("t", [b"%d" % number])
        await writer.flush()
        after = time.time_ns() // 1_000_000
        await until(lambda: broker.engine.decisions.recent)
        decision = broker.engine.decisions.recent[0]
        watching.cancel()
        slow.close()
    return decision, before, after + 50 + LOOKS * max(late)


@pytest.mark.parametrize(
    ("settings", "crosses_after_ms"),
    [
        ({"signal": "oldest_age", "limit": 400}, 400),
        ({"signal": "oldest_age", "limit": 200, "shape": "soft_for", "hold_ms": 1_200}, 200),
        ({"signal": "unacked_messages", "limit": 1, "scope": {"topic": "t"}}, 0),
        ({"signal": "window_full", "limit": 300}, 300),
        ({"signal": "backlog_messages", "limit": 1, "scope": {"topic": "t"}}, 0),
    ],
    ids=["age", "age for a while", "unacknowledged", "window full", "backlog of a subscription"],
)
async def test_within_the_stated_worst_case(
    settings: dict[str, Any], crosses_after_ms: int, tmp_path: Path
) -> None:
    decision, before, after = await decided(tmp_path, {"name": "r", "ladder": NOTIFY, **settings})
    assert (decision.rule, decision.client, decision.action) == ("r", "slow", "notify")
    assert decision.at >= before + crosses_after_ms + decision.hold_ms, "the action must not come early"
    assert decision.at <= after + crosses_after_ms + decision.worst_case_ms


async def test_xaps_defaults_cancel_a_client_that_takes_nothing(tmp_path: Path) -> None:
    decision, before, after = await decided(tmp_path, xap=[{"enabled": True}])
    assert (decision.rule, decision.action) == ("xap.throughput", "cancel_subscription")
    assert before + 500 <= decision.at <= after + decision.worst_case_ms
    assert decision.observed < 5_000


async def test_activemqs_abort_ends_the_subscription_after_its_duration_at_the_next_check(
    tmp_path: Path,
) -> None:
    entry = {
        "topic": ">",
        "abort_slow_consumer_strategy": True,
        "max_slow_duration": 500,
        "check_period": 2_000,
    }
    decision, before, after = await decided(tmp_path, activemq=[entry])
    assert (decision.setting, decision.action, decision.subscription) == (
        "maxSlowDuration",
        "cancel_subscription",
        "s",
    )
    assert before + 500 <= decision.at <= after + 500 + decision.worst_case_ms


async def test_qpids_count_ends_the_connection_with_506_at_once(tmp_path: Path) -> None:
    decision, before, after = await decided(tmp_path, qpid=[{"topic": "#", "message_count": 1}])
    assert (decision.setting, decision.action) == ("messageCount", "disconnect")
    assert decision.sentence.startswith("506 resource error. ") and decision.worst_case_ms == 0
    assert before <= decision.at <= after
