"""Scheduled actions: their due times, and one run for each due time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from django.conf import settings

from broker_core.errors import OperatorError
from console.broker_link import members_of
from console.choices import ACTIVE_RUN_STATES, MissedRunPolicy, RunKind
from console.models import Action, ActionRun
from console.services import runs
from console.services.actions import event_runs, schedule
from console.services.actors import schedule_actor

logger = logging.getLogger(__name__)

PUNCTUAL = timedelta(minutes=5)
"""Age above which a firing counts as missed. Celery's beat checks schedules once a minute."""


def action_schedules(action: Action) -> Iterator[tuple[Mapping[str, str], schedule.Schedule]]:
    """Yield an action's schedule triggers, each with its parsed schedule."""
    for trigger in action.when:
        if trigger["on"] == "schedule":
            yield trigger, schedule.parse_schedule(trigger["every"], settings.SLUICE_LOCAL_ZONE)


def interval_start(action: Action) -> datetime:
    """Return the time from which intervals count: the instance's start or the action's later change."""
    broker = action.instance.started_at
    return max(action.started_at, broker) if broker is not None else action.started_at


def next_firings(action: Action, now: datetime, count: int = 5) -> list[datetime]:
    """Return the next firings of all schedules of an action; empty for a disabled action."""
    if not action.enabled:
        return []
    start = interval_start(action)
    found = {
        due
        for _, parsed in action_schedules(action)
        for due in schedule.next_firings(parsed, now, start, count)
    }
    return sorted(found)[:count]


def start_due_runs(now: datetime) -> list[ActionRun]:
    """Start a run for each action that is due and has no run for that due time yet. Return the runs.

    Two processes may call this concurrently: the unique key (action, due_at) admits one of them. While
    another scheduled run of the action is active, the firing is tried again a minute later.
    """
    started = []
    for action in Action.objects.filter(enabled=True).select_related("instance"):
        for trigger, parsed in action_schedules(action):
            for member in _members_to_run(action):
                try:
                    run = _fire(action, trigger, parsed, now, member)
                except OperatorError as busy:
                    logger.info("action %s: %s", action.name, busy.sentence)
                else:
                    started += [run] if run is not None else []
    return started


def _members_to_run(action: Action) -> tuple[str, ...]:
    """Return the members that need a run: all members for work on journals, otherwise one without a name."""
    about_journals = runs.needs_journal_worker(RunKind.ACTION, {"steps": action.steps})
    return members_of(action.instance.name) if about_journals else ("",)


def _fire(
    action: Action, trigger: Mapping[str, str], parsed: schedule.Schedule, now: datetime, member: str
) -> ActionRun | None:
    """Start the run of one schedule and member if it is due; otherwise return None."""
    start = interval_start(action) if isinstance(parsed, schedule.IntervalSchedule) else action.started_at
    due_at = parsed.latest_before(now, start)
    if due_at is None or (action.missed == MissedRunPolicy.SKIP and now - due_at > PUNCTUAL):
        return None
    member_runs = ActionRun.objects.filter(action=action, member=member)
    if (
        member_runs.filter(due_at=due_at).exists()
        or member_runs.filter(due_at__isnull=False, state__in=ACTIVE_RUN_STATES).exists()
    ):
        return None
    return event_runs.start_run(
        schedule_actor(action.name), action, trigger, {}, now, due_at=due_at, member=member
    )
