"""The difference between two snapshots of a broker, and its application: what a page holds after it is the newer one's JSON.

Deltas are what the live feed sends after its first snapshot. Pure, so that the law can be tested on any two snapshots.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from broker_core.documents.base import Document
from broker_core.documents.instance import Snapshot

Held = dict[str, Any]
"""What a page holds: {"at": ms, "status": {...}, "clients": [{"name": …, …}]}; clients are sorted by name here."""
Delta = dict[str, Any]
"""{"at": ms, "status": changed fields, "changed": [name and changed fields], "removed": [names]}; empty parts left out."""


def make_delta(old: Snapshot, new: Snapshot) -> Delta:
    """What changed. A client that is new comes whole."""
    made: Delta = {"at": new.at}
    if status := _changed(old.status, new.status):
        made["status"] = status
    before = {client.name: client for client in old.clients}
    changed = []
    for client in new.clients:
        known = before.pop(client.name, None)
        if known is None:
            changed.append(structs.asdict(client))
        elif fields := _changed(known, client):
            changed.append({"name": client.name, **fields})
    if changed:
        made["changed"] = changed
    if before:
        made["removed"] = sorted(before)
    return made


def apply_delta(held: Held, change: Delta) -> Held:
    """What a page holds after a delta, as it came over the wire."""
    clients = {client["name"]: client for client in held["clients"]}
    for fields in change.get("changed", ()):
        clients[fields["name"]] = {**clients.get(fields["name"], {}), **fields}
    for name in change.get("removed", ()):
        del clients[name]
    return {
        "at": change["at"],
        "status": {**held["status"], **change.get("status", {})},
        "clients": [clients[name] for name in sorted(clients)],
    }


def _changed(old: Document, new: Document) -> dict[str, object]:
    if old == new:
        return {}
    before, after = structs.asdict(old), structs.asdict(new)
    return {key: value for key, value in after.items() if before[key] != value}
