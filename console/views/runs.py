"""Page of runs with progress, plan, steps, log and result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from broker_core.errors import SluiceError
from console.choices import (
    ACTIVE_RUN_STATES,
    REPEATABLE_RUN_STATES,
    PendingChangeKind,
    Permission,
    PipelineJobs,
    RunKind,
    RunState,
)
from console.models import ActionRun
from console.queries import run_redaction
from console.queries import runs as read
from console.queries.filters import RunFilter
from console.services import audit, pipeline
from console.services import runs as service
from console.services.actions import run_requests
from console.services.actors import access_of_request
from console.views import common, pending_changes
from console.views.decisions import filter_query

PAGE = 30
"""Runs per page."""


@common.requires_permission(Permission.VIEW)
@require_GET
def runs(request: HttpRequest) -> HttpResponse:
    """Show the newest runs."""
    return common.page(request, "runs.html", {**_list(request), "jobs": PipelineJobs().names()})


@common.requires_permission(Permission.VIEW)
@require_GET
def runs_list(request: HttpRequest) -> HttpResponse:
    """Show only the list. The page requests it every two seconds while a run is active."""
    return render(
        request, "components/runs.html", {"may": common.allowed_permissions(request), **_list(request)}
    )


@common.requires_permission(Permission.RUN_ACTIONS)
@require_POST
def start_job(request: HttpRequest) -> HttpResponse:
    """Request a pipeline job."""
    try:
        pipeline.request(common.actor_of(request), request.POST.get("job", ""))
    except SluiceError as problem:
        common.show_error(request, problem)
    else:
        messages.success(request, "The pipeline job is requested.")
    return redirect("runs")


@common.requires_permission(Permission.RUN_ACTIONS)
@require_POST
def cancel(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Add the cancellation of a run to the pending changes."""
    return pending_changes.add_change(request, PendingChangeKind.RUN_CANCEL, str(run_id))


@common.requires_permission(Permission.APPROVE)
@require_POST
def approve(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Approve a run that another account requested."""
    try:
        service.approve(common.actor_of(request), read.run(run_id, common.local_instance()))
    except SluiceError as problem:
        common.show_error(request, problem)
    else:
        messages.success(request, "The run is approved.")
    return redirect("runs")


@common.requires_permission(Permission.RUN_ACTIONS)
@require_POST
def repeat(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Repeat a run that was lost, failed or cancelled. If it removes data, its plan is shown first."""
    try:
        run = read.run(run_id, common.local_instance())
        run_requests.repeat(common.actor_of(request), run, request.POST.get("plan", ""))
    except SluiceError as problem:
        if problem.code == "plan_needed":
            audit.mark_read_only(request)
            redacted = run_redaction.redact_plan(run, problem.details["plan"], access_of_request(request))
            return common.page(request, "run_repeat.html", {"run": run, "plan": redacted})
        common.show_error(request, problem)
    else:
        messages.success(request, "The run was requested again. It skips the completed steps.")
    return redirect("runs")


def _list(request: HttpRequest) -> dict[str, Any]:
    """Return the filtered runs as context."""
    chosen = {name: request.GET.get(name, "").strip()[:64] for name in ("kind", "state", "actor")}
    rows = RunFilter(chosen, read.runs(common.local_instance())).qs
    return runs_panel(request, rows) | {
        "query": filter_query(chosen),
        "chosen": chosen,
        "kinds": RunKind.choices,
        "states": RunState.choices,
    }


def runs_panel(request: HttpRequest, rows: QuerySet[ActionRun]) -> dict[str, Any]:
    """Return a page of runs for `components/runs.html`.

    The panel requests itself every two seconds while a run is active.
    """
    found = Paginator(rows, PAGE).get_page(request.GET.get("page"))
    found.object_list = runs_for_page(request, found)
    return {"page": found, "active": any(run.state in ACTIVE_RUN_STATES for run in found)}


def runs_for_page(request: HttpRequest, runs: Iterable[Any]) -> list[Any]:
    """Return redacted runs for lists, with their description and possible actions."""
    access = access_of_request(request)
    found: list[Any] = [run_redaction.redact_run(run, access) for run in runs]
    for run in found:
        run.is_active = run.state in ACTIVE_RUN_STATES
        run.duration_ms = _duration_ms(run)
        run.summary = describe_parameters(run.parameters)
        run.facts = list(run.result.items()) if isinstance(run.result, dict) else []
        run.behind = ", ".join(dict.fromkeys([run.actor, *(str(one["name"]) for one in run.causes)]))
        run.repeatable = run.state in REPEATABLE_RUN_STATES
    return found


def describe_parameters(parameters: dict[str, Any]) -> str:
    """Return a run's parameters as text: "older than 7d", "client-history from=2026-11-01"."""
    words = [str(parameters["action"])] if "action" in parameters else []
    words += [f"older than {parameters['age']}"] if "age" in parameters else []
    if "job" in parameters:
        words.append(str(parameters["job"]))
    words += [f"{name}={value}" for name, value in (parameters.get("options") or {}).items()]
    return " ".join(words)


def _duration_ms(run: ActionRun) -> float | None:
    if run.started_at is None or run.ended_at is None:
        return None
    return (run.ended_at - run.started_at).total_seconds() * 1000
