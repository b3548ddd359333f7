"""Page of durable subscriptions: position, presence of the client, and deletion."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET, require_POST

from broker_core.documents.replays import DurableEntry
from broker_core.errors import SluiceError
from console.broker_link import BrokerUnavailable
from console.choices import PendingChangeKind, Permission
from console.queries import ledger as read
from console.services import audit
from console.services.pending_changes import service
from console.views import common, pending_changes

PAGE = 50
"""Subscriptions per page."""


@common.requires_permission(Permission.VIEW)
@require_GET
def durables(request: HttpRequest) -> HttpResponse:
    """Show durable subscriptions, including those of disconnected clients.

    `search` in the URL is a part of the client's or the subscription's name.
    """
    search = request.GET.get("search", "").strip()
    found, problem = _known(common.visible_patterns(request))
    listed = [one for one in found if search in one.client or search in one.name]
    page = Paginator(listed, PAGE).get_page(request.GET.get("page"))
    context = {
        "page": page,
        "search": search,
        "query": f"search={search}&" if search else "",
        "broker_problem": problem,
    }
    return common.page(request, "durables.html", context)


@common.requires_permission(Permission.ACT_ON_CLIENTS, client="name")
@require_POST
def delete(request: HttpRequest, name: str, durable: str) -> HttpResponse:
    """Add the deletion of a durable subscription to the pending changes."""
    audit.mark_read_only(request)
    try:
        service.add_change(common.actor_of(request), PendingChangeKind.DURABLE, f"{name}/{durable}")
    except SluiceError as problem:
        common.show_error(request, problem)
    return pending_changes.changes_response(request)


def _known(patterns: list[str] | None) -> tuple[list[DurableEntry], SluiceError | None]:
    """Return the durable subscriptions, most delayed first, and the error if the broker is unavailable."""
    try:
        found = read.durables(patterns=patterns)
    except BrokerUnavailable as away:
        return [], away
    except SluiceError:
        return [], None  # no broker has ever started here
    return sorted(found, key=lambda one: -one.behind), None
