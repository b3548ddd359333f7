"""Page of managed replays: progress, remaining time, and buttons to pause, resume, change the rate and
cancel.

A change requires `act_on_clients` for the replay's client, which only the form or the replay names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from broker_core.documents.requests import CreateReplay, SetReplayRate
from broker_core.errors import SluiceError
from console import current_instance
from console.choices import PendingChangeKind, Permission
from console.queries import replays as read
from console.services import audit
from console.services import replays as service
from console.services.actors import access_of_request
from console.services.pending_changes import service as pending_service
from console.units.moments import bookmark_of_moment, parse_moment
from console.views import common, pending_changes

PAGE = 50
"""Replays per page."""
ENDED = ("completed", "cancelled")
"""States of replays that have ended."""
FIELDS = (
    "name",
    "client",
    "topic",
    "filter",
    "bookmark",
    "rate",
    "rate_max_gap",
    "conflation",
    "conflation_key",
)
"""Fields of the form for a new replay."""
PLANNED = {"pause": PendingChangeKind.REPLAY_PAUSE, "cancel": PendingChangeKind.REPLAY_CANCEL}
"""Changes that stop a delivery, which become pending changes."""
DONE = {
    "resume": "resumed",
    "rate": "changed to another rate",
    "forget": "removed from the list",
}
"""Texts for changes that are applied immediately."""


@common.requires_permission(Permission.VIEW)
@require_GET
def replays(request: HttpRequest) -> HttpResponse:
    """Show all managed replays. `topic` and `bookmark` in the URL prefill the form for a new one."""
    prefill = {
        "topic": request.GET.get("topic", "")[:1024],
        "bookmark": request.GET.get("bookmark", "")[:4096],
    }
    return common.page(request, "replays.html", {**_list(request), "prefill": prefill})


@common.requires_permission(Permission.VIEW)
@require_GET
def replays_list(request: HttpRequest) -> HttpResponse:
    """Show only the list. The page requests it every two seconds."""
    return render(
        request, "components/replays.html", {"may": common.allowed_permissions(request), **_list(request)}
    )


@common.requires_permission(Permission.VIEW)
@require_POST
def create(request: HttpRequest) -> HttpResponse:
    """Create a managed replay for a client."""
    fields = {field: request.POST.get(field, "").strip() for field in FIELDS}
    at = parse_moment(fields["bookmark"]) if "-" in fields["bookmark"] or ":" in fields["bookmark"] else None
    fields["bookmark"] = bookmark_of_moment(at) if at is not None else fields["bookmark"] or "0"
    common.check_permission(
        request, Permission.ACT_ON_CLIENTS, client=fields["client"], topic=fields["topic"]
    )
    try:
        service.create(common.actor_of(request), CreateReplay(**fields, paused="paused" in request.POST))
    except SluiceError as problem:
        common.show_error(request, problem)
    else:
        messages.success(request, f"The replay {fields['name']} was created for {fields['client']}.")
    return redirect("replays")


@common.requires_permission(Permission.VIEW)
@require_POST
def control_replay(request: HttpRequest, name: str, word: str) -> HttpResponse:
    """Resume a replay, change its rate or remove it. Pausing and cancelling become pending changes."""
    try:
        client = read.replay(name, patterns=common.visible_patterns(request)).client
        common.check_permission(request, Permission.ACT_ON_CLIENTS, client=client)
        actor = common.actor_of(request)
        if word in PLANNED:
            audit.mark_read_only(request)
            pending_service.add_change(actor, PLANNED[word], f"{client}/{name}")
            return pending_changes.changes_response(request)
        if word == "forget":
            service.forget_replay(actor, name)
        elif word == "rate":
            rate, gap = (request.POST.get(field, "").strip() or None for field in ("rate", "rate_max_gap"))
            service.control_replay(
                actor, SetReplayRate(name=name, rate=rate, rate_max_gap=gap if rate else None)
            )
        else:
            service.control_replay(actor, service.STEER[word](name=name))
    except SluiceError as problem:
        common.show_error(request, problem)
    else:
        messages.success(request, f"The replay {name} was {DONE[word]}.")
    return redirect("replays")


def _list(request: HttpRequest) -> dict[str, Any]:
    patterns = access_of_request(request).client_patterns(current_instance.instance_name())
    try:
        found = read.replays(patterns=patterns)
    except SluiceError:
        found = []  # no broker has ever started here
    page = Paginator([_ReplayRow(one) for one in found], PAGE).get_page(request.GET.get("page"))
    return {"page": page, "away": any(row.replay.reported_at for row in page), "query": ""}


class _ReplayRow(NamedTuple):
    """Row of the list of replays."""

    replay: read.ReplayView

    @property
    def percent(self) -> float:
        """Progress in percent."""
        return 100 * self.replay.progress

    @property
    def remaining_ms(self) -> float | None:
        """Remaining milliseconds; None if unknown."""
        return None if self.replay.left_s is None else 1_000 * self.replay.left_s

    @property
    def ended(self) -> bool:
        """Whether the replay has completed or was cancelled."""
        return self.replay.state in ENDED
