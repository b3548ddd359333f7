"""AMPS's slow-client settings: their defaults, the pools they make, and the rules they compile to.

    MessageMemoryLimit     the pool's memory: over it the largest user is offlined
    MessageDiskLimit       the pool's disk: over it the largest user is disconnected and its spool removed
    MessageDiskPath        where the spools are
    ClientMaxCapacity      percent of the memory limit for one client, over it offlined; then percent of the
                           disk limit, over it disconnected
    ClientMessageAgeLimit  the oldest message waits longer, in memory or on disk: disconnected

A client or a pool exactly at a limit is within it.
"""

from __future__ import annotations

from typing import Final

from broker_core.config import PolicyDocument, PoolSettings, Scope, TransportSettings
from broker_core.config.preset_settings import (
    AMPS,
    AMPS_CLIENT,
    AMPS_POOL,
    DEFAULT_CLIENT_MAX_CAPACITY,
    DEFAULT_DISK_LIMIT,
    DEFAULT_MEMORY_PERCENT,
)
from broker_core.config.rule_terms import PolicyAction, Shape, Signal
from broker_core.config.rules import Rung
from broker_core.slow_clients.rules.presets.layers import set_fields
from broker_core.slow_clients.rules.rule import INSTANCE, PoolLimits, Rule
from broker_core.slow_clients.rules.scopes import Effective, Layer, effective

INSTANCE_POOL: Final = "instance"
_OWN_POOL: Final = "transport:"


def transport_of_pool(pool: str) -> str:
    """The transport whose own pool it is; INSTANCE for the shared one."""
    return pool.removeprefix(_OWN_POOL) if pool != INSTANCE_POOL else INSTANCE


def pool_limits(
    name: str, settings: PoolSettings, host_memory: int, ulimit: int | None, default_disk_path: str
) -> PoolLimits:
    """A pool's numbers, with AMPS's defaults for what isn't set. Bytes; ulimit None is "unlimited"."""
    # The limits are at least 1 and a path isn't empty, so that `or` means "unless set", here and below.
    usable = host_memory if ulimit is None else min(host_memory, ulimit)
    memory = settings.message_memory_limit or max(1, usable * DEFAULT_MEMORY_PERCENT // 100)
    disk = settings.message_disk_limit or max(DEFAULT_DISK_LIMIT, memory)
    return PoolLimits(name, memory, disk, settings.message_disk_path or default_disk_path)


def resolve_pools(
    document: PolicyDocument, host_memory: int, ulimit: int | None, default_disk_path: str
) -> dict[str, PoolLimits]:
    """Each transport's pool; INSTANCE is the shared one.

    A transport that sets a value that differs from the instance's gets a pool of its own, with the instance's
    values for what it doesn't set; one that repeats the instance's values shares the instance's pool.
    """
    host = (host_memory, ulimit, default_disk_path)
    shared = pool_limits(INSTANCE_POOL, document.pool, *host)
    pools = {INSTANCE: shared}
    for transport in document.transports:
        merged = PoolSettings(
            **{key: getattr(transport.pool, key) or getattr(document.pool, key) for key in AMPS_POOL}
        )
        own = pool_limits(_OWN_POOL + transport.name, merged, *host)
        pools[transport.name] = shared if own[1:] == shared[1:] else own
    return pools


def client_rules(document: PolicyDocument, transport: str, pool: PoolLimits) -> list[Rule]:
    """The rules about a transport's clients, in the order of judging: a client over two of its limits is acted on once,
    by the first."""
    policy = document.client_policy_of(transport)
    age, percent = (
        policy.client_message_age_limit_ms,
        policy.client_max_capacity or DEFAULT_CLIENT_MAX_CAPACITY,
    )
    rules = []
    if age is not None:
        rules.append(Rule("amps.client_message_age_limit", "ClientMessageAgeLimit", transport, Signal.OLDEST_AGE, Shape.HARD,
                          age, (Rung(PolicyAction.DISCONNECT),), document.revision))  # fmt: skip
    for name, signal, whole, action in (
        ("disk", Signal.SPOOL_BYTES, pool.disk, PolicyAction.DISCONNECT),
        ("memory", Signal.OUTBOUND_BYTES, pool.memory, PolicyAction.OFFLINE),
    ):
        rules.append(Rule(f"amps.client_max_capacity.{name}", "ClientMaxCapacity", transport, signal, Shape.PERCENT_OF,
                          whole * percent // 100, (Rung(action),), document.revision))  # fmt: skip
    return rules


def pool_rules(pool: PoolLimits, revision: int) -> list[Rule]:
    """The rules that choose the largest user of a pool."""
    return [
        Rule(f"amps.{name}", setting, pool.name, signal, Shape.LARGEST_WHEN_POOL_OVER, limit, (Rung(action),), revision)
        for name, setting, signal, limit, action in (
            ("message_disk_limit", "MessageDiskLimit", Signal.POOL_DISK, pool.disk, PolicyAction.DISCONNECT),
            ("message_memory_limit", "MessageMemoryLimit", Signal.POOL_MEMORY, pool.memory, PolicyAction.OFFLINE),
        )
    ]  # fmt: skip


def settings(document: PolicyDocument, transport: str) -> dict[str, Effective]:
    """AMPS's settings of a transport, each with where it is set."""
    layers = [_layer("instance", document)]
    layers += [_layer(f"transport {own.name}", own) for own in document.transports if own.name == transport]
    return effective(layers, dict.fromkeys(AMPS))


def _layer(origin: str, source: PolicyDocument | TransportSettings) -> Layer:
    fields = set_fields(source.pool, AMPS_POOL) | set_fields(source.client_policy, AMPS_CLIENT)
    return Layer(origin, Scope(), fields)
