"""A rule book: all rules of a revision, resolved for whoever asks. The most specific setting wins, field by field.

Immutable but for a memory of answers: clients and subscriptions for whom the same settings hold share their rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from broker_core.config import PolicyDocument, Scope, TransportSettings
from broker_core.config.vocabulary import Mode
from broker_core.slow_clients.presets import activemq, amps, custom, qpid, xap
from broker_core.slow_clients.rules import INSTANCE, Choice, PoolLimits, Rule, in_shadow
from broker_core.slow_clients.scopes import Effective, Layer, Subject, by_specificity, effective, matches


class RuleBook:
    """The rules of a policy document, given its pools (`amps.resolve_pools`)."""

    def __init__(self, document: PolicyDocument, pools: Mapping[str, PoolLimits], *, shadow: bool = False) -> None:
        self.revision = document.revision
        self._document = document
        self._pools = pools
        self._shadow = shadow
        self._xap = by_specificity(xap.layers(document))
        self._activemq = by_specificity(activemq.layers(document))
        self._qpid = by_specificity(qpid.layers(document))
        named = custom.layers(document)
        pooled = {name: by_specificity(entries) for name, entries in named.items() if custom.is_pooled(entries)}
        self._custom = {name: by_specificity(entries) for name, entries in named.items() if name not in pooled}
        self._narrow = {name for name in self._custom if custom.is_per_subscription(list(self._custom[name]))}
        self._amps = amps.compile_rules(document, pools)
        self.pool_rules = self._moded([*self._amps_pool_rules(), *self._custom_pool_rules(pooled)])
        """Rules that choose the largest user of a pool; `scope` is the pool's name."""
        self._answers: dict[tuple[object, ...], tuple[Rule, ...]] = {}

    @property
    def watches_subscriptions(self) -> bool:
        """Whether any rule is about single subscriptions."""
        return bool(self._activemq or self._qpid or self._narrow)

    @property
    def has_shadow(self) -> bool:
        """Whether any rule may be in shadow mode."""
        document = self._document
        presets = [entry.mode for entries in (document.xap, document.activemq, document.qpid) for entry in entries]
        own = [entry.mode or Mode.SHADOW for entry in document.rules]
        return self._shadow or Mode.SHADOW in (*presets, *own)

    def in_shadow(self) -> RuleBook:
        """The same rules, none of which is carried out."""
        return RuleBook(self._document, self._pools, shadow=True)

    def of_client(self, subject: Subject) -> tuple[Rule, ...]:
        """The rules about a client itself, in the order of judging."""
        wide = {name: layers for name, layers in self._custom.items() if name not in self._narrow}
        key = ("client", subject.transport, *_matching((self._xap, *wide.values()), subject))
        if key not in self._answers:
            self._answers[key] = self._moded(self._client_rules(subject, wide))
        return self._answers[key]

    def of_subscription(self, subject: Subject, *, durable: bool = False, prefetch: int = 0) -> tuple[Rule, ...]:
        """The rules about one of its subscriptions."""
        if not self.watches_subscriptions:
            return ()
        narrow = {name: self._custom[name] for name in self._narrow}
        layers = (self._activemq, self._qpid, *narrow.values())
        key = (subject.transport, durable, prefetch, *_matching(layers, subject))
        if key not in self._answers:
            self._answers[key] = self._moded(self._subscription_rules(subject, narrow, durable, prefetch))
        return self._answers[key]

    def prefetch_of(self, subject: Subject) -> int | None:
        """The prefetch that policy sets for a subscription; None: what it asks for."""
        value: int | None = _values(effective(_of(self._activemq, subject), activemq.DEFAULTS))["prefetch"]
        return value

    def effective(self, subject: Subject) -> dict[str, Effective]:
        """Every setting in force for a client, or with a topic for its subscription: value and origin."""
        found = {f"amps.{key}": value for key, value in _amps_settings(self._document, subject.transport).items()}
        groups: list[tuple[str, Iterable[Layer], Mapping[str, Any]]] = [("xap", self._xap, xap.DEFAULTS)]
        if subject.topic:
            groups += [("activemq", self._activemq, activemq.DEFAULTS), ("qpid", self._qpid, qpid.DEFAULTS)]
        groups += [(name, layers, custom.DEFAULTS) for name, layers in self._custom.items()]
        for name, layers, defaults in groups:
            if matching := _of(layers, subject):
                merged = effective(matching, defaults)
                found |= {f"{name}.{key}": value for key, value in merged.items()}
        return found

    # ------------------------------------------------------------------------------------------ compiling

    def _pool(self, transport: str) -> PoolLimits:
        return self._pools.get(transport) or self._pools[INSTANCE]

    def _moded(self, rules: Iterable[Rule]) -> tuple[Rule, ...]:
        kept = tuple(rule for rule in rules if rule.mode is not Mode.OFF)
        return in_shadow(kept) if self._shadow else kept

    def _amps_pool_rules(self) -> list[Rule]:
        return [rule for rule in self._amps if rule.choose is Choice.LARGEST_IN_POOL]

    def _client_rules(self, subject: Subject, wide: Mapping[str, tuple[Layer, ...]]) -> Iterator[Rule]:
        own = [rule for rule in self._amps if rule.choose is Choice.SELF]
        yield from [r for r in own if r.scope == subject.transport] or [r for r in own if r.scope == INSTANCE]
        yield from xap.rules(_values(effective(_of(self._xap, subject), xap.DEFAULTS)), self.revision)
        for name, layers in wide.items():
            settings = _values(effective(_of(layers, subject), custom.DEFAULTS))
            if rule := custom.rule(name, settings, self._pool(subject.transport), self.revision):
                yield rule

    def _subscription_rules(
        self, subject: Subject, narrow: Mapping[str, tuple[Layer, ...]], durable: bool, prefetch: int
    ) -> Iterator[Rule]:
        settings = _values(effective(_of(self._activemq, subject), activemq.DEFAULTS))
        yield from activemq.rules(settings, self.revision, durable=durable, prefetch=prefetch)
        yield from qpid.rules(
            _values(effective(_of(self._qpid, subject), qpid.DEFAULTS)), self.revision, durable=durable
        )
        for name, layers in narrow.items():
            settings, pool = _values(effective(_of(layers, subject), custom.DEFAULTS)), self._pool(subject.transport)
            if rule := custom.rule(name, settings, pool, self.revision, per_subscription=True):
                yield rule

    def _custom_pool_rules(self, pooled: Mapping[str, tuple[Layer, ...]]) -> Iterator[Rule]:
        """Each pool's, with the settings of the instance or of the transport whose own pool it is."""
        for limits in {limits.name: limits for limits in self._pools.values()}.values():
            transport = amps.transport_of_pool(limits.name)
            for name, layers in pooled.items():
                settings = _values(effective(_of(layers, Subject(transport)), custom.DEFAULTS))
                if rule := custom.rule(name, settings, limits, self.revision, scope=limits.name):
                    yield replace(rule, choose=Choice.LARGEST_IN_POOL, at_tick=True)


