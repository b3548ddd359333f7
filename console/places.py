"""What a broker's snapshot says of the instance, its transports and its pools, as one flat record each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from console.choices import PlaceKind


def places(snapshot: Mapping[str, Any]) -> Iterator[tuple[PlaceKind, dict[str, Any]]]:
    """(kind, values): the values that the snapshot doesn't have for that kind are left out."""
    status, clients = snapshot["status"], snapshot.get("clients") or []
    pools = status.get("pools") or []
    used = {key: sum(pool.get(key) or 0 for pool in pools) for key in ("memory_used", "memory_limit", "disk_used", "disk_limit")}
    yield PlaceKind.INSTANCE, {"name": status["instance"], **(status.get("rates") or {}), **used, **_sums(clients)}
    by_transport: dict[str, list[Mapping[str, Any]]] = {}
    by_pool: dict[str, list[Mapping[str, Any]]] = {}
    for client in clients:
        by_transport.setdefault(str(client.get("transport")), []).append(client)
        by_pool.setdefault(str(client.get("pool")), []).append(client)
    for transport in status.get("transports") or []:
        theirs = by_transport.get(transport["name"], [])
        yield PlaceKind.TRANSPORT, {"name": transport["name"], **_sums(theirs), **_rate(theirs)}
    for pool in pools:
        theirs = by_pool.get(pool["name"], [])
        facts = {key: pool.get(key) or 0 for key in used}
        yield PlaceKind.POOL, {"name": pool["name"], **facts, **_sums(theirs), **_rate(theirs)}


def _sums(clients: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "clients": len(clients),
        "offlined": sum(client.get("state") in ("offlined", "draining") for client in clients),
        "lag_messages": sum(client.get("lag_messages") or 0 for client in clients),
    }


def _rate(clients: list[Mapping[str, Any]]) -> dict[str, float]:
    return {"messages_out": sum(client.get("rate_out_messages") or 0.0 for client in clients)}
