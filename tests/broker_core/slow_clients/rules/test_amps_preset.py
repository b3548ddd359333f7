"""AMPS settings: defaults, transports that share a pool, and the rules compiled from them."""

from __future__ import annotations

import pytest

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import DecisionReason, EnforcementMode, PolicyAction
from broker_core.slow_clients.rules.presets import client_rules, pool_rules, resolve_pools
from broker_core.slow_clients.rules.rule import INSTANCE, ClientLimits, Rule, client_limits
from broker_core.slow_clients.rules.scopes import RuleSubject
from tests.support.broker_simulation import policy, rule_book

GIB = 1 << 30


def compile_rules(document: PolicyDocument) -> list[Rule]:
    pools = resolve_pools(document, 16 * GIB, None, "/spools")
    made = [rule for transport, pool in pools.items() for rule in client_rules(document, transport, pool)]
    return made + [
        rule for pool in dict.fromkeys(pools.values()) for rule in pool_rules(pool, document.revision)
    ]


def rules_of(**settings: object) -> dict[tuple[str, str], Rule]:
    document = policy(**settings)  # type: ignore[arg-type]
    compiled = compile_rules(document)
    return {(rule.name.removeprefix("amps."), rule.scope): rule for rule in compiled}


@pytest.mark.parametrize(
    ("host", "ulimit", "memory"),
    [
        (100 * GIB, None, 10 * GIB),
        (100 * GIB, 50 * GIB, 5 * GIB),
        (100 * GIB, 200 * GIB, 10 * GIB),
    ],
)
def test_default_memory_is_the_lower_tenth(host: int, ulimit: int | None, memory: int) -> None:
    assert resolve_pools(policy(), host, ulimit, "/spools")["tcp"].memory == memory


def test_default_disk_is_one_gigabyte_or_the_memory_limit() -> None:
    small = resolve_pools(policy({"message_memory_limit": 5}), GIB, None, "/spools")["tcp"]
    large = resolve_pools(policy({"message_memory_limit": 3 * GIB}), GIB, None, "/spools")["tcp"]
    assert (small.disk, large.disk) == (10**9, 3 * GIB)
    assert small.disk_path == "/spools"


def test_transports_share_the_instances_pool() -> None:
    pools = resolve_pools(policy(transports={"a": {}, "b": {}}), 16 * GIB, None, "/spools")
    assert pools["a"] is pools["b"] is pools[INSTANCE]
    assert pools["a"].name == "instance"


def test_a_differing_value_makes_a_separate_pool_with_the_other_values() -> None:
    document = policy(
        {"message_memory_limit": 1_000, "message_disk_limit": 5_000},
        transports={"a": {"pool": {"message_memory_limit": 9_000}}, "b": {}},
    )
    pools = resolve_pools(document, 16 * GIB, None, "/spools")
    assert pools["b"] is pools[INSTANCE] and pools["a"] is not pools["b"]
    assert pools["a"] == ("transport:a", 9_000, 5_000, "/spools")


def test_the_same_value_written_out_is_not_a_difference() -> None:
    seven = {"message_memory_limit": 7}
    document = policy(seven, transports={"a": {"pool": seven}})
    pools = resolve_pools(document, 16 * GIB, None, "/spools")
    assert pools["a"] is pools[INSTANCE]


def test_the_rules_of_the_defaults() -> None:
    rules = rules_of(pool={"message_memory_limit": 1_000, "message_disk_limit": 4_000})
    own = {key: rule for key, rule in rules.items() if key[1] != INSTANCE}
    assert {key: (rule.limit, rule.ladder[0].action, rule.reason) for key, rule in own.items()} == {
        ("client_max_capacity.disk", "tcp"): (2_000, PolicyAction.DISCONNECT, DecisionReason.CAPACITY),
        ("client_max_capacity.memory", "tcp"): (500, PolicyAction.OFFLINE, DecisionReason.MEMORY_CAPACITY),
        ("message_disk_limit", "instance"): (4_000, PolicyAction.DISCONNECT, DecisionReason.DISK),
        ("message_memory_limit", "instance"): (1_000, PolicyAction.OFFLINE, DecisionReason.POOL_MEMORY),
    }
    assert all(rule.mode is EnforcementMode.ENFORCE and rule.revision == 1 for rule in rules.values())


def test_a_transports_client_policy_stands_over_the_instances() -> None:
    rules = rules_of(
        pool={"message_memory_limit": 1_000},
        age_ms=30_000,
        transports={
            "a": {"client_policy": {"client_max_capacity": 80}},
            "b": {"client_policy": {"client_message_age_limit_ms": 5_000}},
        },
    )
    assert rules["client_max_capacity.memory", "a"].limit == 800
    assert rules["client_message_age_limit", "a"].limit == 30_000
    assert rules["client_max_capacity.memory", "b"].limit == 500
    assert rules["client_message_age_limit", "b"].limit == 5_000


def test_pool_rules_exist_once_for_each_pool() -> None:
    document = policy(transports={"a": {}, "b": {}, "c": {"pool": {"message_disk_limit": 3 * GIB}}})
    compiled = compile_rules(document)
    scopes = [rule.scope for rule in compiled if rule.name == "amps.message_memory_limit"]
    assert sorted(scopes) == ["instance", "transport:c"]


def test_limits_for_the_hot_path_are_those_judged_at_enqueue() -> None:
    document = policy({"message_memory_limit": 1_000, "message_disk_limit": 4_000}, age_ms=9)
    book = rule_book(document)
    assert client_limits(book.client_rules_for(RuleSubject("tcp"))) == ClientLimits(500, 2_000)
    assert client_limits(book.client_rules_for(RuleSubject("unheard-of"))) == ClientLimits(500, 2_000)
