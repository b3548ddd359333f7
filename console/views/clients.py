"""The clients page: a table that the live feed fills. Its filter and order live in the URL and are applied in the browser."""

from __future__ import annotations

from typing import NamedTuple

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from console.choices import Permission
from console.views import common


class Column(NamedTuple):
    """A column's heading. `key` sorts it in static/js/clients_view.js; "" doesn't sort."""

    key: str
    label: str
    help: str
    numeric: bool = True


COLUMNS = (
    Column("name", "Client", "The name it logged on with", numeric=False),
    Column("state", "State", "Offlined first, then draining, replaying, live", numeric=False),
    Column("transport", "Transport", "The transport it came in by", numeric=False),
    Column("lag_ms", "Lag", "Age of its oldest message that waits"),
    Column("lag_messages", "Messages", "Messages that wait for it, in memory and on disk"),
    Column("lag_bytes", "Bytes", "Bytes that wait for it"),
    Column("", "Trend", "Messages behind over the last two minutes of this tab", numeric=False),
    Column("memory_percent", "Memory", "Its share of the pool's memory limit"),
    Column("spool_bytes", "Spool", "Bytes of its spool on disk"),
    Column("rate_out_messages", "Out /s", "Messages delivered to it each second"),
    Column("connected_ms", "Connected", "How long it has been logged on"),
)


@common.permitted(Permission.VIEW)
@require_GET
def clients(request: HttpRequest) -> HttpResponse:
    """Everyone who is logged on."""
    return common.page(request, "clients.html", {"columns": COLUMNS})
