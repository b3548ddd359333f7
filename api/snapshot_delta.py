"""Deltas between two snapshots of a broker.

The live feed sends deltas after its first snapshot. Law: applying `make_delta(old, new)` to the JSON of
`old` gives the JSON of `new`. Pure functions, so that tests can check the law on any two snapshots.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from broker_core.documents.base import Document
from broker_core.documents.instance import Snapshot

PageSnapshot = dict[str, Any]
"""Snapshot as a page has it: `{"at": ms, "status": {...}, "clients": [{"name": …, …}]}`.

Clients are sorted by name.
"""
Delta = dict[str, Any]
"""Delta: `{"at": ms, "status": {...}, "changed": [...], "removed": [...]}`.

`status` has changed fields. `changed` has one object per client with its name and changed fields. `removed`
has names. Empty parts are omitted.
"""


def make_delta(old: Snapshot, new: Snapshot) -> Delta:
    """Return the delta from `old` to `new`. A new client is included with all its fields."""
    made: Delta = {"at": new.at}
    if status := _changed_fields(old.status, new.status):
        made["status"] = status
    before = {client.name: client for client in old.clients}
    changed = []
    for client in new.clients:
        known = before.pop(client.name, None)
        if known is None:
            changed.append(structs.asdict(client))
        elif fields := _changed_fields(known, client):
            changed.append({"name": client.name, **fields})
    if changed:
        made["changed"] = changed
    if before:
        made["removed"] = sorted(before)
    return made


def apply_delta(snapshot: PageSnapshot, change: Delta) -> PageSnapshot:
    """Return a page's snapshot after a delta received over the wire."""
    clients = {client["name"]: client for client in snapshot["clients"]}
    for fields in change.get("changed", ()):
        clients[fields["name"]] = {**clients.get(fields["name"], {}), **fields}
    for name in change.get("removed", ()):
        del clients[name]
    return {
        "at": change["at"],
        "status": {**snapshot["status"], **change.get("status", {})},
        "clients": [clients[name] for name in sorted(clients)],
    }


def _changed_fields(old: Document, new: Document) -> dict[str, object]:
    if old == new:
        return {}
    before, after = structs.asdict(old), structs.asdict(new)
    return {key: value for key, value in after.items() if before[key] != value}
