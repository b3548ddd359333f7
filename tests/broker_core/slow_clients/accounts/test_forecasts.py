"""Forecasts of a client: from its own rules, its subscriptions and its pool."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.documents.clients import ForecastEntry
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy
from tests.support.signals import SubscriptionSignals

NOTIFY = [{"action": "notify"}]


def forecast_of(made: SlowClientGuard, client: str, rule: str, now: int) -> ForecastEntry:
    (found,) = [one for one in made.forecasts(client, now) if one.rule == rule]
    return found


def custom_rule(signal: str, limit: int, **more: Any) -> dict[str, Any]:
    return {"name": "own", "signal": signal, "limit": limit, "mode": "enforce", "ladder": NOTIFY, **more}


@pytest.mark.parametrize(
    ("signal", "field"),
    [
        ("backlog_messages", "backlog_messages"),
        ("backlog_bytes", "backlog_bytes"),
        ("unacked_messages", "unacked_messages"),
        ("outbound_messages", "outbox_messages"),
        ("conflation_bytes", "conflation_bytes"),
    ],
)
def test_a_subscription_that_fills_up(signal: str, field: str) -> None:
    made = make_guard(policy(rules=[custom_rule(signal, 100, scope={"topic": ">"})]))
    one = SubscriptionSignals("s", "t")
    made.subscribe(made.register("c", "tcp", FixedBacklog(START)), one)
    for second in range(4):
        setattr(one, field, 10 + 10 * second)
        made.tick(START + second * SECOND)
    found = forecast_of(made, "c", "own", START + 3 * SECOND)
    assert (found.subscription, found.value, found.percent, found.fires_in_ms) == ("s", 40, 40.0, 6_000)
    assert made.forecast("c", START + 3 * SECOND) == found
    setattr(one, field, 0)
    made.tick(START + 4 * SECOND)
    assert forecast_of(made, "c", "own", START + 4 * SECOND).why_none == "none of the limit is used"


def test_what_is_in_flight_of_a_client_fills_up() -> None:
    made = make_guard(policy(rules=[custom_rule("backlog_messages", 100)]))
    backlog = FixedBacklog()
    made.register("c", "tcp", backlog)
    for second in range(4):
        backlog.owed_messages = 10 + 10 * second
        made.tick(START + second * SECOND)
    assert forecast_of(made, "c", "own", START + 3 * SECOND).fires_in_ms == 6_000


def test_a_rate_that_falls_to_its_floor() -> None:
    made = make_guard(policy(xap=[{"enabled": True}]))
    backlog = FixedBacklog(START - 60 * SECOND)
    made.on_queued(made.register("c", "tcp", backlog), 100_000, START)
    for second in range(6):
        backlog.acked_bytes += 20_000 - 1_000 * second
        made.tick(START + second * SECOND)
    found = forecast_of(made, "c", "xap.throughput", START + 5 * SECOND)
    assert found.value == 15_000 and found.per_second == pytest.approx(-1_000) and found.fires_in_ms == 10_500


def test_in_a_filling_pool_only_the_next_choice_has_a_forecast() -> None:
    made = make_guard(policy({"message_memory_limit": 100_000, "message_disk_limit": 10**9}, 100))
    uses = {name: made.register(name, "tcp", FixedBacklog(START)) for name in ("big", "small", "idle")}
    for second in range(4):
        made.on_queued(uses["big"], 6_000, START)
        made.on_queued(uses["small"], 4_000, START)
        made.tick(START + second * SECOND)
    now = START + 3 * SECOND
    rule = "amps.message_memory_limit"
    found = forecast_of(made, "big", rule, now)
    assert (found.value, found.limit, found.fires_in_ms) == (40_000, 100_000, 6_000)
    assert forecast_of(made, "small", rule, now).why_none == "big would be chosen first"
    assert (
        forecast_of(made, "idle", rule, now).why_none
        == "the client uses none of the exhausted resource of the pool"
    )
    assert (first := made.forecast("big", now)) is not None and first.rule == rule, (
        "before its own share of memory"
    )


def test_the_forecast_choice_is_a_connected_client() -> None:
    made = make_guard(policy({"message_memory_limit": 100_000, "message_disk_limit": 10**9}, 100))
    uses = {name: made.register(name, "tcp", FixedBacklog(START)) for name in ("big", "middle", "small")}
    for second in range(4):
        for name, size in (("big", 6_000), ("middle", 5_000), ("small", 4_000)):
            made.on_queued(uses[name], size, START)
        made.tick(START + second * SECOND)
    now, rule = START + 3 * SECOND, "amps.message_memory_limit"
    assert forecast_of(made, "small", rule, now).why_none == "big would be chosen first"
    made.unregister(uses["big"])
    assert "big" not in forecast_of(made, "small", rule, now).why_none, "in the same second"


def test_the_protected_are_not_chosen_and_who_comes_after_them_is() -> None:
    pool = custom_rule(
        "pool_memory", 50_000, choose="largest_in_pool", shape="largest_when_pool_over", protected=["ops*"]
    )
    made = make_guard(policy({"message_memory_limit": 10**9, "message_disk_limit": 10**9}, rules=[pool]))
    uses = [made.register(name, "tcp", FixedBacklog(START)) for name in ("ops-1", "next")]
    for second in range(4):
        for use, size in zip(uses, (6_000, 4_000), strict=True):
            made.on_queued(use, size, START)
        made.tick(START + second * SECOND)
    assert forecast_of(made, "ops-1", "own", START + 3 * SECOND).why_none == "the rule protects it"
    assert forecast_of(made, "next", "own", START + 3 * SECOND).fires_in_ms == 1_000


def test_an_unknown_client_has_no_forecast() -> None:
    made = make_guard(policy())
    assert made.forecasts("nobody", START) == [] and made.forecast("nobody", START) is None
    made.register("c", "tcp", FixedBacklog())
    assert made.forecast("c", START) is None, "nothing of any limit is used"
    assert all(one.why_none for one in made.forecasts("c", START))
