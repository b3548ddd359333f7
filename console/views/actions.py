"""Pages of actions: list, editor with the next firings, and manual runs after a plan."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from broker_core.errors import OperatorError, SluiceError
from console.choices import MissedRunPolicy, PendingChangeKind, Permission
from console.models import Action
from console.queries import actions as read
from console.queries import runs as read_runs
from console.queries.policies import instance_named
from console.queries.policy_redaction import visible_action
from console.services import audit
from console.services.actions import definition, editor, run_requests, schedule
from console.services.actions.scheduler import action_schedules, next_firings
from console.views import action_form, common, pending_changes
from console.views.runs import runs_for_page

NEWEST_RUNS = 10
"""Runs on an action's page."""


@common.requires_permission(Permission.VIEW)
@require_GET
def actions(request: HttpRequest) -> HttpResponse:
    """Show all actions by name."""
    instance, now = common.local_instance(), timezone.now()
    patterns = common.visible_patterns(request)
    found = [visible_action(one, patterns) for one in read.actions(instance)] if instance else []
    rows = [
        {
            "action": one,
            "when": _trigger_texts(one),
            "do": _step_texts(one),
            "next_at": next(iter(next_firings(one, now, 1)), None),
        }
        for one in found
    ]
    return common.page(request, "actions.html", {"rows": rows})


@common.requires_permission(Permission.VIEW)
@require_GET
def action(request: HttpRequest, action_id: int) -> HttpResponse:
    """Show an action: editor, next firings, newest runs."""
    try:
        return _page(request, visible_action(_action(action_id), common.visible_patterns(request)))
    except OperatorError as problem:
        common.show_error(request, problem)
        return redirect("actions")


@common.requires_permission(Permission.EDIT_POLICIES)
@require_GET
def new(request: HttpRequest) -> HttpResponse:
    """Show the editor for a new action."""
    return common.page(
        request,
        "action.html",
        _editor(None, {"enabled": True, "missed": MissedRunPolicy.RUN_ONCE, "when": [], "steps": []}),
    )


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def draft(request: HttpRequest) -> HttpResponse:
    """Apply a button of the editor: add, remove or move a part. Stores nothing."""
    audit.mark_read_only(request)
    values = _values(request)
    announcement = action_form.edit_parts(values, request.POST.get("edit", ""), request.POST)
    return _show_editor(request, values, {"announcement": announcement})


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def save(request: HttpRequest) -> HttpResponse:
    """Store a new or changed action."""
    values, actor = _values(request), common.actor_of(request)
    try:
        found = _edited_action(request)
        if found is None:
            stored = editor.create(actor, instance_named(), values)
        else:
            stored = editor.change(actor, found, values, int(request.POST.get("version") or 0))
    except (SluiceError, ValueError) as problem:
        error = (
            problem
            if isinstance(problem, SluiceError)
            else OperatorError("bad_action", "The version isn't a number.", "Load the page again.")
        )
        return _show_editor(
            request,
            values,
            {"problem": {"message": f"{error.sentence} {error.fix}".strip(), **error.details}},
            status=422,
        )
    messages.success(request, f"{stored.name} is saved.")
    return redirect("actions_one", stored.pk)


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def delete(request: HttpRequest, action_id: int) -> HttpResponse:
    """Add the deletion of an action to the pending changes. Its runs remain."""
    return pending_changes.add_change(request, PendingChangeKind.ACTION_DELETE, str(action_id))


@common.requires_permission(Permission.VIEW)
@require_GET
def firings(request: HttpRequest) -> HttpResponse:
    """Show the next five firings of the schedule that is being typed."""
    every = next((request.GET.get(name, "") for name in request.GET if name.endswith("-every")), "")
    return render(request, "components/firings.html", _firings(every))


@common.requires_permission(Permission.RUN_ACTIONS)
@require_POST
def plan(request: HttpRequest, action_id: int) -> HttpResponse:
    """Show the effect that the action would have now. Changes nothing."""
    audit.mark_read_only(request)
    variables = _variables(request)
    context: dict[str, Any] = {"variables": variables}
    try:
        context["action"] = _action(action_id)
        context["plan"] = run_requests.plan_action(context["action"], variables)
    except SluiceError as problem:
        context["plan_problem"] = problem
    if request.headers.get("HX-Request"):
        return render(request, "components/action_plan.html", context)
    if "action" not in context:  # it was deleted meanwhile
        common.show_error(request, context["plan_problem"])
        return redirect("actions")
    return _page(request, context["action"], context)


