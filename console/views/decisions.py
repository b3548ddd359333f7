"""Page of decisions: the last day as a timeline and as incidents, and a filtered list, newest first."""

from __future__ import annotations

from datetime import datetime

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils import timezone
from django.views.decorators.http import require_GET
from msgspec import structs

from broker_core.config.rule_terms import DecisionReason, PolicyAction
from broker_core.documents.requests import GetStalls
from broker_core.documents.stalls import CAUSES, CauseText, StallEntry
from broker_core.errors import SluiceError
from console import current_instance
from console.broker_link import link_to
from console.choices import Permission
from console.models import Decision, Instance
from console.queries import history, incidents
from console.queries.clients import ClientSequence
from console.queries.filters import DecisionFilter
from console.queries.system_conditions import broker_restarts
from console.units import labels
from console.views import common

PAGE = 50
"""Decisions per page."""
MAX_INCIDENTS = 20
"""Maximum incidents, logon storms and stalls on the page."""
MAX_CLIENTS = 10_000
"""Maximum clients examined for logon storms."""
PATIENCE_S = 2.0
"""Seconds to wait for a broker's answer."""
ACTIONS = tuple((action.value, labels.action_label(action).done) for action in PolicyAction)
"""Choices of the action filter."""
REASONS = tuple(reason.value for reason in DecisionReason)
"""Choices of the reason filter."""


@common.requires_permission(Permission.VIEW)
@require_GET
def decisions(request: HttpRequest) -> HttpResponse:
    """Show a page of decisions."""
    chosen = {name: request.GET.get(name, "").strip()[:64] for name in ("client", "action", "reason")}
    instance = common.local_instance()
    found = Decision.objects.none()
    if instance is not None:
        found = DecisionFilter(
            chosen, history.decisions(instance, patterns=common.visible_patterns(request))
        ).qs
    now, patterns = timezone.now(), common.visible_patterns(request)
    newest = list(found.filter(at__gte=now - incidents.SPAN).order_by("-at")[: incidents.MAX_READ])
    context = {
        "stalls": _stalls(patterns) if not chosen["client"] else [],
        "storms": _storms(instance, chosen["client"], patterns, newest, now),
        "incidents": incidents.group_incidents(newest)[:MAX_INCIDENTS],
        "cells": incidents.decision_timeline(newest, now),
        "of_a_day": len(newest),
        "max_read": incidents.MAX_READ,
        "begin": now - incidents.SPAN,
        "page": Paginator(found, PAGE).get_page(request.GET.get("page")),
        "chosen": chosen,
        "actions": ACTIONS,
        "reasons": REASONS,
        "filtered": any(chosen.values()),
        "query": filter_query(chosen),
    }
    return common.page(request, "decisions.html", context)


def _storms(
    instance: Instance | None, client: str, patterns: list[str] | None, newest: list[Decision], now: datetime
) -> list[incidents.LogonStorm]:
    """Return the logon storms of the last day.

    Empty while the broker is unavailable (the top of the page reports that), and when one client is
    selected.
    """
    if instance is None or client:
        return []
    try:
        everyone = ClientSequence(patterns=patterns, sort="-connected_at")[0:MAX_CLIENTS]
    except SluiceError:
        return []
    return incidents.logon_storms(everyone, broker_restarts(instance, now - incidents.SPAN), newest, now)[
        :MAX_INCIDENTS
    ]


def _stalls(patterns: list[str] | None) -> list[tuple[StallEntry, CauseText]]:
    """Return the newest stalls of the brokers' event loops, newest first.

    The description of the last task names clients. An account that must not see all clients gets no
    description.
    """
    try:
        found = link_to(current_instance.instance_name()).call(GetStalls(), timeout_s=PATIENCE_S).stalls[::-1]
    except SluiceError:
        return []
    shown = (
        found if patterns is None else [structs.replace(one, doing="", task="", stacks="") for one in found]
    )
    return [(one, CAUSES[one.cause]) for one in shown[:MAX_INCIDENTS]]


def filter_query(chosen: dict[str, str]) -> str:
    """Return the filter as the beginning of a query string, for the pager's links."""
    query = QueryDict(mutable=True)
    query.update({key: value for key, value in chosen.items() if value})
    return f"{query.urlencode()}&" if query else ""
