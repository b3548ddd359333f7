"""Presets: the settings of systems that operators know, and custom rules, compiled to rules.

**ActiveMQ** (seed 003): policy entries by topic, compiled to rules for each subscription.

    constantPendingMessageLimitStrategy
        Limit: messages kept in memory beyond the prefetch, so not dispatched; the oldest are discarded.
        -1, the default, keeps all. Not for durable subscriptions. Dispatched, unacknowledged messages
        count with waiting ones, so the rule's limit is the sum of prefetch and limit. A subscription
        without a window has the policy's prefetch.
    prefetchRatePendingMessageLimitStrategy
        Multiplier of the prefetch, likewise. Where both are set, the lower limit counts.
    abortSlowConsumerStrategy
        A consumer is slow from when messages wait and its prefetch window is full until dispatch resumes.
        maxSlowCount:    -1        aborted when slow this often (-1: any number of times)
        maxSlowDuration: 30000 ms  or aborted when slow this long without a pause (0 or -1: any time)
        checkPeriod:     30000 ms  interval of checks; the worst case is maxSlowDuration + checkPeriod
        abortConnection: false     false: the subscription is ended. ActiveMQ asks the client first, and
                                   removes the consumer itself a second later. true: the connection is closed
    abortSlowAckConsumerStrategy
        A consumer is slow while it owes acknowledgements and its last one is too long ago. It is aborted
        when it was slow at enough checks, one checkPeriod apart. The last two limits count checks.
        maxTimeSinceLastAck: 30000 ms  time without acknowledgement (-1: never slow)
        maxSlowCount:        -1        number of consecutive checks (0 or -1: any number)
        maxSlowDuration:     30000 ms  or checks whose periods add up to this (0 or -1: any number)

The source does not cover subscriptions without a window. Here such a subscription is slow from when its peer
has read nothing for a second until the peer reads. A subscription with a window is slow by this duration too,
because a peer that reads nothing never fills a wide window.

**AMPS**: defaults, pools and rules of its slow-client settings.

    MessageMemoryLimit:    Memory of the pool. Over it, the largest user is offlined.
    MessageDiskLimit:      Disk of the pool. Over it, the largest user is disconnected and its spool removed.
    MessageDiskPath:       Directory of the spools.
    ClientMaxCapacity:     Percentage of the memory limit over which one client is offlined, and of the disk
                           limit over which it is disconnected.
    ClientMessageAgeLimit: Maximum age of the oldest waiting message, in memory or on disk; then the client
                           is disconnected.

A client or a pool exactly at a limit is within it.

**Custom rules** of the operator: entries of one name are merged and compiled, with the pool that their
percentages refer to.

**Qpid** (seed 004): limits by topic key, compiled to rules for each subscription.

    depth:        Bytes that wait for the subscription.
    messageAge:   Age of its oldest message in milliseconds, since the broker accepted it.
    messageCount: Messages that wait for it.

Each of them triggers the Delete policy: the connection ends with 506, resource error. Durable subscriptions
are kept, and their clients stay connected, unless `delete-persistent` is set. Then they are deleted with
their backlog. Operators are notified of a durable subscription that passes a limit and is kept.

**Quotas**: rules for quotas that existing positions can outgrow. `connections.quotas` refuses new ones.
Nothing is removed because of a quota: a client that retains more of the log than allowed is warned, and
operators are notified. For a user's quota, each of the user's clients is warned.

**XAP** (seed 001): its settings compiled to one rule. A client that reads less than `throughput` while
messages wait for it is suspected. It has `latency` to recover, and is checked `retries` times meanwhile. If
it is still below at each check, its subscriptions are cancelled. A subscription is a lease: the client is
notified, takes a snapshot of the current state and subscribes again. Its connection stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from broker_core.config import PolicyDocument, PoolSettings, RuleSettings, Scope, TransportSettings
from broker_core.config.preset_settings import (
    ACTIVEMQ,
    AMPS,
    AMPS_CLIENT,
    AMPS_POOL,
    DEFAULT_CLIENT_MAX_CAPACITY,
    DEFAULT_DISK_LIMIT,
    DEFAULT_MEMORY_PERCENT,
    MAX_PREFETCH,
    PRESETS,
    QPID,
    XAP,
    default_settings,
)
from broker_core.config.rule_terms import (
    POOL_SIGNALS,
    DecisionReason,
    EnforcementMode,
    PolicyAction,
    Shape,
    Signal,
    SignalSubject,
    TargetSelection,
)
from broker_core.config.rules import RULE_FIELDS, Rung, is_per_subscription, rule_contradictions
from broker_core.slow_clients.rules.rule import INSTANCE, TICK_MS, PoolLimits, Rule
from broker_core.slow_clients.rules.scopes import EffectiveValue, LayeredSettings, SettingsLayer, merge_layers

BLOCKED_MS: Final = 1_000
"""Time after which a subscription without a window counts as slow once, if its socket has read nothing."""

ACTIVEMQ_DEFAULTS: Final = default_settings(ACTIVEMQ)


def activemq_rules(
    settings: Mapping[str, Any], revision: int, *, durable: bool, prefetch: int
) -> Iterable[Rule]:
    """Yield the rules of effective settings for a subscription. `prefetch` is its window; 0 without one."""
    common = {"mode": settings["mode"], "per_subscription": True}
    if (pending := pending_limit(settings, prefetch)) is not None and not durable:
        setting, limit = pending
        yield Rule(
            "activemq.pending_message_limit",
            setting,
            "",
            Signal.BACKLOG_MESSAGES,
            Shape.HARD,
            limit + (prefetch or settings["prefetch"] or 0),
            (Rung(PolicyAction.DISCARD_OLDEST),),
            revision,
            **common,
        )
    if settings["abort_slow_ack_consumer_strategy"]:
        yield from _ack_rules(settings, revision, prefetch)
    if not settings["abort_slow_consumer_strategy"]:
        return
    ladder = _abort(settings)
    count, duration, period = (
        settings[key] for key in ("max_slow_count", "max_slow_duration", "check_period")
    )
    signal = Signal.WINDOW_FULL if prefetch else Signal.WRITE_BLOCKED
    if count > 0:
        yield Rule(
            "activemq.max_slow_count",
            "maxSlowCount",
            "",
            signal,
            Shape.COUNT_IN_WINDOW,
            BLOCKED_MS,
            ladder,
            revision,
            # The subscription counts full windows itself; a blocked socket is seen only at checks.
            count=count,
            check_ms=period if prefetch else TICK_MS,
            **common,
        )
    lasting = {"activemq.max_slow_duration": signal}
    if prefetch:
        lasting["activemq.max_slow_duration.blocked"] = Signal.WRITE_BLOCKED
    for name, measured in lasting.items() if duration > 0 else ():
        yield Rule(
            name,
            "maxSlowDuration",
            "",
            measured,
            Shape.HARD,
            duration,
            ladder,
            revision,
            check_ms=period,
            **common,
        )


def checks_until_abort(settings: Mapping[str, Any]) -> int | None:
    """Return the number of consecutive checks at which a consumer must be slow to be aborted; None for never.

    abortSlowAckConsumerStrategy counts checks: `max_slow_duration` is divided by `check_period`.
    """
    if settings["max_time_since_last_ack"] < 0:
        return None
    checks = []
    if (count := settings["max_slow_count"]) > 0:
        checks.append(count)
    if (duration := settings["max_slow_duration"]) > 0:
        checks.append(-(-duration // settings["check_period"]))
    return min(checks, default=None)


def _ack_rules(settings: Mapping[str, Any], revision: int, prefetch: int) -> Iterable[Rule]:
    """Yield the rule of abortSlowAckConsumerStrategy, if it ever aborts.

    Where no application acknowledges, the peer's kernel does. Bytes that it has not read are then owed.
    """
    checks, period = checks_until_abort(settings), settings["check_period"]
    if checks is None:
        return
    # Each check is late by up to a tick. A hold that is one tick shorter needs the same number of checks.
    spare = TICK_MS if period > 2 * TICK_MS else 0
    delay_ms = max((checks - 1) * period - spare, 0)
    yield Rule(
        "activemq.max_time_since_last_ack",
        "maxTimeSinceLastAck",
        "",
        Signal.ACK_SILENCE if prefetch else Signal.WRITE_BLOCKED,
        Shape.SOFT_FOR if delay_ms else Shape.HARD,
        settings["max_time_since_last_ack"],
        _abort(settings),
        revision,
        hold_ms=delay_ms,
        check_ms=period,
        mode=settings["mode"],
        per_subscription=True,
    )


def _abort(settings: Mapping[str, Any]) -> tuple[Rung, ...]:
    """Return the ladder of both abort strategies."""
    return (
        Rung(PolicyAction.DISCONNECT if settings["abort_connection"] else PolicyAction.CANCEL_SUBSCRIPTION),
    )


def pending_limit(settings: Mapping[str, Any], prefetch: int) -> tuple[str, int] | None:
    """Return the strategy that counts and how many messages it keeps beyond the prefetch; None keeps all.

    `prefetch` is the subscription's window; 0 without one.
    """
    limits = []
    if (constant := settings["constant_pending_message_limit_strategy"]) >= 0:
        limits.append((constant, "constantPendingMessageLimitStrategy"))
    if (multiplier := settings["prefetch_rate_pending_message_limit_strategy"]) is not None:
        window = prefetch or settings["prefetch"] or MAX_PREFETCH
        limits.append((int(multiplier * window), "prefetchRatePendingMessageLimitStrategy"))
    if not limits:
        return None
    limit, setting = min(limits)
    return setting, limit


def set_fields(entry: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields that an entry sets."""
    return {name: value for name in names if (value := getattr(entry, name)) is not None}


