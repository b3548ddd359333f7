"""The page of the group (its members, how far each is, whether they are alike, and the engine) and of the links to other sites."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from broker_core.errors import SluiceError
from console import current
from console.choices import Permission
from console.queries.group import group_now, is_well
from console.queries.links import links_now
from console.views import common


@common.permitted(Permission.VIEW)
@require_GET
def replication(request: HttpRequest) -> HttpResponse:
    """As the member on this machine sees it; a broker by itself says so."""
    status = problem = None
    try:
        status = group_now(current.instance_name())
    except SluiceError as refused:
        problem = refused
    links = links_now(current.instance_name())
    context = {
        "group": status,
        "well": status is not None and is_well(status),
        "problem": problem,
        **links._asdict(),
    }
    return common.page(request, "replication.html", context)
