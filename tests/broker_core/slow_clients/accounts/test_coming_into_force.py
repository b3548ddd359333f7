"""A new policy acts immediately on clients over its limits, and a preview predicts exactly that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import EnforcementMode, PolicyAction
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.signals import BacklogCounts
from broker_core.slow_clients.rules.rulebook import StagedRevision
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy
from tests.support.signals import SubscriptionSignals

BIG = {"message_memory_limit": 10**9, "message_disk_limit": 10**9}
NOTIFY = [{"action": "notify"}]


def essence(decisions: list[Decision]) -> list[tuple[Any, ...]]:
    return sorted(
        (
            one.client,
            one.subscription,
            one.rule,
            one.rung,
            one.action.value,
            one.observed,
            one.limit,
            one.kept,
            one.lost,
            one.used,
            str(one.chosen_over),
            one.revision,
            one.at,
            one.mode.value,
        )
        for one in decisions
    )


def apply(made: SlowClientGuard, document: PolicyDocument, stage: StagedRevision | None = None) -> None:
    made.apply_policy(document, stage)


# Random policies.

MS = st.sampled_from([500, 1_000, 30_000])
COUNTS = st.sampled_from([1, 4, 9])
MODES = st.sampled_from(["enforce", "shadow", "off"])
OWN = st.sampled_from(
    [
        {
            "name": "age",
            "signal": "oldest_age",
            "limit": 2_000,
            "ladder": [{"action": "warn", "at_percent": 50}, {"action": "disconnect"}],
        },
        {
            "name": "blocked",
            "signal": "write_blocked",
            "limit": 1_000,
            "ladder": [{"action": "ask_to_close"}],
            "check_ms": 30_000,
        },
        {"name": "owed", "signal": "backlog_messages", "limit": 5, "ladder": NOTIFY},
        {
            "name": "cut",
            "signal": "backlog_messages",
            "limit": 3,
            "scope": {"topic": ">"},
            "ladder": [{"action": "discard_oldest"}],
        },
        {
            "name": "unacked",
            "signal": "unacked_messages",
            "limit": 4,
            "ladder": [{"action": "pause"}],
            "check_ms": 5_000,
        },
        {
            "name": "silent",
            "signal": "ack_silence",
            "limit": 900,
            "shape": "duration_without",
            "ladder": [{"action": "cancel_subscription"}],
        },
        {
            "name": "share",
            "signal": "outbound_bytes",
            "shape": "percent_of",
            "percent": 20,
            "ladder": [{"action": "offline"}],
        },
        {
            "name": "held",
            "signal": "oldest_age",
            "shape": "soft_for",
            "limit": 1_000,
            "hold_ms": 1_000,
            "ladder": NOTIFY,
        },
        {
            "name": "pool",
            "signal": "pool_memory",
            "limit": 600,
            "choose": "largest_in_pool",
            "shape": "largest_when_pool_over",
            "ladder": [{"action": "offline"}],
            "protected": ["c1*"],
        },
        {
            "name": "crowd",
            "signal": "pool_disk",
            "limit": 300,
            "choose": "largest_in_pool",
            "ladder": [{"action": "warn"}],
        },
        {"name": "gone", "signal": "spool_age", "limit": 1_500, "ladder": NOTIFY},
    ]
)
RULES = st.lists(st.tuples(OWN, MODES), max_size=4, unique_by=lambda pair: pair[0]["name"]).map(
    lambda pairs: [own | {"mode": mode} for own, mode in pairs]
)
LIMITS = st.one_of(
    st.just(BIG),
    st.builds(
        lambda memory, disk: {"message_memory_limit": memory, "message_disk_limit": disk},
        st.integers(100, 3_000),
        st.integers(100, 3_000),
    ),
)
POLICIES = st.builds(
    lambda pool, own, capacity, age, rules, activemq, qpid, revision: policy(
        pool,
        capacity,
        age,
        {"a": {"pool": own} if own else {}, "b": {}},
        revision,
        rules=rules,
        activemq=activemq,
        qpid=qpid,
    ),
    LIMITS,
    st.one_of(st.none(), LIMITS),
    st.integers(10, 100),
    st.one_of(st.none(), MS),
    RULES,
    st.lists(
        st.builds(
            lambda pending, abort, duration, mode: {
                "topic": ">",
                "constant_pending_message_limit_strategy": pending,
                "abort_slow_consumer_strategy": abort,
                "max_slow_duration": duration,
                "mode": mode,
            },
            st.integers(-1, 5),
            st.booleans(),
            MS,
            MODES,
        ),
        max_size=1,
    ),
    st.lists(
        st.builds(
            lambda count, age, mode: {
                "topic": "t.*",
                "message_count": count,
                "message_age": age,
                "mode": mode,
            },
            COUNTS,
            MS,
            MODES,
        ),
        max_size=1,
    ),
    st.integers(2, 9),
)

# Random clients: memory, disk, age in ms, blocked for ms, owed, offlined.

SLICES = st.sampled_from([0, 700, 1_500, 40_000])
SUBSCRIPTIONS = st.lists(
    st.tuples(
        st.sampled_from(["t.a", "t.b", "quiet"]),
        st.booleans(),
        st.integers(0, 10),
        st.integers(0, 10),
        SLICES,
        SLICES,
        st.sampled_from([0, 5]),
    ),
    max_size=3,
)
CLIENTS = st.lists(
    st.tuples(
        st.integers(0, 900),
        st.integers(0, 900),
        SLICES,
        SLICES,
        st.integers(0, 9),
        st.booleans(),
        SUBSCRIPTIONS,
    ),
    min_size=1,
    max_size=6,
)


def at(ms: int) -> int:
    return START - ms * 1_000_000 if ms else 0


def make_guard_with_clients(document: PolicyDocument, clients: list[Any]) -> SlowClientGuard:
    made = make_guard(document)
    for number, (memory, disk, age, blocked, owed, offlined, subscriptions) in enumerate(clients):
        backlog = FixedBacklog(0, BacklogCounts(owed, disk // 40, owed // 2, "s|3|"))
        backlog.blocked_since, backlog.owed_messages = at(blocked), owed
        use = made.register(f"c{number}", "ab"[number % 2], backlog)
        for place, (topic, durable, messages, unacked, old, full, prefetch) in enumerate(subscriptions):
            made.subscribe(
                use,
                SubscriptionSignals(
                    str(place),
                    topic,
                    durable=durable,
                    prefetch=prefetch,
                    backlog_messages=messages + unacked,
                    outbox_messages=messages,
                    unacked_messages=unacked,
                    oldest_at=at(old),
                    acked_at=at(old),
                    window_full_since=at(full),
                    blocked_since=at(blocked),
                ),
            )
        if memory:
            backlog.oldest_at = at(age)
            made.on_queued(use, memory, START)
        if offlined and not (use.is_offlined or use.is_closing):
            use.pool.mark_offlining(use)
            use.offlined_at = at(2_000)
        if disk and use.is_offlined:
            backlog.oldest_at = at(age)
            made.on_spooled(use, disk, START)
    return made


STAGES = st.one_of(
    st.none(),
    st.builds(lambda document, share: StagedRevision(document, share=share), POLICIES, st.integers(1, 99)),
    st.builds(lambda document: StagedRevision(document, client="c*"), POLICIES),
)


@settings(max_examples=300, deadline=None)
@given(POLICIES, POLICIES, STAGES, CLIENTS, st.integers(0, 3))
def test_a_preview_is_what_then_happens(
    before: PolicyDocument,
    after: PolicyDocument,
    stage: StagedRevision | None,
    clients: list[Any],
    seconds: int,
) -> None:
    made = make_guard_with_clients(before, clients)
    for second in range(seconds + 1):
        made.tick(START + second * SECOND)
    now = START + seconds * SECOND
    expected = made.preview(after, now, stage)
    assert made.preview(after, now, stage) == expected, "it changes nothing"
    apply(made, after, stage)
    decisions = made.tick(now)
    assert essence(decisions) == essence(expected)


# Who is over a limit when its rule comes into force.


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (
            {"activemq": [{"topic": ">", "abort_slow_consumer_strategy": True}]},
            PolicyAction.CANCEL_SUBSCRIPTION,
        ),
        ({"qpid": [{"topic": "quiet", "message_count": 3}]}, PolicyAction.DISCONNECT),
        (
            {
                "rules": [
                    {
                        "name": "r",
                        "mode": "enforce",
                        "signal": "unacked_messages",
                        "limit": 5,
                        "check_ms": 60_000,
                        "ladder": NOTIFY,
                    }
                ]
            },
            PolicyAction.NOTIFY,
        ),
        (
            {
                "rules": [
                    {"name": "r", "mode": "enforce", "signal": "write_blocked", "limit": 5, "ladder": NOTIFY}
                ]
            },
            PolicyAction.NOTIFY,
        ),
        (
            {
                "rules": [
                    {
                        "name": "r",
                        "mode": "enforce",
                        "signal": "backlog_messages",
                        "limit": 5,
                        "ladder": NOTIFY,
                    }
                ]
            },
            PolicyAction.NOTIFY,
        ),
    ],
    ids=[
        "looked at every 30 s",
        "a quiet topic",
        "looked at each minute",
        "nothing in memory",
        "all of it in flight",
    ],
)
@pytest.mark.parametrize("staged", [False, True])
def test_it_acts_at_once_on_the_quiet_too(
    rules: dict[str, Any], expected: PolicyAction, staged: bool
) -> None:
    made = make_guard(policy(BIG))
    backlog = FixedBacklog()
    backlog.owed_messages, backlog.blocked_since = 9, at(700)
    made.subscribe(
        made.register("c", "tcp", backlog),
        SubscriptionSignals(
            "s", "quiet", prefetch=9, backlog_messages=9, unacked_messages=9, window_full_since=at(40_000)
        ),
    )
    new = policy(BIG, revision=2, **rules)
    apply(made, *((policy(BIG), StagedRevision(new, client="c")) if staged else (new, None)))
    assert [(one.action, one.revision) for one in made.tick(START)] == [(expected, 2)]


def test_a_rule_that_leaves_shadow_acts_on_whom_it_spoke_of_and_its_hold_has_run() -> None:
    own = {
        "name": "r",
        "signal": "oldest_age",
        "shape": "soft_for",
        "limit": 1_000,
        "hold_ms": 3_000,
        "ladder": NOTIFY,
    }
    made = make_guard(policy(BIG, rules=[own]))
    made.on_queued(made.register("c", "tcp", FixedBacklog(START)), 10, START)
    said = [one for second in range(8) for one in made.tick(START + second * SECOND)]
    assert [one.mode for one in said] == [EnforcementMode.SHADOW]
    enforced = policy(BIG, rules=[own | {"mode": "enforce"}])
    assert [one.mode for one in made.preview(enforced, START + 8 * SECOND)] == [EnforcementMode.ENFORCE]
    apply(made, enforced)
    assert [one.mode for one in made.tick(START + 8 * SECOND)] == [EnforcementMode.ENFORCE]
    apply(made, policy(BIG, rules=[own | {"mode": "enforce"}], revision=3))
    assert made.tick(START + 9 * SECOND) == [], "what stays as it was has acted already"


def test_a_changed_limit_restarts_its_duration() -> None:
    own = {"name": "r", "mode": "enforce", "signal": "oldest_age", "limit": 2_000, "ladder": NOTIFY}
    made = make_guard(policy(BIG, rules=[own]))
    made.on_queued(made.register("c", "tcp", FixedBacklog(START)), 10, START)
    assert len([one for second in range(4) for one in made.tick(START + second * SECOND)]) == 1
    apply(made, policy(BIG, rules=[own | {"limit": 1_000}]))
    assert len(made.tick(START + 4 * SECOND)) == 1
