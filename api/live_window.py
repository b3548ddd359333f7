"""Window of a broker's snapshot that one tab shows: totals, its rows, and their changes. Pure functions.

Of 10,000 clients a tab gets only the hundred that it shows. Filtering and sorting happen once per snapshot
for all tabs with the same view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta, structs

from broker_core.control.requests.clients import matches_search, sort_clients
from broker_core.documents import client_columns
from broker_core.documents.client_columns import ColumnType
from broker_core.documents.clients import ClientEntry
from broker_core.documents.instance import InstanceStatus, Snapshot
from broker_core.errors import OperatorError
from broker_core.names import name_matches
from console.queries.message_flow import METER, Flow, FlowRates, build_flow

MAX_ROWS = 200
"""Maximum rows of a window."""
Word = Annotated[str, Meta(max_length=255)]
"""Text parameter of a view, at most 255 characters."""
# Nested columns, which only a single client's page shows. `forecast` (the next limit that a client will
# reach) stays in the table.
_NESTED_COLUMNS = frozenset(
    one.key for one in client_columns.CLIENT_COLUMNS if one.kind is ColumnType.NESTED
) - {"forecast"}


class WindowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """View that a tab requests.

    `names` requests exactly these rows in this order, regardless of `sort`, so that rows do not move.
    """

    view: Literal["totals", "clients", "client", "flow"] = "totals"
    search: Word = ""
    delivery: Word = ""
    health: Word = ""
    sort: Word = ""
    offset: Annotated[int, Meta(ge=0, le=10**9)] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS)] = 100
    names: Annotated[tuple[Word, ...], Meta(max_length=MAX_ROWS)] = ()
    client: Word = ""


_WANTS = msgspec.json.Decoder(WindowRequest)


class WindowState(NamedTuple):
    """Window that a tab has received.

    `total` counts all clients that match the filter; `order` has the names of the rows; `rows` are in wire
    form. `flow` is None unless the view is "flow".
    """

    at: int
    status: InstanceStatus
    totals: dict[str, Any]
    total: int
    order: list[str]
    rows: dict[str, dict[str, Any]]
    flow: Flow | None = None


class SharedSnapshot:
    """Snapshot with the filtered and sorted lists that tabs have requested so far."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._sorted: dict[tuple[object, ...], list[ClientEntry]] = {}
        self._ordered: dict[tuple[object, ...], list[ClientEntry]] = {}
        self._totals: dict[tuple[str, ...] | None, dict[str, Any]] = {}
        self._by_name: dict[str, ClientEntry] | None = None
        self._rates: FlowRates | None = None
        self._flows: dict[tuple[str, ...] | None, Flow] = {}

    def visible_clients(self, patterns: Sequence[str] | None) -> list[ClientEntry]:
        """Return the clients whose names match a pattern; all clients if `patterns` is None."""
        everyone = self.snapshot.clients
        if patterns is None:
            return list(everyone)
        return [one for one in everyone if any(name_matches(pattern, one.name) for pattern in patterns)]

    def totals(self, patterns: Sequence[str] | None) -> dict[str, Any]:
        """Return the number of visible clients, in total, by delivery state and by health."""
        key = None if patterns is None else tuple(patterns)
        if key not in self._totals:
            clients = self.visible_clients(patterns)
            self._totals[key] = {
                "clients": len(clients),
                "delivery": dict(Counter(str(one.delivery) for one in clients)),
                "health": dict(Counter(str(one.health) for one in clients)),
            }
        return self._totals[key]

    def sorted_clients(self, request: WindowRequest, patterns: Sequence[str] | None) -> list[ClientEntry]:
        """Return the visible clients that match the view's filters, sorted.

        Raises OperatorError `bad_sort`.
        """
        key = (
            request.search,
            request.delivery,
            request.health,
            request.sort,
            None if patterns is None else tuple(patterns),
        )
        if key not in self._ordered:
            self._ordered[key] = [
                one for one in self._in_order(request.sort, patterns) if _matches_filters(one, request)
            ]
        return self._ordered[key]

    def _in_order(self, sort: str, patterns: Sequence[str] | None) -> list[ClientEntry]:
        """Return all visible clients sorted. Computed once per sort order, independent of the filters."""
        key = (sort, None if patterns is None else tuple(patterns))
        if key not in self._sorted:
            self._sorted[key] = sort_clients(
                self.visible_clients(patterns), sort or client_columns.DEFAULT_SORT
            )
        return self._sorted[key]

    def flow(self, patterns: Sequence[str] | None) -> Flow:
        """Return the message flow graph of the visible clients.

        Rates are computed from the snapshots of the last seconds for which a flow was requested.
        """
        key = None if patterns is None else tuple(patterns)
        if key not in self._flows:
            self._rates = self._rates or METER.rates(self.snapshot)
            self._flows[key] = build_flow(self.snapshot, self._rates, patterns)
        return self._flows[key]

    def client_named(self, name: str) -> ClientEntry | None:
        """Return the client of that name, or None."""
        if self._by_name is None:
            self._by_name = {one.name: one for one in self.snapshot.clients}
        return self._by_name.get(name)


