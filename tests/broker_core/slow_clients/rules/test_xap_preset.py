"""XAP's slow consumers as seed 001 describes them: a throughput floor, recovery time, intermediate checks."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.config.rule_terms import DecisionReason, EnforcementMode, PolicyAction
from broker_core.slow_clients.accounts.client_usage import ClientUsage
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.wording import decision_sentence
from broker_core.slow_clients.rules.scopes import RuleSubject
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy, rule_book

PART = SECOND // 8


def guarded_client(**settings: Any) -> tuple[SlowClientGuard, ClientUsage, FixedBacklog]:
    made = make_guard(policy(xap=[{"enabled": True, **settings}]))
    backlog = FixedBacklog(START)
    return made, made.register("c", "tcp", backlog), backlog


def drain_at_rate(
    made: SlowClientGuard, backlog: FixedBacklog, seconds: float, rate: int, start: float = 0
) -> list[tuple[float, Decision]]:
    """Let the client read `rate` bytes a second, with eight checks of the guard a second."""
    acts = []
    for part in range(int(start * 8), int((start + seconds) * 8)):
        now = START + part * PART
        backlog.acked_bytes += rate // 8
        acts += [(part / 8, decision) for decision in made.tick_part(now)]
    return acts


def test_the_documents_defaults() -> None:
    (rule,) = [
        r
        for r in rule_book(policy(xap=[{"enabled": True}])).client_rules_for(RuleSubject("tcp"))
        if r.name == "xap.throughput"
    ]
    assert (rule.limit, rule.hold_ms, rule.count, rule.check_ms) == (5_000, 500, 3, 125)
    assert rule.worst_case_ms() == 2_625
    assert not any(r.name.startswith("xap") for r in rule_book(policy()).client_rules_for(RuleSubject("tcp")))
    assert not any(
        r.name.startswith("xap") for r in rule_book(policy(xap=[{}])).client_rules_for(RuleSubject("tcp"))
    ), "enabled is false"


def test_a_client_below_the_floor_loses_its_subscriptions_and_stays_connected() -> None:
    made, account, backlog = guarded_client()
    made.on_queued(account, 50_000, START)
    ((at, decision),) = drain_at_rate(made, backlog, 6, 1_000)
    assert (decision.action, decision.reason, decision.subscription) == (
        PolicyAction.CANCEL_SUBSCRIPTION,
        DecisionReason.DRAIN_RATE,
        "",
    )
    assert (decision.limit, decision.unit) == (5_000, "bytes/s") and decision.observed < 5_000
    assert not account.is_closing
    assert at * 1_000 <= decision.worst_case_ms <= 4_000
    assert "it takes" in decision_sentence(
        decision
    ) and "under throughput (5,000 bytes/s)" in decision_sentence(decision)


def test_a_client_that_takes_nothing_at_all_is_below_the_floor() -> None:
    made, account, backlog = guarded_client()
    made.on_queued(account, 50_000, START)
    assert len(drain_at_rate(made, backlog, 6, 0)) == 1


@pytest.mark.parametrize("rate", [5_000, 1_000_000])
def test_a_client_at_the_floor_is_left_alone_however_large_its_backlog(rate: int) -> None:
    made, account, backlog = guarded_client()
    made.on_queued(account, 5_000_000, START)
    assert drain_at_rate(made, backlog, 10, rate + 8) == []


def test_a_client_that_recovers_within_the_latency_is_left_alone() -> None:
    made, account, backlog = guarded_client(latency=4_000, retries=3)
    made.on_queued(account, 500_000, START)
    assert drain_at_rate(made, backlog, 5, 0) == []
    assert drain_at_rate(made, backlog, 20, 9_000, start=5) == []


def test_with_looks_more_than_a_second_apart_a_client_that_takes_nothing_is_still_found_and_in_time() -> None:
    made, account, backlog = guarded_client(latency=8_000, retries=3)
    made.on_queued(account, 50_000, START)
    ((at, decision),) = drain_at_rate(made, backlog, 40, 0)
    assert at >= 8 and at * 1_000 <= decision.worst_case_ms == 19_000


def test_a_client_for_whom_there_is_nothing_is_never_slow() -> None:
    """Trap 7: no traffic isn't slowness."""
    made, account, backlog = guarded_client()
    made.on_queued(account, 500, START)
    made.on_released(account, 500)
    backlog.oldest_at = 0
    assert drain_at_rate(made, backlog, 10, 0) == []


def test_a_trickle_that_is_taken_as_it_comes_is_not_slow() -> None:
    """Whenever looked at, the newest message happens to be in the outbox: but it is new."""
    made, account, backlog = guarded_client()
    made.on_queued(account, 100, START)
    acts = []
    for part in range(80):
        backlog.oldest_at = START + part * PART - 1
        acts += made.tick_part(START + part * PART)
    assert acts == []


def test_a_transport_may_differ_field_by_field() -> None:
    book = rule_book(
        policy(transports={"a": {}, "b": {}}, xap=[{"enabled": True}, {"transport": "b", "throughput": 9}])
    )
    limits = {
        name: [r.limit for r in book.client_rules_for(RuleSubject(name)) if r.name == "xap.throughput"]
        for name in ("a", "b")
    }
    assert limits == {"a": [5_000], "b": [9]}


def test_in_shadow_it_says_what_it_would_have_done_and_does_nothing() -> None:
    made, account, backlog = guarded_client(mode="shadow")
    made.on_queued(account, 50_000, START)
    ((_, decision),) = drain_at_rate(made, backlog, 6, 0)
    assert decision.mode is EnforcementMode.SHADOW and "would have been cancelled" in decision_sentence(
        decision
    )
