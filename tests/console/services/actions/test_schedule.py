from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from broker_core.errors import OperatorError
from console.services.actions.schedule import CronSchedule, IntervalSchedule, next_firings, parse_schedule

BERLIN, UTC_ZONE = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
ZONES = [
    BERLIN,
    UTC_ZONE,
    ZoneInfo("America/New_York"),
    ZoneInfo("Australia/Lord_Howe"),
    ZoneInfo("Asia/Kathmandu"),
]
START = datetime(2026, 1, 1, tzinfo=UTC)
moments = st.datetimes(datetime(2026, 1, 2), datetime(2028, 1, 1)).map(
    lambda at: at.replace(tzinfo=UTC, microsecond=0)
)
texts = st.one_of(
    st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59)),
    st.builds(
        "{} at {:02d}:{:02d}".format,
        st.sampled_from(["Saturday", "Sunday", "mon"]),
        st.integers(0, 23),
        st.integers(0, 59),
    ),
    st.sampled_from(["*/15 * * * *", "30 0 * * 6", "0 */6 1 * *", "5 2 * * *", "4h", "1d", "90m"]),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4h", IntervalSchedule(timedelta(hours=4))),
        ("00:30", CronSchedule("30 0 * * *", BERLIN)),
        ("00:30Z", CronSchedule("30 0 * * *", UTC_ZONE)),
        ("Saturday at 00:30", CronSchedule("30 0 * * 6", BERLIN)),
        ("sun at 11:05Z", CronSchedule("5 11 * * 0", UTC_ZONE)),
        ("30 0 * * 6", CronSchedule("30 0 * * 6", BERLIN)),
        ("30 0 * * SAT Z", CronSchedule("30 0 * * SAT", UTC_ZONE)),
    ],
)
def test_the_forms_of_a_schedule(text: str, expected: object) -> None:
    assert parse_schedule(text, BERLIN) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "24:00",
        "0:5",
        "noon",
        "Caturday at 00:30",
        "30s",
        "7",
        "60 * * * *",
        "0 0 30 2 *",
        "* * * * * *",
        "4hZ",
        "Saturday at",
        "1 1 1 1 1 1 1",
        "*/0 * * * *",
        "²3:00",
    ],
)
def test_what_is_no_schedule_is_refused_by_name(text: str) -> None:
    with pytest.raises(OperatorError) as refused:
        parse_schedule(text, BERLIN)
    assert refused.value.code == "bad_schedule"


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_schedule_or_a_named_error(text: str) -> None:
    try:
        assert next_firings(parse_schedule(text, BERLIN), START, START, 1)
    except OperatorError as refused:
        assert refused.code == "bad_schedule"


@settings(deadline=None)  # the first use of a zone reads its data
@given(texts, moments, st.sampled_from(ZONES))
@example("02:30", datetime(2026, 3, 29, 1, 0, tzinfo=UTC), BERLIN)
@example("02:30", datetime(2026, 10, 25, 0, 30, tzinfo=UTC), BERLIN)
@example("02:30", datetime(2026, 10, 25, 1, 30, tzinfo=UTC), BERLIN)
def test_a_moment_lies_between_the_newest_firing_and_the_next(
    text: str, now: datetime, zone: ZoneInfo
) -> None:
    schedule = parse_schedule(text, zone)
    newest, (following,) = schedule.latest_before(now, START), next_firings(schedule, now, START, 1)
    assert following > now
    if newest is not None:
        assert newest <= now
        assert next_firings(schedule, newest - timedelta(seconds=1), START, 2) == [newest, following]


@settings(deadline=None)  # the first use of a zone reads its data
@given(texts, moments, st.sampled_from(ZONES))
def test_firings_come_in_order_and_each_is_newest_at_its_own_moment(
    text: str, now: datetime, zone: ZoneInfo
) -> None:
    schedule = parse_schedule(text, zone)
    found = next_firings(schedule, now, START)
    assert len(found) == 5
    assert found == sorted(set(found))
    assert [schedule.latest_before(due, START) for due in found] == found


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 23), st.integers(0, 59), st.sampled_from(ZONES), st.integers(2026, 2029))
def test_a_daily_time_fires_once_on_every_local_day_of_a_year(
    hour: int, minute: int, zone: ZoneInfo, year: int
) -> None:
    begin = datetime(year, 1, 1, tzinfo=zone)
    schedule = parse_schedule(f"{hour:02d}:{minute:02d}", zone)
    days = [
        due.astimezone(zone).date()
        for due in islice(schedule.next_after(begin - timedelta(seconds=1), START), 365)
    ]
    assert days == [begin.date() + timedelta(days=number) for number in range(365)]


def test_a_time_that_daylight_saving_skips_fires_right_after_it() -> None:
    (due,) = next_firings(parse_schedule("02:30", BERLIN), datetime(2026, 3, 29, 0, 0, tzinfo=UTC), START, 1)
    assert due == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


def test_a_time_that_comes_twice_fires_once() -> None:
    found = next_firings(parse_schedule("02:30", BERLIN), datetime(2026, 10, 24, 12, 0, tzinfo=UTC), START, 2)
    assert found[1] - found[0] == timedelta(hours=24) or found[1] - found[0] == timedelta(hours=25)
    assert {due.astimezone(BERLIN).date().day for due in found} == {25, 26}


def test_utc_doesnt_move_with_daylight_saving() -> None:
    found = next_firings(parse_schedule("02:30Z", BERLIN), datetime(2026, 3, 27, 12, 0, tzinfo=UTC), START, 4)
    assert {(due.hour, due.minute) for due in found} == {(2, 30)}


@given(st.integers(60, 10**6), st.integers(0, 10**7))
def test_an_interval_counts_from_the_start(seconds: int, passed: int) -> None:
    schedule = IntervalSchedule(timedelta(seconds=seconds))
    now = START + timedelta(seconds=passed)
    newest = schedule.latest_before(now, START)
    assert (newest is None) == (passed < seconds)
    following = next_firings(schedule, now, START, 1)[0]
    assert (following - START) % schedule.every == timedelta(0)
    assume(newest is not None)
    assert following - newest == schedule.every  # type: ignore[operator]


CHANGES = [
    (BERLIN, datetime(2026, 10, 25, 1, tzinfo=UTC)),
    (BERLIN, datetime(2026, 3, 29, 1, tzinfo=UTC)),
    (ZoneInfo("America/New_York"), datetime(2026, 11, 1, 6, tzinfo=UTC)),
    (ZoneInfo("Australia/Lord_Howe"), datetime(2026, 4, 4, 15, tzinfo=UTC)),
]


@pytest.mark.parametrize(("zone", "change"), CHANGES)
@pytest.mark.parametrize(
    "text", ["00:59", "01:00", "01:30", "01:45", "02:00", "02:30", "02:59", "30 1,2 * * *", "*/30 * * * *"]
)
def test_around_a_change_of_the_clock_no_firing_is_followed_by_an_earlier_one(
    zone: ZoneInfo, change: datetime, text: str
) -> None:
    schedule = parse_schedule(text, zone)
    every = [
        due
        for due in islice(schedule.next_after(change - timedelta(days=3), START), 400)
        if due <= change + timedelta(days=2)
    ]
    for minutes in range(-6 * 60, 6 * 60, 5):
        now = change + timedelta(minutes=minutes)
        assert schedule.latest_before(now, START) == max(due for due in every if due <= now)
        assert next_firings(schedule, now, START, 1) == [min(due for due in every if due > now)]