def parse_query(query: str) -> WindowRequest | None:
    """Return the view that a query string requests; None without `view`.

    None means all clients, as programs receive them. The parameter `instance` is not part of a view. Raises
    ValueError.
    """
    parameters = {key: values[-1] for key, values in parse_qs(query).items() if key != "instance"}
    return msgspec.convert(parameters, WindowRequest, strict=False) if "view" in parameters else None


def requested_instance(query: str) -> str:
    """Return the instance that a query string names; "" without the parameter."""
    return parse_qs(query).get("instance", [""])[-1]


def parse_message(text: str) -> WindowRequest:
    """Return the view in a tab's message. Raises msgspec.ValidationError or DecodeError."""
    return _WANTS.decode(text)


def build_window(
    shared: SharedSnapshot, request: WindowRequest, patterns: Sequence[str] | None
) -> WindowState:
    """Return the window of a snapshot for a view. An invalid sort order is replaced by the default."""
    snapshot, rows, total = shared.snapshot, [], 0
    if request.view == "client":
        one = shared.client_named(request.client)
        allowed = patterns is None or any(name_matches(pattern, request.client) for pattern in patterns)
        rows = [one] if one is not None and allowed else []
        total = len(rows)
    elif request.view == "clients":
        try:
            fitting = shared.sorted_clients(request, patterns)
        except OperatorError:
            fitting = shared.sorted_clients(structs.replace(request, sort=""), patterns)
        total = len(fitting)
        rows = (
            _requested_clients(shared, request, patterns)
            if request.names
            else fitting[request.offset : request.offset + request.limit]
        )
    nested = request.view == "client"
    return WindowState(
        snapshot.at,
        snapshot.status,
        shared.totals(patterns),
        total,
        [one.name for one in rows],
        {one.name: _row(one, nested=nested) for one in rows},
        shared.flow(patterns) if request.view == "flow" else None,
    )


def window_snapshot(window: WindowState) -> dict[str, Any]:
    """Return a window as a snapshot message."""
    message: dict[str, Any] = {
        "type": "snapshot",
        "at": window.at,
        "status": window.status,
        "totals": window.totals,
        "total": window.total,
        "order": window.order,
        "clients": list(window.rows.values()),
    }
    return message if window.flow is None else {**message, "flow": window.flow}


def window_delta(old: WindowState, new: WindowState) -> dict[str, Any]:
    """Return a delta message from `old` to `new`.

    A row that enters the window is included with all its fields. Empty parts are omitted.
    """
    made: dict[str, Any] = {"type": "delta", "at": new.at}
    before, after = structs.asdict(old.status), structs.asdict(new.status)
    if status := {key: value for key, value in after.items() if before[key] != value}:
        made["status"] = status
    made |= {
        key: getattr(new, key)
        for key in ("totals", "total", "order", "flow")
        if getattr(old, key) != getattr(new, key)
    }
    changed = []
    for name, row in new.rows.items():
        known = old.rows.get(name)
        if known is None:
            changed.append(row)
        elif fields := {key: value for key, value in row.items() if known.get(key) != value}:
            changed.append({"name": name, **fields})
    if changed:
        made["changed"] = changed
    if removed := sorted(old.rows.keys() - new.rows.keys()):
        made["removed"] = removed
    return made


def apply_window_delta(window: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return a tab's window after a delta received over the wire.

    Tests use it to check the feed: applying deltas to a snapshot message gives the next snapshot message.
    """
    rows = {row["name"]: row for row in window["clients"]}
    for fields in change.get("changed", ()):
        rows[fields["name"]] = {**rows.get(fields["name"], {}), **fields}
    for name in change.get("removed", ()):
        del rows[name]
    order = change.get("order", window["order"])
    graph = change.get("flow", window.get("flow"))
    message = {
        "type": "snapshot",
        "at": change["at"],
        "status": {**window["status"], **change.get("status", {})},
        "totals": change.get("totals", window["totals"]),
        "total": change.get("total", window["total"]),
        "order": order,
        "clients": [rows[name] for name in order],
    }
    return message if graph is None else {**message, "flow": graph}


def _requested_clients(
    shared: SharedSnapshot, request: WindowRequest, patterns: Sequence[str] | None
) -> list[ClientEntry]:
    """Return the visible clients among the requested `names`, in that order."""
    found = (shared.client_named(name) for name in request.names)
    allowed = None if patterns is None else {one.name for one in shared.visible_clients(patterns)}
    return [one for one in found if one is not None and (allowed is None or one.name in allowed)]


def _row(one: ClientEntry, *, nested: bool) -> dict[str, Any]:
    """Return a client as a row. `nested` includes the nested columns."""
    fields = structs.asdict(one)
    return fields if nested else {key: value for key, value in fields.items() if key not in _NESTED_COLUMNS}


def _matches_filters(one: ClientEntry, request: WindowRequest) -> bool:
    """Return whether a client matches the view's filters."""
    if (request.delivery and one.delivery != request.delivery) or (
        request.health and one.health != request.health
    ):
        return False
    return not request.search or matches_search(one, request.search.casefold())
