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

from collections.abc import Mapping
from typing import Final

from broker_core.config import ClientPolicy, PolicyDocument, PoolSettings
from broker_core.config.preset_fields import (
    DEFAULT_CLIENT_MAX_CAPACITY,
    DEFAULT_DISK_LIMIT,
    DEFAULT_MEMORY_PERCENT,
)
from broker_core.config.vocabulary import Action, Choice, Reason, Shape, Signal, Unit
from broker_core.slow_clients.rules.rule import INSTANCE, PoolLimits, Rule, Rung

INSTANCE_POOL: Final = "instance"


def transport_pool(transport: str) -> str:
    """The name of a transport's own pool."""
    return f"transport:{transport}"


def transport_of_pool(pool: str) -> str:
    """The transport whose own pool it is; INSTANCE for the shared one."""
    return pool.removeprefix("transport:") if pool != INSTANCE_POOL else INSTANCE


def pool_limits(
    name: str, settings: PoolSettings, host_memory: int, ulimit: int | None, default_disk_path: str
) -> PoolLimits:
    """A pool's numbers, with AMPS's defaults for what isn't set. Bytes; ulimit None is "unlimited"."""
    memory = settings.message_memory_limit
    if memory is None:
        usable = host_memory if ulimit is None else min(host_memory, ulimit)
        memory = max(1, usable * DEFAULT_MEMORY_PERCENT // 100)
    disk = settings.message_disk_limit
    if disk is None:
        disk = max(DEFAULT_DISK_LIMIT, memory)
    return PoolLimits(name, memory, disk, settings.message_disk_path or default_disk_path)


def resolve_pools(
    document: PolicyDocument, host_memory: int, ulimit: int | None, default_disk_path: str
) -> dict[str, PoolLimits]:
    """Each transport's pool; INSTANCE is the shared one.

    A transport that sets a value that differs from the instance's gets a pool of its own, with the instance's
    values for what it doesn't set; one that repeats the instance's values shares the instance's pool.
    """
    shared = pool_limits(INSTANCE_POOL, document.pool, host_memory, ulimit, default_disk_path)
    pools = {INSTANCE: shared}
    for transport in document.transports:
        merged = _merge(transport.pool, document.pool)
        own = pool_limits(transport_pool(transport.name), merged, host_memory, ulimit, default_disk_path)
        pools[transport.name] = shared if own[1:] == shared[1:] else own
    return pools


def _merge(own: PoolSettings, instance: PoolSettings) -> PoolSettings:
    # The limits are at least 1 and a path isn't empty, so that `or` means "unless set".
    return PoolSettings(
        own.message_memory_limit or instance.message_memory_limit,
        own.message_disk_limit or instance.message_disk_limit,
        own.message_disk_path or instance.message_disk_path,
    )


def compile_rules(document: PolicyDocument, pools: Mapping[str, PoolLimits]) -> tuple[Rule, ...]:
    """All rules of a policy document, given its `resolve_pools`: each transport's, then each pool's.

    The order is that of judging: a client over two of its limits is acted on once, by the first.
    """
    rules = _client_rules(document.client_policy, INSTANCE, pools[INSTANCE], document.revision)
    for transport in document.transports:
        policy = document.client_policy_of(transport)
        rules += _client_rules(policy, transport.name, pools[transport.name], document.revision)
    for limits in {limits.name: limits for limits in pools.values()}.values():
        rules += _pool_rules(limits, document.revision)
    return tuple(rules)


def _client_rules(policy: ClientPolicy, transport: str, pool: PoolLimits, revision: int) -> list[Rule]:
    rules = []
    if policy.client_message_age_limit_ms is not None:
        rules.append(
            Rule(
                "amps.client_message_age_limit",
                "ClientMessageAgeLimit",
                transport,
                Signal.OLDEST_AGE,
                Shape.HARD,
                policy.client_message_age_limit_ms,
                Unit.MILLISECONDS,
                Choice.SELF,
                (Rung(Action.DISCONNECT),),
                Reason.AGE,
                revision,
            )
        )
    percent = policy.client_max_capacity or DEFAULT_CLIENT_MAX_CAPACITY
    for name, signal, whole, action, reason in (
        ("disk", Signal.SPOOL_BYTES, pool.disk, Action.DISCONNECT, Reason.CAPACITY),
        ("memory", Signal.OUTBOUND_BYTES, pool.memory, Action.OFFLINE, Reason.MEMORY_CAPACITY),
    ):
        rules.append(
            Rule(
                f"amps.client_max_capacity.{name}",
                "ClientMaxCapacity",
                transport,
                signal,
                Shape.PERCENT_OF,
                whole * percent // 100,
                Unit.BYTES,
                Choice.SELF,
                (Rung(action),),
                reason,
                revision,
                percent,
            )
        )
    return rules


def _pool_rules(pool: PoolLimits, revision: int) -> list[Rule]:
    return [
        Rule(name, setting, pool.name, signal, Shape.LARGEST_WHEN_POOL_OVER, limit, Unit.BYTES,
             Choice.LARGEST_IN_POOL, (Rung(action),), reason, revision)
        for name, setting, signal, limit, action, reason in (
            ("amps.message_disk_limit", "MessageDiskLimit", Signal.POOL_DISK, pool.disk,
             Action.DISCONNECT, Reason.DISK),
            ("amps.message_memory_limit", "MessageMemoryLimit", Signal.POOL_MEMORY, pool.memory,
             Action.OFFLINE, Reason.POOL_MEMORY),
        )
    ]  # fmt: skip
