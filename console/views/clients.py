"""The clients page: a table that the live feed fills. Its filters and order live in the URL and are applied in the browser."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from broker_core.documents import columns
from broker_core.documents.clients import Delivery, Health
from console.choices import Permission
from console.views import common, past

FIRST = ("health", "name", "delivery")
"""What stands at the left of the table, in this order."""
FILTERS = (("health", "Health", list(Health)), ("delivery", "Delivery", list(Delivery)))


@common.permitted(Permission.VIEW)
@require_GET
@past.with_past(past.clients)
def clients(request: HttpRequest) -> HttpResponse:
    """Everyone who is logged on. `columns` are keys of those to show besides the usual ones."""
    shown = columns.drawn(frozenset(request.GET.get("columns", "").split(",")))
    drawn = sorted(shown, key=lambda one: FIRST.index(one.key) if one.key in FIRST else len(FIRST))
    told = [
        {
            "key": one.key,
            "label": one.label,
            "kind": one.kind,
            "sortable": one.sortable,
            "numeric": one.numeric,
            "drawn": one in drawn,
        }
        for one in (*drawn, *(one for one in columns.CLIENT_COLUMNS if one not in drawn))
    ]
    return common.page(request, "clients.html", {
        "columns": drawn, "choosable": columns.choosable(), "chosen": {one.key for one in drawn}, "column_data": told,
        "default_sort": columns.DEFAULT_SORT, "filters": FILTERS,
    })  # fmt: skip
