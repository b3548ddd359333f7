"""evaluate(): each rule alone, their order, ties, modes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.config.rule_terms import DecisionReason, EnforcementMode, PolicyAction, Shape, Signal
from broker_core.config.rules import Rung
from broker_core.documents.system_records import DecisionCandidate
from broker_core.slow_clients.evaluate.decision import Decision, DecisionContext, decide
from broker_core.slow_clients.evaluate.judge import NOTHING, exemption_reason
from broker_core.slow_clients.evaluate.signals import BacklogCounts, PoolSignals
from broker_core.slow_clients.rules.rule import Rule
from broker_core.slow_clients.rules.rulebook import RuleBook
from broker_core.slow_clients.rules.scopes import RuleSubject
from tests.support.broker_simulation import START, policy, rule_book
from tests.support.signals import ClientSignals, SubscriptionSignals, evaluate

MEMORY, DISK = 1_000, 4_000


def rules(age_ms: int | None = 30_000, capacity: int = 50, **more: object) -> RuleBook:
    document = policy({"message_memory_limit": MEMORY, "message_disk_limit": DISK}, capacity, age_ms, **more)  # type: ignore[arg-type]
    return rule_book(document)


def client(name: str, memory: int = 0, disk: int = 0, age_ms: int = 0, **more: object) -> ClientSignals:
    return ClientSignals(
        name,
        "tcp",
        "instance",
        memory=memory,
        disk=disk,
        is_offlined=disk > 0,
        oldest_at=START - age_ms * 1_000_000 if age_ms else 0,
        **more,  # type: ignore[arg-type]
    )


def judge(*clients: ClientSignals, by: RuleBook | None = None) -> list[Decision]:
    pool = PoolSignals(
        "instance",
        sum(c.memory for c in clients),
        sum(c.memory for c in clients if c.is_offlined),
        sum(c.disk for c in clients),
    )
    return list(evaluate(rules() if by is None else by, clients, [pool], START).decisions)


def client_actions(decisions: list[Decision]) -> list[tuple[str, PolicyAction, DecisionReason]]:
    return [(decision.client, decision.action, decision.reason) for decision in decisions]


def test_nothing_is_decided_exactly_at_every_limit() -> None:
    assert judge(client("a", memory=500), client("b", memory=500)) == []
    assert judge(client("a", disk=2_000), client("b", disk=2_000)) == []
    assert judge(client("a", memory=1, age_ms=30_000)) == []


def test_the_backlog_of_a_client_is_summed_once_for_all_its_subscriptions() -> None:
    """Summing up costs as much as there are subscriptions; a sum for each of a thousand decisions would block
    the loop.
    """
    looks = []

    class CountingSignals(ClientSignals):
        __slots__ = ()

        def waiting(self) -> BacklogCounts:
            looks.append(self.name)
            return super().waiting()

    warn = {
        "name": "w",
        "mode": "enforce",
        "signal": "backlog_messages",
        "limit": 10,
        "scope": {"topic": "t"},
    }
    book = rules(rules=[{**warn, "ladder": [{"action": "warn"}]}])
    many = tuple(SubscriptionSignals(str(n), "t", backlog_messages=11) for n in range(50))
    busy = [CountingSignals(name, "tcp", "instance", subscriptions=many) for name in ("a", "b")]
    assert len(judge(*busy, by=book)) == 100
    assert looks == ["a", "b"]


def test_over_its_share_of_memory_a_client_is_offlined() -> None:
    (decision,) = judge(client("a", memory=501))
    assert client_actions([decision]) == [("a", PolicyAction.OFFLINE, DecisionReason.MEMORY_CAPACITY)]
    assert (decision.observed, decision.limit, decision.used, decision.chosen_over) == (501, 500, 501, None)


def test_over_its_share_of_disk_an_offlined_client_is_disconnected() -> None:
    assert client_actions(judge(client("a", disk=2_001))) == [
        ("a", PolicyAction.DISCONNECT, DecisionReason.CAPACITY)
    ]


def test_an_offlined_client_is_not_offlined_again() -> None:
    assert judge(client("a", memory=900, disk=1)) == []


def test_too_old_is_disconnected_live_or_offlined() -> None:
    decisions = judge(client("a", memory=1, age_ms=30_001), client("b", disk=1, age_ms=99_000))
    assert client_actions(decisions) == [
        ("a", PolicyAction.DISCONNECT, DecisionReason.AGE),
        ("b", PolicyAction.DISCONNECT, DecisionReason.AGE),
    ]
    assert (decisions[0].observed, decisions[0].limit, decisions[0].unit) == (30_001, 30_000, "ms")


def test_a_clock_that_went_back_makes_no_age() -> None:
    assert judge(client("a", memory=1, age_ms=-50_000)) == []


def test_over_the_pools_memory_the_largest_go_until_it_is_under() -> None:
    clients = (client(name, memory=size) for name, size in (("a", 490), ("b", 400), ("c", 500), ("d", 450)))
    decisions = judge(*clients)
    assert [(d.client, d.observed, d.used, d.chosen_over) for d in decisions] == [
        ("c", 1_840, 500, DecisionCandidate("a", 490)),
        ("a", 1_340, 490, DecisionCandidate("d", 450)),
    ]
    assert all((d.action, d.reason) == (PolicyAction.OFFLINE, DecisionReason.POOL_MEMORY) for d in decisions)


def test_a_pool_that_is_back_at_exactly_its_limit_costs_no_second_one() -> None:
    clients = [client("large", memory=300), *(client(f"small-{number}", memory=250) for number in range(4))]
    assert client_actions(judge(*clients)) == [("large", PolicyAction.OFFLINE, DecisionReason.POOL_MEMORY)]


def test_over_the_pools_disk_the_largest_is_disconnected() -> None:
    clients = (client(name, disk=size) for name, size in (("a", 1_500), ("b", 1_600), ("c", 1_000)))
    (decision,) = judge(*clients, client("d", memory=300))
    assert client_actions([decision]) == [("b", PolicyAction.DISCONNECT, DecisionReason.DISK)]
    assert (decision.observed, decision.limit, decision.chosen_over) == (
        4_100,
        4_000,
        DecisionCandidate("a", 1_500),
    )


def test_memory_that_is_leaving_costs_nobody_else_their_place() -> None:
    assert judge(client("a", memory=900, disk=1), client("b", memory=400)) == []


def test_a_client_acted_on_for_itself_relieves_the_pool() -> None:
    assert client_actions(judge(client("a", memory=600), client("b", memory=450))) == [
        ("a", PolicyAction.OFFLINE, DecisionReason.MEMORY_CAPACITY)
    ]


def test_a_client_over_two_limits_is_acted_on_once_by_the_harder_rule() -> None:
    assert client_actions(judge(client("a", memory=2_000, age_ms=40_000))) == [
        ("a", PolicyAction.DISCONNECT, DecisionReason.AGE)
    ]


def custom_rule(name: str, action: str, **more: object) -> dict[str, object]:
    return {
        "name": name,
        "mode": "enforce",
        "signal": "oldest_age",
        "limit": 1_000,
        "ladder": [{"action": action}],
        **more,
    }


def test_no_further_rule_acts_on_a_closed_client_and_none_on_a_protected_one() -> None:
    book = rules(
        None, rules=[custom_rule("ends", "disconnect", protected=["a*"]), custom_rule("tells", "notify")]
    )
    old = [client(name, memory=1, age_ms=2_000) for name in ("a1", "b")]
    assert [(one.client, one.rule) for one in judge(*old, by=book)] == [("a1", "tells"), ("b", "ends")]


def test_why_a_rule_spares_somebody_is_said_and_nothing_of_all_others() -> None:
    (rule,) = rules(
        None, rules=[custom_rule("r", "notify", protected=["a*"], scope={"client": "*"})]
    ).client_rules_for(RuleSubject("tcp", "", "a1"))[-1:]
    assert [exemption_reason(rule, name) for name in ("a1", "b")] == ["the rule protects it", ""]
    assert exemption_reason(replace(rule, protected=()), "a1") == ""


@pytest.mark.parametrize(
    ("wanted", "figures", "of_client", "done"),
    [
        (PolicyAction.DELETE_DURABLE, None, {}, PolicyAction.DISCONNECT),
        (PolicyAction.DELETE_DURABLE, {"durable": False}, {}, PolicyAction.DISCONNECT),
        (PolicyAction.DELETE_DURABLE, {"durable": True}, {}, PolicyAction.DELETE_DURABLE),
        (PolicyAction.CONTINUE_FROM_JOURNAL, {"journaled": True}, {}, PolicyAction.CONTINUE_FROM_JOURNAL),
        (PolicyAction.CONTINUE_FROM_JOURNAL, {"journaled": False}, {}, PolicyAction.OFFLINE),
        (
            PolicyAction.CONTINUE_FROM_JOURNAL,
            None,
            {"resume_bookmark": "i|1|"},
            PolicyAction.CONTINUE_FROM_JOURNAL,
        ),
        (PolicyAction.CONTINUE_FROM_JOURNAL, None, {}, PolicyAction.OFFLINE),
        (
            PolicyAction.CONTINUE_FROM_JOURNAL,
            None,
            {"resume_bookmark": "i|1|", "unjournaled_messages": 1},
            PolicyAction.OFFLINE,
        ),
        (PolicyAction.CONTINUE_FROM_JOURNAL, {"journaled": False}, {"disk": 1}, None),
        (PolicyAction.OFFLINE, None, {"disk": 1}, None),
        (PolicyAction.PAUSE, {"paused": True}, {}, None),
        (PolicyAction.PAUSE, {"paused": False}, {}, PolicyAction.PAUSE),
        (PolicyAction.PAUSE, None, {}, PolicyAction.PAUSE),
    ],
)
def test_what_is_done_is_what_makes_sense_of_what_the_rule_says(
    wanted: PolicyAction, figures: dict[str, Any] | None, of_client: dict[str, Any], done: PolicyAction | None
) -> None:
    rule = Rule("r", "r", "", Signal.OLDEST_AGE, Shape.HARD, 1_000, (Rung(wanted),), 1)
    view = SubscriptionSignals("s", "t", **figures) if figures is not None else None
    judged = client("a", **of_client)
    found = DecisionContext.of(judged, START)
    decision = decide(rule, 0, judged, view, 1_001, 1_001, None, START, found)
    assert (decision.action if decision is not None else None) == done


def test_among_equals_the_first_by_name_is_chosen() -> None:
    decisions = judge(*(client(name, memory=400) for name in "cab"))
    assert [decision.client for decision in decisions] == ["a"]


def test_the_two_figures_of_what_it_costs() -> None:
    backlog = {
        "outbox_messages": 3,
        "spool_messages": 7,
        "unjournaled_messages": 4,
        "resume_bookmark": "s|9|",
    }
    (offlined,) = judge(client("a", memory=501, **backlog))
    (closed,) = judge(client("a", disk=2_001, **backlog))
    assert (offlined.kept, offlined.lost) == (10, 0)
    assert (closed.kept, closed.lost, closed.resume_bookmark) == (6, 4, "s|9|")


def test_a_transport_without_rules_is_judged_by_the_instances() -> None:
    stranger = replace(client("a", memory=501), transport="gone")
    assert client_actions(judge(stranger)) == [("a", PolicyAction.OFFLINE, DecisionReason.MEMORY_CAPACITY)]


AT_100 = {"name": "own", "signal": "outbound_bytes", "limit": 100, "ladder": [{"action": "offline"}]}


def test_rules_that_are_off_say_nothing() -> None:
    assert judge(client("a", memory=200), by=rules(rules=[{**AT_100, "mode": "off"}])) == []


def test_shadow_is_judged_as_if_it_were_alone() -> None:
    decisions = judge(client("a", memory=600), client("b", memory=200), by=rules(rules=[AT_100]))
    assert [(d.client, d.mode) for d in decisions] == [
        ("a", EnforcementMode.ENFORCE),
        ("a", EnforcementMode.SHADOW),
        ("b", EnforcementMode.SHADOW),
    ]


def test_among_equals_the_older_backlog_is_chosen() -> None:
    decisions = judge(
        client("a", memory=400, age_ms=5),
        client("b", memory=400, age_ms=9),
        client("c", memory=400, age_ms=7),
    )
    assert (decisions[0].client, decisions[0].chosen_over) == ("b", DecisionCandidate("c", 400))


def test_nothing_decided_is_one_and_the_same_verdict() -> None:
    assert evaluate(rules(), [client("a", memory=5)], [PoolSignals("instance", 5, 0, 0)], START) is NOTHING


users = st.lists(st.tuples(st.integers(0, 800), st.integers(0, 3_000), st.integers(0, 40_000)), max_size=12)


@given(users)
def test_afterwards_nothing_is_over(figures: list[tuple[int, int, int]]) -> None:
    clients = [client(f"c{n}", memory, disk, age) for n, (memory, disk, age) in enumerate(figures)]
    decisions = judge(*clients)
    gone = {d.client for d in decisions if d.action is PolicyAction.DISCONNECT}
    offlined = {d.client for d in decisions if d.action is PolicyAction.OFFLINE}
    left = [
        replace(c, memory=0, is_offlined=True) if c.name in offlined else c
        for c in clients
        if c.name not in gone
    ]
    assert judge(*left) == []
    assert len(decisions) <= len(clients)
