"""Page of replication: the group's members, their positions and agreement, the log service, and links to
other sites.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from broker_core.documents.problems import ProblemEntry
from broker_core.documents.requests import GetStatus
from broker_core.errors import SluiceError
from console import current_instance
from console.broker_link import link_to
from console.choices import Permission
from console.queries.group import PATIENCE_S, group_view
from console.queries.links import current_links
from console.views import common


@common.requires_permission(Permission.VIEW)
@require_GET
def replication(request: HttpRequest) -> HttpResponse:
    """Show the reports of all members. A broker without a group is shown as such."""
    return common.page(request, "replication.html", _page_context(request))


@common.requires_permission(Permission.VIEW)
@never_cache
@require_GET
def replication_panel(request: HttpRequest) -> HttpResponse:
    """Show the reports without the page around them. The page requests this every two seconds."""
    return render(request, "components/group.html", _page_context(request))


def _page_context(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the page."""
    instance = current_instance.instance_name()
    return {
        "group_view": group_view(instance),
        **current_links(instance)._asdict(),
        "problems": _problems(instance),
        **common.in_force(request),
    }


def _problems(instance: str) -> list[ProblemEntry]:
    """Return the problems that brokers report.

    Empty while no broker answers, which the top of the page reports.
    """
    with suppress(SluiceError):
        return link_to(instance).call(GetStatus(), timeout_s=PATIENCE_S).problems
    return []