@common.requires_permission(Permission.RUN_ACTIONS)
@require_POST
def apply(request: HttpRequest, action_id: int) -> HttpResponse:
    """Run the action if its plan has not changed since it was shown."""
    try:
        run = run_requests.apply_action(
            common.actor_of(request), _action(action_id), _variables(request), request.POST.get("plan", "")
        )
    except SluiceError as problem:
        common.show_error(request, problem)
        return redirect("actions")
    messages.success(request, f"The run of {run.parameters['action']} is {run.get_state_display().lower()}.")
    return redirect("runs")


def _action(action_id: int) -> Action:
    return read.action(instance_named(), action_id)


def _page(request: HttpRequest, found: Action, more: dict[str, Any] | None = None) -> HttpResponse:
    """Render an action's page."""
    runs = runs_for_page(request, read_runs.runs(found.instance).filter(action=found)[:NEWEST_RUNS])
    context = {
        **_editor(found, editor.editable_fields(found)),
        "action": found,
        "next": next_firings(found, timezone.now()),
        "runs": runs,
        "parameters": _parameters(found),
        **(more or {}),
    }
    return common.page(request, "action.html", context)


def _editor(
    found: Action | None, values: dict[str, Any], problem: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the context of the editor."""
    groups: list[dict[str, Any]] = [
        {
            "name": group,
            "title": title,
            "empty": empty,
            "parts": action_form.parts_for_page(group, values[group], problem),
            "choices": action_form.part_choices(group),
        }
        for group, title, empty in (
            ("when", "When", "No trigger: the action runs on request."),
            ("steps", "Steps, in this order", "The action has no step yet."),
        )
    ]
    return {
        "action": found,
        "version": found.version if found else "",
        "values": values,
        "groups": groups,
        "missed": MissedRunPolicy.choices,
        "problem": problem,
        "zone": settings.SLUICE_LOCAL_ZONE,
        "firings_of": {
            part.name: _firings(part.fields[0].value)
            for part in groups[0]["parts"]
            if part.kind.name == "schedule"
        },
    }


def _show_editor(
    request: HttpRequest, values: dict[str, Any], more: dict[str, Any], status: int = 200
) -> HttpResponse:
    """Show the editor with the submitted values instead of the stored ones."""
    try:
        found = _edited_action(request)
    except OperatorError:
        found = None
    context = {
        **_editor(found, values, more.get("problem")),
        **more,
        "version": request.POST.get("version", ""),
    }
    if request.headers.get("HX-Request"):
        return render(
            request, "components/action_editor.html", {**context, "may": common.allowed_permissions(request)}
        )
    return common.page(request, "action.html", context, status)


def _edited_action(request: HttpRequest) -> Action | None:
    """Return the stored action that the form edits; None for a new one."""
    number = request.POST.get("action_id", "")
    return read.action(instance_named(), number) if number else None


def _values(request: HttpRequest) -> dict[str, Any]:
    """Return the submitted values of the editor."""
    post = request.POST
    return {
        **action_form.read_parts(post),
        "name": post.get("name", ""),
        "description": post.get("description", ""),
        "enabled": "enabled" in post,
        "missed": post.get("missed", MissedRunPolicy.RUN_ONCE),
        "needs_approval": "needs_approval" in post,
    }


def _variables(request: HttpRequest) -> dict[str, str]:
    """Return the variables in the form of a manual run."""
    return {
        name.removeprefix("var-"): text
        for name in request.POST
        if name.startswith("var-") and (text := request.POST.get(name, ""))
    }


def _firings(every: str) -> dict[str, Any]:
    """Return the next firings of a schedule as context, or its error."""
    zone, now = settings.SLUICE_LOCAL_ZONE, timezone.now()
    try:
        return {
            "firings": schedule.next_firings(schedule.parse_schedule(every, zone), now, now),
            "zone": zone,
        }
    except OperatorError as problem:
        return {"firings_problem": problem if every else None, "zone": zone}


def _parameters(found: Action) -> list[str]:
    """Return the parameters that requests for this action must contain."""
    named = (
        name.strip()
        for trigger in found.when
        if trigger["on"] == "request"
        for name in trigger["parameters"].split(",")
    )
    return sorted({name for name in named if name})


def _trigger_texts(found: Action) -> list[str]:
    """Return the triggers of an action as texts."""
    words = [trigger["every"] for trigger, _ in action_schedules(found)]
    return words + [
        definition.part_kind(trigger)[1].label for trigger in found.when if trigger["on"] != "schedule"
    ]


def _step_texts(found: Action) -> list[str]:
    """Return the steps of an action as texts."""
    return [definition.part_kind(step)[1].label for step in found.steps if "do" in step]
