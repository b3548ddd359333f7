"""What holds for a connected client, told whole: value, unit, origin, for itself and for each of its subscriptions."""

from __future__ import annotations

import json

from broker_core.slow_clients import SubscriptionSignals
from broker_core.slow_clients.rules.staging import Stage
from tests.support.slow_clients import HOST_MEMORY, START, Still, guard, policy

BEHIND = {
    "name": "behind",
    "signal": "oldest_age",
    "limit": 5_000,
    "mode": "enforce",
    "ladder": [{"action": "warn", "at_percent": 60}],
}
DOCUMENT = policy(
    transports={"tcp": {"pool": {"message_memory_limit": 4_000}}, "ws": {}}, rules=[BEHIND, {
        "name": "behind", "scope": {"client": "desk-*"}, "limit": 9_000}, {
        "name": "chatty", "signal": "unacked_messages", "limit": 7, "scope": {"topic": "bulk.>"}, "ladder": [{"action": "pause"}]}],
    qpid=[{"topic": "bulk.*", "depth": 100}], xap=[{"enabled": True, "latency": 900}],
)  # fmt: skip


def test_each_value_with_its_unit_and_where_it_comes_from() -> None:
    made = guard(DOCUMENT)
    use = made.register("desk-1", "tcp", Still(START), "ann")
    for identity, topic in (("1", "bulk.a"), ("2", "other")):
        made.subscribe(use, SubscriptionSignals(identity, topic))
    found = made.effective("desk-1")
    assert found is not None and (found.client, found.transport, found.user, found.pool) == (
        "desk-1",
        "tcp",
        "ann",
        "transport:tcp",
    )
    told = {one.setting: tuple(one[1:]) for one in found.settings}
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
    bulk, other = found.subscriptions
    narrow = {one.setting: tuple(one[1:]) for one in bulk.settings}
    assert (bulk.subscription, bulk.topic) == ("1", "bulk.a")
    assert narrow["qpid.depth"] == (100, "bytes", "qpid bulk.*") and narrow["chatty.limit"] == (
        7, "messages", "rule chatty (topic bulk.>)"
    )  # fmt: skip
    assert not any(name.startswith(("amps", "behind", "xap")) for name in narrow), (
        "what its client has isn't repeated"
    )
    assert other.settings == ()
    whole = json.loads(json.dumps(found.as_dict()))
    assert whole["settings"][-4]["setting"].startswith("behind.") and {
        "setting",
        "value",
        "unit",
        "origin",
    } == set(whole["settings"][0])
    (ladder,) = [one["value"] for one in whole["settings"] if one["setting"] == "behind.ladder"]
    assert ladder == [{"action": "warn", "at_percent": 60, "after_ms": 0, "for_ms": 0}]


def test_who_is_judged_by_a_staged_revision_has_its_values_and_who_isnt_there_has_none() -> None:
    made = guard(DOCUMENT)
    for name in ("desk-1", "other"):
        made.register(name, "tcp", Still(START))
    staged = policy(capacity=20, revision=5)
    made.apply_policy(DOCUMENT, HOST_MEMORY, None, "/spools", Stage(staged, client="desk-*"))
    told = {}
    for name in ("desk-1", "other"):
        found = made.effective(name)
        assert found is not None
        told[name] = (
            found.revision,
            {one.setting: one.value for one in found.settings}["amps.client_max_capacity"],
        )
    assert told == {"desk-1": (5, 20), "other": (1, 50)}
    assert made.effective("nobody") is None
