"""Queries for runs, newest first."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet

from broker_core.errors import OperatorError
from console.choices import RunKind, RunState
from console.models import ActionRun, Instance


def runs(instance: Instance | None = None) -> QuerySet[ActionRun]:
    """Return the runs of an instance, or of all instances."""
    found = ActionRun.objects.select_related("instance", "action")
    if instance is not None:
        found = found.filter(instance=instance)
    return found


def removals(instance: Instance) -> QuerySet[ActionRun]:
    """Return the succeeded runs that removed segments from the instance's log."""
    return runs(instance).filter(kind=RunKind.REMOVE, state=RunState.SUCCEEDED).order_by("-created_at")


def backtests(instance: Instance, draft_id: int) -> QuerySet[ActionRun]:
    """Return the runs that tested a draft, in any version, on recorded traffic."""
    conditions = {
        "parameters__job": "backtest",
        "parameters__options__policy__startswith": f"draft-{draft_id}-",
    }
    return runs(instance).filter(kind=RunKind.PIPELINE, **conditions).order_by("-created_at")


def run(run_id: str | UUID, instance: Instance | None = None) -> ActionRun:
    """Return a run, of the instance if one is given. Raises OperatorError `unknown_run`."""
    try:
        found = runs(instance).filter(pk=UUID(str(run_id))).first()
    except ValueError:
        found = None
    if found is None:
        raise OperatorError("unknown_run", f"There is no run {str(run_id)[:50]}.", "See /api/v1/runs.")
    return found
