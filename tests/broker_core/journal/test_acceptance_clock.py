"""Acceptance times while the machine's clock jumps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.journal.acceptance_clock import ACCEPTED_AFTER_S, TOLERANCE_S, AcceptanceClock
from tests.support.manual_clock import ManualClock

MONTH_S = 30 * 86_400.0
SECOND = 1_000_000_000


@pytest.mark.parametrize("step_s", [MONTH_S, -MONTH_S])
def test_a_clock_that_jumps_a_month_for_two_seconds_falsifies_no_time(step_s: float) -> None:
    clock = ManualClock()
    began, times = clock.now_ns(), AcceptanceClock(clock, 0)
    clock.set_back(-step_s)
    found = []
    for _ in range(2):
        clock.advance(1)
        found.append((times.read(), times.is_certain))
    clock.set_back(step_s)
    clock.advance(1)
    found.append((times.read(), times.is_certain))
    assert [(at - began) // SECOND for at, _ in found] == [1, 2, 3]
    assert [is_certain for _, is_certain in found] == [False, False, True]


def test_a_clock_that_stays_ahead_is_followed() -> None:
    clock = ManualClock()
    times = AcceptanceClock(clock, 0)
    clock.set_back(-MONTH_S)
    assert times.read() < clock.now_ns() and not times.is_certain
    clock.advance(ACCEPTED_AFTER_S)
    assert times.read() == clock.now_ns() and times.is_certain
    clock.advance(1)
    assert times.read() == clock.now_ns() and times.is_certain


def test_a_clock_that_stays_behind_keeps_the_newest_time_until_it_has_caught_up() -> None:
    clock = ManualClock()
    times = AcceptanceClock(clock, 0)
    clock.set_back(3_600)
    times.read()
    clock.advance(ACCEPTED_AFTER_S)
    before = times.read()
    clock.advance(3_000)
    assert times.read() == before and times.is_certain
    clock.advance(3_600)
    assert times.read() == clock.now_ns() and times.is_certain


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(-MONTH_S, MONTH_S)), max_size=30))
def test_times_never_decrease_and_are_wrong_by_no_more_than_the_tolerance(
    errors: list[tuple[float, float]],
) -> None:
    """Each jump ends before the broker follows it."""
    clock = ManualClock()
    times, newest = AcceptanceClock(clock, 0), 0
    for duration_s, error_s in errors:
        clock.set_back(-error_s)
        for _ in range(3):
            clock.advance(duration_s / 3)
            found = times.read()
            right = clock.now_ns() - round(error_s * 1e9)
            assert found >= newest and abs(found - right) <= 2 * TOLERANCE_S * 1e9
            newest = found
        clock.set_back(error_s)
        clock.advance(1)
        times.read()
        assert times.is_certain
