"""Pure functions of the demo: flights in order of departure, and the pace at which they are published."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.flights import Flights, load
from demo.pace import Rate, Speed

COLUMNS = ["year", "month", "day", "dep_time", "dep_delay", "carrier", "tailnum", "minute", "time_hour"]


def flights(*lines: str) -> Flights:
    return Flights(COLUMNS, lines)


def test_flights_come_in_the_order_they_departed_not_were_scheduled() -> None:
    late = "2013,1,1,700,60,UA,N1,0,2013-01-01T11:00:00Z"
    early = "2013,1,1,615,-5,AA,N2,20,2013-01-01T11:00:00Z"
    made = flights(late, early)
    assert [made.topic_and_message(n)[0] for n in range(2)] == ["flights.AA", "flights.UA"]


def test_flight_that_never_left_counts_at_its_scheduled_time() -> None:
    made = flights("2013,1,1,NA,NA,EV,NA,30,2013-01-01T21:00:00Z")
    topic, message = made.topic_and_message(0)
    assert topic == "flights.EV"
    assert json.loads(message) == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": None,
        "dep_delay": None,
        "carrier": "EV",
        "tailnum": None,
        "minute": 30,
        "time_hour": "2013-01-01T21:00:00Z",
        "cancelled": True,
        "moment": "2013-01-01T21:30:00Z",
    }


def test_all_flights_of_the_package_are_there_in_order() -> None:
    made = load()
    assert len(made) == 336_776
    assert made.moments == sorted(made.moments)
    assert {made.topic_and_message(n)[0] for n in range(0, len(made), 40)} >= {"flights.UA", "flights.9E"}


def test_rate_owes_what_the_time_makes_due() -> None:
    pace = Rate(1000, first=500, start=10.0)
    assert pace.due_count(10.0, 500) == 500
    assert pace.due_count(10.5, 500) == 1000


def test_rate_after_an_outage_goes_on_at_its_pace() -> None:
    pace = Rate(1000, first=0, start=0.0)
    assert pace.due_count(60.0, sent=0) == 1000
    assert pace.due_count(60.5, sent=1000) == 1500


@given(st.lists(st.floats(min_value=0, max_value=5), max_size=30), st.floats(min_value=0.1, max_value=1e6))
def test_rate_never_owes_more_than_a_second(steps: list[float], rate: float) -> None:
    pace, now, sent = Rate(rate, 0, 0.0), 0.0, 0
    for step in steps:
        now += step
        due = pace.due_count(now, sent)
        assert due - sent <= max(1, int(rate))
        sent = max(sent, due)


def test_speed_is_a_multiple_of_the_real_pace() -> None:
    pace = Speed(60, [0, 60, 60, 120], first=0, start=100.0)
    assert [pace.due_count(100.0 + seconds, 0) for seconds in (0, 0.5, 1, 1.5, 2)] == [1, 1, 3, 3, 4]


def test_speed_does_not_count_an_outage() -> None:
    pace = Speed(60, [0, 60, 120, 180, 6000], first=0, start=0.0)
    assert pace.due_count(60.0, 1) == 2


@pytest.mark.parametrize("first", [0, 2])
def test_speed_goes_on_from_where_the_feed_stopped(first: int) -> None:
    moments = [0, 60, 1000, 1060]
    assert Speed(60, moments, first, start=0.0).due_count(1.0, first) == first + 2
