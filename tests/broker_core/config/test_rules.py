"""Custom rules and presets in a policy document: read whole, refused with every problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker_core.config import PolicyDocument, RuleSettings, Scope, default_policy
from broker_core.config.rule_terms import EnforcementMode, PolicyAction, Shape, Signal
from broker_core.errors import OperatorError

OLD = {
    "name": "old",
    "signal": "oldest_age",
    "shape": "soft_for",
    "limit": 5_000,
    "hold_ms": 2_000,
    "mode": "enforce",
    "ladder": [
        {"action": "warn", "at_percent": 60},
        {"action": "disconnect"},
        {"action": "refuse", "after_ms": 9, "for_ms": 5},
    ],
}


def document(**changes: Any) -> dict[str, Any]:
    return default_policy("one").to_dict() | changes


def problems(**changes: Any) -> list[str]:
    with pytest.raises(OperatorError) as caught:
        PolicyDocument.from_dict(document(**changes))
    found: list[str] = caught.value.details["problems"]
    return found


def rule(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (OLD | changes).items() if value is not None}


def test_everything_survives_a_round_trip_through_json() -> None:
    made = PolicyDocument.from_dict(
        document(
            rules=[rule(), {"name": "old", "scope": {"transport": "tcp", "client": "ops-*"}, "limit": 9_000}],
            xap=[{"enabled": True, "latency": 700}, {"transport": "tcp", "retries": 9}],
            activemq=[{"topic": ">", "max_slow_count": 30}],
            qpid=[
                {
                    "topic": "stocks.us.*",
                    "depth": 4_235_264,
                    "delete_persistent": True,
                    "confirm_delete": True,
                }
            ],
        )
    )
    assert PolicyDocument.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert made.rules[0].ladder and [rung.action for rung in made.rules[0].ladder] == [
        PolicyAction.WARN,
        PolicyAction.DISCONNECT,
        PolicyAction.REFUSE,
    ]
    assert (made.rules[0].signal, made.rules[0].shape) == (Signal.OLDEST_AGE, Shape.SOFT_FOR)
    assert made.rules[1] == RuleSettings("old", Scope(transport="tcp", client="ops-*"), limit=9_000)


def test_a_layer_keeps_what_it_does_not_set() -> None:
    made = PolicyDocument.from_dict(
        document(rules=[rule(), {"name": "old", "scope": {"user": "u"}, "limit": 9}])
    )
    whole = made.rules[1].merge_over(made.rules[0])
    assert (whole.limit, whole.hold_ms, whole.mode, whole.scope) == (
        9,
        2_000,
        EnforcementMode.ENFORCE,
        Scope(user="u"),
    )


def test_a_layer_that_nothing_completes_is_refused() -> None:
    assert problems(rules=[{"name": "old", "scope": {"user": "u"}, "limit": 9}]) == [
        "rule 'old' (user u): it needs a signal"
    ]


def test_a_layer_is_completed_by_any_that_applies_wherever_it_does() -> None:
    base = rule(scope={"topic": "bulk.>"}, ladder=[{"action": "pause"}])
    PolicyDocument.from_dict(
        document(rules=[base, {"name": "old", "scope": {"topic": "bulk.a"}, "limit": 9_000}])
    )
    assert problems(rules=[base, {"name": "old", "scope": {"topic": "other"}, "limit": 9_000}]) == [
        "rule 'old' (topic other): it needs a signal"
    ]


def test_a_rule_with_a_topic_anywhere_is_about_subscriptions_everywhere() -> None:
    cut = {"name": "cut", "signal": "backlog_messages", "limit": 9, "ladder": [{"action": "discard_oldest"}]}
    narrow = {"name": "cut", "scope": {"topic": "bulk.>"}, "limit": 5}
    PolicyDocument.from_dict(document(rules=[cut, narrow]))
    assert any("discard_oldest needs a subscription" in one for one in problems(rules=[cut]))
    spool = rule(name="cut", signal="spool_bytes", ladder=[{"action": "notify"}])
    (problem, other) = problems(rules=[spool, narrow])
    assert problem == other.replace(" (topic bulk.>)", " (instance)") and "of whole clients" in problem


def test_the_entries_of_one_rule_measure_pools_or_do_not() -> None:
    pool = rule(signal="pool_memory", choose="largest_in_pool", shape="hard")
    other = rule(scope={"transport": "tcp"}, choose="self", shape="hard")
    assert problems(rules=[pool, other]) == [
        "rule 'old': some of its entries measure pools, and some don't: name them differently"
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"signal": "speed"}, "signal must be one of"),
        ({"hold_ms": None}, "soft_for needs hold_ms"),
        ({"limit": None}, "it needs a limit"),
        ({"ladder": None}, "it needs a ladder"),
        ({"ladder": []}, "ladder must be a list of 1 to 8 rungs"),
        ({"ladder": [{"for_ms": 1}]}, "a rung needs an action"),
        ({"ladder": [{"action": "refuse"}]}, "refuse needs for_ms"),
        ({"ladder": [{"action": "discard_oldest"}]}, "discard_oldest needs a subscription"),
        ({"ladder": [{"action": "disconnect", "at_percent": 50}, {"action": "warn"}]}, "from narrow to wide"),
        ({"ladder": [{"action": "notify"}, {"action": "warn"}]}, "notify never happens"),
        (
            {"ladder": [{"action": "notify", "after_ms": 5}, {"action": "warn"}]},
            "warn would precede notify",
        ),
        ({"ladder": [{"action": "delete_durable"}], "scope": {"topic": "a"}}, "set confirm_delete to true"),
        ({"shape": "percent_of", "percent": 5}, "oldest_age is neither"),
        ({"shape": "rate_below"}, "rate_below and drain_rate or acknowledged_rate belong together"),
        ({"shape": "set_clear", "clear": 5_000}, "a clear that is less than the limit"),
        ({"shape": "count_in_window"}, "count_in_window needs a count"),
        ({"shape": "duration_without"}, "duration_without is for"),
        ({"signal": "pool_memory"}, "choose largest_in_pool"),
        ({"signal": "spool_bytes", "scope": {"topic": "a"}}, "measured of whole clients"),
        (
            {"choose": "largest_in_pool", "signal": "pool_disk", "scope": {"user": "u"}},
            "a pool is the instance's",
        ),
        ({"scope": {"host": "x"}}, "there is no setting 'host'"),
        ({"scope": {"user": 5}}, "scope.user must be a text"),
        ({"unknown": 1}, "there is no setting 'unknown'"),
        ({"name": "two words"}, "name must be"),
        ({"mode": "loud"}, "mode must be one of off, shadow, enforce"),
        ({"confirm_delete": 1}, "confirm_delete must be true or false"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(changes: dict[str, Any], problem: str) -> None:
    found = problems(rules=[rule(**changes)])
    assert any(problem in one for one in found), found


def test_two_entries_for_one_scope_are_refused() -> None:
    assert any("another entry for the same scope" in one for one in problems(rules=[rule(), rule()]))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rules": {}}, "rules must be a list"),
        ({"rules": [1]}, "every rule must be an object"),
        ({"xap": [{"retries": 0}]}, "xap: retries must be a whole number from 1"),
        ({"xap": [{"enabled": "yes"}]}, "xap: enabled must be true or false"),
        ({"activemq": [{"max_slow_count": 3}]}, "topic must be a topic or a pattern"),
        ({"activemq": [{"topic": ">"}, {"topic": ">"}]}, "activemq >: there are two entries"),
        (
            {"activemq": [{"topic": ">", "prefetch_rate_pending_message_limit_strategy": -1}]},
            "must be a number from 0",
        ),
        ({"qpid": [{"topic": "a", "delete_persistent": True}]}, "set confirm_delete to true"),
        ({"qpid": [{"topic": "a", "maessageAge": 1}]}, "there is no setting 'maessageAge'"),
    ],
)
def test_presets_refuse_what_they_do_not_know(changes: dict[str, Any], problem: str) -> None:
    found = problems(**changes)
    assert any(problem in one for one in found), found


def test_the_examples_of_the_documentation_are_policies() -> None:
    text = (Path(__file__).parents[3] / "docs" / "slow-clients.md").read_text()
    examples = [json.loads(block.split("```")[0]) for block in text.split("```json\n")[1:]]
    assert len(examples) == 3
    for example in examples:
        assert PolicyDocument.from_dict(document(**example))
