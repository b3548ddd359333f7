"""A rule book: all rules of a revision, resolved for whoever asks. The most specific setting wins, field by field.

Immutable but for a memory of answers: clients and subscriptions for whom the same settings hold share their rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from broker_core.config import PolicyDocument, Scope, TransportSettings
from broker_core.config.vocabulary import Choice, Mode
from broker_core.slow_clients.rules.presets import activemq, amps, custom, qpid, xap
from broker_core.slow_clients.rules.rule import INSTANCE, PoolLimits, Rule
from broker_core.slow_clients.rules.scopes import Effective, Layer, Layers, Subject, effective

MOST_KNOWN: Final = 20_000
"""Subscriptions whose rules are remembered; then all are forgotten, since topics come and go."""


class RuleBook:
    """The rules of a policy document, given its pools (`amps.resolve_pools`)."""

    def __init__(self, document: PolicyDocument, pools: Mapping[str, PoolLimits]) -> None:
        self.revision = document.revision
        self._document = document
        self.pools = pools
        self._xap = Layers(xap.layers(document))
        self._activemq = Layers(activemq.layers(document))
        self._qpid = Layers(qpid.layers(document))
        named = custom.own_rules(document)
        self._wide = {
            name: Layers(own.layers)
            for name, own in named.items()
            if not (own.per_subscription or own.pooled)
        }
        self._narrow = {
            name: Layers(own.layers) for name, own in named.items() if own.per_subscription and not own.pooled
        }
        self._pooled = {name: Layers(own.layers) for name, own in named.items() if own.pooled}
        self._amps = amps.compile_rules(document, pools)
        self.pool_rules = _without_off([*self._amps_pool_rules(), *self._custom_pool_rules()])
        """Rules that choose the largest user of a pool; `scope` is the pool's name."""
        self._answers: dict[tuple[object, ...], tuple[Rule, ...]] = {}
        """By which layers apply: whoever the same settings hold for shares its rules."""
        self._known: dict[tuple[object, ...], tuple[Rule, ...]] = {}
        """By all of a subscription that a scope of this policy speaks of."""
        self._of_subscriptions = Layers([
            layer for group in (self._activemq, self._qpid, *self._narrow.values()) for layer in group
        ])  # fmt: skip
        scoped = [layer.scope for layer in self._of_subscriptions]
        self._by_user, self._by_client, self._by_subscription = (
            any(getattr(scope, field) for scope in scoped) for field in ("user", "client", "subscription")
        )

    @property
    def watches_subscriptions(self) -> bool:
        """Whether any rule is about single subscriptions."""
        return bool(self._of_subscriptions)

    @property
    def has_shadow(self) -> bool:
        """Whether any rule may be in shadow mode."""
        document = self._document
        presets = [
            entry.mode for entries in (document.xap, document.activemq, document.qpid) for entry in entries
        ]
        own = [entry.mode or Mode.SHADOW for entry in document.rules]
        return Mode.SHADOW in (*presets, *own)

    def of_client(self, subject: Subject) -> tuple[Rule, ...]:
        """The rules about a client itself, in the order of judging."""
        key = ("client", subject.transport, *_matching((self._xap, *self._wide.values()), subject))
        if key not in self._answers:
            self._answers[key] = _without_off(self._client_rules(subject))
        return self._answers[key]

    def of_subscription(
        self, subject: Subject, *, durable: bool = False, prefetch: int = 0
    ) -> tuple[Rule, ...]:
        """The rules about one of its subscriptions."""
        if not self.watches_subscriptions:
            return ()
        asked = (
            subject.transport, subject.topic, durable, prefetch, subject.user if self._by_user else "",
            subject.client if self._by_client else "", subject[4:] if self._by_subscription else (),
        )  # fmt: skip
        known = self._known.get(asked)
        if known is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[asked] = self._found_for(subject, durable, prefetch)
        return known

    def _found_for(self, subject: Subject, durable: bool, prefetch: int) -> tuple[Rule, ...]:
        key = (subject.transport, durable, prefetch, *_matching((self._of_subscriptions,), subject))
        if key not in self._answers:
            self._answers[key] = _without_off(self._subscription_rules(subject, durable, prefetch))
        return self._answers[key]

    def prefetch_of(self, subject: Subject) -> int | None:
        """The prefetch that policy sets for a subscription; None: what it asks for."""
        value: int | None = _values(effective(self._activemq.of(subject), activemq.DEFAULTS))["prefetch"]
        return value

    def effective(self, subject: Subject) -> dict[str, Effective]:
        """Every setting in force for a client, or with a topic for its subscription: value and origin."""
        found = {
            f"amps.{key}": value for key, value in _amps_settings(self._document, subject.transport).items()
        }
        groups: list[tuple[str, Layers, Mapping[str, Any]]] = [("xap", self._xap, xap.DEFAULTS)]
        if subject.topic:
            groups += [("activemq", self._activemq, activemq.DEFAULTS), ("qpid", self._qpid, qpid.DEFAULTS)]
        groups += [(name, layers, custom.DEFAULTS) for name, layers in (self._wide | self._narrow).items()]
        for name, layers, defaults in groups:
            if matching := layers.of(subject):
                merged = effective(matching, defaults)
                found |= {f"{name}.{key}": value for key, value in merged.items()}
        return found

    # ------------------------------------------------------------------------------------------ compiling

    def _pool(self, transport: str) -> PoolLimits:
        return self.pools.get(transport) or self.pools[INSTANCE]

    def _amps_pool_rules(self) -> list[Rule]:
        return [rule for rule in self._amps if rule.choose is Choice.LARGEST_IN_POOL]

    def _client_rules(self, subject: Subject) -> Iterator[Rule]:
        own = [rule for rule in self._amps if rule.choose is Choice.SELF]
        yield from [r for r in own if r.scope == subject.transport] or [r for r in own if r.scope == INSTANCE]
        yield from xap.rules(_values(effective(self._xap.of(subject), xap.DEFAULTS)), self.revision)
        for name, layers in self._wide.items():
            settings = _values(effective(layers.of(subject), custom.DEFAULTS))
            if rule := custom.rule(name, settings, self._pool(subject.transport), self.revision):
                yield rule

    def _subscription_rules(self, subject: Subject, durable: bool, prefetch: int) -> Iterator[Rule]:
        settings = _values(effective(self._activemq.of(subject), activemq.DEFAULTS))
        yield from activemq.rules(settings, self.revision, durable=durable, prefetch=prefetch)
        settings = _values(effective(self._qpid.of(subject), qpid.DEFAULTS))
        yield from qpid.rules(settings, self.revision, durable=durable)
        for name, layers in self._narrow.items():
            settings, pool = (
                _values(effective(layers.of(subject), custom.DEFAULTS)),
                self._pool(subject.transport),
            )
            if rule := custom.rule(name, settings, pool, self.revision, per_subscription=True):
                yield rule

    def _custom_pool_rules(self) -> Iterator[Rule]:
        """Each pool's, with the settings of the instance or of the transport whose own pool it is."""
        for limits in {limits.name: limits for limits in self.pools.values()}.values():
            transport = amps.transport_of_pool(limits.name)
            for name, layers in self._pooled.items():
                settings = _values(effective(layers.of(Subject(transport)), custom.DEFAULTS))
                if rule := custom.rule(name, settings, limits, self.revision, scope=limits.name):
                    yield replace(rule, choose=Choice.LARGEST_IN_POOL, at_tick=True)


def _without_off(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(rule for rule in rules if rule.mode is not Mode.OFF)


def _matching(groups: Iterable[Layers], subject: Subject) -> tuple[int, ...]:
    """Which layers apply: what the memory of answers goes by. They live as long as the book."""
    return tuple(id(layer) for layers in groups for layer in layers.of(subject))


def _values(merged: Mapping[str, Effective]) -> dict[str, Any]:
    return {field: entry.value for field, entry in merged.items()}


def _amps_settings(document: PolicyDocument, transport: str) -> dict[str, Effective]:
    """AMPS's settings of a transport, each with where it is set."""
    defaults = dict.fromkeys(
        (*document.pool.__dataclass_fields__, *document.client_policy.__dataclass_fields__)
    )
    layers = [_amps_layer("instance", document)]
    layers += [
        _amps_layer(f"transport {own.name}", own) for own in document.transports if own.name == transport
    ]
    return effective(layers, defaults)


def _amps_layer(origin: str, source: PolicyDocument | TransportSettings) -> Layer:
    fields = {
        name: value
        for part in (source.pool, source.client_policy)
        for name in part.__dataclass_fields__
        if (value := getattr(part, name)) is not None
    }
    return Layer(origin, Scope(), fields)
