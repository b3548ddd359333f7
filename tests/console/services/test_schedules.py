from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction
from hypothesis import given
from hypothesis import strategies as st

from console.choices import RunState
from console.models import ActionRun, Instance, Schedule
from console.services.schedules import WEEKLY_ARCHIVE, fire_due, newest_due_at, next_due_at

SATURDAY = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)


@pytest.fixture
def weekly(instance: Instance) -> Schedule:
    """The weekly archive, made well before the Saturday of these tests."""
    Schedule.objects.filter(instance=instance).update(created_at=SATURDAY - timedelta(days=3))
    return Schedule.objects.get(instance=instance, name=WEEKLY_ARCHIVE)


@given(st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1)), st.none() | st.integers(0, 6), st.integers(0, 23), st.integers(0, 59))
def test_now_lies_between_two_due_times(now: datetime, weekday: int | None, hour: int, minute: int) -> None:
    schedule = Schedule(weekday=weekday, hour=hour, minute=minute)
    moment = now.replace(tzinfo=UTC)
    due = newest_due_at(schedule, moment)
    assert due <= moment < next_due_at(schedule, moment)
    assert (due.hour, due.minute) == (hour, minute)
    assert weekday is None or due.weekday() == weekday


def test_schedule_starts_a_run_when_it_is_due(weekly: Schedule) -> None:
    assert fire_due(SATURDAY - timedelta(seconds=1)) == []
    (run,) = fire_due(SATURDAY)
    assert (run.kind, run.due_at, run.actor, run.parameters) == ("archive", SATURDAY, WEEKLY_ARCHIVE, {"age": "7d"})


def test_second_beat_starts_nothing(weekly: Schedule) -> None:
    assert len(fire_due(SATURDAY)) == 1
    assert fire_due(SATURDAY + timedelta(seconds=30)) == []
    assert ActionRun.objects.count() == 1


def test_database_refuses_a_second_run_of_one_firing(weekly: Schedule) -> None:
    (run,) = fire_due(SATURDAY)
    with pytest.raises(IntegrityError), transaction.atomic():
        ActionRun.objects.create(
            instance=run.instance, kind="compress", actor="x", actor_kind="schedule", schedule=weekly, due_at=SATURDAY
        )


def test_missed_firings_are_made_up_for_once(weekly: Schedule) -> None:
    (run,) = fire_due(SATURDAY + timedelta(days=15))
    assert run.due_at == SATURDAY + timedelta(days=14)


def test_firing_waits_while_a_run_of_its_kind_is_active(weekly: Schedule) -> None:
    active = ActionRun.objects.create(
        instance=weekly.instance, kind="archive", actor="maria", actor_kind="person", state=RunState.RUNNING
    )
    assert fire_due(SATURDAY) == []
    ActionRun.objects.filter(pk=active.pk).update(state=RunState.SUCCEEDED)
    assert len(fire_due(SATURDAY + timedelta(minutes=1))) == 1


def test_new_schedule_makes_up_for_nothing(weekly: Schedule) -> None:
    Schedule.objects.update(created_at=SATURDAY + timedelta(hours=1))
    assert fire_due(SATURDAY + timedelta(hours=2)) == []


def test_schedule_that_is_switched_off_starts_nothing(weekly: Schedule) -> None:
    Schedule.objects.update(enabled=False)
    assert fire_due(SATURDAY) == []