def preset_layers(document: PolicyDocument, system: str) -> LayeredSettings:
    """Return the document's entries of one system by scope, over that system's defaults.

    `system` is `xap`, `activemq`, `qpid` or `quotas`.
    """
    known, found = default_settings(PRESETS[system]), []
    for entry in getattr(document, system):
        topic, user, transport = getattr(entry, "topic", ""), getattr(entry, "user", ""), entry.transport
        origin = " ".join(filter(None, (system, topic, user, transport)))
        found.append(SettingsLayer(origin, Scope(transport, topic, user), set_fields(entry, known)))
    return LayeredSettings(found, known)


INSTANCE_POOL: Final = "instance"
TRANSPORT_POOL_PREFIX: Final = "transport:"


def transport_for_pool(pool: str) -> str:
    """Return the transport that has a pool to itself; INSTANCE for the shared pool."""
    return pool.removeprefix(TRANSPORT_POOL_PREFIX) if pool != INSTANCE_POOL else INSTANCE


def pool_limits(
    name: str, settings: PoolSettings, host_memory: int, ulimit: int | None, default_disk_path: str
) -> PoolLimits:
    """Return the limits of a pool in bytes, with AMPS's defaults for values that are not set.

    `host_memory` and `ulimit` are bytes; a `ulimit` of None means unlimited.
    """
    # Limits are at least 1 and paths are not empty, so `or` means "unless set", here and below.
    usable = host_memory if ulimit is None else min(host_memory, ulimit)
    memory = settings.message_memory_limit or max(1, usable * DEFAULT_MEMORY_PERCENT // 100)
    disk = settings.message_disk_limit or max(DEFAULT_DISK_LIMIT, memory)
    return PoolLimits(name, memory, disk, settings.message_disk_path or default_disk_path)


def resolve_pools(
    document: PolicyDocument, host_memory: int, ulimit: int | None, default_disk_path: str
) -> dict[str, PoolLimits]:
    """Return the pool of each transport by name; INSTANCE is the shared one.

    A transport that sets a value that differs from the instance's gets a pool of its own, with the instance's
    values for what it does not set. A transport that repeats the instance's values shares the instance's
    pool.
    """
    host = (host_memory, ulimit, default_disk_path)
    shared = pool_limits(INSTANCE_POOL, document.pool, *host)
    pools = {INSTANCE: shared}
    for transport in document.transports:
        merged = PoolSettings(
            **{key: getattr(transport.pool, key) or getattr(document.pool, key) for key in AMPS_POOL}
        )
        limits = pool_limits(TRANSPORT_POOL_PREFIX + transport.name, merged, *host)
        pools[transport.name] = shared if limits[1:] == shared[1:] else limits
    return pools


def client_rules(document: PolicyDocument, transport: str, pool: PoolLimits) -> list[Rule]:
    """Return the AMPS rules about a transport's clients, in the order of judging.

    The first rule acts on a client that is over two of its limits; the client is acted on only once.
    """
    policy = document.client_policy_for(transport)
    age, percent = (
        policy.client_message_age_limit_ms,
        policy.client_max_capacity or DEFAULT_CLIENT_MAX_CAPACITY,
    )
    rules = []
    if age is not None:
        rules.append(
            Rule(
                "amps.client_message_age_limit",
                "ClientMessageAgeLimit",
                transport,
                Signal.OLDEST_AGE,
                Shape.HARD,
                age,
                (Rung(PolicyAction.DISCONNECT),),
                document.revision,
            )
        )
    for name, signal, pool_bytes, action in (
        ("disk", Signal.SPOOL_BYTES, pool.disk, PolicyAction.DISCONNECT),
        ("memory", Signal.OUTBOUND_BYTES, pool.memory, PolicyAction.OFFLINE),
    ):
        rules.append(
            Rule(
                f"amps.client_max_capacity.{name}",
                "ClientMaxCapacity",
                transport,
                signal,
                Shape.PERCENT_OF,
                pool_bytes * percent // 100,
                (Rung(action),),
                document.revision,
            )
        )
    return rules


def pool_rules(pool: PoolLimits, revision: int) -> list[Rule]:
    """Return the AMPS rules that choose the largest user of a pool."""
    return [
        Rule(
            f"amps.{name}",
            setting,
            pool.name,
            signal,
            Shape.LARGEST_WHEN_POOL_OVER,
            limit,
            (Rung(action),),
            revision,
        )
        for name, setting, signal, limit, action in (
            ("message_disk_limit", "MessageDiskLimit", Signal.POOL_DISK, pool.disk, PolicyAction.DISCONNECT),
            (
                "message_memory_limit",
                "MessageMemoryLimit",
                Signal.POOL_MEMORY,
                pool.memory,
                PolicyAction.OFFLINE,
            ),
        )
    ]


def amps_settings(document: PolicyDocument, transport: str) -> dict[str, EffectiveValue]:
    """Return AMPS's settings of a transport, each with its origin."""
    layers = [_layer("instance", document)]
    layers += [
        _layer(f"transport {settings.name}", settings)
        for settings in document.transports
        if settings.name == transport
    ]
    return merge_layers(layers, dict.fromkeys(AMPS))


def _layer(origin: str, source: PolicyDocument | TransportSettings) -> SettingsLayer:
    """Return the AMPS settings of an instance or transport as a layer."""
    fields = set_fields(source.pool, AMPS_POOL) | set_fields(source.client_policy, AMPS_CLIENT)
    return SettingsLayer(origin, Scope(), fields)


CUSTOM_DEFAULTS: Final[dict[str, Any]] = {
    "mode": EnforcementMode.SHADOW,
    "signal": None,
    "shape": Shape.HARD,
    "limit": None,
    "percent": None,
    "hold_ms": 0,
    "window_ms": 0,
    "count": 0,
    "clear": 0,
    "guard_bytes": 1,
    "check_ms": TICK_MS,
    "cooldown_ms": 0,
    "choose": TargetSelection.SELF,
    "protected": (),
    "ladder": (),
    "confirm_delete": False,
}
COPIED_SETTINGS: Final = (
    "signal",
    "shape",
    "ladder",
    "mode",
    "hold_ms",
    "window_ms",
    "count",
    "clear",
    "check_ms",
    "cooldown_ms",
    "guard_bytes",
    "protected",
)
"""Settings that a rule has unchanged."""


class CustomRule(NamedTuple):
    """Custom rule of the operator: its entries, and the subject that it measures."""

    name: str
    layers: LayeredSettings
    measured: SignalSubject

    def compile(self, settings: Mapping[str, Any], pool: PoolLimits, revision: int) -> Rule | None:
        """Return the rule of effective settings; None when they are incomplete or contradict each other.

        Entries whose scopes overlap, without one containing the other, are merged only for the subjects that
        both apply to. So a contradiction may concern these alone.
        """
        per_subscription, pooled = (
            self.measured is SignalSubject.SUBSCRIPTION,
            self.measured is SignalSubject.POOL,
        )
        if any(rule_contradictions(RuleSettings(self.name, **settings), per_subscription)):
            return None
        limit = settings["limit"]
        if settings["shape"] is Shape.PERCENT_OF:
            on_disk = settings["signal"] in (Signal.SPOOL_BYTES, Signal.POOL_DISK)
            limit = (pool.disk if on_disk else pool.memory) * settings["percent"] // 100
        return Rule(
            self.name,
            self.name,
            pool.name if pooled else "",
            limit=limit,
            revision=revision,
            per_subscription=per_subscription,
            at_tick=pooled,
            **{key: settings[key] for key in COPIED_SETTINGS},
        )


def custom_rules(document: PolicyDocument) -> dict[str, CustomRule]:
    """Return the operator's rules by name."""
    named: dict[str, list[RuleSettings]] = {}
    for entry in document.rules:
        named.setdefault(entry.name, []).append(entry)
    return {name: _merge_entries(name, entries) for name, entries in named.items()}


def _merge_entries(name: str, entries: list[RuleSettings]) -> CustomRule:
    """Return the custom rule of all entries with one name."""
    layers = [
        SettingsLayer(f"rule {name} ({entry.scope})", entry.scope, set_fields(entry, RULE_FIELDS))
        for entry in entries
    ]
    if any(entry.signal in POOL_SIGNALS for entry in entries):
        measured = SignalSubject.POOL
    else:
        measured = SignalSubject.SUBSCRIPTION if is_per_subscription(entries) else SignalSubject.CLIENT
    return CustomRule(name, LayeredSettings(layers, CUSTOM_DEFAULTS), measured)


QPID_DEFAULTS: Final = default_settings(QPID)
_LIMITS: Final = {
    "depth": Signal.BACKLOG_BYTES,
    "message_age": Signal.OLDEST_AGE,
    "message_count": Signal.BACKLOG_MESSAGES,
}
"""Signal of each Qpid limit."""


def qpid_rules(settings: Mapping[str, Any], revision: int, *, durable: bool) -> Iterable[Rule]:
    """Yield the rules of effective settings for a subscription."""
    if not durable:
        action = PolicyAction.DISCONNECT
    else:
        action = PolicyAction.DELETE_DURABLE if settings["delete_persistent"] else PolicyAction.NOTIFY
    for name, signal in _LIMITS.items():
        if settings[name] is not None:
            yield Rule(
                f"qpid.{name}",
                QPID[name].word,
                "",
                signal,
                Shape.HARD,
                settings[name],
                (Rung(action),),
                revision,
                DecisionReason.RESOURCE_ERROR,
                mode=settings["mode"],
                per_subscription=True,
            )


QUOTA_SIGNALS: Final = {
    "client_pinned_bytes": Signal.PINNED_BYTES,
    "user_pinned_bytes": Signal.USER_PINNED_BYTES,
}
"""Signal that each quota limits, by setting."""


def quota_rules(settings: Mapping[str, Any], revision: int) -> Iterable[Rule]:
    """Yield the rules of effective settings; none without a quota."""
    for quota, signal in QUOTA_SIGNALS.items():
        if (limit := settings[quota]) is not None:
            yield Rule(
                f"quotas.{quota}", quota, "", signal, Shape.HARD, limit, (Rung(PolicyAction.WARN),), revision
            )


XAP_DEFAULTS: Final = default_settings(XAP)
MIN_CHECK_INTERVAL_MS: Final = 125
"""Minimum time between two checks of one client."""


def xap_rules(settings: Mapping[str, Any], revision: int) -> Iterable[Rule]:
    """Yield the rule of effective settings; none while it is not enabled."""
    if not settings["enabled"]:
        return
    latency, retries = settings["latency"], settings["retries"]
    yield Rule(
        "xap.throughput",
        "throughput",
        "",
        Signal.DRAIN_RATE,
        Shape.RATE_BELOW,
        settings["throughput"],
        (Rung(PolicyAction.CANCEL_SUBSCRIPTION),),
        revision,
        mode=settings["mode"],
        hold_ms=latency,
        window_ms=latency,
        count=retries,
        check_ms=max(MIN_CHECK_INTERVAL_MS, latency // (retries + 1)),
        guard_bytes=1,
    )
