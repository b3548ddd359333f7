"""Execution of a run of any kind in a worker, including storage of its result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from django.utils import timezone

from broker_core.errors import SluiceError
from broker_core.safe_text import escape_block
from console.choices import ActorKind, AuditResult, RunKind, RunState
from console.models import ActionRun
from console.services import audit, journals, pipeline, runs
from console.services.actions import event_runs, executor, planner
from console.services.actors import Actor
from console.services.run_progress import RunCancelled, RunProgress

logger = logging.getLogger(__name__)

PERFORM: dict[str, Callable[[ActionRun, RunProgress], dict[str, Any]]] = {
    RunKind.ARCHIVE: journals.perform_run,
    RunKind.COMPRESS: journals.perform_run,
    RunKind.REMOVE: journals.perform_run,
    RunKind.PIPELINE: pipeline.perform_run,
    RunKind.ACTION: partial(executor.perform_run, happened=event_runs.start_runs_for_events),
}


def execute_run(run_id: UUID | str) -> ActionRun | None:
    """Claim a run, perform it and store its outcome; return None for a cancelled or already claimed run.

    An action whose next step must wait for another run is put back and returned in the state waiting. Its
    plan isn't checked again when it continues.
    """
    waiting = ActionRun.objects.select_related("instance").filter(pk=run_id, state=RunState.WAITING).first()
    if waiting is not None and runs.is_elsewhere(waiting):
        # A broker on another machine requested the run, and didn't know which worker can perform it.
        runs.enqueue(waiting)
        return None
    run = runs.claim_run(run_id, timezone.now())
    if run is None:
        return None
    progress = RunProgress(run)
    try:
        if waiting is None or waiting.started_at is None:
            planner.check_run_plan(run)
        result = PERFORM[run.kind](run, progress)
    except executor.PutBack:
        run.refresh_from_db()
    except RunCancelled:
        run.log += "stopped on request\n"
        runs.finish(run, RunState.CANCELLED)
    except SluiceError as problem:
        _fail(run, problem.as_dict())
    except Exception as problem:
        logger.exception("run %s failed", run.pk)
        _fail(run, {"code": "run_failed", "message": f"{type(problem).__name__}: {problem}"[:1_000]})
    else:
        runs.finish(run, RunState.SUCCEEDED, result=result)
        audit.record(_actor(run), f"run.{run.kind}.end", _target(run), after={"result": result})
    return run


def _fail(run: ActionRun, error: dict[str, Any]) -> None:
    run.log += f"failed: {escape_block(error['message'])}\n"
    runs.finish(run, RunState.FAILED, error=error)
    audit.record(
        _actor(run), f"run.{run.kind}.end", _target(run), result=AuditResult.FAILED, message=error["message"]
    )


def _actor(run: ActionRun) -> Actor:
    return Actor(ActorKind(run.actor_kind), run.actor)


def _target(run: ActionRun) -> str:
    return f"{run.instance.name}: run {run.pk}"
