"""Qpid's slow consumers as seed 004 describes them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from broker_core.config.rule_terms import DecisionReason, PolicyAction
from broker_core.slow_clients.accounts.client_usage import ClientUsage, WatchedSubscription
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.wording import decision_sentence
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy
from tests.support.signals import SubscriptionSignals

STOCKS = {"topic": "stocks.us.*", "depth": 4_235_264, "message_age": 600_000, "message_count": 50}


def guarded_subscription(
    *topics: dict[str, Any], topic: str = "stocks.us.ibm", **subscription: Any
) -> tuple[SlowClientGuard, ClientUsage, WatchedSubscription]:
    made = make_guard(policy(qpid=list(topics)))
    account = made.register("c", "tcp", FixedBacklog(START))
    return made, account, made.subscribe(account, SubscriptionSignals("s1", topic, **subscription))


def decisions_for(
    made: SlowClientGuard, account: ClientUsage, one: WatchedSubscription, **figures: int
) -> Decision | None:
    for name, value in figures.items():
        setattr(one.view, name, value)
    if one.is_over_alarm:
        return next(iter(made.judge_subscription(account, one, START)), None)
    return next(iter(made.tick(START)), None)


@pytest.mark.parametrize(
    ("figures", "setting"),
    [
        ({"backlog_bytes": 4_235_265}, "depth"),
        ({"backlog_messages": 51}, "messageCount"),
        ({"oldest_at": START - 600_001 * 1_000_000}, "messageAge"),
    ],
)
def test_any_one_of_the_three_ends_the_session_with_506(figures: dict[str, int], setting: str) -> None:
    made, account, one = guarded_subscription(STOCKS)
    decision = decisions_for(made, account, one, **figures)
    assert decision is not None and account.is_closing
    assert (decision.action, decision.reason, decision.setting) == (
        PolicyAction.DISCONNECT,
        DecisionReason.RESOURCE_ERROR,
        setting,
    )
    assert decision_sentence(decision).startswith("506 resource error. Client c was disconnected: ")
    assert decision.topic == "stocks.us.ibm"


def test_at_all_three_limits_nothing_happens() -> None:
    """A count of 10 and a depth of 1024 allow 10 messages as long as they aren't more than 1024 bytes."""
    made, account, one = guarded_subscription({"topic": "#", "depth": 1_024, "message_count": 10})
    assert decisions_for(made, account, one, backlog_bytes=1_024, backlog_messages=10) is None
    assert decisions_for(made, account, one, backlog_bytes=1_025, backlog_messages=2) is not None


def test_other_topics_are_left_alone() -> None:
    made, account, one = guarded_subscription(STOCKS, topic="stocks.uk.bp")
    assert decisions_for(made, account, one, backlog_messages=10**6) is None


def test_the_most_specific_key_wins_field_by_field() -> None:
    _, _, one = guarded_subscription(
        {"topic": "#", "message_count": 9, "depth": 90},
        {"topic": "stocks.us.ibm", "message_count": 5},
        STOCKS | {"message_count": 7},
    )
    assert (one.alarm_messages, one.alarm_bytes) == (5, 4_235_264)


def test_durable_subscriptions_are_retained_and_reported_to_operators() -> None:
    made, account, one = guarded_subscription(STOCKS, durable=True, name="book")
    decision = decisions_for(made, account, one, backlog_messages=51)
    assert decision is not None and decision.action is PolicyAction.NOTIFY and not account.is_closing
    assert decision.lost == 0 and made.tick(START + SECOND) == [], "told once"


def test_delete_persistent_deletes_them() -> None:
    confirmed = STOCKS | {"delete_persistent": True, "confirm_delete": True}
    made, account, one = guarded_subscription(confirmed, durable=True, name="book")
    decision = decisions_for(made, account, one, backlog_messages=51)
    assert decision is not None and decision.action is PolicyAction.DELETE_DURABLE and account.is_closing
    made, account, one = guarded_subscription(confirmed)
    decision = decisions_for(made, account, one, backlog_messages=51)
    assert decision is not None and decision.action is PolicyAction.DISCONNECT


def test_the_age_is_a_duration_on_a_real_clock_and_not_a_moment() -> None:
    """Trap 4: the historic plug-in compared the arrival's moment with a duration, so any limit was passed at
    once.
    """
    made, _, one = guarded_subscription({"topic": "#", "message_age": 60_000})
    now = time.time_ns()
    assert isinstance(one.view, SubscriptionSignals)
    one.view.oldest_at, one.view.backlog_messages = now, 1
    assert made.tick(now) == [] and made.tick(now + 60 * SECOND) == []
    (decision,) = made.tick(now + 61 * SECOND)
    assert (decision.observed, decision.limit) == (61_000, 60_000)
