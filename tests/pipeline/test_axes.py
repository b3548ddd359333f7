"""Ticks of an axis: round, in the unit's own steps, and enough to read the plot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.axes import Unit, amount_ticks, format_amount, time_ticks

DAY = datetime(2026, 11, 22, tzinfo=UTC)


def tick_labels(low: float, high: float, unit: Unit = "", whole: bool = False) -> list[str]:
    return [mark.label for mark in amount_ticks(low, high, unit, whole)]


def micros(at: datetime) -> float:
    return at.timestamp() * 1_000_000


@pytest.mark.parametrize(
    ("high", "unit", "whole", "expected"),
    [
        (1_610_612_736, "bytes", True, ["0", "0.5 GiB", "1 GiB", "1.5 GiB"]),
        (134_217_728, "bytes", True, ["0", "50 MiB", "100 MiB", "150 MiB"]),
        (3_600_000, "ms", True, ["0", "0.5 h", "1 h"]),
        (90, "s", False, ["0", "0.5 min", "1 min", "1.5 min"]),
        (2, "", True, ["0", "1", "2"]),
        (0, "", True, ["0", "1"]),
        (3, "bytes", True, ["0", "1 B", "2 B", "3 B"]),
        (1_234_567, "", True, ["0", "0.5 M", "1 M", "1.5 M"]),
        (0.4, "", False, ["0", "0.1", "0.2", "0.3", "0.4"]),
    ],
)
def test_amounts_have_round_marks_in_the_size_that_fits(
    high: float, unit: Unit, whole: bool, expected: list[str]
) -> None:
    assert tick_labels(0, high, unit, whole) == expected


def test_what_falls_below_zero_has_marks_there_too() -> None:
    assert tick_labels(-30, 70) == ["-50", "0", "50", "100"]


def test_an_amount_by_itself_has_three_digits() -> None:
    assert [format_amount(1_610_612_736, "bytes"), format_amount(1_388, "s"), format_amount(0, "ms")] == [
        "1.5 GiB",
        "23.1 min",
        "0",
    ]


@given(
    st.floats(-1e15, 0),
    st.floats(0, 1e15),
    st.sampled_from(["", "bytes", "ms", "s"]),
    st.booleans(),
    st.integers(2, 8),
)
def test_marks_enclose_what_is_drawn_and_are_few(
    low: float, high: float, unit: Unit, whole: bool, most: int
) -> None:
    marks = amount_ticks(low, high, unit, whole, most)
    nearly = 1e-9 * (high - low)
    assert marks[0].at <= low + nearly
    assert marks[-1].at >= high - nearly
    assert 2 <= len(marks) <= most + 2
    assert all(one.at < other.at for one, other in pairwise(marks))


def test_a_day_has_marks_at_round_hours_and_says_its_date_once() -> None:
    marks = time_ticks(micros(DAY), micros(DAY + timedelta(hours=23)), 5)
    assert [(mark.label, mark.below) for mark in marks] == [
        ("00:00", "22 Nov, UTC"),
        ("06:00", ""),
        ("12:00", ""),
        ("18:00", ""),
    ]


def test_midnight_says_the_new_day() -> None:
    marks = time_ticks(micros(DAY + timedelta(hours=20)), micros(DAY + timedelta(hours=29)), 5)
    assert [(mark.label, mark.below) for mark in marks] == [
        ("21:00", "22 Nov, UTC"),
        ("00:00", "23 Nov"),
        ("03:00", ""),
    ]


def test_weeks_have_days() -> None:
    marks = time_ticks(micros(DAY), micros(DAY + timedelta(days=6)), 5)
    assert [mark.label for mark in marks] == ["23 Nov", "25 Nov", "27 Nov"]


@pytest.mark.parametrize("length", [timedelta(0), timedelta(milliseconds=1), timedelta(seconds=40)])
def test_a_moment_and_what_is_short_have_marks_too(length: timedelta) -> None:
    begin = DAY + timedelta(hours=3, milliseconds=700)
    marks = time_ticks(micros(begin), micros(begin + length), 5)
    assert marks
    assert all(micros(begin) <= mark.at <= micros(begin + length) for mark in marks)
    assert marks[0].label.startswith("03:00:")


@given(st.integers(0, 4_000_000_000_000_000), st.integers(0, 10_000_000_000_000_000), st.integers(3, 7))
def test_times_are_within_what_is_drawn_and_few(low: int, span: int, most: int) -> None:
    marks = time_ticks(low, low + span, most)
    assert len(marks) >= 1
    assert all(low <= mark.at <= low + span for mark in marks)
    if span <= 4 * 364 * 86_400 * 1_000_000:
        assert len(marks) <= most
