"""Reported worst-case delays of settings agree with the compiled rules."""

from __future__ import annotations

from typing import Any

from broker_core.config.rule_terms import PolicyAction
from broker_core.slow_clients.rules.scopes import RuleSubject
from broker_core.slow_clients.rules.worst_case import worst_case_actions
from tests.support.broker_simulation import policy, rule_book

RULES: list[dict[str, Any]] = [
    {
        "name": "behind",
        "mode": "enforce",
        "signal": "oldest_age",
        "shape": "soft_for",
        "limit": 5_000,
        "hold_ms": 10_000,
        "ladder": [{"action": "warn", "at_percent": 60}, {"action": "disconnect", "after_ms": 60_000}],
    },
    {"name": "behind", "scope": {"client": "desk-*"}, "hold_ms": 2_000},
    {
        "name": "full",
        "mode": "enforce",
        "signal": "outbound_bytes",
        "limit": 1_000_000,
        "ladder": [{"action": "offline"}],
    },
    {
        "name": "pool",
        "mode": "enforce",
        "signal": "pool_memory",
        "choose": "largest_in_pool",
        "limit": 1_000_000,
        "ladder": [{"action": "offline"}],
    },
]


def test_a_rules_ladder_layer_by_layer_is_as_the_rule_book_compiles_it() -> None:
    document = policy(rules=RULES)
    behind, desk, full, pool = worst_case_actions(document)["rules"]
    book = rule_book(document)
    for acts, client in ((behind, "other"), (desk, "desk-1")):
        (rule,) = [
            rule for rule in book.client_rules_for(RuleSubject("tcp", client=client)) if rule.name == "behind"
        ]
        assert acts == [(rung.action, rule.worst_case_ms(number)) for number, rung in enumerate(rule.ladder)]
    assert full == [(PolicyAction.OFFLINE, 0)]
    (rule,) = [rule for rule in book.pool_rules if rule.name == "pool"]
    assert pool == [(PolicyAction.OFFLINE, rule.worst_case_ms())]


def test_the_presets_say_theirs() -> None:
    document = policy(
        xap=[{"enabled": True}, {"transport": "tcp", "latency": 2_000}],
        activemq=[
            {
                "topic": ">",
                "abort_slow_consumer_strategy": True,
                "max_slow_duration": 30_000,
                "check_period": 30_000,
            }
        ],
        qpid=[{"topic": "a.*", "message_age": 600_000}, {"topic": "b"}],
    )
    (usual,), (slower,) = worst_case_actions(document)["xap"]
    assert (usual.action, round(usual.worst_case_ms, -2)) == (
        PolicyAction.CANCEL_SUBSCRIPTION,
        2_600,
    )  # docs/slow-clients.md
    assert slower.worst_case_ms > usual.worst_case_ms
    (aborted,) = worst_case_actions(document)["activemq"][0]
    assert aborted.action is PolicyAction.CANCEL_SUBSCRIPTION and 30_000 < aborted.worst_case_ms <= 61_000
    age, nothing = worst_case_actions(document)["qpid"]
    assert [act.action for act in age] == [PolicyAction.DISCONNECT]
    assert nothing == []
