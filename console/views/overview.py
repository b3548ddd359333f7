"""Overview page: health of clients, lag over time, pools, the journal's disk, and events since the last
visit.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from broker_core.errors import SluiceError
from console.choices import Permission
from console.queries import brokers, history, policies, system_conditions
from console.queries import overview as read
from console.services import audit, handover
from console.services.actors import access_of_request
from console.views import common, point_in_time

NEWEST_DECISIONS = 3
"""Newest decisions on the page."""
USUAL_RANGE = "3h"
"""Default time range."""


@common.requires_permission(Permission.VIEW)
@require_GET
@point_in_time.supports_point_in_time(point_in_time.overview)
def overview(request: HttpRequest) -> HttpResponse:
    """Show the overview."""
    instance, patterns = common.local_instance(), common.visible_patterns(request)
    decisions = list(history.decisions(instance, patterns=patterns)[:NEWEST_DECISIONS]) if instance else []
    context = {
        "decisions": decisions,
        "ranges": read.RANGES.values(),
        "range": _range(request).key,
        "disk": read.current_disk_forecast(timezone.now()) if instance else None,
        **_current_context(request),
        **common.in_force(request),
    }
    return common.page(request, "overview.html", context)


@common.requires_permission(Permission.VIEW)
@never_cache
@require_GET
def verdict(request: HttpRequest) -> HttpResponse:
    """Show the current health and the events since the last visit.

    The page requests it every five seconds.
    """
    return render(request, "components/verdict.html", _current_context(request))


@common.requires_permission(Permission.VIEW)
@never_cache
@require_GET
def lag_heatmap(request: HttpRequest) -> HttpResponse:
    """Return lag by client over time as JSON, for the script that draws it."""
    instance = common.local_instance()
    try:
        if instance is not None:
            return JsonResponse(
                read.lag_heatmap(instance, _range(request), timezone.now(), common.visible_patterns(request))
            )
    except SluiceError:
        pass  # the top of the page reports the problem
    return JsonResponse({"rows": [], "marks": [], "cells": 0, "from": 0, "to": 0})


@common.requires_permission(Permission.VIEW)
@require_POST
def mark_read(request: HttpRequest) -> HttpResponse:
    """Record that the operator has read all events up to now."""
    audit.mark_read_only(request)
    handover.record_read(common.actor_of(request), timezone.now())
    return redirect("overview")


def _range(request: HttpRequest) -> read.PlotRange:
    """Return the selected time range, or the operator's default."""
    range_key = request.GET.get("range") or common.preferences(request).range
    return read.RANGES.get(range_key, read.RANGES[USUAL_RANGE])


def _current_context(request: HttpRequest) -> dict[str, Any]:
    """Return the current health and the events since the last visit, as context."""
    instance, patterns = common.local_instance(), common.visible_patterns(request)
    if instance is None:
        return _brokers_context(request)
    until = handover.read_until(common.actor_of(request), timezone.now())
    since = read.events_since(instance, until, patterns)
    found: dict[str, Any] = {
        "read_until": until,
        "since": since,
        "revisions": sum(one["kind"] == "revision" for one in since),
    }
    try:
        found["verdict"] = read.current_verdict(patterns)
    except SluiceError:
        pass
    return found | _brokers_context(request)


def _brokers_context(request: HttpRequest) -> dict[str, Any]:
    """Return the brokers for the page, each with its newest revision and whether that is overdue; {} for
    one broker.
    """
    if len(entries := brokers.brokers(access_of_request(request))) < 2:
        return {}
    states = policies.installation_policy_status()
    newest = {state["instance"]: state["wanted"] for state in states}
    behind = {state["instance"] for state in states if not state["converged"]}
    overdue = {name for name in behind if system_conditions.is_overdue(policies.instance_named(name))}
    return {
        "brokers": [(one, newest.get(one.instance), one.instance in overdue) for one in entries],
        "answering": sum(one.answers for one in entries),
        "checked_at": timezone.now(),
    }
