from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import IntegrityError, transaction

from console.choices import RunState
from console.models import Action, ActionRun, Instance
from console.services.actions.defaults import WEEKLY_ARCHIVE
from console.services.actions.scheduler import next_firings, start_due_runs

SATURDAY = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)


@pytest.fixture
def weekly(instance: Instance) -> Action:
    """Return the weekly archive action, created three days before SATURDAY."""
    Action.objects.filter(instance=instance).update(started_at=SATURDAY - timedelta(days=3))
    return Action.objects.get(instance=instance, name=WEEKLY_ARCHIVE)


def test_schedule_starts_a_run_when_it_is_due(weekly: Action) -> None:
    assert start_due_runs(SATURDAY - timedelta(seconds=1)) == []
    (run,) = start_due_runs(SATURDAY)
    assert (run.kind, run.due_at, run.actor, run.actor_kind) == (
        "action",
        SATURDAY,
        WEEKLY_ARCHIVE,
        "schedule",
    )
    assert run.parameters["steps"] == [{"do": "archive", "age": "7d"}]
    assert run.trigger == {"on": "schedule", "every": "Saturday at 00:30Z"}


def test_second_beat_starts_nothing(weekly: Action) -> None:
    assert len(start_due_runs(SATURDAY)) == 1
    assert start_due_runs(SATURDAY + timedelta(seconds=30)) == []
    assert ActionRun.objects.count() == 1


def test_database_refuses_a_second_run_of_one_firing(weekly: Action) -> None:
    (run,) = start_due_runs(SATURDAY)
    with pytest.raises(IntegrityError), transaction.atomic():
        ActionRun.objects.create(
            instance=run.instance,
            kind="action",
            actor="x",
            actor_kind="schedule",
            action=weekly,
            due_at=SATURDAY,
        )


def test_missed_firings_are_made_up_for_once(weekly: Action) -> None:
    (run,) = start_due_runs(SATURDAY + timedelta(days=15))
    assert run.due_at == SATURDAY + timedelta(days=14)


def test_missed_firings_are_skipped_when_the_policy_says_so(weekly: Action) -> None:
    Action.objects.update(missed="skip")
    assert start_due_runs(SATURDAY + timedelta(minutes=6)) == []
    assert len(start_due_runs(SATURDAY + timedelta(days=7, minutes=4))) == 1


def test_firing_waits_while_the_run_before_it_is_active(weekly: Action) -> None:
    (run,) = start_due_runs(SATURDAY)
    ActionRun.objects.update(state=RunState.RUNNING)
    assert start_due_runs(SATURDAY + timedelta(days=7)) == []
    ActionRun.objects.filter(pk=run.pk).update(state=RunState.SUCCEEDED)
    assert len(start_due_runs(SATURDAY + timedelta(days=7, minutes=1))) == 1


def test_new_action_makes_up_for_nothing(weekly: Action) -> None:
    Action.objects.update(started_at=SATURDAY + timedelta(hours=1))
    assert start_due_runs(SATURDAY + timedelta(hours=2)) == []


def test_action_that_is_switched_off_starts_nothing(weekly: Action) -> None:
    Action.objects.update(enabled=False)
    weekly.refresh_from_db()
    assert start_due_runs(SATURDAY) == []
    assert next_firings(weekly, SATURDAY) == []


def test_two_schedules_that_fall_together_run_once(weekly: Action) -> None:
    Action.objects.update(
        when=[{"on": "schedule", "every": "Saturday at 00:30Z"}, {"on": "schedule", "every": "00:30Z"}]
    )
    assert len(start_due_runs(SATURDAY)) == 1
    weekly.refresh_from_db()
    assert next_firings(weekly, SATURDAY, 2) == [SATURDAY + timedelta(days=1), SATURDAY + timedelta(days=2)]


def test_an_interval_counts_from_the_brokers_start(weekly: Action) -> None:
    started = SATURDAY + timedelta(minutes=10)
    Instance.objects.update(started_at=started)
    Action.objects.update(when=[{"on": "schedule", "every": "4h"}])
    assert start_due_runs(started + timedelta(hours=3, minutes=59)) == []
    (run,) = start_due_runs(started + timedelta(hours=4))
    assert run.due_at == started + timedelta(hours=4)


def test_a_machine_that_starts_in_the_repeated_hour_runs_once(weekly: Action, settings: Any) -> None:
    settings.SLUICE_LOCAL_ZONE = ZoneInfo("Europe/Berlin")
    Action.objects.exclude(pk=weekly.pk).update(enabled=False)
    Action.objects.filter(pk=weekly.pk).update(
        when=[{"on": "schedule", "every": "02:30"}], started_at=datetime(2026, 10, 20, tzinfo=UTC)
    )
    started = datetime(2026, 10, 25, 0, 45, tzinfo=UTC)  # 02:45 in summer time
    (run,) = start_due_runs(started)
    assert run.due_at == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    ActionRun.objects.update(state=RunState.SUCCEEDED)
    for minutes in range(0, 24 * 60, 15):
        assert start_due_runs(started + timedelta(minutes=minutes)) == []
