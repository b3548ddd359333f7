"""Scopes: whom a setting applies to, which of two is the more specific, and the settings that come of their layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from broker_core.config import Scope, scopes
from broker_core.config.scopes import glob_matches, specificity
from broker_core.errors import ClientError
from broker_core.subscriptions.registry import PatternIndex
from broker_core.subscriptions.topics import TopicPattern


class RuleSubject(NamedTuple):
    """A client, or with a topic one of its subscriptions."""

    transport: str
    user: str = ""
    client: str = ""
    topic: str = ""
    subscription: str = ""
    """Its id."""
    name: str = ""
    """Of a durable subscription."""


class SettingsLayer(NamedTuple):
    """Settings for a scope. `origin` is how an operator finds them."""

    origin: str
    scope: Scope
    fields: Mapping[str, Any]


class EffectiveValue(NamedTuple):
    """A value in force, and where it comes from."""

    value: Any
    origin: str


def merge_layers(layers: Iterable[SettingsLayer], defaults: Mapping[str, Any]) -> dict[str, EffectiveValue]:
    """The layers (the least specific first) laid over each other field by field, over the defaults."""
    merged = {field: EffectiveValue(value, "default") for field, value in defaults.items()}
    for layer in layers:
        for field, value in layer.fields.items():
            merged[field] = EffectiveValue(value, layer.origin)
    return merged


def sort_by_specificity(layers: Iterable[SettingsLayer]) -> tuple[SettingsLayer, ...]:
    """The least specific first; of equals, the one that stands later in the policy wins."""
    return tuple(sorted(layers, key=lambda layer: specificity(layer.scope)))


def scope_matches(scope: Scope, subject: RuleSubject) -> bool:
    """Whether the scope is about that client or subscription."""
    return (
        scope.transport in ("", subject.transport)
        and scope.user in ("", subject.user)
        and (not scope.client or glob_matches(scope.client, subject.client))
        and scope.subscription in ("", subject.subscription, subject.name)
        and (not scope.topic or (subject.topic != "" and topic_pattern_covers(scope.topic, subject.topic)))
    )


@lru_cache(maxsize=8_192)
def topic_pattern_covers(pattern: str, topic: str) -> bool:
    """Whether a pattern names every topic that a subscription's topic or pattern names, expressions included."""
    return scopes.pattern_covers(pattern, topic, _expressed)


def _expressed(pattern: str, topic: str) -> bool:
    try:
        return TopicPattern.parse(pattern).matches(topic)
    except ClientError:
        return False  # review() has refused it, or it comes from an older revision


def example_subject(scope: Scope) -> RuleSubject:
    """Anybody to whom a scope applies: what matches it applies wherever the scope does."""
    return RuleSubject(
        scope.transport, scope.user, scope.client, scope.topic, scope.subscription, scope.subscription
    )


class LayeredSettings:
    """Layers by scope, over defaults. Who asks for a subscription's goes down its topic's levels and meets few of the others."""

    def __init__(
        self, layers: Iterable[SettingsLayer], defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._defaults = defaults
        self._all = sort_by_specificity(layers)
        self._anywhere: list[int] = []
        """Those that no level tells: without a topic, or with an expression."""
        self._index = PatternIndex[int]()
        for place, layer in enumerate(self._all):
            *before, last = layer.scope.topic.split(".")
            if last == "#":  # Qpid's: none included
                self._index.add([*before, ">"], place)
                self._index.add(before, place)
            elif layer.scope.topic and not layer.scope.topic.startswith("~"):
                self._index.add([*before, last], place)
            else:
                self._anywhere.append(place)

    def __bool__(self) -> bool:
        return bool(self._all)

    def __iter__(self) -> Iterator[SettingsLayer]:
        return iter(self._all)

    def layers_for(self, subject: RuleSubject) -> list[SettingsLayer]:
        """Those that apply, the least specific first."""
        places = [*self._anywhere, *(self._index.candidates(subject.topic) if subject.topic else ())]
        return [
            self._all[place] for place in sorted(places) if scope_matches(self._all[place].scope, subject)
        ]

    def effective(self, subject: RuleSubject) -> dict[str, EffectiveValue]:
        """What holds for a client or subscription, with where it comes from."""
        return merge_layers(self.layers_for(subject), self._defaults)

    def values(self, subject: RuleSubject) -> Mapping[str, Any]:
        """What holds for it."""
        if not self._all:
            return self._defaults
        return {field: one.value for field, one in self.effective(subject).items()}
