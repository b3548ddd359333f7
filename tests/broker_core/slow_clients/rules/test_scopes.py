"""Scopes: matching, specificity, and field-by-field layers with their origins."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.config import Scope
from broker_core.config.scopes import glob_matches, specificity
from broker_core.slow_clients.rules.review import review_policy
from broker_core.slow_clients.rules.rulebook import RuleBook
from broker_core.slow_clients.rules.scopes import (
    LayeredSettings,
    RuleSubject,
    SettingsLayer,
    scope_matches,
    sort_by_specificity,
    topic_pattern_covers,
)
from tests.support.broker_simulation import policy, rule_book


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        (">", "a.b", True),
        (">", "a.>", True),
        (">", "$SLUICE.clients", False),
        ("$SLUICE.>", "$SLUICE.clients", True),
        ("a.*", "a.b", True),
        ("a.*", "a.*", True),
        ("a.*", "a.>", False),
        ("a.>", "a.*.c", True),
        ("a.>", "a", False),
        ("a.b", "a.*", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("stocks.#", "stocks", True),
        ("stocks.#", "stocks.us.ibm", True),
        ("#", "stocks.us", True),
        ("stocks.us.*", "stocks.us.ibm", True),
        ("~a\\..*", "a.b", True),
        ("~a\\..*", "a.>", False),
        ("~[", "a", False),
        ("a.>", "~a\\..*", False),
        ("~x", "~x", True),
    ],
)
def test_a_pattern_covers_a_subscription_when_it_names_all_its_topics(
    pattern: str, topic: str, expected: bool
) -> None:
    assert topic_pattern_covers(pattern, topic) is expected


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("ops", "ops", True),
        ("ops", "ops-1", False),
        ("ops-*", "ops-1", True),
        ("*", "", True),
        ("*-gw", "eu-gw", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("a*b*c", "axxbyyc", True),
        ("a*b*c", "acb", False),
    ],
)
def test_client_name_patterns(pattern: str, name: str, expected: bool) -> None:
    assert glob_matches(pattern, name) is expected


def test_everything_that_is_set_must_match() -> None:
    subject = RuleSubject("ws", "ann", "trader-7", "prices.usd", "s1", "book")
    assert scope_matches(Scope(), subject)
    assert scope_matches(Scope("ws", "prices.>", "ann", "trader-*", "s1"), subject)
    assert scope_matches(Scope(subscription="book"), subject), "a durable subscription is known by its name"
    for other in (
        Scope(transport="tcp"),
        Scope(user="bob"),
        Scope(client="x*"),
        Scope(topic="fx.>"),
        Scope(subscription="s2"),
    ):
        assert not scope_matches(other, subject)
    assert not scope_matches(Scope(topic=">"), RuleSubject("ws", "ann", "trader-7")), (
        "a client isn't a subscription"
    )


def test_from_the_instance_to_the_subscription() -> None:
    ordered = [
        Scope(),
        Scope(topic=">"),
        Scope(topic="a.>"),
        Scope(topic="a.*"),
        Scope(topic="a.b"),
        Scope(transport="t"),
        Scope(transport="t", topic="a.b"),
        Scope(user="u"),
        Scope(client="a*"),
        Scope(client="ab*"),
        Scope(client="ab"),
        Scope(subscription="s"),
    ]
    assert sorted(ordered, key=specificity) == ordered


def test_the_later_of_equally_specific_entries_counts() -> None:
    one, other = SettingsLayer("1", Scope(topic="a.*"), {}), SettingsLayer("2", Scope(topic="*.b"), {})
    assert [layer.origin for layer in sort_by_specificity([other, one])] == ["2", "1"]


OLD = {
    "name": "old",
    "signal": "oldest_age",
    "limit": 5_000,
    "mode": "enforce",
    "ladder": [{"action": "disconnect"}],
}


def book(**more: object) -> RuleBook:
    return rule_book(
        policy(transports={"tcp": {"client_policy": {"client_max_capacity": 30}}, "ws": {}}, **more)
    )  # type: ignore[arg-type]


def test_the_most_specific_wins_field_by_field() -> None:
    made = book(
        rules=[
            OLD,
            {"name": "old", "scope": {"transport": "tcp"}, "limit": 9_000},
            {"name": "old", "scope": {"client": "ops-*"}, "mode": "off"},
            {"name": "old", "scope": {"user": "ann"}, "ladder": [{"action": "notify"}]},
        ]
    )

    def old(*subject: str) -> list[tuple[int, str]]:
        rules = made.client_rules_for(RuleSubject(*subject))
        return [(rule.limit, rule.ladder[0].action.value) for rule in rules if rule.name == "old"]

    assert old("ws") == [(5_000, "disconnect")]
    assert old("tcp") == [(9_000, "disconnect")]
    assert old("tcp", "ann") == [(9_000, "notify")]
    assert old("tcp", "ann", "ops-1") == []


def test_each_value_knows_where_it_comes_from() -> None:
    made = book(
        rules=[OLD, {"name": "old", "scope": {"client": "a*"}, "limit": 7}],
        xap=[{"enabled": True}, {"transport": "tcp", "latency": 900}],
        activemq=[{"topic": ">", "max_slow_count": 3}, {"topic": "prices.>", "prefetch": 10}],
    )
    found = made.effective(RuleSubject("tcp", client="ab", topic="prices.usd"))
    assert found["amps.client_max_capacity"] == (30, "transport tcp")
    assert found["amps.message_memory_limit"] == (None, "default")
    assert found["old.limit"] == (7, "rule old (client a*)")
    assert found["old.mode"].origin == "rule old (instance)"
    assert found["old.hold_ms"] == (0, "default")
    assert found["xap.latency"] == (900, "xap tcp") and found["xap.enabled"] == (True, "xap")
    assert found["activemq.max_slow_count"] == (3, "activemq >")
    assert found["activemq.prefetch"] == (10, "activemq prices.>")
    assert made.effective(RuleSubject("ws"))["amps.client_max_capacity"] == (50, "instance")


def test_a_rule_with_a_topic_anywhere_is_measured_per_subscription_everywhere() -> None:
    made = book(rules=[OLD, {"name": "old", "scope": {"topic": "bulk.>"}, "limit": 60_000}])
    assert all(rule.name != "old" for rule in made.client_rules_for(RuleSubject("tcp")))
    limits = {
        topic: [
            rule.limit
            for rule in made.subscription_rules_for(
                RuleSubject("tcp", client="c", topic=topic, subscription="1")
            )
        ]
        for topic in ("bulk.x", "prices.x")
    }
    assert limits == {"bulk.x": [60_000], "prices.x": [5_000]}


def test_clients_of_the_same_settings_share_their_rules() -> None:
    made = book(rules=[OLD, {"name": "old", "scope": {"client": "a*"}, "limit": 7}])
    assert made.client_rules_for(RuleSubject("ws", client="b1")) is made.client_rules_for(
        RuleSubject("ws", client="b2")
    )
    assert made.client_rules_for(RuleSubject("ws", client="a1")) is not made.client_rules_for(
        RuleSubject("ws", client="b1")
    )


def test_a_percent_is_of_the_pool_of_the_clients_transport() -> None:
    half = {
        "name": "half",
        "signal": "outbound_bytes",
        "shape": "percent_of",
        "percent": 10,
        "ladder": [{"action": "warn"}],
    }
    made = rule_book(
        policy(
            {"message_memory_limit": 1_000},
            transports={"a": {}, "b": {"pool": {"message_memory_limit": 5_000}}},
            rules=[half],
        )
    )
    limits = [
        rule.limit
        for name in ("a", "b")
        for rule in made.client_rules_for(RuleSubject(name))
        if rule.name == "half"
    ]
    assert limits == [100, 500]


# What the layers of one name come to, whoever asks: as documented, one by one.

TOPICS = st.sampled_from(
    [
        "",
        "a",
        "a.b",
        "a.b.c",
        "a.*",
        "*.b",
        "a.>",
        ">",
        "a.*.c",
        "a.b.#",
        "#",
        "~a\\..*",
        "$S.x",
        "$S.>",
        "*",
        "x.y",
    ]
)
SCOPES = st.builds(
    Scope,
    st.sampled_from(["", "tcp", "ws"]),
    TOPICS,
    st.sampled_from(["", "ann"]),
    st.sampled_from(["", "t*", "t-1"]),
    st.sampled_from(["", "s1", "book"]),
)
SUBJECTS = st.builds(
    RuleSubject,
    st.sampled_from(["tcp", "ws"]),
    st.sampled_from(["ann", "bob"]),
    st.sampled_from(["t-1", "t-2", "x"]),
    TOPICS,
    st.sampled_from(["s1", "s2"]),
    st.sampled_from(["", "book"]),
)


@given(st.lists(SCOPES, max_size=12), SUBJECTS)
def test_going_down_the_levels_finds_what_looking_at_everything_finds(
    scopes: list[Scope], subject: RuleSubject
) -> None:
    layers = [SettingsLayer(str(place), scope, {}) for place, scope in enumerate(scopes)]
    assert LayeredSettings(layers).layers_for(subject) == [
        one for one in sort_by_specificity(layers) if scope_matches(one.scope, subject)
    ]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(SCOPES, st.integers(1, 9), st.sampled_from([None, "enforce", "off"])),
        max_size=6,
        unique_by=lambda entry: entry[0],
    ),
    SUBJECTS,
)
def test_the_rule_in_force_is_its_entries_laid_over_each_other_by_hand(
    entries: list[tuple[Scope, int, str | None]], subject: RuleSubject
) -> None:
    whole = {
        "name": "own",
        "signal": "oldest_age",
        "limit": 100,
        "mode": "shadow",
        "ladder": [{"action": "notify"}],
    }
    rules = [
        whole,
        *(
            {"name": "own", "scope": asdict(scope), "limit": limit, **({"mode": mode} if mode else {})}
            for scope, limit, mode in entries
            if scope != Scope()
        ),
    ]
    made = rule_book(policy(transports={"tcp": {}, "ws": {}}, rules=rules))
    limit, mode = 100, "shadow"
    for scope, its, own in sorted(entries, key=lambda entry: specificity(entry[0])):
        if scope != Scope() and scope_matches(scope, subject):
            limit, mode = its, own or mode
    ruled_subscriptions = any(scope.per_subscription for scope, *_ in entries)
    if ruled_subscriptions and not subject.topic:
        return
    found = made.subscription_rules_for(subject) if ruled_subscriptions else made.client_rules_for(subject)
    assert [(rule.limit, rule.mode.value) for rule in found if rule.name == "own"] == (
        [(limit, mode)] if mode != "off" else []
    )


def test_an_entry_for_a_topic_completes_those_for_its_parts() -> None:
    made = book(
        rules=[
            {**OLD, "scope": {"topic": "bulk.>"}},
            {"name": "old", "scope": {"topic": "bulk.a.*"}, "limit": 7_000},
            {"name": "old", "scope": {"transport": "ws", "topic": "bulk.a.x"}, "mode": "shadow"},
        ]
    )

    def old(transport: str, topic: str) -> list[tuple[int, str]]:
        rules = made.subscription_rules_for(RuleSubject(transport, client="c", topic=topic, subscription="1"))
        return [(rule.limit, rule.mode.value) for rule in rules]

    assert old("tcp", "bulk.z") == [(5_000, "enforce")]
    assert old("tcp", "bulk.a.x") == [(7_000, "enforce")]
    assert old("ws", "bulk.a.x") == [(7_000, "shadow")]
    assert old("tcp", "prices.x") == []


def test_contradicting_entries_of_one_client_make_no_rule_and_a_review_reports_them() -> None:
    slow = {
        "name": "own",
        "scope": {"user": "ann"},
        "signal": "drain_rate",
        "shape": "rate_below",
        "window_ms": 500,
        "limit": 9,
        "ladder": [{"action": "notify"}],
    }
    other = {**OLD, "name": "own", "scope": {"client": "t*"}}
    document = policy(rules=[slow, other])
    made = rule_book(document)
    shapes = {
        subject: [
            rule.shape.value
            for rule in made.client_rules_for(RuleSubject("tcp", *subject))
            if rule.name == "own"
        ]
        for subject in (("ann", "x"), ("bob", "t-1"), ("ann", "t-1"))
    }
    assert shapes == {("ann", "x"): ["rate_below"], ("bob", "t-1"): ["hard"], ("ann", "t-1"): []}
    (finding,) = [one for one in review_policy(document) if one.where.startswith("rule own")]
    assert finding.sentence == (
        "For clients of both entries, rate_below and drain_rate or acknowledged_rate belong together: the "
        "rule doesn't act on them."
    )
    assert not review_policy(policy(rules=[slow, {**other, "shape": "hard"}]))
