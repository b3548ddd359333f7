"""Runs: asking for one, taking it up in a worker, telling how it goes, and finding those whose worker died.

A run is taken up by one conditional UPDATE (waiting → running), so a task that the queue delivers twice does nothing
the second time, and a run that waits may be queued again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from celery import current_app
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from kombu.exceptions import OperationalError

from broker_core.errors import OperatorError
from console.choices import ACTIVE_RUN_STATES, RunKind, RunState
from console.models import ActionRun, Instance, Schedule
from console.services import audit
from console.services.actors import SYSTEM, Actor

EXECUTE_TASK = "console.tasks.execute_run"
LOST_AFTER = timedelta(minutes=2)
QUEUE_AGAIN_AFTER = timedelta(minutes=2)


def request(
    actor: Actor,
    instance: Instance,
    kind: RunKind,
    parameters: Mapping[str, Any],
    *,
    plan: Any = None,
    schedule: Schedule | None = None,
    due_at: datetime | None = None,
) -> ActionRun:
    """Store a waiting run and queue it. Raises OperatorError run_in_progress when one of its kind is active."""
    try:
        with transaction.atomic():
            run = ActionRun.objects.create(
                instance=instance,
                kind=kind,
                parameters=dict(parameters),
                plan=plan,
                actor=actor.name[:200],
                actor_kind=actor.kind,
                schedule=schedule,
                due_at=due_at,
            )
            audit.record(actor, f"run.{kind}", f"{instance.name}: run {run.pk}", after=dict(parameters))
    except IntegrityError as taken:
        active = ActionRun.objects.filter(instance=instance, kind=kind, state__in=ACTIVE_RUN_STATES).first()
        raise OperatorError(
            "run_in_progress",
            f"Another run of {kind} is under way on {instance.name}, or this firing was run already.",
            "Wait for it to end, or cancel it.",
            run=str(active.pk) if active else None,
        ) from taken
    transaction.on_commit(lambda: enqueue(run))
    return run


def enqueue(run: ActionRun) -> None:
    """Hand a waiting run to the workers; without a queue the run fails at once, and says so."""
    try:
        current_app.send_task(EXECUTE_TASK, args=[str(run.pk)], retry=False, ignore_result=True)
    except (OperationalError, OSError) as problem:
        error = {"code": "queue_away", "message": f"The task queue can't be reached: {problem}"[:500]}
        ActionRun.objects.filter(pk=run.pk, state=RunState.WAITING).update(
            state=RunState.FAILED, error=error, ended_at=timezone.now()
        )
        run.refresh_from_db()


def claim(run_id: UUID | str, now: datetime) -> ActionRun | None:
    """Take up a waiting run; None when it isn't waiting any more."""
    claimed = ActionRun.objects.filter(pk=run_id, state=RunState.WAITING).update(
        state=RunState.RUNNING, started_at=now, heard_at=now
    )
    return ActionRun.objects.select_related("instance", "schedule").get(pk=run_id) if claimed else None


def finish(
    run: ActionRun, state: RunState, *, result: Any = None, error: Mapping[str, Any] | None = None
) -> None:
    """End a running run; a run that was declared lost meanwhile stays so, with its result beside."""
    now = timezone.now()
    values: dict[str, Any] = {"result": result, "error": error, "log": run.log, "ended_at": now, "heard_at": now}
    if state == RunState.SUCCEEDED:
        values.update(progress=100.0, step="")
    ActionRun.objects.filter(pk=run.pk, state__in=(RunState.RUNNING, RunState.LOST)).update(state=state, **values)
    run.refresh_from_db()


def cancel(actor: Actor, run: ActionRun) -> ActionRun:
    """End a waiting run, or ask a running one to stop after its current step."""
    with transaction.atomic():
        stopped = ActionRun.objects.filter(pk=run.pk, state=RunState.WAITING).update(
            state=RunState.CANCELLED, ended_at=timezone.now()
        )
        asked = 0 if stopped else ActionRun.objects.filter(pk=run.pk, state=RunState.RUNNING).update(
            cancel_requested=True
        )
        if not (stopped or asked):
            raise OperatorError("run_ended", f"The run has ended ({run.state}).", "Nothing is left to cancel.")
        audit.record(actor, "run.cancel", f"{run.instance.name}: run {run.pk}")
    run.refresh_from_db()
    return run


def find_lost(now: datetime) -> list[ActionRun]:
    """Mark runs whose worker fell silent as lost, and queue again what has waited long."""
    silent = Q(heard_at__lt=now - LOST_AFTER) | Q(heard_at__isnull=True)
    lost = list(ActionRun.objects.filter(silent, state=RunState.RUNNING).select_related("instance"))
    for run in lost:
        error = {"code": "worker_lost", "message": "The worker fell silent.", "fix": "Ask for the run again."}
        marked = ActionRun.objects.filter(silent, pk=run.pk, state=RunState.RUNNING).update(
            state=RunState.LOST, error=error, ended_at=now
        )
        if marked:
            audit.record(SYSTEM, "run.lost", f"{run.instance.name}: run {run.pk}")
    for run in ActionRun.objects.filter(state=RunState.WAITING, created_at__lt=now - QUEUE_AGAIN_AFTER):
        enqueue(run)
    return lost
