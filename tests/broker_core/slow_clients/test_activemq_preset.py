"""ActiveMQ's slow consumers as seed 003 describes them."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.slow_clients import Account, Action, Decision, Reason, SlowClientGuard, SubscriptionSignals
from tests.support.slow_clients import SECOND, START, Still, guard, policy

GRID = START - START % (30 * SECOND)


def scene(*entries: dict[str, Any], **subscription: Any) -> tuple[SlowClientGuard, Account, SubscriptionSignals]:
    made = guard(policy(activemq=list(entries)))
    account = made.register("c", "tcp", Still(START))
    one = SubscriptionSignals("s1", "prices.usd", **subscription)
    made.subscribe(account, one)
    return made, account, one


def pend(made: SlowClientGuard, account: Account, one: SubscriptionSignals, count: int) -> Decision | None:
    """So many messages wait for the subscription, not yet dispatched."""
    one.backlog_messages = count
    return made.waiting(account, one, START) if count > one.alarm_messages else None


def slow_until(made: SlowClientGuard, one: SubscriptionSignals, seconds: int, start: int = GRID + 7 * SECOND) -> list[tuple[int, Decision]]:
    """The window stays full from `start` on; the guard ticks each second."""
    one.window_full_since, one.unacked_messages = start, one.prefetch
    one.window_full_count += 1
    acts = []
    for second in range(seconds):
        acts += [(second, decision) for decision in made.tick(start + second * SECOND)]
    return acts


def test_by_default_everything_is_kept_and_nobody_is_aborted() -> None:
    made, account, one = scene({"topic": ">"}, prefetch=10)
    assert not one.judged and pend(made, account, one, 10**6) is None
    assert slow_until(made, one, 200) == []


def test_a_constant_limit_keeps_that_many_beyond_the_prefetch_and_discards_the_oldest() -> None:
    made, account, one = scene({"topic": ">", "constant_pending_message_limit_strategy": 50}, prefetch=10)
    assert pend(made, account, one, 50) is None
    decision = pend(made, account, one, 53)
    assert decision is not None
    assert (decision.action, decision.subscription, decision.limit) == (Action.DISCARD_OLDEST, "s1", 50)
    assert (decision.kept, decision.lost, decision.setting) == (50, 3, "constantPendingMessageLimitStrategy")
    assert decision.sentence() == (
        "Subscription s1 of client c was cut back to its limit: for it wait 53 messages, over "
        "constantPendingMessageLimitStrategy (50 messages). 3 messages are discarded, the oldest first; "
        "50 messages are kept."
    )
    assert pend(made, account, one, 51) is not None, "again for each that arrives"


def test_a_multiple_of_the_prefetch() -> None:
    """Seed 003: if the prefetch limit is 3, the destination retains 6."""
    made, account, one = scene({"topic": ">", "prefetch_rate_pending_message_limit_strategy": 2}, prefetch=3)
    assert pend(made, account, one, 6) is None and pend(made, account, one, 7) is not None


def test_the_lower_of_both_strategies_counts() -> None:
    both = {"topic": ">", "constant_pending_message_limit_strategy": 4, "prefetch_rate_pending_message_limit_strategy": 2}
    _, _, one = scene(both, prefetch=3)
    assert one.alarm_messages == 4


def test_nothing_is_discarded_of_durable_subscriptions() -> None:
    made, account, one = scene(
        {"topic": ">", "constant_pending_message_limit_strategy": 0}, prefetch=3, durable=True, name="book"
    )
    assert not one.judged and pend(made, account, one, 99) is None


def test_a_limit_of_nothing_keeps_nothing() -> None:
    made, account, one = scene({"topic": ">", "constant_pending_message_limit_strategy": 0}, prefetch=3)
    decision = pend(made, account, one, 1)
    assert decision is not None and (decision.kept, decision.lost) == (0, 1)


def test_the_defaults_abort_after_more_than_30_s_at_the_next_check_by_asking() -> None:
    """Trap 5: with both at 30 s it comes 30 to 60 s after the consumer became slow."""
    made, account, one = scene({"topic": ">", "abort_slow_consumer_strategy": True}, prefetch=10)
    ((second, decision),) = slow_until(made, one, 80)
    assert (decision.action, decision.reason, decision.setting) == (Action.ASK_TO_CLOSE, Reason.WINDOW_FULL, "maxSlowDuration")
    assert 30 < second <= 60 and decision.observed > 30_000
    assert decision.worst_case_ms == 31_000 and not account.closing


def test_abort_connection_closes_it() -> None:
    made, account, one = scene(
        {"topic": ">", "abort_slow_consumer_strategy": True, "abort_connection": True, "check_period": 1_000}, prefetch=10
    )
    ((second, decision),) = slow_until(made, one, 60)
    assert decision.action is Action.DISCONNECT and account.closing and second in (31, 32)


def test_dispatch_that_resumes_ends_slowness() -> None:
    made, _, one = scene({"topic": ">", "abort_slow_consumer_strategy": True, "check_period": 1_000}, prefetch=10)
    assert slow_until(made, one, 29) == []
    one.window_full_since = 0
    assert made.tick(GRID + 37 * SECOND) == []
    assert slow_until(made, one, 29, GRID + 38 * SECOND) == [], "the time starts anew"


def test_slow_that_many_times_is_aborted() -> None:
    entry = {"topic": ">", "abort_slow_consumer_strategy": True, "max_slow_count": 30, "check_period": 1_000, "max_slow_duration": -1}
    made, account, one = scene(entry, prefetch=10)
    acts: list[Decision] = []
    for number in range(1, 31):
        at = START + 4 * number * SECOND
        one.window_full_count, one.window_full_since = number, at
        acts += made.tick(at + SECOND)
        one.window_full_since = 0
        made.acknowledged(account, one, at + 2 * SECOND)
        acts += made.tick(at + 2 * SECOND)
        assert bool(acts) == (number == 30)
    assert (acts[0].setting, acts[0].observed, acts[0].limit, acts[0].unit) == ("maxSlowCount", 30, 30, "times")
    assert "passed the limit 30 times, reaching maxSlowCount (30 times)" in acts[0].sentence()


def test_minus_one_is_any_number_of_times_and_any_duration() -> None:
    entry = {"topic": ">", "abort_slow_consumer_strategy": True, "max_slow_duration": -1}
    made, _, one = scene(entry, prefetch=10)
    one.window_full_count = 10**6
    assert not one.judged and slow_until(made, one, 100) == []


@pytest.mark.parametrize(("topic", "limit"), [("prices.usd", 5), ("prices.eur", 7), ("fx.eur", 9)])
def test_the_most_specific_policy_entry_wins_field_by_field(topic: str, limit: int) -> None:
    made = guard(policy(activemq=[
        {"topic": "prices.usd", "constant_pending_message_limit_strategy": 5},
        {"topic": ">", "constant_pending_message_limit_strategy": 9, "prefetch": 11},
        {"topic": "prices.>", "constant_pending_message_limit_strategy": 7},
    ]))  # fmt: skip
    account, one = made.register("c", "tcp", Still()), SubscriptionSignals("s", topic)
    made.subscribe(account, one)
    assert one.alarm_messages == limit and made.prefetch_of(account, topic) == 11


def test_one_slow_subscription_leaves_the_clients_others_alone() -> None:
    """Trap 9."""
    made, account, one = scene({"topic": "prices.>", "constant_pending_message_limit_strategy": 1}, prefetch=3)
    other = SubscriptionSignals("s2", "orders.>", backlog_messages=99)
    made.subscribe(account, other)
    decision = pend(made, account, one, 2)
    assert decision is not None and decision.subscription == "s1" and not other.judged
