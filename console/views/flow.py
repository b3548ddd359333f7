"""The flow page: publishers, topics and clients with what goes from one to the other. The live feed fills it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from console.choices import Permission
from console.views import common


@common.requires_permission(Permission.VIEW)
@require_GET
def flow(request: HttpRequest) -> HttpResponse:
    """The graph, and the same as tables."""
    return common.page(request, "flow.html", {})
