"""Advice on limits that would have spared a client, from evaluating the rule again on the recorded minute."""

from __future__ import annotations

from typing import Any

from broker_core.config.rule_terms import SIGNALS, SUBSCRIPTION_SIGNALS, Signal
from console.queries.limit_advice import _WRITERS, limit_advice

MIB = 2**20


def decided(**other: Any) -> dict[str, Any]:
    """Return a stored offline decision: the client's backlog grows by 16 MiB a second and has reached 960
    MiB.
    """
    at = 1_800_000_000_000
    samples = [[at - 1_000 * (60 - n), 16 * MIB * n, 0, 50 * n, 0] for n in range(60)]
    return {
        "at": at,
        "client": "desk-1",
        "transport": "tcp",
        "pool": "instance",
        "action": "offline",
        "rule": "amps.client_max_capacity.memory",
        "signal": "outbound_bytes",
        "shape": "percent_of",
        "observed": 960 * MIB,
        "limit": 950 * MIB,
        "unit": "bytes",
        "hold_ms": 0,
        "used": 960 * MIB,
        "samples": samples,
        **other,
    }


def test_a_decision_on_each_signal_of_a_client_or_pool_can_be_judged_again() -> None:
    # DRAIN_RATE is missing: a rate needs the bytes that the client had acknowledged earlier.
    assert _WRITERS.keys() == SIGNALS.keys() - SUBSCRIPTION_SIGNALS - {Signal.DRAIN_RATE}


def test_the_smallest_limit_is_what_was_observed_and_a_preset_has_no_hold() -> None:
    found = limit_advice(decided())
    assert found is not None
    assert 960 * MIB <= found.limit < 966 * MIB
    assert (found.was, found.hold_ms) == (950 * MIB, None)


def test_a_rule_of_ones_own_could_have_waited_longer() -> None:
    # The backlog exceeds 800 MiB from the 51st sample on, 9 s before the decision. A hold of 10 s would have
    # prevented the decision, a hold of 9 s would not.
    found = limit_advice(decided(rule="mine", shape="hard", limit=800 * MIB, hold_ms=5_000))
    assert found is not None
    assert 960 * MIB <= found.limit < 966 * MIB
    assert found.hold_ms == 10_000


def test_of_a_pool_it_is_the_pools_limit() -> None:
    found = limit_advice(
        decided(signal="pool_memory", shape="largest_when_pool_over", observed=2_000 * MIB, limit=1_999 * MIB)
    )
    assert found is not None
    assert 2_000 * MIB <= found.limit < 2_011 * MIB
    assert found.hold_ms is None


def test_nothing_is_said_where_the_minute_doesnt_come_to_the_act() -> None:
    assert limit_advice(decided(limit=970 * MIB)) is None
    assert limit_advice(decided(signal="drain_rate", shape="rate_below")) is None
    assert limit_advice({}) is None
