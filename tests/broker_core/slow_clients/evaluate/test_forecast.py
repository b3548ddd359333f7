"""Forecasts: correct for a steady slope, absent without one."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.config.rule_terms import PolicyAction, Shape, Signal
from broker_core.config.rules import Rung
from broker_core.documents.clients import ForecastEntry
from broker_core.slow_clients.evaluate.forecast import ForecastInput, find_first_to_act
from broker_core.slow_clients.evaluate.forecast import forecast_rule as forecast_of
from broker_core.slow_clients.evaluate.rule_state import NO_STATE, RuleState
from broker_core.slow_clients.evaluate.signal_table import READINGS
from broker_core.slow_clients.evaluate.signals import ClientSample
from broker_core.slow_clients.rules.rule import Rule
from tests.support.broker_simulation import SECOND, START


def rule(
    signal: Signal = Signal.OUTBOUND_BYTES, limit: int = 100_000, name: str = "r", hold_ms: int = 0
) -> Rule:
    return Rule(
        name,
        name,
        "",
        signal,
        Shape.SOFT_FOR if hold_ms else Shape.HARD,
        limit,
        (Rung(PolicyAction.OFFLINE),),
        1,
        hold_ms=hold_ms,
    )


def samples(*memory: int, spool: int = 0, age: int = 0) -> list[ClientSample]:
    return [ClientSample(START + place * SECOND, value, spool, age) for place, value in enumerate(memory)]


def forecast(rules: list[Rule], looks: list[ClientSample]) -> ForecastEntry | None:
    """Return the forecast that the guard would make from these samples."""
    found = []
    for one in rules if looks else []:
        column = READINGS[one.signal].column
        assert column is not None
        points = [(sample.at, sample[column]) for sample in looks]
        found.append(forecast_of(ForecastInput(one, points[-1][1], points=points), looks[-1].at))
    return find_first_to_act(found)


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
    growing = [ClientSample(START + n * SECOND, 10_000 * (n + 1), 90_000, 0) for n in range(4)]
    made = forecast([rule(), rule(Signal.SPOOL_BYTES, 100_000, "disk")], growing)
    assert made is not None and made.rule == "r"
    still = [ClientSample(START + n * SECOND, 40_000, 90_000, 0) for n in range(4)]
    made = forecast([rule(), rule(Signal.SPOOL_BYTES, 100_000, "disk")], still)
    assert made is not None and (made.rule, made.fires_in_ms) == ("disk", None)


def test_over_already_is_now() -> None:
    made = forecast([rule()], samples(90_000, 120_000))
    assert made is not None and made.fires_in_ms == 0


# Every rule and signal has a time, or the reason why there is none.


def add_sample(
    one: Rule, value: int, *before: int, state: RuleState = NO_STATE, exemption: str = ""
) -> ForecastEntry:
    """Add a value to the rule's readings, one second after the previous one."""
    values = [*before, value]
    points = [(START - (len(values) - 1 - place) * SECOND, read) for place, read in enumerate(values)]
    return forecast_of(ForecastInput(one, value, state, points, exemption=exemption), START)


@pytest.mark.parametrize("signal", Signal)
def test_there_is_a_time_or_a_reason_for_each(signal: Signal) -> None:
    for shape in Shape:
        one = replace(rule(signal, 100), shape=shape, count=3, window_ms=500, clear=10)
        for values in ((0,), (50,), (10, 20, 30), (30, 20, 10), (200,), (-1,), (99, 1, 99, 1)):
            made = add_sample(one, values[-1], *values[:-1])
            assert (made.fires_in_ms is None) == bool(made.why_none), made
            assert made.fires_in_ms is None or made.fires_in_ms >= 0


