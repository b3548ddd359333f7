"""Forecasts: right on a steady slope, silent without one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.slow_clients import Sample
from broker_core.slow_clients.forecast import forecast
from broker_core.slow_clients.rules import Action, Choice, Reason, Rule, Rung, Shape, Signal, Unit
from tests.support.slow_clients import SECOND, START


def rule(signal: Signal = Signal.OUTBOUND_BYTES, limit: int = 100_000, name: str = "r", hold_ms: int = 0) -> Rule:
    return Rule(name, name, "", signal, Shape.SOFT_FOR if hold_ms else Shape.HARD, limit, Unit.BYTES, Choice.SELF,
                (Rung(Action.OFFLINE),), Reason.MEMORY_CAPACITY, 1, hold_ms=hold_ms)  # fmt: skip


def samples(*memory: int, spool: int = 0, age: int = 0) -> list[Sample]:
    return [Sample(START + place * SECOND, value, spool, age) for place, value in enumerate(memory)]


def test_a_steady_slope_says_when() -> None:
    made = forecast([rule()], samples(10_000, 20_000, 30_000))
    assert made is not None and made.percent == 30.0 and made.per_second == pytest.approx(10_000)
    assert made.fires_in_ms == pytest.approx(7_000, rel=0.01)


def test_the_rules_hold_is_added() -> None:
    made = forecast([rule(hold_ms=5_000)], samples(10_000, 20_000, 30_000))
    assert made is not None and made.fires_in_ms == pytest.approx(12_000, rel=0.01)


@given(st.integers(1_000, 50_000), st.integers(3, 20), st.integers(0, 5))
def test_within_a_tenth_of_the_truth_at_a_known_slope(per_second: int, count: int, noise: int) -> None:
    draw = random.Random(count)
    values = [per_second * (n + 1) + draw.randint(-noise, noise) * per_second // 200 for n in range(count)]
    limit = per_second * count * 3
    made = forecast([rule(limit=limit)], samples(*values))
    assert made is not None and made.fires_in_ms is not None
    truth = (limit - per_second * count) / per_second * 1_000
    assert abs(made.fires_in_ms - truth) <= 0.1 * truth


@pytest.mark.parametrize(
    "memory",
    [
        (30_000, 20_000, 10_000),
        (30_000, 30_000, 30_000),
        (10_000, 20_000),
        (50_000, 5_000, 60_000, 4_000, 70_000),
        (0, 0, 0, 10_000, 20_000),
        (50_000, 50_001, 50_002),
    ],
    ids=["falling", "level", "two samples", "jumping", "just begun", "too far away to say"],
)
def test_no_time_without_an_honest_slope(memory: tuple[int, ...]) -> None:
    made = forecast([rule()], samples(*memory))
    assert made is not None and made.fires_in_ms is None and made.percent == round(memory[-1] / 1_000, 1)


def test_nothing_waiting_has_no_forecast() -> None:
    assert forecast([rule()], samples(10_000, 5_000, 0)) is None
    assert forecast([rule()], []) is None


def test_the_rule_that_acts_first_is_the_nearest_even_if_another_is_used_more() -> None:
    growing = [Sample(START + n * SECOND, 10_000 * (n + 1), 90_000, 0) for n in range(4)]
    made = forecast([rule(), rule(Signal.SPOOL_BYTES, 100_000, "disk")], growing)
    assert made is not None and made.rule == "r"
    still = [Sample(START + n * SECOND, 40_000, 90_000, 0) for n in range(4)]
    made = forecast([rule(), rule(Signal.SPOOL_BYTES, 100_000, "disk")], still)
    assert made is not None and (made.rule, made.fires_in_ms) == ("disk", None)


def test_over_already_is_now() -> None:
    made = forecast([rule()], samples(90_000, 120_000))
    assert made is not None and made.fires_in_ms == 0
