"""The overview: rates, pools, clients by state, policy in force, newest decisions. Live figures come over the feed."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from console.choices import Permission
from console.queries import history
from console.views import common

NEWEST_DECISIONS = 8


@common.permitted(Permission.VIEW)
@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """The first page."""
    instance = common.own_instance()
    decisions = (
        list(history.decisions(instance, patterns=common.patterns(request))[:NEWEST_DECISIONS])
        if instance
        else []
    )
    return common.page(request, "overview.html", {"decisions": decisions, **common.in_force()})
