"""What would have spared a client: by the judge itself, on the recorded minute."""

from __future__ import annotations

from typing import Any

from console.queries.limit_advice import limit_advice

MIB = 2**20


def decided(**other: Any) -> dict[str, Any]:
    """An offlining at 960 MiB of a client that grows by 16 MiB a second, as it is stored."""
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


def test_the_smallest_limit_is_what_was_observed_and_a_preset_has_no_hold() -> None:
    found = limit_advice(decided())
    assert found is not None
    assert 960 * MIB <= found.limit < 966 * MIB
    assert (found.was, found.hold_ms) == (950 * MIB, None)


def test_a_rule_of_ones_own_could_have_waited_longer() -> None:
    # Over 800 MiB from the 51st look on, 9 s before: it was held for 5 s, so 10 s would have been enough, and
    # 9 s not.
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