@pytest.mark.parametrize(
    "signal", [Signal.WRITE_BLOCKED, Signal.ACK_SILENCE, Signal.WINDOW_FULL, Signal.SPOOL_AGE]
)
def test_what_grows_with_the_clock_needs_no_looks(signal: Signal) -> None:
    assert add_sample(rule(signal, 30_000, hold_ms=2_000), 10_000).fires_in_ms == 22_000
    checked = replace(rule(signal, 30_000), check_ms=30_000)
    made = add_sample(checked, 10_000)
    assert made.fires_in_ms == -(-(START // 1_000_000 + 20_000) // 30_000) * 30_000 - START // 1_000_000, (
        "at the next check after it"
    )


def test_while_a_hold_runs_the_time_to_its_end_whatever_the_signal_does() -> None:
    held = rule(hold_ms=10_000)
    assert (
        add_sample(
            held, 120_000, 150_000, 101_000, state=RuleState(over_since=START - 4 * SECOND)
        ).fires_in_ms
        == 6_000
    )
    clearing = replace(held, shape=Shape.SET_CLEAR, clear=50_000)
    assert add_sample(clearing, 60_000, state=RuleState(over_since=START - 4 * SECOND)).fires_in_ms == 6_000


def test_the_next_rung_is_forecast_and_after_the_last_there_is_nothing_to() -> None:
    ladder = (
        Rung(PolicyAction.WARN, 60),
        Rung(PolicyAction.OFFLINE),
        Rung(PolicyAction.DISCONNECT, after_ms=9_000),
    )
    one = replace(rule(), ladder=ladder)
    first = add_sample(one, 40_000, 20_000, 30_000)
    assert (first.action, first.fires_in_ms) == (PolicyAction.WARN, 2_000)
    second = add_sample(one, 70_000, 50_000, 60_000, state=RuleState(done=1))
    assert (second.action, second.fires_in_ms) == (PolicyAction.OFFLINE, 3_000)
    third = add_sample(one, 120_000, state=RuleState(over_since=START - SECOND, done=2))
    assert (third.action, third.fires_in_ms) == (PolicyAction.DISCONNECT, 8_000)
    last = add_sample(one, 120_000, state=RuleState(over_since=START - SECOND, done=3))
    assert last.fires_in_ms is None and last.why_none.startswith("it has acted")


def test_a_cooldown_is_waited_for() -> None:
    quiet = replace(rule(), cooldown_ms=60_000)
    assert add_sample(quiet, 120_000, state=RuleState(acted_at=START - 20 * SECOND)).fires_in_ms == 40_000


SLOW = replace(
    rule(Signal.DRAIN_RATE, 5_000), shape=Shape.RATE_BELOW, window_ms=500, hold_ms=500, count=3, check_ms=125
)


def test_a_rate_that_falls_says_when_it_is_at_the_floor_and_looked_at() -> None:
    made = add_sample(SLOW, 9_000, 11_000, 10_000)
    assert made.fires_in_ms == 4_500 and made.per_second == -1_000 and made.percent == 55.6
    assert add_sample(SLOW, 9_000, 7_000, 8_000).why_none == "the rate isn't falling"
    assert add_sample(SLOW, 1_000).fires_in_ms == 500, "below already: the looks"
    suspected = RuleState(over_since=START - SECOND // 4, checked_at=START, tries=2)
    assert add_sample(SLOW, 0, state=suspected).fires_in_ms == 250


def test_counts_go_by_their_pace() -> None:
    often = replace(rule(Signal.WINDOW_FULL), shape=Shape.COUNT_IN_WINDOW, count=10)
    marks = tuple(START - place * 10 * SECOND for place in range(5, 0, -1))
    made = add_sample(often, 5, state=RuleState(marks=marks))
    assert (made.value, made.limit, made.percent, made.fires_in_ms) == (5, 10, 50.0, 40_000)
    assert add_sample(replace(often, window_ms=60_000), 5, state=RuleState(marks=marks)).why_none.startswith(
        "at the present rate the window never"
    )
    assert (
        add_sample(often, 2, state=RuleState(marks=marks[-2:])).why_none
        == "it was counted 2 of 10 times, too few for a rate"
    )


def test_a_spared_client_has_a_reason_and_no_forecast() -> None:
    made = add_sample(rule(), 120_000, exemption="big would be chosen first")
    assert made.fires_in_ms is None and made.why_none == "big would be chosen first" and made.percent == 120.0
