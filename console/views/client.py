"""Page of one client: state, lag over time, decisions, and possible actions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from broker_core.documents.clients import ClientEntry, ForecastEntry
from broker_core.errors import SluiceError
from console import current_instance
from console.broker_link import BrokerUnavailable, members_of
from console.choices import PendingChangeKind, Permission
from console.live.resource_points import SPOOLED
from console.models import Instance
from console.queries import clients as read
from console.queries import history, ledger, overview, pipeline_history
from console.services import audit
from console.services.pending_changes import service
from console.units import labels
from console.units.format import number, size
from console.views import common, pending_changes, point_in_time

DECISIONS = 20
"""Newest decisions on the page."""
MAX_FORECASTS = 8
"""Maximum forecasts on the page."""
LOSSES = 20
"""Newest losses on the page."""
USUAL_RANGE = "3h"
"""Default time range."""
MAX_BACK = timedelta(days=92)
"""Oldest time of a mark."""
STEPS_S = {"15m": 1, "3h": 10, "24h": 60, "7d": 600, "14d": 1_800, "90d": 10_800}
"""Seconds between two points of a timeline, by range."""


@common.requires_permission(Permission.VIEW, client="name")
@require_GET
@point_in_time.supports_point_in_time(point_in_time.client)
def client(request: HttpRequest, name: str) -> HttpResponse:
    """Show a client's page, also after its logoff while its history is stored."""
    return _show(request, name)


@common.requires_permission(Permission.VIEW, client="name")
@require_GET
def slow_panel(request: HttpRequest, name: str) -> HttpResponse:
    """Show reasons for slowness, forecasts and possible actions.

    The page requests this panel every two seconds.
    """
    found, problem = _find_client(name)
    context = {
        "may": common.allowed_permissions(request),
        "name": name,
        "client": found,
        "broker_problem": problem,
        "paused": _paused(found),
        "forecasts": _forecasts(found),
    }
    return render(request, "components/client_slow.html", context)


@common.requires_permission(Permission.ACT_ON_CLIENTS, client="name")
@require_POST
def add_change(request: HttpRequest, name: str, kind: PendingChangeKind) -> HttpResponse:
    """Add pausing, resuming, offlining or disconnecting to the pending changes. Nothing is applied yet."""
    audit.mark_read_only(request)
    try:
        service.add_change(common.actor_of(request), kind, name)
    except SluiceError as problem:
        common.show_error(request, problem)
    return pending_changes.changes_response(request)


def _forecasts(found: ClientEntry | None) -> list[ForecastEntry]:
    """Return the forecasts of rules on a client, soonest first; empty while the broker is unavailable."""
    if found is None:
        return []
    try:
        return read.forecasts(found.name)[:MAX_FORECASTS]
    except SluiceError:
        return []


def _paused(found: ClientEntry | None) -> list[str]:
    """Return the ids of the client's paused subscriptions."""
    return [one.id for one in found.subscriptions if one.paused] if found else []


def _show(request: HttpRequest, name: str) -> HttpResponse:
    """Render a client's page."""
    instance = common.local_instance()
    found, problem = _find_client(name)
    stored = _history(instance, name)
    hourly = pipeline_history.client_hours(name)
    # While the broker is unavailable, no one can know that the client never existed.
    if found is None and problem is None and not (hourly or any(stored.values())) and not _durables(name):
        return common.page(request, "client_unknown.html", {"name": name}, 404)
    last = history.last_sample_time(instance, name) if found is None and instance is not None else None
    range_key = request.GET.get("range") or common.preferences(request).range
    chosen = overview.RANGES.get(range_key, overview.RANGES[USUAL_RANGE])
    since = _since(request, timezone.now(), chosen.span)
    policy = _policy(name, found)
    context = {
        "name": name,
        "client": found,
        "broker_problem": problem,
        "paused": _paused(found),
        "forecasts": _forecasts(found),
        "acts": _possible_actions(name, found),
        "hourly": hourly,
        **stored,
        "last_sample_at": last,
        "ranges": overview.RANGES.values(),
        "range": chosen.key,
        "range_s": int(chosen.span.total_seconds()),
        "range_step": STEPS_S[chosen.key],
        "policy": policy,
        "several": len(members_of(current_instance.instance_name())) > 1,
        "policy_defaults": any(one["origin"] == "default" for one in policy),
        "marks": overview.time_marks(instance, since, name) if instance is not None else [],
    }
    return common.page(request, "client.html", context)


def _since(request: HttpRequest, now: datetime, span: timedelta) -> datetime:
    """Return the moment from which marks are shown.

    A shared URL may show a part of the timeline before its range.
    """
    text = request.GET.get("from", "")
    from_s = int(text) if text.isdecimal() and len(text) <= 10 else 0
    return max(min(now - span, datetime.fromtimestamp(from_s, UTC)) if from_s else now - span, now - MAX_BACK)


def _find_client(name: str) -> tuple[ClientEntry | None, SluiceError | None]:
    """Return the client, or None if it is not logged on, and the error if the broker is unavailable."""
    try:
        return read.client(name), None
    except BrokerUnavailable as away:
        return None, away
    except SluiceError:
        return None, None


def _durables(name: str) -> bool:
    """Return whether a client of that name has a durable subscription."""
    try:
        return any(one.client == name for one in ledger.durables())
    except SluiceError:
        return False


def _possible_actions(name: str, found: ClientEntry | None) -> list[tuple[str, str, str, str]]:
    """Return the possible actions on a client: URL, icon, label, and cost."""
    if found is None:
        return []
    waits = f"{number(found.waiting_messages)} messages wait"
    stopped = len(_paused(found))
    acts = [
        (PendingChangeKind.RESUME, "player-play", f"{stopped} paused subscriptions resume", stopped > 0),
        (
            PendingChangeKind.PAUSE,
            "player-pause",
            f"It gets no more records; {waits}",
            stopped < len(found.subscriptions),
        ),
        (
            PendingChangeKind.OFFLINE,
            "database-import",
            f"{size(found.outbox_bytes)} move from memory to its spool",
            found.delivery not in SPOOLED,
        ),
        (PendingChangeKind.DISCONNECT, "plug-x", f"{waits}; messages of unjournaled topics are lost", True),
    ]
    return [
        (reverse(f"client_{kind}", args=[name]), picture, kind.label, cost)
        for kind, picture, cost, possible in acts
        if possible
    ]


def _policy(name: str, found: ClientEntry | None) -> list[dict[str, str]]:
    """Return the effective settings of a client, with their origin, except settings without a value."""
    if found is None:
        return []
    try:
        settings_now = read.effective_settings(name)
    except SluiceError:
        return []
    return [
        {
            "word": labels.setting_label(one.setting),
            "value": labels.setting_value(one.setting, one.value),
            "origin": one.origin,
        }
        for one in settings_now
        if not one.subscription and (one.value is not None or one.origin != "default")
    ]


def _history(instance: Instance | None, name: str) -> dict[str, Any]:
    """Return the client's samples, decisions and losses."""
    if instance is None:
        return {"samples": [], "decisions": [], "losses": []}
    minutes = settings.SLUICE_SAMPLE_RETENTION_HOURS * 60
    return {
        "samples": history.recent_samples(instance, name, timezone.now(), minutes),
        "decisions": list(history.decisions(instance, client=name)[:DECISIONS]),
        "losses": list(ledger.losses(instance, client=name)[:LOSSES]),
    }
