"""Scopes: which clients and subscriptions a setting applies to, and settings merged from several scopes."""

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
    """Client, or with a topic one of its subscriptions, that scopes are matched with."""

    transport: str
    user: str = ""
    client: str = ""
    topic: str = ""
    subscription: str = ""
    """Subscription id."""
    name: str = ""
    """Name of a durable subscription."""


class SettingsLayer(NamedTuple):
    """Settings for a scope. `origin` names the place in the policy where an operator finds them."""

    origin: str
    scope: Scope
    fields: Mapping[str, Any]


class EffectiveValue(NamedTuple):
    """Value in force, and the origin of the setting."""

    value: Any
    origin: str


def merge_layers(layers: Iterable[SettingsLayer], defaults: Mapping[str, Any]) -> dict[str, EffectiveValue]:
    """Merge layers field by field over the defaults; later layers win.

    Pass the least specific layer first.
    """
    merged = {field: EffectiveValue(value, "default") for field, value in defaults.items()}
    for layer in layers:
        for field, value in layer.fields.items():
            merged[field] = EffectiveValue(value, layer.origin)
    return merged


def sort_by_specificity(layers: Iterable[SettingsLayer]) -> tuple[SettingsLayer, ...]:
    """Return the layers, least specific first.

    Of equally specific layers, the later one in the policy comes last, and so wins in `merge_layers`.
    """
    return tuple(sorted(layers, key=lambda layer: specificity(layer.scope)))


def scope_matches(scope: Scope, subject: RuleSubject) -> bool:
    """Return whether a scope applies to a client or subscription."""
    return (
        scope.transport in ("", subject.transport)
        and scope.user in ("", subject.user)
        and (not scope.client or glob_matches(scope.client, subject.client))
        and scope.subscription in ("", subject.subscription, subject.name)
        and (not scope.topic or (subject.topic != "" and topic_pattern_covers(scope.topic, subject.topic)))
    )


@lru_cache(maxsize=8_192)
def topic_pattern_covers(pattern: str, topic: str) -> bool:
    """Return whether a pattern covers every topic that a subscription's topic or pattern can match.

    Regular expressions are included.
    """
    return scopes.pattern_covers(pattern, topic, _expressed)


def _expressed(pattern: str, topic: str) -> bool:
    """Return whether a regular expression matches a topic; False for an invalid one."""
    try:
        return TopicPattern.parse(pattern).matches(topic)
    except ClientError:
        return False  # `review_policy` refuses it; it may come from an older revision


def example_subject(scope: Scope) -> RuleSubject:
    """Return a subject to which a scope applies, for finding the other scopes that always apply with it."""
    return RuleSubject(
        scope.transport, scope.user, scope.client, scope.topic, scope.subscription, scope.subscription
    )


class LayeredSettings:
    """Layers by scope, over defaults.

    An index by topic level finds the layers of a subscription without a test of every layer.
    """

    def __init__(
        self, layers: Iterable[SettingsLayer], defaults: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._defaults = defaults
        self._layers = sort_by_specificity(layers)
        self._anywhere: list[int] = []
        """Positions of layers that the index cannot find: without a topic, or with a regular expression."""
        self._index = PatternIndex[int]()
        for position, layer in enumerate(self._layers):
            *before, last = layer.scope.topic.split(".")
            if last == "#":  # Qpid: also matches no further level
                self._index.add([*before, ">"], position)
                self._index.add(before, position)
            elif layer.scope.topic and not layer.scope.topic.startswith("~"):
                self._index.add([*before, last], position)
            else:
                self._anywhere.append(position)

    def __bool__(self) -> bool:
        return bool(self._layers)

    def __iter__(self) -> Iterator[SettingsLayer]:
        return iter(self._layers)

    def layers_for(self, subject: RuleSubject) -> list[SettingsLayer]:
        """Return the layers that apply to a client or subscription, least specific first."""
        positions = [*self._anywhere, *(self._index.candidates(subject.topic) if subject.topic else ())]
        return [
            self._layers[position]
            for position in sorted(positions)
            if scope_matches(self._layers[position].scope, subject)
        ]

    def effective(self, subject: RuleSubject) -> dict[str, EffectiveValue]:
        """Return the settings in force for a client or subscription, with their origins."""
        return merge_layers(self.layers_for(subject), self._defaults)

    def values(self, subject: RuleSubject) -> Mapping[str, Any]:
        """Return the settings in force for a client or subscription."""
        if not self._layers:
            return self._defaults
        return {field: one.value for field, one in self.effective(subject).items()}
