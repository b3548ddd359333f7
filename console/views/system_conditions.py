"""Current problems of the system, which every open page requests every few seconds."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from console.choices import Permission
from console.queries.system_conditions import current_conditions
from console.views import common


@common.requires_permission(Permission.VIEW)
@never_cache
@require_GET
def system_conditions(request: HttpRequest) -> HttpResponse:
    """Show the lines at the top of a page; empty without problems."""
    return render(request, "components/standings.html", {"found": current_conditions()})
