"""Delays of the supervisor before it restarts a child."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from console.supervisor.backoff import RestartBackoff


def test_first_failure_waits_the_first_delay() -> None:
    assert RestartBackoff(first_s=0.5).delay_s(1) == 0.5


def test_failures_in_a_row_double_the_delay_up_to_the_most() -> None:
    backoff = RestartBackoff(first_s=1, factor=2, max_s=10)
    assert [backoff.delay_s(failures) for failures in (1, 2, 3, 4, 5, 6)] == [1, 2, 4, 8, 10, 10]


def test_child_that_ran_long_enough_starts_from_the_first_delay() -> None:
    backoff = RestartBackoff(stable_s=60)
    assert backoff.failures_after(7, ran_s=60) == 1


def test_child_that_dies_early_counts_on() -> None:
    assert RestartBackoff(stable_s=60).failures_after(7, ran_s=59.9) == 8


@given(st.integers(min_value=1, max_value=10**9))
def test_delay_is_within_its_bounds_after_any_number_of_failures(failures: int) -> None:
    backoff = RestartBackoff()
    assert backoff.first_s <= backoff.delay_s(failures) <= backoff.max_s
