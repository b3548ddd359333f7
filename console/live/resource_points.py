"""Figures of an instance, its transports and its pools from a broker's snapshot, as flat records. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from broker_core.documents.clients import ClientEntry, DeliveryState
from broker_core.documents.instance import PoolEntry, Snapshot
from console.choices import ScopeKind

SPOOLED = (DeliveryState.OFFLINED, DeliveryState.DRAINING)


@dataclass(frozen=True, slots=True)
class ResourcePoint:
    """Figures of an instance, transport or pool: rates per second, and resources that its clients use.

    An unknown figure is 0. Only an instance has delays of delivery; None means that no record was delivered.
    """

    name: str
    clients: int
    offlined: int
    lag_messages: int
    messages_in: float = 0.0
    messages_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    memory_used: int = 0
    memory_limit: int = 0
    disk_used: int = 0
    disk_limit: int = 0
    delay_p50_ms: float | None = None
    delay_p99_ms: float | None = None


def resource_points(snapshot: Snapshot) -> Iterator[tuple[ScopeKind, ResourcePoint]]:
    """Yield the figures of the instance, each transport and each pool of a snapshot."""
    status, clients = snapshot.status, snapshot.clients
    rates, instance_point = status.rates, _with_pools(_resource_point(status.instance, clients), status.pools)
    yield (
        ScopeKind.INSTANCE,
        replace(
            instance_point,
            messages_in=rates.messages_in,
            messages_out=rates.messages_out,
            bytes_in=rates.bytes_in,
            bytes_out=rates.bytes_out,
            delay_p50_ms=status.delay.p50_ms if status.delay else None,
            delay_p99_ms=status.delay.p99_ms if status.delay else None,
        ),
    )
    by_transport: dict[str, list[ClientEntry]] = {}
    by_pool: dict[str, list[ClientEntry]] = {}
    for client in clients:
        by_transport.setdefault(client.transport, []).append(client)
        by_pool.setdefault(client.pool, []).append(client)
    for transport in status.transports:
        yield ScopeKind.TRANSPORT, _resource_point(transport.name, by_transport.get(transport.name, []))
    for pool in status.pools:
        yield ScopeKind.POOL, _with_pools(_resource_point(pool.name, by_pool.get(pool.name, [])), [pool])


def _resource_point(name: str, clients: Sequence[ClientEntry]) -> ResourcePoint:
    """Return the figures of some clients under a name."""
    return ResourcePoint(
        name,
        len(clients),
        sum(client.delivery in SPOOLED for client in clients),
        sum(client.lag_messages for client in clients),
        messages_out=sum(client.rate_out_messages for client in clients),
    )


def _with_pools(point: ResourcePoint, pools: Sequence[PoolEntry]) -> ResourcePoint:
    """Return the figures with memory and disk of some pools."""
    return replace(
        point,
        memory_used=sum(pool.memory_used for pool in pools),
        memory_limit=sum(pool.memory_limit for pool in pools),
        disk_used=sum(pool.disk_used for pool in pools),
        disk_limit=sum(pool.disk_limit for pool in pools),
    )
