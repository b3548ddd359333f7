"""A preview names the clients whose settings change, with the origin of each value."""

from __future__ import annotations

from dataclasses import replace

from broker_core.config import (
    ActiveMqPolicy,
    ClientPolicy,
    PolicyDocument,
    RuleSettings,
    Rung,
    Scope,
    default_policy,
)
from broker_core.config.rule_terms import PolicyAction, Signal
from broker_core.slow_clients.rules.effective import compare_policies
from broker_core.slow_clients.rules.presets import resolve_pools
from broker_core.slow_clients.rules.rulebook import RuleBook
from broker_core.slow_clients.rules.scopes import RuleSubject

BASE = default_policy("x")
DESK, OTHER = RuleSubject("tcp", client="desk-1"), RuleSubject("websocket", client="other")
PRICES = DESK._replace(topic="prices.eu", subscription="s")


def book(document: PolicyDocument) -> RuleBook:
    return RuleBook(document, resolve_pools(document, 2**30, None, "/spool"))


def test_nothing_changes_between_two_revisions_of_one_policy() -> None:
    assert compare_policies(book(BASE), book(replace(BASE, revision=2)), [DESK, PRICES, OTHER]) == []


def test_a_limit_of_the_instance_touches_everybody_with_both_origins() -> None:
    after = replace(BASE, client_policy=ClientPolicy(client_max_capacity=10))
    touched = compare_policies(book(BASE), book(after), [DESK, PRICES, OTHER])
    assert [one.client for one in touched] == ["desk-1", "other"]  # the subscription has nothing of its own
    (change,) = touched[0].changes
    assert change.setting == "amps.client_max_capacity"
    assert (change.before.value, change.after.value) == (50, 10)
    assert change.after.origin == "instance"


def test_a_rule_for_some_touches_them_alone() -> None:
    rule = RuleSettings(
        "age",
        Scope(client="desk-*"),
        signal=Signal.OLDEST_AGE,
        limit=1_000,
        ladder=(Rung(PolicyAction.DISCONNECT),),
    )
    touched = compare_policies(book(BASE), book(replace(BASE, rules=(rule,))), [DESK, OTHER])
    assert [one.client for one in touched] == ["desk-1"]
    assert {change.setting for change in touched[0].changes} >= {"age.signal", "age.limit"}
    limit = next(change for change in touched[0].changes if change.setting == "age.limit")
    assert (limit.before.value, limit.before.origin, limit.after.value) == (None, "not set", 1_000)


def test_an_entry_for_a_topic_touches_the_subscription() -> None:
    after = replace(BASE, activemq=(ActiveMqPolicy("prices.*", prefetch=10),))
    touched = compare_policies(book(BASE), book(after), [DESK, PRICES, OTHER])
    assert [(one.client, one.subscription) for one in touched] == [("desk-1", "s")]


def test_a_rule_taken_away_is_a_change_too() -> None:
    after = replace(BASE, activemq=(ActiveMqPolicy("prices.*", prefetch=10),))
    (one,) = compare_policies(book(after), book(BASE), [DESK, PRICES])
    prefetch = next(change for change in one.changes if change.setting == "activemq.prefetch")
    assert (prefetch.before.value, prefetch.after.value) == (10, None)


def test_a_ladder_is_reported_as_in_the_policy() -> None:
    rule = RuleSettings(
        "age",
        signal=Signal.OLDEST_AGE,
        limit=1_000,
        ladder=(Rung(PolicyAction.WARN, 80), Rung(PolicyAction.DISCONNECT)),
    )
    (touched,) = compare_policies(book(BASE), book(replace(BASE, rules=(rule,))), [DESK])
    (ladder,) = [one for one in touched.changes if one.setting == "age.ladder"]
    assert ladder.after.value == [
        {"action": "warn", "at_percent": 80, "after_ms": 0, "for_ms": 0},
        {"action": "disconnect", "at_percent": 100, "after_ms": 0, "for_ms": 0},
    ]


def test_host_defaults_are_reported_as_effective_values() -> None:
    after = replace(BASE, pool=replace(BASE.pool, message_disk_limit=5 * 2**30))
    (touched,) = compare_policies(book(BASE), book(after), [DESK])
    (change,) = touched.changes
    assert change.setting == "amps.message_disk_limit"
    assert (change.before.value, change.after.value) == (book(BASE).pool_for(DESK).disk, 5 * 2**30)
    assert change.before.value
