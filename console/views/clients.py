"""Page of clients: a table that the live feed fills.

The URL has its filters and order; the browser applies them.
"""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from broker_core.documents import client_columns
from broker_core.documents.clients import DeliveryState, Health
from broker_core.errors import SluiceError
from console import current_instance
from console.access.rights import PublicAccess
from console.broker_link import members_of
from console.choices import PendingChangeKind, Permission
from console.forms.client_table import SavedViewForm
from console.services import audit
from console.services import client_table as service
from console.views import common, point_in_time

FIRST = ("health", "name", "delivery")
"""Leftmost columns of the table, in order."""
FILTERS = (("health", "Health", list(Health)), ("delivery", "Delivery", list(DeliveryState)))
"""Filters of the table: name, label, choices."""
MATCHING_ACTS = (
    (
        PendingChangeKind.PAUSE_ALL,
        "player-pause",
        "Pause",
        "The clients receive no messages until they are resumed",
    ),
    (PendingChangeKind.RESUME_ALL, "player-play", "Resume", "The paused subscriptions of the clients resume"),
    (
        PendingChangeKind.OFFLINE_ALL,
        "database-import",
        "Offline",
        "The clients’ backlogs move to their spools",
    ),
    (
        PendingChangeKind.DISCONNECT_ALL,
        "plug-x",
        "Disconnect",
        "The clients are disconnected; unjournaled messages are lost",
    ),
)
"""Actions on all matching clients: kind, icon, label, and cost."""


@common.requires_permission(Permission.VIEW)
@require_GET
@point_in_time.supports_point_in_time(point_in_time.clients)
def clients(request: HttpRequest) -> HttpResponse:
    """Show the clients that are logged on.

    `columns` in the URL has the keys of additional columns, and defaults to the operator's own choice.
    """
    saved_columns = service.columns_for_user(request.user.pk)
    chosen = request.GET["columns"].split(",") if "columns" in request.GET else saved_columns
    member_column = {"member"} if len(members_of(current_instance.instance_name())) > 1 else set()
    shown = client_columns.visible_columns(frozenset(chosen) | member_column)
    drawn = sorted(shown, key=lambda one: FIRST.index(one.key) if one.key in FIRST else len(FIRST))
    column_data = [
        {
            "key": one.key,
            "label": one.label,
            "kind": one.kind,
            "sortable": one.sortable,
            "numeric": one.numeric,
            "drawn": one in drawn,
        }
        for one in (*drawn, *(one for one in client_columns.CLIENT_COLUMNS if one not in drawn))
    ]
    return common.page(
        request,
        "clients.html",
        {
            "columns": drawn,
            "choosable": client_columns.optional_columns(),
            "chosen": {one.key for one in drawn},
            "column_data": column_data,
            "default_sort": client_columns.DEFAULT_SORT,
            "filters": FILTERS,
            "views": service.views_for_user(request.user.pk),
            "matching_acts": MATCHING_ACTS,
            "view_form": SavedViewForm(),
        },
    )


@common.requires_permission(PublicAccess.OWN_ACCOUNT)
@require_POST
def choose_columns(request: HttpRequest) -> HttpResponse:
    """Store the operator's columns, and show the same view with them."""
    audit.mark_read_only(request)
    keys = service.valid_columns(request.POST.getlist("column"))
    service.save_columns(common.actor_of(request), keys)
    there = service.canonical_query(f"{request.POST.get('query', '')}&columns={','.join(keys)}")
    return redirect(_address(there))


@common.requires_permission(PublicAccess.OWN_ACCOUNT)
@require_POST
def save_view(request: HttpRequest) -> HttpResponse:
    """Store the current view under a name."""
    audit.mark_read_only(request)
    form, query = SavedViewForm(request.POST), service.canonical_query(request.POST.get("query", ""))
    if not form.is_valid():
        messages.error(request, "A view needs a name of at most 40 characters.")
        return redirect(_address(query))
    try:
        view = service.save_view(common.actor_of(request), form.cleaned_data["name"], query)
    except SluiceError as problem:
        common.show_error(request, problem)
        return redirect(_address(query))
    messages.success(request, f"The view “{view.name}” is saved. You can share its address.")
    return redirect(_address(view.query))


@common.requires_permission(PublicAccess.OWN_ACCOUNT)
@require_POST
def change_view(request: HttpRequest, view_id: int) -> HttpResponse:
    """Rename or delete a view."""
    audit.mark_read_only(request)
    actor, query = common.actor_of(request), service.canonical_query(request.POST.get("query", ""))
    if "delete" in request.POST:
        deleted = service.delete_view(actor, view_id)
        if deleted is not None:
            messages.success(
                request,
                f"The view “{deleted.name}” is deleted. "
                "The list still uses its filter; you can save it again.",
            )
            query = deleted.query
        return redirect(_address(query))
    form = SavedViewForm(request.POST)
    if not form.is_valid():
        messages.error(request, "A view needs a name of at most 40 characters.")
        return redirect(_address(query))
    try:
        service.rename_view(actor, view_id, form.cleaned_data["name"])
    except SluiceError as problem:
        common.show_error(request, problem)
    return redirect(_address(query))


def _address(query: str) -> str:
    """Return the URL of the clients' page with a query."""
    return reverse("clients") + (f"?{query}" if query else "")
