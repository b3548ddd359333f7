"""The difference between two snapshots of a broker, and its application: apply(old, delta(old, new)) == new.

Deltas are what the live feed sends after its first snapshot. Pure, so that the law can be tested on any two snapshots.
"""

from __future__ import annotations

from typing import Any

Snapshot = dict[str, Any]
"""{"at": ms, "status": {...}, "clients": [{"name": …, …}]}, as the broker makes it; clients are sorted by name here."""
Delta = dict[str, Any]
"""{"at": ms, "status": changed keys, "changed": [name and changed fields], "removed": [names]}; empty parts left out."""


def delta(old: Snapshot, new: Snapshot) -> Delta:
    """What changed. A client that is new comes whole; a field that went away comes as null."""
    made: Delta = {"at": new["at"]}
    if status := _changed(old["status"], new["status"]):
        made["status"] = status
    before = {client["name"]: client for client in old["clients"]}
    changed = []
    for client in new["clients"]:
        known = before.pop(client["name"], None)
        if known is None:
            changed.append(client)
        elif fields := _changed(known, client):
            changed.append({"name": client["name"], **fields})
    if changed:
        made["changed"] = changed
    if before:
        made["removed"] = sorted(before)
    return made


def apply(old: Snapshot, change: Delta) -> Snapshot:
    """The snapshot after a delta, as the page makes it."""
    clients = {client["name"]: client for client in old["clients"]}
    for fields in change.get("changed", ()):
        clients[fields["name"]] = {**clients.get(fields["name"], {}), **fields}
    for name in change.get("removed", ()):
        del clients[name]
    return {
        "at": change["at"],
        "status": {**old["status"], **change.get("status", {})},
        "clients": [clients[name] for name in sorted(clients)],
    }


def _changed(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    if old == new:
        return {}
    fields = {key: value for key, value in new.items() if key not in old or old[key] != value}
    fields.update({key: None for key, value in old.items() if key not in new and value is not None})
    return fields
