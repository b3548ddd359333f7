"""Shapes and ladders, one value after another: what is remembered, when a rung is due, how often."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.config.rule_settings import Rung
from broker_core.config.vocabulary import Action, Mode, Shape, Signal
from broker_core.slow_clients.evaluate.holds import (
    ASK_AGAIN_MS,
    NO_HOLD,
    NOT_APPLICABLE,
    Hold,
    Succession,
    look,
    wakes,
)
from broker_core.slow_clients.rules.rule import Rule

SECOND = 1_000_000_000
NOW = 1_700_000_010 * SECOND
"""A multiple of 30 s, as checks go by the clock."""


def rule(
    shape: Shape = Shape.HARD,
    *ladder: Rung,
    signal: Signal = Signal.OLDEST_AGE,
    limit: int = 100,
    **more: Any,
) -> Rule:
    return Rule(
        "r", "r", "", signal, shape, limit, ladder or (Rung(Action.DISCONNECT),), 1, **more,
    )  # fmt: skip


def run(
    one: Rule, values: list[int], step_s: float = 1.0, sent: list[int] | None = None
) -> list[tuple[int, Action]]:
    """At which look which action was due. Looks are made as the guard makes them: when woken or something is held."""
    hold, acts = NO_HOLD, []
    for place, value in enumerate(values):
        now = NOW + int(place * step_s * SECOND)
        if hold == NO_HOLD and not wakes(one, value):
            continue
        hold, rung, _ = look(one, value, hold, now, sent[place] if sent else 0)
        if rung is not None:
            acts.append((place, one.ladder[rung].action))
    return acts


def test_exactly_at_the_limit_is_within() -> None:
    assert run(rule(), [99, 100, 101]) == [(2, Action.DISCONNECT)]


def test_it_acts_once_and_again_only_after_a_dip() -> None:
    notify = rule(Shape.HARD, Rung(Action.NOTIFY))
    assert [at for at, _ in run(notify, [200, 300, 200, 50, 200])] == [0, 4]


def test_a_soft_limit_acts_after_its_hold_and_not_before() -> None:
    assert [at for at, _ in run(rule(Shape.SOFT_FOR, hold_ms=3_000), [101] * 6)] == [3]


@pytest.mark.parametrize("dip", [100, 0, NOT_APPLICABLE])
def test_a_dip_or_an_idle_moment_resets_the_hold(dip: int) -> None:
    assert [
        at for at, _ in run(rule(Shape.SOFT_FOR, hold_ms=3_000), [101, 101, dip, 101, 101, 101, 101])
    ] == [6]


def test_the_narrowest_rung_comes_first_and_each_at_its_time() -> None:
    ladder = (Rung(Action.WARN, 60), Rung(Action.OFFLINE), Rung(Action.DISCONNECT, after_ms=2_000))
    values = [50, 61, 70, 101, 120, 120, 120]
    assert run(rule(Shape.HARD, *ladder), values) == [
        (1, Action.WARN), (3, Action.OFFLINE), (5, Action.DISCONNECT)
    ]  # fmt: skip


def test_a_rung_that_is_met_to_the_point_waits_for_more() -> None:
    ladder = (Rung(Action.NOTIFY, 50), Rung(Action.WARN, 80), Rung(Action.DISCONNECT))
    assert run(rule(Shape.HARD, *ladder), [50, 80, 80, 81]) == [(1, Action.NOTIFY), (3, Action.WARN)]


def test_a_jump_past_the_warning_acts_at_once() -> None:
    assert run(rule(Shape.HARD, Rung(Action.WARN, 60), Rung(Action.DISCONNECT)), [10, 150]) == [
        (1, Action.DISCONNECT)
    ]


def test_a_dip_between_warning_and_limit_keeps_the_warning_given() -> None:
    ladder = (Rung(Action.WARN, 60), Rung(Action.OFFLINE))
    assert run(rule(Shape.HARD, *ladder), [70, 101, 80, 101, 10, 70]) == [
        (0, Action.WARN), (1, Action.OFFLINE), (3, Action.OFFLINE), (5, Action.WARN)
    ]  # fmt: skip


def test_set_and_clear_dont_flap() -> None:
    flapping = rule(Shape.SET_CLEAR, Rung(Action.NOTIFY), limit=100, clear=50)
    assert [at for at, _ in run(flapping, [101, 90, 101, 60, 101, 50, 101])] == [0, 6]


def test_a_cooldown_keeps_quiet_for_a_while() -> None:
    quiet = rule(Shape.HARD, Rung(Action.NOTIFY), cooldown_ms=4_000)
    assert [at for at, _ in run(quiet, [101, 0, 101, 0, 101, 0, 101])] == [0, 4]


def test_checks_go_by_the_clock_so_that_the_worst_case_is_limit_and_period() -> None:
    """Trap 5: a limit of 30 s looked at every 30 s acts 30 to 60 s after it began, and says so."""
    quantised = rule(Shape.HARD, signal=Signal.WINDOW_FULL, limit=30_000, check_ms=30_000)
    offset = 7
    ages = [0] * offset + [1_000 * n for n in range(1, 100)]
    acted = run(quantised, ages)[0][0]
    assert NOW % (30 * SECOND) == 0 and 30 <= acted - offset <= 60
    assert acted % 30 == NOW // SECOND % 30
    assert quantised.worst_case_ms() == 31_000


def test_so_many_times_within_a_window() -> None:
    often = rule(Shape.COUNT_IN_WINDOW, count=3, window_ms=10_000)
    assert [at for at, _ in run(often, [101, 0, 101, 0, 101, 0])] == [4]
    assert run(often, [101, *[0] * 10, 101, *[0] * 10, 101]) == []
    assert run(often, [101] * 9) == [], "once over is once, however long"
    brim = [101, 0, 101, *[0] * 7, 101]
    assert [at for at, _ in run(often, brim)] == [10], "what is as old as the window is in it"
    assert run(often, [brim[0], 0, *brim[1:]]) == []


def test_times_are_counted_between_two_looks_too() -> None:
    full = rule(Shape.COUNT_IN_WINDOW, signal=Signal.WINDOW_FULL, count=30, limit=30)
    assert [at for at, _ in run(full, [0, 1, 29, 30, 31])] == [3]


def test_a_rate_must_stay_low_at_each_look() -> None:
    slow = rule(
        Shape.RATE_BELOW,
        signal=Signal.DRAIN_RATE,
        limit=5_000,
        hold_ms=500,
        count=3,
        window_ms=500,
        check_ms=125,
    )
    looks = 8
    assert [at for at, _ in run(slow, [10] * looks, 0.125, [0] * looks)] == [4]
    recovering = [0, 0, 0, 700, 700, 700, 700, 700]
    assert run(slow, [10, 10, 10, 10, 5_000, 5_000, 5_000, 5_000], 0.125, recovering) == []


def test_a_rate_at_the_floor_is_fast_enough() -> None:
    slow = rule(Shape.RATE_BELOW, signal=Signal.DRAIN_RATE, limit=5_000, count=1, window_ms=500, check_ms=125)
    assert run(slow, [5_000] * 5, 0.125, [0] * 5) == []
    assert run(slow, [NOT_APPLICABLE] * 5, 0.125, [0] * 5) == []


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.SHADOW])
def test_discarding_goes_on(mode: Mode) -> None:
    cut = rule(Shape.HARD, Rung(Action.DISCARD_OLDEST), mode=mode)
    assert len(run(cut, [101, 102, 103])) == 3


def test_a_request_to_close_is_repeated_while_it_is_ignored_and_said_once_in_shadow() -> None:
    asked = rule(Shape.HARD, Rung(Action.ASK_TO_CLOSE))
    assert [place for place, _ in run(asked, [101] * 25)] == [0, 10, 20]
    assert [place for place, _ in run(asked, [101, 101, 99, 101])] == [0, 3], "within in between"
    slowly = rule(Shape.HARD, Rung(Action.ASK_TO_CLOSE), check_ms=30_000)
    assert [place for place, _ in run(slowly, [101] * 100)] == [30, 60, 90], "at each check"
    assert len(run(rule(Shape.HARD, Rung(Action.ASK_TO_CLOSE), mode=Mode.SHADOW), [101] * 25)) == 1


def test_a_wider_rung_follows_a_request_that_is_ignored() -> None:
    ladder = Rung(Action.ASK_TO_CLOSE), Rung(Action.DISCONNECT, after_ms=15_000)
    assert run(rule(Shape.HARD, *ladder), [101] * 40) == [
        (0, Action.ASK_TO_CLOSE),
        (10, Action.ASK_TO_CLOSE),
        (15, Action.DISCONNECT),
    ]


@given(st.lists(st.integers(0, 200), max_size=60), st.integers(0, 5))
def test_no_act_comes_before_its_hold_or_after_the_stated_worst_case(values: list[int], hold_s: int) -> None:
    one = rule(Shape.SOFT_FOR if hold_s else Shape.HARD, hold_ms=hold_s * 1_000)
    acts = {at for at, _ in run(one, values)}
    over_for, acted = -1, False
    for place, value in enumerate(values):
        over_for = over_for + 1 if value > 100 else -1
        acted = acted and value > 100
        due = over_for >= hold_s and not acted
        assert (place in acts) == due
        assert over_for * 1_000 <= one.worst_case_ms() or acted or due
        acted = acted or due


@given(st.lists(st.integers(-1, 300), max_size=40))
def test_within_again_nothing_is_remembered(values: list[int]) -> None:
    hold = NO_HOLD
    for place, value in enumerate(values):
        hold = look(rule(Shape.SOFT_FOR, hold_ms=2_000), value, hold, NOW + place * SECOND).hold
    assert look(rule(Shape.SOFT_FOR, hold_ms=2_000), 0, hold, NOW + 99 * SECOND).hold == Hold()


def test_what_has_no_rate_or_is_at_its_floor_is_not_looked_at() -> None:
    slow = rule(Shape.RATE_BELOW, signal=Signal.DRAIN_RATE, check_ms=500, count=3)
    assert [wakes(slow, value) for value in (NOT_APPLICABLE, 0, 99, 100)] == [False, True, True, False]


def test_a_rule_that_asks_something_else_inherits_nothing() -> None:
    held = {"r": Hold(over_since=NOW, done=1, acted_at=NOW)}
    before = rule(limit=100)
    same, other = rule(Shape.HARD, Rung(Action.OFFLINE), limit=100), rule(limit=200)
    assert Succession().holds([before], [before], held) == held
    assert Succession().holds([before], [same], held) == {"r": Hold(over_since=NOW)}
    assert Succession().holds([before], [other], held) == {}


def test_a_request_to_close_is_made_again_on_the_rung_that_made_it() -> None:
    asks = rule(
        Shape.HARD,
        Rung(Action.WARN),
        Rung(Action.ASK_TO_CLOSE),
        mode=Mode.ENFORCE,
    )
    once = look(asks, 101, NO_HOLD, NOW)
    assert once.rung == 1
    again = look(asks, 101, once.hold, NOW + ASK_AGAIN_MS * 1_000_000)
    assert (again.rung, again.hold.done) == (1, 2)


def test_within_again_a_count_forgets_since_when_it_was_over() -> None:
    counts = rule(Shape.COUNT_IN_WINDOW, count=3, window_ms=60_000)
    once = look(counts, 101, NO_HOLD, NOW).hold
    assert once.over_since == NOW and once.marks == (NOW,)
    idle = look(counts, NOT_APPLICABLE, once, NOW + SECOND).hold
    assert (idle.over_since, idle.marks) == (0, (NOW,))
