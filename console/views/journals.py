"""Journals: the segments, and archive, compress and remove in two steps, the plan and then the run."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from broker_core.documents.journals import SegmentEntry
from broker_core.errors import SluiceError
from console.choices import Permission
from console.forms.journals import JournalActionForm
from console.queries import live
from console.services import audit
from console.services import journals as service
from console.views import common

ACTIONS = (
    ("archive", "Archive", "Moves segments to the archive directory; they stay part of the log"),
    ("compress", "Compress", "Makes them gzip files in place; still readable and replayable"),
    ("remove", "Remove", "Deletes them; what they hold can’t be replayed any more"),
)


@common.permitted(Permission.VIEW)
@require_GET
def journals(request: HttpRequest) -> HttpResponse:
    """The segments and the form."""
    return _show(request, JournalActionForm())


@common.permitted(Permission.RUN_ACTIONS)
@require_POST
def plan(request: HttpRequest) -> HttpResponse:
    """What an action would do. Changes nothing; a POST because it asks the broker to look at every segment."""
    audit.changes_nothing(request)
    form = JournalActionForm(request.POST)
    context: dict[str, Any] = {"plan_form": form}
    if form.is_valid():
        try:
            context["plan"] = _plan(form)
        except SluiceError as problem:
            context["plan_problem"] = problem
    if request.headers.get("HX-Request"):
        return render(request, "components/plan.html", context)
    return _show(request, form, context)


@common.permitted(Permission.RUN_ACTIONS)
@require_POST
def apply(request: HttpRequest) -> HttpResponse:
    """Start the run, if its plan is still the one that was shown."""
    form = JournalActionForm(request.POST)
    if not form.is_valid():
        return _show(request, form, {"plan_form": form}, status=422)
    action, age = form.cleaned_data["action"], form.cleaned_data["age"]
    if action == "remove" and request.POST.get("confirm", "").strip() != settings.SLUICE_INSTANCE:
        messages.error(request, "Nothing was removed: the name typed isn’t the instance’s.")
        return redirect("journals")
    try:
        if _plan(form)["digest"] != request.POST.get("plan"):
            messages.warning(
                request,
                "Nothing was done: the segments have changed since the plan was shown. Look at it again.",
            )
            return redirect("journals")
        run = service.request(common.actor_of(request), action, age, in_lake=_in_lake(form))
    except SluiceError as problem:
        common.tell(request, problem)
        return redirect("journals")
    messages.success(request, f"{run.get_kind_display()}: started.")
    return redirect("runs")


def _in_lake(form: JournalActionForm) -> bool:
    """It is asked of removal alone: nothing else takes records out of the log."""
    return bool(form.cleaned_data["in_lake"]) and form.cleaned_data["action"] == "remove"


def _plan(form: JournalActionForm) -> dict[str, Any]:
    action, age = form.cleaned_data["action"], form.cleaned_data["age"]
    found = service.plan(action, age, in_lake=_in_lake(form))
    names = [entry["name"] if isinstance(entry, dict) else str(entry) for entry in found["chosen"]]
    count = f"{len(names)} segment{'' if len(names) == 1 else 's'}"
    return {
        **found, "age": age, "word": action, "button": f"{action.capitalize()} {count}", "digest": digest(action, names),
        "bytes": found.get("bytes", 0),
    }  # fmt: skip


def digest(action: str, names: list[str]) -> str:
    """What a plan promises, in a few characters; a plan that chooses other segments has another one."""
    return hashlib.sha256(json.dumps([action, sorted(names)]).encode()).hexdigest()[:32]


def _show(
    request: HttpRequest,
    form: JournalActionForm,
    plan_context: dict[str, Any] | None = None,
    status: int = 200,
) -> HttpResponse:
    segments: list[SegmentEntry] = []
    away = None
    try:
        segments = sorted(live.journals(), key=lambda one: one.first_sequence, reverse=True)
    except SluiceError as problem:
        away = problem
    context = {
        "segments": segments, "broker_problem": away, "actions": ACTIONS, "plan_form": form,
        "total_bytes": sum(segment.bytes for segment in segments),
        "total_records": sum(segment.records for segment in segments), **(plan_context or {}),
    }  # fmt: skip
    return common.page(request, "journals.html", context, status)