def _of(layers: Iterable[Layer], subject: Subject) -> list[Layer]:
    return [layer for layer in layers if matches(layer.scope, subject)]


def _matching(groups: Iterable[Iterable[Layer]], subject: Subject) -> tuple[str, ...]:
    """Which layers apply: what the memory of answers goes by."""
    return tuple(layer.origin for layers in groups for layer in layers if matches(layer.scope, subject))


def _values(merged: Mapping[str, Effective]) -> dict[str, Any]:
    return {field: entry.value for field, entry in merged.items()}


def _amps_settings(document: PolicyDocument, transport: str) -> dict[str, Effective]:
    """AMPS's settings of a transport, each with where it is set."""
    defaults = dict.fromkeys((*document.pool.__dataclass_fields__, *document.client_policy.__dataclass_fields__))
    layers = [_amps_layer("instance", document)]
    layers += [_amps_layer(f"transport {own.name}", own) for own in document.transports if own.name == transport]
    return effective(layers, defaults)


def _amps_layer(origin: str, source: PolicyDocument | TransportSettings) -> Layer:
    fields = {
        name: value
        for part in (source.pool, source.client_policy)
        for name in part.__dataclass_fields__
        if (value := getattr(part, name)) is not None
    }
    return Layer(origin, Scope(), fields)

