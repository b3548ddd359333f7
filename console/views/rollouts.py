"""The staged rollout that runs: how it goes, and its two ends."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from broker_core.errors import OperatorError, SluiceError
from console.choices import Permission
from console.models import Instance
from console.queries import policies as read
from console.services import rollouts
from console.views import common


@common.permitted(Permission.EDIT_POLICIES)
@require_POST
def promote(request: HttpRequest) -> HttpResponse:
    """Put the staged revision in force everywhere."""
    try:
        change = rollouts.promote(
            common.actor_of(request), read.instance_named(), expected_revision=_seen(request)
        )
    except SluiceError as problem:
        common.tell(request, problem)
    else:
        messages.success(
            request, f"Revision {change.revision.number} is for everybody. {change.problem}".strip()
        )
    return redirect("policies")


@common.permitted(Permission.EDIT_POLICIES)
@require_POST
def stop(request: HttpRequest) -> HttpResponse:
    """Give the first clients back the revision before."""
    reason = request.POST.get("reason", "").strip()[:500] or "Stopped by an operator."
    try:
        change = rollouts.stop(
            common.actor_of(request), read.instance_named(), reason=reason, expected_revision=_seen(request)
        )
    except SluiceError as problem:
        common.tell(request, problem)
    else:
        messages.success(
            request, f"Revision {change.revision.number} gives back what was before. {change.problem}".strip()
        )
    return redirect("policies")


def _seen(request: HttpRequest) -> int:
    """The revision that the banner spoke of. Raises OperatorError bad_if_match."""
    text = request.POST.get("revision", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise OperatorError(
            "bad_if_match", "The form doesn't say which rollout it is for.", "Load the page again."
        )
    return int(text)


def rollout_shown(instance: Instance | None) -> dict[str, Any]:
    """What the banner needs; no rollout when none runs."""
    rollout = read.running_rollout(instance) if instance else None
    return {"rollout": rollout, "rollout_decisions": rollouts.decisions_of(rollout) if rollout else 0}
