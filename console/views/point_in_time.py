"""Pages at a past moment: `?at=` on the overview, clients, a client and policies.

They are static and offer no actions.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from itertools import pairwise
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from broker_core.config.preset_settings import AMPS_CLIENT, AMPS_POOL
from broker_core.config.rule_terms import EnforcementMode
from broker_core.errors import OperatorError
from console.models import Instance, PolicyRevision
from console.queries import point_in_time as read
from console.queries.document_diff import diff_documents
from console.queries.policy_redaction import visible_revision
from console.units import labels
from console.views import common

PAGE = 100
"""Clients per page."""
WORST = 12
"""Clients and decisions on the overview."""
REVISIONS = 10
"""Revisions on the policies page."""
STEPS = (
    ("1 h earlier", -3_600),
    ("10 min earlier", -600),
    ("1 min earlier", -60),
    ("1 min later", 60),
    ("10 min later", 600),
)
"""Labels and seconds of links to neighbouring moments."""

Context = dict[str, Any]


def supports_point_in_time(then: Callable[..., HttpResponse]) -> Callable[[common.View], common.View]:
    """Return a decorator that adds a past to a page.

    `then(request, instance, moment, …)` shows the page when the URL has `?at=`.
    """

    def declare(view: common.View) -> common.View:
        @wraps(view)
        def looking(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            at_text, instance = request.GET.get("at", "").strip(), common.local_instance()
            if not at_text or instance is None:
                return view(request, *args, **kwargs)
            try:
                when = read.parse_point_in_time(at_text, timezone.now())
            except OperatorError as problem:
                common.show_error(request, problem)
                return redirect(request.path)
            return then(request, instance, when, *args, **kwargs)

        return looking

    return declare


def overview(request: HttpRequest, instance: Instance, when: read.PointInTime) -> HttpResponse:
    """Show the overview at a moment: clients by state, the worst lag, pools, rates, and earlier decisions."""
    patterns = common.visible_patterns(request)
    rows = read.clients_at(instance, when, patterns)
    return _page(
        request,
        instance,
        when,
        "past_overview.html",
        {
            "total": len(rows),
            "by_delivery": read.count_by_delivery(rows),
            "behind": sum(one["lag_ms"] >= 1_000 for one in rows),
            "worst": [one for one in rows if one["lag_ms"] or one["state"] != "live"][:WORST],
            "decisions": read.decisions_before(instance, when, patterns)[:WORST],
        },
    )


def clients(request: HttpRequest, instance: Instance, when: read.PointInTime) -> HttpResponse:
    """Show the clients that were logged on, longest lag first."""
    search = request.GET.get("q", "").strip()[:64]
    rows = read.clients_at(instance, when, common.visible_patterns(request), search)
    query = request.GET.copy()
    query.pop("page", None)
    return _page(
        request,
        instance,
        when,
        "past_clients.html",
        {
            "page": Paginator(rows, PAGE).get_page(request.GET.get("page")),
            "total": len(rows),
            "search": search,
            "by_delivery": read.count_by_delivery(rows),
            "query": f"{query.urlencode()}&" if query else "",
        },
    )


def client(request: HttpRequest, instance: Instance, when: read.PointInTime, name: str) -> HttpResponse:
    """Show a client's samples in the 15 minutes before the moment, and earlier decisions."""
    shown = read.parse_timeline_part(
        when, request.GET.get("from", ""), request.GET.get("to", ""), timezone.now()
    )
    samples = read.client_at(instance, when, name)
    shown_samples = samples if shown is None else read.client_at(instance, when, name, shown)
    step_s = 60 if shown is None else shown.step_s
    return _page(
        request,
        instance,
        when,
        "past_client.html",
        {
            "name": name,
            "then": read.sample_at(when, samples),
            "samples": read.worst_by_step(shown_samples, step_s),
            "shown": shown,
            "step_ms": 1_000 * step_s,
            "decisions": read.decisions_before(instance, when, None, name),
        },
    )


def policies(request: HttpRequest, instance: Instance, when: read.PointInTime) -> HttpResponse:
    """Show the revision that was in force, with its limits and rules, and earlier revisions."""
    found, patterns = read.policy_at(instance, when), common.visible_patterns(request)
    running = found.running or found.expected
    shown = visible_revision(running, patterns) if running is not None else None
    listed = [visible_revision(one, patterns) for one in read.revisions_before(instance, when, REVISIONS + 1)]
    before = dict(pairwise(listed))
    return _page(
        request,
        instance,
        when,
        "past_policies.html",
        {
            "shown": shown,
            **(_parts(shown) if shown is not None else {}),
            "revisions": [
                {
                    "revision": one,
                    "changes": diff_documents(before[one].document, one.document) if one in before else [],
                }
                for one in listed[:REVISIONS]
            ],
        },
    )


def _parts(revision: PolicyRevision) -> Context:
    """Return the limits of the instance and of transports that set their own, and the rules as sentences."""
    document = revision.document
    limits = []
    for name, part in (("", document), *((one["name"], one) for one in document["transports"])):
        values = {**part["pool"], **part["client_policy"]}
        cells = [
            {
                "word": labels.setting_label(f"amps.{field}"),
                "value": labels.setting_value(f"amps.{field}", values.get(field)),
            }
            for field in (*AMPS_POOL, *AMPS_CLIENT)
            if values.get(field) is not None
        ]
        if cells or not name:
            limits.append({"name": name, "cells": cells})
    rules = [
        {
            "sentence": labels.rule_sentence(rule),
            "recorded_only": str(rule.get("mode") or EnforcementMode.SHADOW) == EnforcementMode.SHADOW,
        }
        for rule in document.get("rules") or []
    ]
    return {"limits": limits, "rules": rules}


def _page(
    request: HttpRequest, instance: Instance, when: read.PointInTime, template: str, context: Context
) -> HttpResponse:
    """Render a page at a past moment, with the frame's context."""
    resources = read.resources_at(instance, when)
    now = timezone.now()
    steps = [
        (word, _stepped(request, when, seconds))
        for word, seconds in STEPS
        if (now - when.at).total_seconds() > seconds
    ]
    return common.page(
        request,
        template,
        {
            "past": when,
            "past_query": when.query,
            "steps": steps,
            "now_path": _now_path(request),
            "policy_then": read.policy_at(instance, when),
            "sees_all": common.visible_patterns(request) is None,
            "instance_then": next(iter(resources["instance"]), None),
            "pools": resources["pool"],
            **context,
        },
    )


def _now_path(request: HttpRequest) -> str:
    """Return the URL of the current page with the same filters and order."""
    query = request.GET.copy()
    for key in ("at", "page"):
        query.pop(key, None)
    return request.path + (f"?{query.urlencode()}" if query else "")


def _stepped(request: HttpRequest, when: read.PointInTime, seconds: int) -> str:
    """Return the query string of a moment some seconds earlier or later."""
    query = request.GET.copy()
    query.pop("page", None)
    query["at"] = read.PointInTime(when.at + timedelta(seconds=seconds), when.minutes).text
    return f"?{query.urlencode()}"
