"""Panel of pending changes at the foot of every page: selected changes, their effect, a reason, and one
button.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import Resolver404, resolve
from django.utils.functional import SimpleLazyObject
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from broker_core.documents.clients import DeliveryState, Health
from broker_core.errors import SluiceError
from console.choices import PendingChangeKind, Permission
from console.models import PolicyDraft
from console.services import audit
from console.services.client_table import MAX_SEARCH
from console.services.pending_changes import bulk, service
from console.views import common

OF_CLIENTS = (
    PendingChangeKind.PAUSE,
    PendingChangeKind.RESUME,
    PendingChangeKind.OFFLINE,
    PendingChangeKind.DISCONNECT,
)
"""Changes of single clients."""
OF_MATCHING = (
    PendingChangeKind.PAUSE_ALL,
    PendingChangeKind.RESUME_ALL,
    PendingChangeKind.OFFLINE_ALL,
    PendingChangeKind.DISCONNECT_ALL,
)
"""Changes of all clients that match a filter."""
MAX_AT_ONCE = 50
"""Maximum clients selected in one request."""
FILTER = ("search", "delivery", "health")
"""Filters of the clients' page."""


@common.requires_permission(Permission.VIEW)
@never_cache
@require_GET
def pending_changes(request: HttpRequest) -> HttpResponse:
    """Show the current pending changes."""
    return render_pending(request)


@common.requires_permission(Permission.ACT_ON_CLIENTS)
@require_POST
def add_for_clients(request: HttpRequest) -> HttpResponse:
    """Add the same change of several clients to the pending changes."""
    audit.mark_read_only(request)
    kind, names = request.POST.get("kind", ""), request.POST.getlist("client")[:MAX_AT_ONCE]
    if kind not in OF_CLIENTS or not names:
        messages.error(request, "Choose clients, and a change.")
        return changes_response(request)
    try:
        for name in names:
            service.add_change(common.actor_of(request), PendingChangeKind(kind), name)
    except SluiceError as problem:
        common.show_error(request, problem)
    return changes_response(request)


@common.requires_permission(Permission.ACT_ON_CLIENTS)
@require_POST
def add_matching(request: HttpRequest) -> HttpResponse:
    """Add one change of all clients that match the page's filter to the pending changes."""
    audit.mark_read_only(request)
    kind, filters = request.POST.get("kind", ""), {key: request.POST.get(key, "").strip() for key in FILTER}
    unknown = filters["delivery"] not in ("", *DeliveryState) or filters["health"] not in ("", *Health)
    if kind not in OF_MATCHING or unknown or len(filters["search"]) > MAX_SEARCH:
        messages.error(request, "Choose a filter of the list, and a change.")
        return changes_response(request)
    actor = common.actor_of(request)
    try:
        target, parameters = bulk.matching_clients(actor, common.visible_patterns(request), **filters)
        service.add_change(actor, PendingChangeKind(kind), target, parameters)
    except SluiceError as problem:
        return (
            render_pending(request, [f"{problem.sentence} {problem.fix}".strip()])
            if _is_script_request(request)
            else redirect_with_error(request, problem)
        )
    return changes_response(request)


def redirect_with_error(request: HttpRequest, problem: SluiceError) -> HttpResponse:
    """Show an error on the referring page."""
    common.show_error(request, problem)
    return redirect(common.referring_page(request))


@common.requires_permission(Permission.VIEW)
@require_POST
def remove_change(request: HttpRequest, item_id: int) -> HttpResponse:
    """Remove one pending change."""
    audit.mark_read_only(request)
    service.remove_change(common.actor_of(request), item_id)
    return changes_response(request)


@common.requires_permission(Permission.VIEW)
@require_POST
def clear_changes(request: HttpRequest) -> HttpResponse:
    """Remove all pending changes without applying them."""
    audit.mark_read_only(request)
    service.clear_changes(common.actor_of(request))
    return changes_response(request)


@common.requires_permission(Permission.VIEW)
@require_POST
def apply_changes(request: HttpRequest) -> HttpResponse:
    """Apply all pending changes.

    Changes that fail are reported and stay pending, and the typed reason is stored.
    """
    reason = request.POST.get("reason", "")
    try:
        outcomes = service.apply_changes(
            common.actor_of(request),
            reason,
            confirmed="confirmed" in request.POST,
            plan=request.POST.get("plan", ""),
            patterns=common.visible_patterns(request),
        )
    except SluiceError as problem:
        request.session["pending_reason"] = reason[:500]
        common.show_error(request, problem)
        return redirect(common.referring_page(request))
    for outcome in outcomes:
        (messages.success if outcome.done else messages.error)(request, outcome.sentence)
    there = common.referring_page(request)
    return redirect("policies" if is_removed_draft_page(there) else there)


def is_removed_draft_page(address: str) -> bool:
    """Return whether a URL is the page of a draft that no longer exists, because it was published or
    deleted.
    """
    try:
        number = resolve(urlsplit(address).path).kwargs.get("draft_id")
    except Resolver404:
        return False
    return number is not None and not PolicyDraft.objects.filter(pk=int(number)).exists()


def add_change(
    request: HttpRequest, kind: PendingChangeKind, target: str = "", parameters: dict[str, Any] | None = None
) -> HttpResponse:
    """Add one pending change and show the panel; errors are shown as messages."""
    audit.mark_read_only(request)
    try:
        service.add_change(common.actor_of(request), kind, target, parameters)
    except SluiceError as problem:
        common.show_error(request, problem)
    return changes_response(request)


def changes_response(request: HttpRequest) -> HttpResponse:
    """Return the panel for a script, otherwise a redirect to the referring page."""
    return (
        render_pending(request) if _is_script_request(request) else redirect(common.referring_page(request))
    )


def _is_script_request(request: HttpRequest) -> bool:
    """Return whether a script (htmx) sent the request."""
    return bool(request.headers.get("HX-Request"))


def render_pending(request: HttpRequest, problems: Sequence[str] = ()) -> HttpResponse:
    """Render the panel, opened. `problems`: reasons why a change was not added."""
    return render(
        request,
        "components/pending_changes.html",
        {"pending": pending_for_user(request), "alone": True, "pending_problems": problems},
    )


def form_errors(form: forms.Form) -> list[str]:
    """Return a form's errors, each with its field's label."""
    return [
        f"{form.fields[name].label}: {error}" if name in form.fields else str(error)
        for name, errors in form.errors.items()
        for error in errors
    ]


def pending_for_user(request: HttpRequest) -> service.PendingChanges | None:
    """Return the operator's pending changes with their effects; None if there are none."""
    actor = common.actor_of(request)
    return (
        service.list_changes(actor, common.visible_patterns(request)) if service.has_changes(actor) else None
    )


def pending_context(request: HttpRequest) -> dict[str, Any]:
    """Add the pending changes to every template (context processor), loaded on first use."""
    return {
        "pending": SimpleLazyObject(lambda: pending_for_user(request) or service.PendingChanges([])),
        "pending_reason": SimpleLazyObject(lambda: request.session.pop("pending_reason", "")),
    }
