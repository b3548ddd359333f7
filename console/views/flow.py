"""Page of the message flow: publishers, topics and clients. The live feed fills it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from console.choices import Permission
from console.views import common


@common.requires_permission(Permission.VIEW)
@require_GET
def flow(request: HttpRequest) -> HttpResponse:
    """Show the flow as a graph and as tables."""
    return common.page(request, "flow.html", {})
