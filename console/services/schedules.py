"""Schedules: what is due, starting it once, and the default of a new instance (a weekly archive)."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from broker_core.errors import OperatorError
from console.choices import RunKind
from console.models import ActionRun, Instance, Schedule
from console.services import runs
from console.services.actors import schedule_actor

logger = logging.getLogger(__name__)

WEEKLY_ARCHIVE = "weekly archive"


def make_defaults(instance: Instance) -> None:
    """Give a new instance its weekly archive: Saturday at 00:30 UTC, segments older than seven days."""
    Schedule.objects.get_or_create(
        instance=instance,
        name=WEEKLY_ARCHIVE,
        defaults={"kind": RunKind.ARCHIVE, "parameters": {"age": "7d"}, "weekday": 5, "hour": 0, "minute": 30},
    )


def newest_due_at(schedule: Schedule, now: datetime) -> datetime:
    """The newest moment at or before `now` at which the schedule was due."""
    due = now.replace(hour=schedule.hour, minute=schedule.minute, second=0, microsecond=0)
    if schedule.weekday is not None:
        due -= timedelta(days=(due.weekday() - schedule.weekday) % 7)
    if due > now:
        due -= timedelta(days=1 if schedule.weekday is None else 7)
    return due


def next_due_at(schedule: Schedule, now: datetime) -> datetime:
    """The first moment after `now` at which the schedule is due."""
    return newest_due_at(schedule, now) + timedelta(days=1 if schedule.weekday is None else 7)


def fire_due(now: datetime) -> list[ActionRun]:
    """Start a run for every schedule that became due since it was made and hasn't run for that time.

    Two beats may call this at once: the unique (schedule, due_at) lets one of them through. When a run of the same kind
    is under way, the firing is tried again at the next tick.
    """
    started = []
    for schedule in Schedule.objects.filter(enabled=True).select_related("instance"):
        due_at = newest_due_at(schedule, now)
        if due_at < schedule.created_at or ActionRun.objects.filter(schedule=schedule, due_at=due_at).exists():
            continue
        try:
            started.append(
                runs.request(
                    schedule_actor(schedule.name),
                    schedule.instance,
                    RunKind(schedule.kind),
                    schedule.parameters,
                    schedule=schedule,
                    due_at=due_at,
                )
            )
        except OperatorError as busy:
            logger.info("schedule %s: %s", schedule.name, busy.sentence)
    return started
