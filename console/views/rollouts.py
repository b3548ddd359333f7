"""Banner of the running staged rollout, and the pending changes that end it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from broker_core.errors import OperatorError
from console.choices import PendingChangeKind, Permission
from console.models import Instance
from console.queries import policies as read
from console.queries.policy_redaction import visible_rollout
from console.services import audit, rollouts
from console.views import common, pending_changes


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def promote(request: HttpRequest) -> HttpResponse:
    """Add the promotion of the staged revision to the pending changes."""
    return _plan(request, PendingChangeKind.PROMOTE)


@common.requires_permission(Permission.EDIT_POLICIES)
@require_POST
def stop(request: HttpRequest) -> HttpResponse:
    """Add the end of the rollout, which restores the previous revision, to the pending changes."""
    return _plan(request, PendingChangeKind.STOP)


def _plan(request: HttpRequest, kind: PendingChangeKind) -> HttpResponse:
    """Add the end of the rollout to the pending changes, for the revision that the banner showed."""
    try:
        revision = _shown_revision(request)
    except OperatorError as problem:
        audit.mark_read_only(request)
        common.show_error(request, problem)
        return pending_changes.changes_response(request)
    return pending_changes.add_change(request, kind, parameters={"revision": revision})


def _shown_revision(request: HttpRequest) -> int:
    """Return the revision that the banner showed. Raises OperatorError `bad_if_match`."""
    text = request.POST.get("revision", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise OperatorError("bad_if_match", "The form doesn't name the rollout.", "Load the page again.")
    return int(text)


def running_rollout_context(instance: Instance | None, patterns: Sequence[str] | None) -> dict[str, Any]:
    """Return the banner's context; `rollout` is None if none runs.

    `patterns` are those of the visible clients; None means all.
    """
    rollout = read.running_rollout(instance) if instance else None
    if rollout is None:
        return {"rollout": None, "rollout_decisions": 0}
    return {
        "rollout": visible_rollout(rollout, patterns),
        "rollout_decisions": rollouts.count_decisions(rollout),
    }
