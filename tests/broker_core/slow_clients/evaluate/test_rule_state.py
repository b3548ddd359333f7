"""Shapes and ladders of rules over sequences of values: state, due rungs, and repetition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.config.rule_terms import EnforcementMode, PolicyAction, Shape, Signal
from broker_core.config.rules import Rung
from broker_core.slow_clients.evaluate.rule_state import (
    NO_STATE,
    NOT_APPLICABLE,
    REPEAT_REQUEST_MS,
    RuleState,
    RuleStateMigration,
    check_rule,
    needs_check,
    next_check_at,
    quiet_limit,
)
from broker_core.slow_clients.rules.rule import UNLIMITED, Rule

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
        "r",
        "r",
        "",
        signal,
        shape,
        limit,
        ladder or (Rung(PolicyAction.DISCONNECT),),
        1,
        **more,
    )


def due_actions(
    one: Rule, values: list[int], step_s: float = 1.0, sent: list[int] | None = None
) -> list[tuple[int, PolicyAction]]:
    """Return the actions due, with the number of the sample at which each was due."""
    state, acts = NO_STATE, []
    for place, value in enumerate(values):
        now = NOW + int(place * step_s * SECOND)
        if state == NO_STATE and not needs_check(one, value):
            continue
        state, rung, _ = check_rule(one, value, state, now, sent[place] if sent else 0)
        if rung is not None:
            acts.append((place, one.ladder[rung].action))
    return acts


def test_exactly_at_the_limit_is_within() -> None:
    assert due_actions(rule(), [99, 100, 101]) == [(2, PolicyAction.DISCONNECT)]


def test_it_acts_once_and_again_only_after_a_dip() -> None:
    notify = rule(Shape.HARD, Rung(PolicyAction.NOTIFY))
    assert [at for at, _ in due_actions(notify, [200, 300, 200, 50, 200])] == [0, 4]


def test_a_soft_limit_acts_after_its_hold_and_not_before() -> None:
    assert [at for at, _ in due_actions(rule(Shape.SOFT_FOR, hold_ms=3_000), [101] * 6)] == [3]


@pytest.mark.parametrize("dip", [100, 0, NOT_APPLICABLE])
def test_a_dip_or_an_idle_moment_resets_the_hold(dip: int) -> None:
    assert [
        at for at, _ in due_actions(rule(Shape.SOFT_FOR, hold_ms=3_000), [101, 101, dip, 101, 101, 101, 101])
    ] == [6]


def test_the_narrowest_rung_comes_first_and_each_at_its_time() -> None:
    ladder = (
        Rung(PolicyAction.WARN, 60),
        Rung(PolicyAction.OFFLINE),
        Rung(PolicyAction.DISCONNECT, after_ms=2_000),
    )
    values = [50, 61, 70, 101, 120, 120, 120]
    assert due_actions(rule(Shape.HARD, *ladder), values) == [
        (1, PolicyAction.WARN),
        (3, PolicyAction.OFFLINE),
        (5, PolicyAction.DISCONNECT),
    ]


def test_a_rung_that_is_met_to_the_point_waits_for_more() -> None:
    ladder = (Rung(PolicyAction.NOTIFY, 50), Rung(PolicyAction.WARN, 80), Rung(PolicyAction.DISCONNECT))
    assert due_actions(rule(Shape.HARD, *ladder), [50, 80, 80, 81]) == [
        (1, PolicyAction.NOTIFY),
        (3, PolicyAction.WARN),
    ]


def test_a_jump_past_the_warning_acts_at_once() -> None:
    assert due_actions(
        rule(Shape.HARD, Rung(PolicyAction.WARN, 60), Rung(PolicyAction.DISCONNECT)), [10, 150]
    ) == [(1, PolicyAction.DISCONNECT)]


def test_a_dip_between_warning_and_limit_keeps_the_warning_given() -> None:
    ladder = (Rung(PolicyAction.WARN, 60), Rung(PolicyAction.OFFLINE))
    assert due_actions(rule(Shape.HARD, *ladder), [70, 101, 80, 101, 10, 70]) == [
        (0, PolicyAction.WARN),
        (1, PolicyAction.OFFLINE),
        (3, PolicyAction.OFFLINE),
        (5, PolicyAction.WARN),
    ]


def test_set_and_clear_dont_flap() -> None:
    flapping = rule(Shape.SET_CLEAR, Rung(PolicyAction.NOTIFY), limit=100, clear=50)
    assert [at for at, _ in due_actions(flapping, [101, 90, 101, 60, 101, 50, 101])] == [0, 6]


def test_a_cooldown_keeps_quiet_for_a_while() -> None:
    quiet = rule(Shape.HARD, Rung(PolicyAction.NOTIFY), cooldown_ms=4_000)
    assert [at for at, _ in due_actions(quiet, [101, 0, 101, 0, 101, 0, 101])] == [0, 4]


def test_checks_go_by_the_clock_so_that_the_worst_case_is_limit_and_period() -> None:
    """Trap 5: a limit of 30 s checked every 30 s acts 30 to 60 s after the start, and reports that."""
    quantised = rule(Shape.HARD, signal=Signal.WINDOW_FULL, limit=30_000, check_ms=30_000)
    offset = 7
    ages = [0] * offset + [1_000 * n for n in range(1, 100)]
    acted = due_actions(quantised, ages)[0][0]
    assert NOW % (30 * SECOND) == 0 and 30 <= acted - offset <= 60
    assert acted % 30 == NOW // SECOND % 30
    assert quantised.worst_case_ms() == 31_000


def test_a_count_within_a_window_triggers() -> None:
    often = rule(Shape.COUNT_IN_WINDOW, count=3, window_ms=10_000)
    assert [at for at, _ in due_actions(often, [101, 0, 101, 0, 101, 0])] == [4]
    assert due_actions(often, [101, *[0] * 10, 101, *[0] * 10, 101]) == []
    assert due_actions(often, [101] * 9) == [], "once over is once, however long"
    brim = [101, 0, 101, *[0] * 7, 101]
    assert [at for at, _ in due_actions(often, brim)] == [10], "what is as old as the window is in it"
    assert due_actions(often, [brim[0], 0, *brim[1:]]) == []


def test_times_are_counted_between_two_looks_too() -> None:
    full = rule(Shape.COUNT_IN_WINDOW, signal=Signal.WINDOW_FULL, count=30, limit=30)
    assert [at for at, _ in due_actions(full, [0, 1, 29, 30, 31])] == [3]


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
    assert [at for at, _ in due_actions(slow, [10] * looks, 0.125, [0] * looks)] == [4]
    recovering = [0, 0, 0, 700, 700, 700, 700, 700]
    assert due_actions(slow, [10, 10, 10, 10, 5_000, 5_000, 5_000, 5_000], 0.125, recovering) == []


def test_a_rate_at_the_floor_is_fast_enough() -> None:
    slow = rule(Shape.RATE_BELOW, signal=Signal.DRAIN_RATE, limit=5_000, count=1, window_ms=500, check_ms=125)
    assert due_actions(slow, [5_000] * 5, 0.125, [0] * 5) == []
    assert due_actions(slow, [NOT_APPLICABLE] * 5, 0.125, [0] * 5) == []


@pytest.mark.parametrize("mode", [EnforcementMode.ENFORCE, EnforcementMode.SHADOW])
def test_discarding_goes_on(mode: EnforcementMode) -> None:
    cut = rule(Shape.HARD, Rung(PolicyAction.DISCARD_OLDEST), mode=mode)
    assert len(due_actions(cut, [101, 102, 103])) == 3


def test_a_request_to_close_is_repeated_while_it_is_ignored_and_said_once_in_shadow() -> None:
    asked = rule(Shape.HARD, Rung(PolicyAction.ASK_TO_CLOSE))
    assert [place for place, _ in due_actions(asked, [101] * 25)] == [0, 10, 20]
    assert [place for place, _ in due_actions(asked, [101, 101, 99, 101])] == [0, 3], "within in between"
    slowly = rule(Shape.HARD, Rung(PolicyAction.ASK_TO_CLOSE), check_ms=30_000)
    assert [place for place, _ in due_actions(slowly, [101] * 100)] == [30, 60, 90], "at each check"
    assert (
        len(
            due_actions(
                rule(Shape.HARD, Rung(PolicyAction.ASK_TO_CLOSE), mode=EnforcementMode.SHADOW), [101] * 25
            )
        )
        == 1
    )


def test_a_wider_rung_follows_a_request_that_is_ignored() -> None:
    ladder = Rung(PolicyAction.ASK_TO_CLOSE), Rung(PolicyAction.DISCONNECT, after_ms=15_000)
    assert due_actions(rule(Shape.HARD, *ladder), [101] * 40) == [
        (0, PolicyAction.ASK_TO_CLOSE),
        (10, PolicyAction.ASK_TO_CLOSE),
        (15, PolicyAction.DISCONNECT),
    ]


@given(st.lists(st.integers(0, 200), max_size=60), st.integers(0, 5))
def test_no_act_comes_before_its_hold_or_after_the_stated_worst_case(values: list[int], hold_s: int) -> None:
    one = rule(Shape.SOFT_FOR if hold_s else Shape.HARD, hold_ms=hold_s * 1_000)
    acts = {at for at, _ in due_actions(one, values)}
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
    state = NO_STATE
    for place, value in enumerate(values):
        state = check_rule(rule(Shape.SOFT_FOR, hold_ms=2_000), value, state, NOW + place * SECOND).state
    assert check_rule(rule(Shape.SOFT_FOR, hold_ms=2_000), 0, state, NOW + 99 * SECOND).state == RuleState()


def test_what_has_no_rate_or_is_at_its_floor_is_not_looked_at() -> None:
    slow = rule(Shape.RATE_BELOW, signal=Signal.DRAIN_RATE, check_ms=500, count=3)
    assert [needs_check(slow, value) for value in (NOT_APPLICABLE, 0, 99, 100)] == [False, True, True, False]


def test_a_rule_that_asks_something_else_inherits_nothing() -> None:
    held = {"r": RuleState(over_since=NOW, done=1, acted_at=NOW)}
    before = rule(limit=100)
    same, other = rule(Shape.HARD, Rung(PolicyAction.OFFLINE), limit=100), rule(limit=200)
    assert RuleStateMigration().migrated_state([before], [before], held) == held
    assert RuleStateMigration().migrated_state([before], [same], held) == {"r": RuleState(over_since=NOW)}
    assert RuleStateMigration().migrated_state([before], [other], held) == {}


def test_a_request_to_close_is_made_again_on_the_rung_that_made_it() -> None:
    asks = rule(
        Shape.HARD,
        Rung(PolicyAction.WARN),
        Rung(PolicyAction.ASK_TO_CLOSE),
        mode=EnforcementMode.ENFORCE,
    )
    once = check_rule(asks, 101, NO_STATE, NOW)
    assert once.rung == 1
    again = check_rule(asks, 101, once.state, NOW + REPEAT_REQUEST_MS * 1_000_000)
    assert (again.rung, again.state.done) == (1, 2)


def test_within_again_a_count_forgets_since_when_it_was_over() -> None:
    counts = rule(Shape.COUNT_IN_WINDOW, count=3, window_ms=60_000)
    once = check_rule(counts, 101, NO_STATE, NOW).state
    assert once.over_since == NOW and once.marks == (NOW,)
    idle = check_rule(counts, NOT_APPLICABLE, once, NOW + SECOND).state
    assert (idle.over_since, idle.marks) == (0, (NOW,))


# What comes due by time alone.


def test_the_next_look_is_when_the_next_rung_is_due() -> None:
    ladder = (
        Rung(PolicyAction.WARN, 60),
        Rung(PolicyAction.OFFLINE, after_ms=2_000),
        Rung(PolicyAction.DISCONNECT, after_ms=9_000),
    )
    soft = rule(Shape.SOFT_FOR, *ladder, hold_ms=3_000)
    over = RuleState(over_since=NOW, done=1)
    assert next_check_at(soft, over) == NOW + 5 * SECOND
    assert next_check_at(soft, over._replace(done=2)) == NOW + 12 * SECOND
    assert next_check_at(soft, over._replace(done=0)) == 0, "a warning depends on the value, not on time"
    assert next_check_at(soft, over._replace(done=3)) == 0, "all is done"
    assert next_check_at(soft, RuleState(done=1)) == 0, "it isn't over"


def test_a_rule_that_goes_by_the_clock_is_looked_at_with_the_tick() -> None:
    assert next_check_at(rule(check_ms=30_000), RuleState(over_since=NOW)) == 0


def test_a_suspected_rate_is_looked_at_again_after_its_check_period() -> None:
    slow = rule(Shape.RATE_BELOW, signal=Signal.DRAIN_RATE, check_ms=125, count=3, hold_ms=7_000)
    assert (
        next_check_at(slow, RuleState(over_since=NOW, checked_at=NOW + SECOND)) == NOW + SECOND + 125_000_000
    )


# What is worth a look when nothing is remembered.


def test_what_no_rung_is_about_is_calm() -> None:
    warned = rule(Shape.HARD, Rung(PolicyAction.WARN, 60), Rung(PolicyAction.DISCONNECT))
    assert quiet_limit(warned) == 60
    assert [needs_check(warned, value) for value in (59, 60, 61)] == [False, False, True]
    assert quiet_limit(rule(Shape.RATE_BELOW, signal=Signal.DRAIN_RATE)) == UNLIMITED
    by_clock = rule(check_ms=30_000)
    assert quiet_limit(by_clock) == 0
    assert [needs_check(by_clock, value) for value in (0, 1)] == [False, True]


def test_the_clocks_grid_begins_with_the_first_value_and_ends_with_none() -> None:
    by_clock = rule(check_ms=30_000)
    began = check_rule(by_clock, 1, NO_STATE, NOW + 7 * SECOND)
    assert (began.state, began.rung) == (RuleState(checked_at=NOW), None)
    assert check_rule(by_clock, 0, began.state, NOW + 40 * SECOND) == (NO_STATE, None, 0)


# A ladder while the value moves between its rungs.


def test_a_rung_that_the_value_has_fallen_to_is_given_again_when_it_is_passed_again() -> None:
    ladder = Rung(PolicyAction.NOTIFY, 50), Rung(PolicyAction.WARN, 80), Rung(PolicyAction.DISCONNECT)
    assert due_actions(rule(Shape.HARD, *ladder), [81, 80, 81]) == [
        (0, PolicyAction.WARN),
        (2, PolicyAction.WARN),
    ]


def test_a_value_a_hair_above_a_rung_keeps_it_given() -> None:
    ladder = Rung(PolicyAction.NOTIFY, 50), Rung(PolicyAction.WARN, 80), Rung(PolicyAction.DISCONNECT)
    assert due_actions(rule(Shape.HARD, *ladder, limit=1_000), [900, 801, 900]) == [(0, PolicyAction.WARN)]


def test_at_the_value_that_wakes_nobody_nothing_is_remembered() -> None:
    warned = rule(Shape.HARD, Rung(PolicyAction.WARN, 60), Rung(PolicyAction.DISCONNECT))
    acted = check_rule(warned, 70, NO_STATE, NOW).state
    assert check_rule(warned, 60, acted, NOW + SECOND).state == NO_STATE


def test_between_clear_and_set_nothing_begins() -> None:
    band = rule(
        Shape.SET_CLEAR, Rung(PolicyAction.WARN, 40), Rung(PolicyAction.DISCONNECT), limit=100, clear=50
    )
    assert due_actions(band, [90, 90, 101, 90]) == [(0, PolicyAction.WARN), (2, PolicyAction.DISCONNECT)]


def test_a_wider_rung_doesnt_come_before_a_narrower_one_that_the_value_has_left() -> None:
    """The first incident ended during the cooldown. After it the value lies between clear and warning."""
    band = rule(
        Shape.SET_CLEAR,
        Rung(PolicyAction.WARN, 80),
        Rung(PolicyAction.DISCONNECT),
        limit=100,
        clear=10,
        cooldown_ms=4_000,
    )
    acted = RuleState(acted_at=NOW)
    over = check_rule(band, 101, acted, NOW + SECOND)
    assert (over.rung, over.state.over_since) == (None, NOW + SECOND)
    later = check_rule(band, 50, over.state, NOW + 5 * SECOND)
    assert later.rung is None


def test_a_cooldown_is_over_at_its_last_moment() -> None:
    quiet = rule(Shape.HARD, Rung(PolicyAction.NOTIFY), cooldown_ms=4_000)
    acted = check_rule(quiet, 101, NO_STATE, NOW).state
    assert check_rule(quiet, 0, acted, NOW + 4 * SECOND - 1).state == RuleState(acted_at=NOW)
    assert check_rule(quiet, 0, acted, NOW + 4 * SECOND).state == NO_STATE


def test_a_rung_that_isnt_done_is_no_request_to_close() -> None:
    """No request was sent yet: the last rung of the ladder is not the one before the first."""
    late = rule(Shape.SOFT_FOR, Rung(PolicyAction.ASK_TO_CLOSE), hold_ms=60_000)
    assert [at for at, _ in due_actions(late, [101] * 62)] == [60]


# Counts.


def test_a_value_at_the_limit_isnt_counted() -> None:
    often = rule(Shape.COUNT_IN_WINDOW, Rung(PolicyAction.NOTIFY, 50), count=2, window_ms=60_000)
    assert [at for at, _ in due_actions(often, [101, 0, 100, 0, 101])] == [4]


def test_a_later_rung_of_a_count_comes_so_long_after_the_last_time() -> None:
    ladder = Rung(PolicyAction.NOTIFY), Rung(PolicyAction.DISCONNECT, after_ms=5_000)
    often = rule(Shape.COUNT_IN_WINDOW, *ladder, count=2, window_ms=60_000)
    assert due_actions(often, [101, 0, 0, 101, *[101] * 7]) == [
        (3, PolicyAction.NOTIFY),
        (8, PolicyAction.DISCONNECT),
    ]


def test_a_request_to_close_by_a_count_is_made_again_only_when_it_is_counted_once_more() -> None:
    often = rule(Shape.COUNT_IN_WINDOW, Rung(PolicyAction.ASK_TO_CLOSE), count=2, window_ms=3_600_000)
    assert [at for at, _ in due_actions(often, [101, 0, 101, *[0] * 12, 101, *[0] * 12])] == [2, 15]


def test_a_warning_of_a_count_is_due_at_the_smallest_limit_too() -> None:
    often = rule(Shape.COUNT_IN_WINDOW, Rung(PolicyAction.WARN, 60), count=2, window_ms=60_000, limit=0)
    assert [at for at, _ in due_actions(often, [1, 0, 1])] == [2]


def test_a_decision_reports_the_count() -> None:
    often = rule(Shape.COUNT_IN_WINDOW, Rung(PolicyAction.NOTIFY), count=2, window_ms=60_000)
    state = check_rule(often, 900, NO_STATE, NOW).state
    state = check_rule(often, 0, state, NOW + SECOND).state
    assert check_rule(often, 900, state, NOW + 2 * SECOND)[1:] == (0, 2), "times, not messages"
    full = rule(Shape.COUNT_IN_WINDOW, Rung(PolicyAction.NOTIFY), signal=Signal.WINDOW_FULL, count=3, limit=3)
    assert check_rule(full, 7, NO_STATE, NOW)[1:] == (0, 7), "those before the last three too"


def test_a_client_within_limits_has_no_state_of_another_shape() -> None:
    hard = rule(Shape.HARD, Rung(PolicyAction.NOTIFY))
    assert check_rule(hard, 0, RuleState(over_since=NOW, marks=(NOW,)), NOW + SECOND).state == NO_STATE
    often = rule(Shape.COUNT_IN_WINDOW, count=3, window_ms=60_000)
    assert (
        check_rule(often, NOT_APPLICABLE, RuleState(over_since=NOW, last_value=4), NOW + SECOND).state
        == NO_STATE
    )


# Rates.


SLOW = rule(
    Shape.RATE_BELOW,
    Rung(PolicyAction.DISCONNECT),
    signal=Signal.DRAIN_RATE,
    limit=5_000,
    count=2,
    window_ms=500,
    check_ms=125,
)
CHECK = 125_000_000


def test_a_rate_acts_at_the_check_that_makes_it_so_many() -> None:
    assert [at for at, _ in due_actions(SLOW, [10] * 6, 0.125, [0] * 6)] == [2]


def test_a_rate_at_the_floor_begins_nothing_and_says_what_it_is() -> None:
    assert check_rule(SLOW, 5_000, NO_STATE, NOW) == (NO_STATE, None, 5_000)


def test_between_two_checks_of_a_rate_nothing_changes() -> None:
    suspected = check_rule(SLOW, 10, NO_STATE, NOW, 700).state
    assert suspected == RuleState(NOW, checked_at=NOW, last_value=700)
    assert check_rule(SLOW, 10, suspected, NOW + CHECK - 1, 700) == (suspected, None, 10)
    assert check_rule(SLOW, 10, suspected, NOW + CHECK, 700).state.tries == 1


def test_what_is_taken_at_the_floor_from_check_to_check_clears_it() -> None:
    suspected = check_rule(SLOW, 10, NO_STATE, NOW, 700).state
    assert check_rule(SLOW, 10, suspected, NOW + CHECK, 700 + 624)[:2] == (
        RuleState(NOW, checked_at=NOW + CHECK, last_value=1_324, tries=1),
        None,
    )
    assert check_rule(SLOW, 10, suspected, NOW + CHECK, 700 + 625) == (NO_STATE, None, 5_000)


def test_when_all_is_done_only_a_recovery_changes_anything() -> None:
    done = RuleState(NOW, 1, NOW, NOW, 700, tries=2)
    assert check_rule(SLOW, 4_999, done, NOW + CHECK, 700) == (done, None, 4_999)
    assert check_rule(SLOW, 5_000, done, NOW + CHECK, 700) == (NO_STATE, None, 5_000)


# Other rules.


def test_each_rule_of_a_change_is_looked_at_by_itself() -> None:
    def named(name: str, *ladder: Rung, **more: Any) -> Rule:
        return replace(rule(Shape.HARD, *ladder, **more), name=name)

    before = [named("same"), named("asks"), named("clock", check_ms=30_000), named("other")]
    after = [
        named("same"),
        named("asks", Rung(PolicyAction.OFFLINE)),
        named("clock", limit=7, check_ms=30_000),
        named("other", limit=7),
        named("new", check_ms=60_000),
    ]
    held = {
        name: RuleState(over_since=NOW, done=1, acted_at=NOW) for name in ("same", "asks", "clock", "other")
    }
    assert RuleStateMigration().migrated_state(before, after, held) == {
        "same": held["same"],
        "asks": RuleState(over_since=NOW),
        "clock": RuleState(checked_at=1),
        "new": RuleState(checked_at=1),
    }
