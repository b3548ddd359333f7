"""Review findings about a policy before it is saved."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.slow_clients.rules.review import PolicyFinding, Severity, review_policy
from tests.support.broker_simulation import policy

OWN = {"name": "own", "signal": "oldest_age", "limit": 5_000, "ladder": [{"action": "disconnect"}]}
ABORT = {"topic": ">", "abort_slow_consumer_strategy": True}


def findings(host_memory: int | None = None, **settings: Any) -> list[PolicyFinding]:
    return review_policy(policy(**settings), host_memory)


def test_the_defaults_have_nothing_against_them() -> None:
    assert findings(64 << 30) == []


@pytest.mark.parametrize(
    ("settings", "severity", "words"),
    [
        ({"capacity": 100}, "warn", "one client can use the whole pool"),
        ({"pool": {"message_memory_limit": 500}}, "warn", "less than a message"),
        (
            {"pool": {"message_memory_limit": 1 << 30, "message_disk_limit": 1 << 20}},
            "warn",
            "don't fit on disk",
        ),
        ({"age_ms": 200}, "warn", "up to a second late"),
        (
            {"age_ms": 4_000, "rules": [{**OWN, "shape": "soft_for", "limit": 1, "hold_ms": 9_000}]},
            "warn",
            "never acts",
        ),
        ({"rules": [{**OWN, "scope": {"transport": "gone"}}]}, "warn", "matches no client"),
        ({"rules": [{**OWN, "scope": {"topic": "a.b*"}}]}, "refuse", "isn't a topic pattern"),
        ({"rules": [{**OWN, "check_ms": 60_000}]}, "warn", "can act this late"),
        ({"rules": [{**OWN, "signal": "outbound_bytes", "limit": 5}]}, "warn", "less than a message"),
        (
            {
                "rules": [
                    {**OWN, "mode": "enforce", "limit": 4_000},
                    {**OWN, "name": "trial", "mode": "shadow"},
                ]
            },
            "warn",
            "Rule own is enforced and acts on the same clients first",
        ),
        ({"activemq": [{**ABORT, "max_slow_duration": -1}]}, "refuse", "no client is ever aborted"),
        ({"activemq": [{"topic": "a.>>"}]}, "refuse", "isn't a topic pattern"),
        (
            {
                "activemq": [
                    {
                        "topic": ">",
                        "constant_pending_message_limit_strategy": 5,
                        "prefetch_rate_pending_message_limit_strategy": 2,
                    }
                ]
            },
            "warn",
            "the lower limit applies",
        ),
        ({"xap": [{"enabled": True, "retries": 40}]}, "warn", "40 looks don't fit into 500 ms"),
        ({"qpid": [{"topic": "a"}]}, "warn", "triggers no action"),
        (
            {"qpid": [{"topic": "a", "message_age": 9_000}], "age_ms": 8_000},
            "warn",
            "messageAge 9000 never triggers",
        ),
        (
            {"qpid": [{"topic": "a", "depth": 5_000, "delete_persistent": True, "confirm_delete": True}]},
            "warn",
            "are deleted",
        ),
    ],
)
def test_what_cannot_be_meant_is_said_in_a_sentence(
    settings: dict[str, Any], severity: str, words: str
) -> None:
    found = findings(64 << 30, **settings)
    assert [(one.severity.value, words in one.sentence) for one in found] == [(severity, True)], found
    assert found[0].where and found[0].fix.endswith(".") and found[0].sentence.endswith(".")


def test_more_than_the_host_has() -> None:
    (found,) = findings(1 << 30, pool={"message_memory_limit": 1 << 31})
    assert "exceeds this host's memory" in found.sentence


def test_a_shadow_rule_with_a_lower_limit_or_another_scope_is_not_masked() -> None:
    enforced = {**OWN, "mode": "enforce"}
    assert findings(rules=[enforced, {**OWN, "name": "trial", "limit": 4_000}]) == []
    elsewhere = {**enforced, "scope": {"client": "a*"}}
    assert findings(rules=[elsewhere, {**OWN, "name": "trial", "limit": 9_000}]) == []


def test_qpids_and_activemqs_wildcards_are_patterns() -> None:
    assert (
        findings(activemq=[{"topic": ">", "prefetch": 5}], qpid=[{"topic": "stocks.#", "depth": 5_000}]) == []
    )


def test_what_refuses_comes_first() -> None:
    found = findings(capacity=100, activemq=[{**ABORT, "max_slow_duration": -1}])
    assert [one.severity for one in found] == [Severity.REFUSE, Severity.WARN]
