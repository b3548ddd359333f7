"""The part of a broker's snapshot that one tab shows: totals, the rows in its window, and their changes. Pure.

Of 10,000 clients a tab is told of the hundred it draws. What several tabs look at in the same way is filtered and sorted once for
each snapshot.
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
Word = Annotated[str, Meta(max_length=255)]
# What a row of a table needs no more than the page of one client does: objects and lists, but for the limit it comes to first.
_LEFT_OUT = frozenset(one.key for one in client_columns.CLIENT_COLUMNS if one.kind is ColumnType.NESTED) - {
    "forecast"
}


class WindowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tab looks at. `names` holds rows where they are, in this order, whatever the sort says."""

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
    """What a tab holds. `total` is of the clients that fit, `order` the rows' names; rows are as they are sent. `flow` is made
    where it is looked at."""

    at: int
    status: InstanceStatus
    totals: dict[str, Any]
    total: int
    order: list[str]
    rows: dict[str, dict[str, Any]]
    flow: Flow | None = None


class SharedSnapshot:
    """A snapshot, with what was filtered and sorted of it so far."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._sorted: dict[tuple[object, ...], list[ClientEntry]] = {}
        self._ordered: dict[tuple[object, ...], list[ClientEntry]] = {}
        self._totals: dict[tuple[str, ...] | None, dict[str, Any]] = {}
        self._by_name: dict[str, ClientEntry] | None = None
        self._rates: FlowRates | None = None
        self._flows: dict[tuple[str, ...] | None, Flow] = {}

    def visible_clients(self, patterns: Sequence[str] | None) -> list[ClientEntry]:
        """The clients whose names fit one of the patterns; None is all."""
        everyone = self.snapshot.clients
        if patterns is None:
            return list(everyone)
        return [one for one in everyone if any(name_matches(pattern, one.name) for pattern in patterns)]

    def totals(self, patterns: Sequence[str] | None) -> dict[str, Any]:
        """How many there are, by delivery and by health."""
        key = None if patterns is None else tuple(patterns)
        if key not in self._totals:
            clients = self.visible_clients(patterns)
            self._totals[key] = {
                "clients": len(clients), "delivery": dict(Counter(str(one.delivery) for one in clients)),
                "health": dict(Counter(str(one.health) for one in clients)),
            }  # fmt: skip
        return self._totals[key]

    def sorted_clients(self, want: WindowRequest, patterns: Sequence[str] | None) -> list[ClientEntry]:
        """Those that fit, sorted. Raises OperatorError bad_sort."""
        key = (
            want.search,
            want.delivery,
            want.health,
            want.sort,
            None if patterns is None else tuple(patterns),
        )
        if key not in self._ordered:
            self._ordered[key] = [one for one in self._in_order(want.sort, patterns) if _fits(one, want)]
        return self._ordered[key]

    def _in_order(self, sort: str, patterns: Sequence[str] | None) -> list[ClientEntry]:
        """Everybody, sorted: once, whatever is then searched for."""
        key = (sort, None if patterns is None else tuple(patterns))
        if key not in self._sorted:
            self._sorted[key] = sort_clients(
                self.visible_clients(patterns), sort or client_columns.DEFAULT_SORT
            )
        return self._sorted[key]

    def flow(self, patterns: Sequence[str] | None) -> Flow:
        """Who publishes what to whom; its rates are from the snapshots of the last seconds that were looked at so."""
        key = None if patterns is None else tuple(patterns)
        if key not in self._flows:
            self._rates = self._rates or METER.rates(self.snapshot)
            self._flows[key] = build_flow(self.snapshot, self._rates, patterns)
        return self._flows[key]

    def client_named(self, name: str) -> ClientEntry | None:
        """One client."""
        if self._by_name is None:
            self._by_name = {one.name: one for one in self.snapshot.clients}
        return self._by_name.get(name)


def parse_query(query: str) -> WindowRequest | None:
    """What the address of a socket asks for; None without a view: everything, as programs get it. Raises ValueError."""
    given = {key: values[-1] for key, values in parse_qs(query).items()}
    return msgspec.convert(given, WindowRequest, strict=False) if "view" in given else None


def parse_message(text: str) -> WindowRequest:
    """What a tab sends when it looks elsewhere. Raises msgspec.ValidationError or DecodeError."""
    return _WANTS.decode(text)


def build_window(shared: SharedSnapshot, want: WindowRequest, patterns: Sequence[str] | None) -> WindowState:
    """What such a tab holds of this snapshot."""
    snapshot, rows, total = shared.snapshot, [], 0
    if want.view == "client":
        one = shared.client_named(want.client)
        allowed = patterns is None or any(name_matches(pattern, want.client) for pattern in patterns)
        rows = [one] if one is not None and allowed else []
        total = len(rows)
    elif want.view == "clients":
        try:
            fitting = shared.sorted_clients(want, patterns)
        except OperatorError:
            fitting = shared.sorted_clients(structs.replace(want, sort=""), patterns)
        total = len(fitting)
        rows = (
            _held(shared, want, patterns) if want.names else fitting[want.offset : want.offset + want.limit]
        )
    whole = want.view == "client"
    return WindowState(
        snapshot.at, snapshot.status, shared.totals(patterns), total, [one.name for one in rows],
        {one.name: _row(one, whole=whole) for one in rows}, shared.flow(patterns) if want.view == "flow" else None,
    )  # fmt: skip


def window_snapshot(held: WindowState) -> dict[str, Any]:
    """A window whole."""
    whole: dict[str, Any] = {
        "type": "snapshot", "at": held.at, "status": held.status, "totals": held.totals, "total": held.total,
        "order": held.order, "clients": list(held.rows.values()),
    }  # fmt: skip
    return whole if held.flow is None else {**whole, "flow": held.flow}


def window_delta(old: WindowState, new: WindowState) -> dict[str, Any]:
    """What changed; a row that came into the window comes whole. Empty parts are left out."""
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
    if gone := sorted(old.rows.keys() - new.rows.keys()):
        made["removed"] = gone
    return made


def apply_window_delta(held: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """What a tab holds after a delta, as it came over the wire: the law that the tests hold the feed to."""
    rows = {row["name"]: row for row in held["clients"]}
    for fields in change.get("changed", ()):
        rows[fields["name"]] = {**rows.get(fields["name"], {}), **fields}
    for name in change.get("removed", ()):
        del rows[name]
    order = change.get("order", held["order"])
    graph = change.get("flow", held.get("flow"))
    whole = {
        "type": "snapshot", "at": change["at"], "status": {**held["status"], **change.get("status", {})},
        "totals": change.get("totals", held["totals"]), "total": change.get("total", held["total"]), "order": order,
        "clients": [rows[name] for name in order],
    }  # fmt: skip
    return whole if graph is None else {**whole, "flow": graph}


def _held(shared: SharedSnapshot, want: WindowRequest, patterns: Sequence[str] | None) -> list[ClientEntry]:
    found = (shared.client_named(name) for name in want.names)
    allowed = None if patterns is None else {one.name for one in shared.visible_clients(patterns)}
    return [one for one in found if one is not None and (allowed is None or one.name in allowed)]


def _row(one: ClientEntry, *, whole: bool) -> dict[str, Any]:
    fields = structs.asdict(one)
    return fields if whole else {key: value for key, value in fields.items() if key not in _LEFT_OUT}


def _fits(one: ClientEntry, want: WindowRequest) -> bool:
    if (want.delivery and one.delivery != want.delivery) or (want.health and one.health != want.health):
        return False
    return not want.search or matches_search(one, want.search.casefold())
