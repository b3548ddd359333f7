"""Custom rules in a guard: at enqueue, at ticks, on acknowledgement; shadow and enforce; rule state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.config.rule_terms import DecisionReason, EnforcementMode, PolicyAction
from broker_core.slow_clients.accounts.client_usage import ClientUsage
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.signals import BacklogCounts, PoolSignals
from broker_core.slow_clients.evaluate.wording import decision_sentence
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy, rule_book
from tests.support.signals import ClientSignals, SubscriptionSignals, evaluate

BIG = {"message_memory_limit": 10**9, "message_disk_limit": 10**9}


def rule(signal: str, limit: int, *ladder: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "own",
        "signal": signal,
        "limit": limit,
        "mode": "enforce",
        "ladder": list(ladder),
        **more,
    }


def rungs_of(action: str, **more: int) -> dict[str, Any]:
    return {"action": action, **more}


def guarded_clients(
    *rules: dict[str, Any], waiting: BacklogCounts | None = None
) -> tuple[SlowClientGuard, ClientUsage, FixedBacklog]:
    made = make_guard(policy(BIG, rules=list(rules)))
    backlog = FixedBacklog(START, waiting or BacklogCounts(5, 0, 0, "s|3|"))
    return made, made.register("c", "tcp", backlog, user="ann"), backlog


def test_a_hard_limit_of_ones_own_acts_in_the_same_moment() -> None:
    made, account, _ = guarded_clients(rule("outbound_bytes", 1_000, rungs_of("offline")))
    assert made.on_queued(account, 1_000, START) is None
    decision = made.on_queued(account, 1, START)
    assert decision is not None and (decision.rule, decision.action, decision.worst_case_ms) == (
        "own",
        PolicyAction.OFFLINE,
        0,
    )
    assert account.is_offlined
    made.on_released(account, 1_001)
    made.on_spool_empty(account)
    assert made.on_queued(account, 1_001, START) is not None, "and again, without waiting for a tick"


def test_a_limit_in_shadow_is_seen_in_the_same_moment_and_said_with_the_next_tick() -> None:
    made, account, _ = guarded_clients(rule("outbound_bytes", 1_000, rungs_of("offline"), mode="shadow"))
    assert made.on_queued(account, 2_000, START) is None
    assert made.on_queued(account, 2_000, START) is None
    made.on_released(account, 4_000)
    (decision,) = made.tick(START + SECOND)
    assert (decision.mode, decision.observed, decision.at) == (EnforcementMode.SHADOW, 2_000, START)
    assert not account.is_offlined and made.tick(START + 2 * SECOND) == []
    made.on_queued(account, 3_000, START + 3 * SECOND)
    assert [one.observed for one in made.tick(START + 3 * SECOND)] == [3_000], "a new excursion"


def test_warned_then_offlined_then_disconnected_each_at_its_time() -> None:
    made, account, backlog = guarded_clients(
        rule(
            "oldest_age",
            10_000,
            rungs_of("warn", at_percent=50),
            rungs_of("offline"),
            rungs_of("disconnect", after_ms=5_000),
        )
    )
    made.on_queued(account, 10, START)
    acts = [(n, one.action, one.rung) for n in range(20) for one in made.tick(START + n * SECOND)]
    assert acts == [
        (6, PolicyAction.WARN, 0),
        (11, PolicyAction.OFFLINE, 1),
        (16, PolicyAction.DISCONNECT, 2),
    ]
    assert account.is_closing and backlog.oldest_at == START


def test_the_blocked_socket() -> None:
    made, account, backlog = guarded_clients(
        rule("write_blocked", 5_000, rungs_of("refuse", for_ms=30_000), shape="duration_without")
    )
    made.on_queued(account, 10, START)
    backlog.blocked_since = START
    assert [one for n in range(6) for one in made.tick(START + n * SECOND)] == []
    (decision,) = made.tick(START + 6 * SECOND)
    assert (decision.action, decision.for_ms, decision.reason) == (
        PolicyAction.REFUSE,
        30_000,
        DecisionReason.WRITE_BLOCKED,
    )
    assert "disconnected and its name refused for 30.0 s" in decision_sentence(decision)


def test_continue_from_the_journal_only_if_all_is_there() -> None:
    ladder = rungs_of("continue_from_journal")
    made, account, _ = guarded_clients(rule("outbound_bytes", 100, ladder))
    decision = made.on_queued(account, 200, START)
    assert (
        decision is not None
        and decision.action is PolicyAction.CONTINUE_FROM_JOURNAL
        and not account.is_offlined
    )
    made, account, _ = guarded_clients(
        rule("outbound_bytes", 100, ladder), waiting=BacklogCounts(5, 0, 1, "s|3|")
    )
    decision = made.on_queued(account, 200, START)
    assert decision is not None and decision.action is PolicyAction.OFFLINE and account.is_offlined


def test_unacknowledged_is_judged_on_acknowledgement_and_at_the_tick() -> None:
    made, account, _ = guarded_clients(rule("unacked_messages", 10, rungs_of("pause", for_ms=1_000)))
    one = SubscriptionSignals("s1", "a", prefetch=50, unacked_messages=20)
    watched = made.subscribe(account, one)
    (decision,) = made.judge_subscription(account, watched, START)
    assert (decision.action, decision.subscription, decision.observed) == (PolicyAction.PAUSE, "s1", 20)
    one.unacked_messages = 5
    assert made.judge_subscription(account, watched, START) == []
    one.unacked_messages = 11
    assert [d.action for d in made.tick(START + SECOND)] == [PolicyAction.PAUSE]


def test_silence_counts_only_with_unacknowledged_messages() -> None:
    """Scenario S1: an idle consumer is exempt."""
    made, account, _ = guarded_clients(
        rule("ack_silence", 3_000, rungs_of("cancel_subscription"), shape="duration_without")
    )
    one = SubscriptionSignals("s1", "a", prefetch=5, acked_at=START)
    made.subscribe(account, one)
    assert made.tick(START + 60 * SECOND) == []
    one.unacked_messages, one.acked_at = 1, START + 60 * SECOND
    assert made.tick(START + 63 * SECOND) == []
    (decision,) = made.tick(START + 64 * SECOND)
    assert (decision.subscription, decision.observed) == ("s1", 4_000)


def test_a_subscription_that_ends_is_forgotten() -> None:
    made, account, _ = guarded_clients(rule("unacked_messages", 10, rungs_of("notify")))
    one = SubscriptionSignals("s1", "a", unacked_messages=20)
    made.subscribe(account, one)
    assert made.tick(START) and account.rule_states
    made.unsubscribe(account, "s1")
    assert not account.rule_states and made.tick(START + SECOND) == []


def test_the_pools_own_rule_spares_the_protected_and_acts_on_the_largest() -> None:
    own = rule(
        "pool_memory",
        1_000,
        rungs_of("warn"),
        choose="largest_in_pool",
        shape="largest_when_pool_over",
        protected=["ops-*"],
    )
    made = make_guard(policy(BIG, rules=[own]))
    for name, size in (("ops-1", 900), ("big", 300), ("small", 100)):
        made.on_queued(made.register(name, "tcp", FixedBacklog(START)), size, START)
    (decision,) = made.tick(START)
    assert (decision.client, decision.chosen_over and decision.chosen_over.client) == ("big", "small")
    assert decision.observed == 1_300 and made.tick(START + SECOND) == [], "once"


def test_a_new_policy_forgets_what_its_rules_dont_know() -> None:
    made, account, _ = guarded_clients(
        rule("oldest_age", 10_000, rungs_of("warn", at_percent=10), rungs_of("disconnect"))
    )
    made.on_queued(account, 10, START)
    assert made.tick(START + 2 * SECOND) and account.rule_states
    made.apply_policy(policy(BIG))
    assert not account.rule_states and made.tick(START + 60 * SECOND) == []


def test_users_and_client_names_have_their_own_limits() -> None:
    made, account, _ = guarded_clients(
        rule("outbound_bytes", 1_000, rungs_of("offline")),
        {"name": "own", "scope": {"user": "ann"}, "limit": 5_000},
    )
    assert made.on_queued(account, 4_000, START) is None
    other = made.register("d", "tcp", FixedBacklog(START), user="bob")
    assert made.on_queued(other, 4_000, START) is not None
    found = made.effective("c")
    assert {one.setting: (one.value, one.origin) for one in found}["own.limit"] == (
        5_000,
        "rule own (user ann)",
    )


def test_the_forecast_of_a_client_that_fills_up() -> None:
    made, account, _ = guarded_clients(rule("outbound_bytes", 1_000_000, rungs_of("offline")))
    for second in range(5):
        made.on_queued(account, 100_000, START + second * SECOND)
        made.tick(START + second * SECOND)
    found = made.forecast("c", START + 5 * SECOND)
    assert found is not None and found.rule == "own" and found.percent == 50.0
    assert made.forecast("nobody", START) is None


def test_in_parts_a_round_looks_at_everybody_once_a_second() -> None:
    made = make_guard(policy(BIG, rules=[rule("oldest_age", 1_000, rungs_of("notify"))]))
    for number in range(100):
        made.on_queued(made.register(f"c{number}", "tcp", FixedBacklog(START)), 10, START)
    seen: list[str] = []
    most = 0
    for part in range(40):
        acts = made.tick_part(START + 2 * SECOND + part * SECOND // 40)
        most = max(most, len(acts))
        seen += [decision.client for decision in acts]
    assert sorted(seen) == sorted(f"c{number}" for number in range(100)) and most <= 3


# Shadow and enforce on one trace.

TRACE = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2_000), st.integers(0, 9_000), st.integers(0, 30)),
    min_size=1,
    max_size=40,
)
RULE = st.sampled_from([
    rule("outbound_bytes", 1_000, rungs_of("warn", at_percent=50), rungs_of("offline")),
    rule("oldest_age", 4_000, rungs_of("disconnect"), shape="soft_for", hold_ms=2_000),
    rule("unacked_messages", 10, rungs_of("pause"), rungs_of("cancel_subscription", after_ms=3_000)),
    rule("backlog_messages", 15, rungs_of("discard_oldest"), scope={"topic": ">"}),
    rule("oldest_age", 3_000, rungs_of("notify"), shape="set_clear", clear=1_000),
    rule("pool_memory", 2_500, rungs_of("warn"), choose="largest_in_pool", shape="largest_when_pool_over"),
    rule("outbound_bytes", 900, rungs_of("ask_to_close"), shape="count_in_window", count=2, window_ms=8_000),
])  # fmt: skip


def replay(own: dict[str, Any], mode: str, trace: list[tuple[int, int, int, int]]) -> list[Decision]:
    """The evaluator over a recorded trace, with the holds carried along."""
    book, decisions = rule_book(policy(BIG, rules=[own | {"mode": mode}])), []
    figures = dict.fromkeys("abcd", (0, 0, 0))
    holds: dict[str, Any] = {}
    pool_holds: dict[str, Any] = {}
    for second, (number, memory, age, messages) in enumerate(trace):
        now = START + second * SECOND
        figures["abcd"[number]] = (memory, age, messages)
        clients = [client(name, now, *values, holds.get(name, {})) for name, values in figures.items()]
        pool = PoolSignals(
            "instance", sum(one.memory for one in clients), 0, 0, pool_holds.get("instance", {})
        )
        verdict = evaluate(book, clients, [pool], now)
        decisions += verdict.decisions
        holds |= verdict.rule_states
        pool_holds |= verdict.pool_states
    return decisions


def client(
    name: str, now: int, memory: int, age: int, messages: int, holds: dict[tuple[str, str], Any]
) -> ClientSignals:
    one = SubscriptionSignals(
        "s",
        "a.b",
        backlog_messages=messages,
        outbox_messages=messages,
        unacked_messages=messages,
        oldest_at=now - age * 1_000_000 if age else 0,
    )
    return ClientSignals(
        name,
        "tcp",
        "instance",
        memory=memory,
        outbox_messages=messages,
        rule_states=holds,
        subscriptions=(one,),
        oldest_at=now - age * 1_000_000 if age else 0,
    )


@settings(max_examples=150, deadline=None)
@given(RULE, TRACE)
def test_shadow_and_enforce_act_on_the_same_clients(
    own: dict[str, Any], trace: list[tuple[int, int, int, int]]
) -> None:
    enforced, shadow = replay(own, "enforce", trace), replay(own, "shadow", trace)
    assert {(one.client, one.subscription, one.action) for one in enforced} == {
        (one.client, one.subscription, one.action) for one in shadow
    }
    firsts = [{one.client: one.at for one in reversed(acts)} for acts in (enforced, shadow)]
    assert firsts[0] == firsts[1], "and for the first time at the same moment"
    assert {one.mode for one in shadow} <= {EnforcementMode.SHADOW} and {one.mode for one in enforced} <= {
        EnforcementMode.ENFORCE
    }


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_an_evaluation_changes_nothing_that_it_is_given(mode: str) -> None:
    book = rule_book(policy(BIG, rules=[rule("oldest_age", 10, rungs_of("notify")) | {"mode": mode}]))
    holds: dict[tuple[str, str], Any] = {}
    one = client("a", START, 5, 99, 3, holds)
    before = repr(one)
    first = evaluate(book, [one], [], START)
    assert repr(one) == before and holds == {} and first == evaluate(book, [one], [], START)
    assert first.decisions and first.rule_states["a"]


@pytest.mark.parametrize("hold_ms", [300, 1_200, 2_999])
def test_a_hold_is_not_rounded_up_to_the_next_tick(hold_ms: int) -> None:
    made, account, _ = guarded_clients(
        rule("oldest_age", 1_000, rungs_of("notify"), shape="soft_for", hold_ms=hold_ms)
    )
    made.on_queued(account, 10, START)
    acts = [(part, one) for part in range(240) for one in made.tick_part(START + part * SECOND // 40)]
    ((part, decision),) = acts
    seen = part * 25 - 1_000
    assert hold_ms <= seen <= decision.worst_case_ms + 25
    assert decision.worst_case_ms == hold_ms + 1_000
