"""The staged rollout that runs: how it goes, and its two ends, which go by the tray."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from broker_core.errors import OperatorError
from console.choices import PendingChangeKind, Permission
from console.models import Instance
from console.queries import policies as read
from console.services import audit, rollouts
from console.views import common, pending_changes


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def promote(request: HttpRequest) -> HttpResponse:
    """Put bringing the staged revision into force everywhere into the tray."""
    return _plan(request, PendingChangeKind.PROMOTE)


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def stop(request: HttpRequest) -> HttpResponse:
    """Put giving the first clients back the revision before into the tray."""
    return _plan(request, PendingChangeKind.STOP)


def _plan(request: HttpRequest, kind: PendingChangeKind) -> HttpResponse:
    try:
        seen = _seen(request)
    except OperatorError as problem:
        audit.mark_read_only(request)
        common.show_error(request, problem)
        return pending_changes.changes_response(request)
    return pending_changes.add_change(request, kind, parameters={"revision": seen})


def _seen(request: HttpRequest) -> int:
    """The revision that the banner spoke of. Raises OperatorError bad_if_match."""
    text = request.POST.get("revision", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise OperatorError(
            "bad_if_match", "The form doesn't say which rollout it is for.", "Load the page again."
        )
    return int(text)


def running_rollout_context(instance: Instance | None) -> dict[str, Any]:
    """What the banner needs; no rollout when none runs."""
    rollout = read.running_rollout(instance) if instance else None
    return {"rollout": rollout, "rollout_decisions": rollouts.count_decisions(rollout) if rollout else 0}
