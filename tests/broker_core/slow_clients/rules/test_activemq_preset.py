"""ActiveMQ's slow consumers as seed 003 describes them."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.config.rule_terms import DecisionReason, PolicyAction
from broker_core.slow_clients.accounts.client_usage import ClientUsage, WatchedSubscription
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.wording import decision_sentence
from broker_core.slow_clients.rules.presets import ACTIVEMQ_DEFAULTS, checks_until_abort
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy
from tests.support.signals import SubscriptionSignals

GRID = START - START % (30 * SECOND)


def guarded_subscription(
    *entries: dict[str, Any], **subscription: Any
) -> tuple[SlowClientGuard, ClientUsage, WatchedSubscription]:
    made = make_guard(policy(activemq=list(entries)))
    account = made.register("c", "tcp", FixedBacklog(START))
    return made, account, made.subscribe(account, SubscriptionSignals("s1", "prices.usd", **subscription))


def figures(one: WatchedSubscription) -> SubscriptionSignals:
    assert isinstance(one.view, SubscriptionSignals)
    return one.view


def pend(
    made: SlowClientGuard, account: ClientUsage, one: WatchedSubscription, count: int
) -> Decision | None:
    """Let `count` messages wait for the subscription behind a full window; return the decision."""
    seen = figures(one)
    seen.unacked_messages, seen.outbox_messages = seen.prefetch, count
    seen.backlog_messages = seen.prefetch + count
    if seen.backlog_messages <= one.alarm_messages:
        return None
    return next(iter(made.judge_subscription(account, one, START)), None)


def keep_window_full(
    made: SlowClientGuard, one: WatchedSubscription, seconds: int, start: int = GRID + 7 * SECOND
) -> list[tuple[int, Decision]]:
    """Keep the window full from `start` on, with a tick of the guard each second."""
    seen = figures(one)
    seen.window_full_since, seen.unacked_messages = start, seen.prefetch
    seen.window_full_count += 1
    acts = []
    for second in range(seconds):
        acts += [(second, decision) for decision in made.tick(start + second * SECOND)]
    return acts


def test_by_default_everything_is_kept_and_nobody_is_aborted() -> None:
    made, account, one = guarded_subscription({"topic": ">"}, prefetch=10)
    assert not one.has_rules and pend(made, account, one, 10**6) is None
    assert keep_window_full(made, one, 200) == []


def test_a_constant_limit_keeps_that_many_beyond_the_prefetch_and_discards_the_oldest() -> None:
    made, account, one = guarded_subscription(
        {"topic": ">", "constant_pending_message_limit_strategy": 50}, prefetch=10
    )
    assert pend(made, account, one, 50) is None
    decision = pend(made, account, one, 53)
    assert decision is not None
    assert (decision.action, decision.subscription, decision.limit) == (
        PolicyAction.DISCARD_OLDEST,
        "s1",
        10 + 50,
    )
    assert (decision.kept, decision.lost, decision.setting) == (50, 3, "constantPendingMessageLimitStrategy")
    assert decision_sentence(decision) == (
        "Subscription s1 of client c was cut back to its limit: its backlog is 63 messages, "
        "over constantPendingMessageLimitStrategy (60 messages). 3 messages are discarded, the "
        "oldest first; 50 messages are kept."
    )
    assert pend(made, account, one, 51) is not None, "again for each that arrives"


def test_a_multiple_of_the_prefetch() -> None:
    """Seed 003: if the prefetch limit is 3, the destination retains 6."""
    made, account, one = guarded_subscription(
        {"topic": ">", "prefetch_rate_pending_message_limit_strategy": 2}, prefetch=3
    )
    assert pend(made, account, one, 6) is None and pend(made, account, one, 7) is not None


def test_the_lower_of_both_strategies_counts() -> None:
    both = {
        "topic": ">",
        "constant_pending_message_limit_strategy": 4,
        "prefetch_rate_pending_message_limit_strategy": 2,
    }
    _, _, one = guarded_subscription(both, prefetch=3)
    assert one.alarm_messages == 3 + 4


def test_nothing_is_discarded_of_durable_subscriptions() -> None:
    made, account, one = guarded_subscription(
        {"topic": ">", "constant_pending_message_limit_strategy": 0}, prefetch=3, durable=True, name="book"
    )
    assert not one.has_rules and pend(made, account, one, 99) is None


def test_a_limit_of_nothing_keeps_nothing() -> None:
    made, account, one = guarded_subscription(
        {"topic": ">", "constant_pending_message_limit_strategy": 0}, prefetch=3
    )
    decision = pend(made, account, one, 1)
    assert decision is not None and (decision.kept, decision.lost) == (0, 1)


def test_the_defaults_abort_after_more_than_30_s_at_the_next_check() -> None:
    """Trap 5: with both at 30 s the abort happens 30 to 60 s after the consumer became slow."""
    made, account, one = guarded_subscription(
        {"topic": ">", "abort_slow_consumer_strategy": True}, prefetch=10
    )
    ((second, decision),) = keep_window_full(made, one, 80)
    assert (decision.action, decision.reason, decision.setting) == (
        PolicyAction.CANCEL_SUBSCRIPTION,
        DecisionReason.WINDOW_FULL,
        "maxSlowDuration",
    )
    assert 30 < second <= 60 and decision.observed > 30_000
    assert decision.worst_case_ms == 31_000 and not account.is_closing


def test_abort_connection_closes_it() -> None:
    made, account, one = guarded_subscription(
        {"topic": ">", "abort_slow_consumer_strategy": True, "abort_connection": True, "check_period": 1_000},
        prefetch=10,
    )
    ((second, decision),) = keep_window_full(made, one, 60)
    assert decision.action is PolicyAction.DISCONNECT and account.is_closing and second in (31, 32)


def test_dispatch_that_resumes_ends_slowness() -> None:
    made, _, one = guarded_subscription(
        {"topic": ">", "abort_slow_consumer_strategy": True, "check_period": 1_000}, prefetch=10
    )
    assert keep_window_full(made, one, 29) == []
    figures(one).window_full_since = 0
    assert made.tick(GRID + 37 * SECOND) == []
    assert keep_window_full(made, one, 29, GRID + 38 * SECOND) == [], "the time starts anew"


def test_slow_that_many_times_is_aborted() -> None:
    entry = {
        "topic": ">",
        "abort_slow_consumer_strategy": True,
        "max_slow_count": 30,
        "check_period": 1_000,
        "max_slow_duration": -1,
    }
    made, account, one = guarded_subscription(entry, prefetch=10)
    acts: list[Decision] = []
    for number in range(1, 31):
        at = START + 4 * number * SECOND
        figures(one).window_full_count, figures(one).window_full_since = number, at
        acts += made.tick(at + SECOND)
        figures(one).window_full_since = 0
        made.judge_subscription(account, one, at + 2 * SECOND)
        acts += made.tick(at + 2 * SECOND)
        assert bool(acts) == (number == 30)
    assert (acts[0].setting, acts[0].observed, acts[0].limit, acts[0].unit) == (
        "maxSlowCount",
        30,
        30,
        "times",
    )
    assert "passed the limit 30 times, reaching maxSlowCount (30 times)" in decision_sentence(acts[0])


@pytest.mark.parametrize("never", [-1, 0])
def test_minus_one_and_nothing_are_any_number_of_times_and_any_duration(never: int) -> None:
    entry = {
        "topic": ">",
        "abort_slow_consumer_strategy": True,
        "max_slow_duration": never,
        "max_slow_count": never,
    }
    made, _, one = guarded_subscription(entry, prefetch=10)
    figures(one).window_full_count = 10**6
    assert not one.has_rules and keep_window_full(made, one, 100) == []


@pytest.mark.parametrize(("topic", "limit"), [("prices.usd", 5), ("prices.eur", 7), ("fx.eur", 9)])
def test_the_most_specific_policy_entry_wins_field_by_field(topic: str, limit: int) -> None:
    made = make_guard(
        policy(
            activemq=[
                {"topic": "prices.usd", "constant_pending_message_limit_strategy": 5},
                {"topic": ">", "constant_pending_message_limit_strategy": 9, "prefetch": 11},
                {"topic": "prices.>", "constant_pending_message_limit_strategy": 7},
            ]
        )
    )
    account = made.register("c", "tcp", FixedBacklog())
    one = made.subscribe(account, SubscriptionSignals("s", topic))
    assert one.alarm_messages == 11 + limit and made.prefetch_for(account, topic) == 11


def test_one_slow_subscription_leaves_the_clients_others_alone() -> None:
    """Trap 9 of seed 003."""
    made, account, one = guarded_subscription(
        {"topic": "prices.>", "constant_pending_message_limit_strategy": 1}, prefetch=3
    )
    other = made.subscribe(account, SubscriptionSignals("s2", "orders.>", backlog_messages=99))
    decision = pend(made, account, one, 2)
    assert decision is not None and decision.subscription == "s1" and not other.has_rules


def test_a_reader_that_has_stopped_is_aborted_without_a_window_too() -> None:
    made, account, one = guarded_subscription(
        {"topic": ">", "abort_slow_consumer_strategy": True, "abort_connection": True}
    )
    figures(one).backlog_messages, begun = 5, GRID + 7 * SECOND
    acts = []
    for second in range(80):
        figures(one).blocked_since = begun
        acts += [(second, decision) for decision in made.tick(begun + second * SECOND)]
    ((second, decision),) = acts
    assert (decision.action, decision.reason, decision.setting) == (
        PolicyAction.DISCONNECT,
        DecisionReason.WRITE_BLOCKED,
        "maxSlowDuration",
    )
    assert 30 < second <= 60 and account.is_closing
    assert "its socket has accepted no bytes for" in decision_sentence(decision)


def test_without_a_window_one_that_stops_for_more_than_a_second_that_many_times_is_aborted() -> None:
    entry = {
        "topic": ">",
        "abort_slow_consumer_strategy": True,
        "max_slow_count": 3,
        "max_slow_duration": -1,
        "check_period": 60_000,
    }
    made, _, one = guarded_subscription(entry)
    acts: list[Decision] = []
    for number in range(1, 4):
        at = START + 10 * number * SECOND
        for second, blocked in enumerate([0, 1, 1, 1, 0]):
            figures(one).blocked_since = at if blocked else 0
            acts += made.tick(at + second * SECOND)
        assert bool(acts) == (number == 3)
    assert (acts[0].setting, acts[0].observed, acts[0].reason) == (
        "maxSlowCount",
        3,
        DecisionReason.WRITE_BLOCKED,
    )
    assert "write blocked passed the limit 3 times" in decision_sentence(acts[0])


def test_without_a_window_a_busy_socket_that_takes_something_each_second_is_never_slow() -> None:
    entry = {
        "topic": ">",
        "abort_slow_consumer_strategy": True,
        "max_slow_count": 1,
        "max_slow_duration": 1_000,
        "check_period": 1_000,
    }
    made, _, one = guarded_subscription(entry)
    for second in range(100):
        figures(one).blocked_since = START + second * SECOND - 900_000_000
        assert made.tick(START + second * SECOND) == []


@pytest.mark.parametrize(
    ("count", "duration", "period", "looks"),
    [
        (-1, 30_000, 30_000, 1),
        (-1, 30_000, 1_000, 30),
        (3, 30_000, 5_000, 3),
        (9, 30_000, 5_000, 6),
        (0, 0, 30_000, None),
        (2, -1, 30_000, 2),
        (-1, 1, 30_000, 1),
        (-1, 30_001, 30_000, 2),
    ],
)
def test_limits_of_the_strategy_for_acknowledgements_count_looks(
    count: int, duration: int, period: int, looks: int | None
) -> None:
    settings = {
        **ACTIVEMQ_DEFAULTS,
        "max_slow_count": count,
        "max_slow_duration": duration,
        "check_period": period,
    }
    assert checks_until_abort(settings) == looks
    assert checks_until_abort({**settings, "max_time_since_last_ack": -1}) is None


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        ({}, 30, 61),
        ({"check_period": 5_000}, 55, 61),
        ({"max_slow_count": 2}, 30, 61),
        ({"max_slow_duration": -1, "max_slow_count": 2}, 60, 91),
        ({"check_period": 1_000, "max_slow_duration": -1, "max_slow_count": 3}, 32, 34),
    ],
)
@pytest.mark.parametrize("phase", [0, 7, 23, 29])
def test_a_consumer_that_stops_acknowledging_is_aborted_no_earlier_than_in_activemq(
    settings: dict[str, int], least: int, most: int, phase: int
) -> None:
    made, _, one = guarded_subscription(
        {"topic": ">", "abort_slow_ack_consumer_strategy": True, **settings}, prefetch=10
    )
    figures(one).unacked_messages, figures(one).acked_at = 3, (start := GRID + phase * SECOND)
    acts = [(second, act) for second in range(100) for act in made.tick(start + second * SECOND)]
    ((second, decision),) = acts
    assert least <= second <= most
    assert (decision.rule, decision.action) == (
        "activemq.max_time_since_last_ack",
        PolicyAction.CANCEL_SUBSCRIPTION,
    )
    assert (decision.reason, decision.setting) == (DecisionReason.ACK_SILENCE, "maxTimeSinceLastAck")
    assert second * 1_000 <= 30_000 + decision.worst_case_ms


def test_consumers_that_acknowledge_in_time_or_owe_nothing_are_never_aborted() -> None:
    made, _, one = guarded_subscription({"topic": ">", "abort_slow_ack_consumer_strategy": True}, prefetch=10)
    seen = figures(one)
    seen.unacked_messages, seen.window_full_since, seen.window_full_count = 10, GRID, 1
    for second in range(200):
        seen.acked_at = GRID + (second - second % 29) * SECOND
        assert made.tick(GRID + second * SECOND) == []
    seen.unacked_messages, seen.acked_at = 0, GRID
    assert [act for second in range(200, 400) for act in made.tick(GRID + second * SECOND)] == []
