"""Page of the audit log, with a search. CSV comes from the API."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, QueryDict
from django.views.decorators.http import require_GET

from console.choices import AuditResult, Permission
from console.models import AuditEvent
from console.queries.filters import AuditFilter
from console.units.moments import parse_moment
from console.views import common

PAGE = 40
"""Events per page: on a telephone, no more than ten screens."""
SHOWN = ("search", "actor", "action", "object", "result", "since", "until")
"""Filters of the page."""


@common.requires_permission(Permission.READ_AUDIT, whole_installation=True)
@require_GET
def audit(request: HttpRequest) -> HttpResponse:
    """Show a page of events, newest first."""
    chosen = {name: request.GET.get(name, "").strip()[:200] for name in SHOWN}
    query = QueryDict(mutable=True)
    query.update({key: value for key, value in chosen.items() if value})
    filters = AuditFilter(query, AuditEvent.objects.all())
    found = filters.qs if filters.is_valid() else AuditEvent.objects.none()
    # The browser's field shows a time only without an offset.
    if (since := parse_moment(chosen["since"])) is not None:
        chosen["since"] = since.strftime("%Y-%m-%dT%H:%M:%S")
    context = {
        "page": Paginator(found, PAGE).get_page(request.GET.get("page")),
        "chosen": chosen,
        "results": AuditResult.choices,
        "query": f"{query.urlencode()}&" if query else "",
        "csv_query": query.urlencode(),
        "errors": filters.errors,
    }
    return common.page(request, "audit.html", context)
