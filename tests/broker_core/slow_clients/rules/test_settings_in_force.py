"""Effective settings of a connected client: value, unit and origin, for it and each of its subscriptions."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from broker_core.documents.clients import EffectiveSetting
from broker_core.slow_clients.rules.rulebook import StagedRevision
from tests.support.broker_simulation import START, FixedBacklog, make_guard, policy
from tests.support.signals import SubscriptionSignals

BEHIND = {
    "name": "behind",
    "signal": "oldest_age",
    "limit": 5_000,
    "mode": "enforce",
    "ladder": [{"action": "warn", "at_percent": 60}],
}
DOCUMENT = policy(
    transports={"tcp": {"pool": {"message_memory_limit": 4_000}}, "ws": {}},
    rules=[
        BEHIND,
        {"name": "behind", "scope": {"client": "desk-*"}, "limit": 9_000},
        {
            "name": "chatty",
            "signal": "unacked_messages",
            "limit": 7,
            "scope": {"topic": "bulk.>"},
            "ladder": [{"action": "pause"}],
        },
    ],
    qpid=[{"topic": "bulk.*", "depth": 100}],
    xap=[{"enabled": True, "latency": 900}],
)


def setting_values(found: list[EffectiveSetting], subscription: str) -> dict[str, tuple[Any, str, str]]:
    return {
        one.setting: (one.value, one.unit, one.origin) for one in found if one.subscription == subscription
    }


def test_each_value_with_its_unit_and_where_it_comes_from() -> None:
    made = make_guard(DOCUMENT)
    use = made.register("desk-1", "tcp", FixedBacklog(START), "ann")
    for identity, topic in (("1", "bulk.a"), ("2", "other")):
        made.subscribe(use, SubscriptionSignals(identity, topic))
    found = made.effective("desk-1")
    told = setting_values(found, "")
    assert told["amps.message_memory_limit"] == (4_000, "bytes", "transport tcp")
    assert told["amps.message_disk_limit"] == (10**9, "bytes", "default"), "what the host makes of it"
    assert told["amps.client_max_capacity"] == (50, "%", "instance")
    assert told["behind.limit"] == (9_000, "ms", "rule behind (client desk-*)")
    assert told["behind.hold_ms"] == (0, "ms", "default")
    assert told["xap.latency"] == (900, "ms", "xap") and told["xap.throughput"] == (
        5_000,
        "bytes/s",
        "default",
    )
    ruled_subscriptions = setting_values(found, "1")
    assert ruled_subscriptions["qpid.depth"] == (100, "bytes", "qpid bulk.*")
    assert ruled_subscriptions["chatty.limit"] == (7, "messages", "rule chatty (topic bulk.>)")
    assert not any(name.startswith(("amps", "behind", "xap")) for name in ruled_subscriptions), (
        "what its client has isn't repeated"
    )
    assert setting_values(found, "2") == {}
    whole = json.loads(msgspec.json.encode(found))
    (ladder,) = [one["value"] for one in whole if one["setting"] == "behind.ladder"]
    assert ladder == [{"action": "warn", "at_percent": 60, "after_ms": 0, "for_ms": 0}]


def test_a_client_of_a_staged_revision_has_its_values_and_an_unknown_one_none() -> None:
    made = make_guard(DOCUMENT)
    for name in ("desk-1", "other"):
        made.register(name, "tcp", FixedBacklog(START))
    staged = policy(capacity=20, revision=5)
    made.apply_policy(DOCUMENT, StagedRevision(staged, client="desk-*"))
    told = {}
    for name in ("desk-1", "other"):
        told[name] = (
            made.revision_for(name),
            setting_values(made.effective(name), "")["amps.client_max_capacity"][0],
        )
    assert told == {"desk-1": (5, 20), "other": (1, 50)}
    assert made.effective("nobody") == []
