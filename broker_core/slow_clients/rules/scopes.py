"""Scopes: whom a setting applies to, which of two is the more specific, and the settings that come of their layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from broker_core.config import Scope, scopes
from broker_core.config.scopes import glob, specificity
from broker_core.errors import ClientError
from broker_core.subscriptions.topics import TopicPattern


class Subject(NamedTuple):
    """A client, or with a topic one of its subscriptions."""

    transport: str
    user: str = ""
    client: str = ""
    topic: str = ""
    subscription: str = ""
    """Its id."""
    name: str = ""
    """Of a durable subscription."""


class Layer(NamedTuple):
    """Settings for a scope. `origin` is how an operator finds them."""

    origin: str
    scope: Scope
    fields: Mapping[str, Any]


class Effective(NamedTuple):
    """A value in force, and where it comes from."""

    value: Any
    origin: str


def effective(layers: Iterable[Layer], defaults: Mapping[str, Any]) -> dict[str, Effective]:
    """The layers (the least specific first) laid over each other field by field, over the defaults."""
    merged = {field: Effective(value, "default") for field, value in defaults.items()}
    for layer in layers:
        for field, value in layer.fields.items():
            merged[field] = Effective(value, layer.origin)
    return merged


def by_specificity(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """The least specific first; of equals, the one that stands later in the policy wins."""
    return tuple(sorted(layers, key=lambda layer: specificity(layer.scope)))


def _about(scope: Scope, subject: Subject) -> bool:
    """Whether the scope is about that client or subscription, topics apart."""
    return (
        (not scope.transport or scope.transport == subject.transport)
        and (not scope.user or scope.user == subject.user)
        and (not scope.client or glob(scope.client, subject.client))
        and (not scope.subscription or scope.subscription in (subject.subscription, subject.name))
    )


@lru_cache(maxsize=8_192)
def covers(pattern: str, topic: str) -> bool:
    """Whether a pattern names every topic that a subscription's topic or pattern names, expressions included."""
    return scopes.covers(pattern, topic, _expressed)


def _expressed(pattern: str, topic: str) -> bool:
    try:
        return TopicPattern.parse(pattern).matches(topic)
    except ClientError:
        return False  # review() has refused it, or it comes from an older revision


def subject_of(scope: Scope) -> Subject:
    """Anybody to whom a scope applies: what matches it applies wherever the scope does."""
    return Subject(
        scope.transport, scope.user, scope.client, scope.topic, scope.subscription, scope.subscription
    )


class _Level:
    """One level of the topics that layers are for: which layers end here, and what comes after."""

    __slots__ = ("after", "below", "here")

    def __init__(self) -> None:
        self.here: list[int] = []
        """Of patterns that end here."""
        self.below: list[int] = []
        """Of patterns with ">" here: one level more, or many."""
        self.after: dict[str, _Level] = {}

    def at(self, levels: Sequence[str]) -> _Level:
        """The level to which these lead, made where there was none."""
        level = self
        for word in levels:
            level = level.after.setdefault(word, _Level())
        return level

    def covering(self, levels: Sequence[str], place: int, found: list[int]) -> None:
        """The layers whose patterns cover what begins with what led here and goes on with `levels[place:]`."""
        if place == len(levels):
            found += self.here
            return
        found += self.below
        word = levels[place]
        if (literal := self.after.get(word)) is not None:
            literal.covering(levels, place + 1, found)
        if word not in ("*", ">") and (any_word := self.after.get("*")) is not None:
            any_word.covering(levels, place + 1, found)


class Layers:
    """Layers by scope, over defaults. Who asks for a subscription's goes down its topic's levels and meets few of the others."""

    def __init__(self, layers: Iterable[Layer], defaults: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._defaults = defaults
        self._all = by_specificity(layers)
        self._any_topic = [place for place, layer in enumerate(self._all) if not layer.scope.topic]
        self._expressions = [
            place for place, layer in enumerate(self._all) if layer.scope.topic.startswith("~")
        ]
        self._root = _Level()
        for place, layer in enumerate(self._all):
            topic = layer.scope.topic
            if topic and not topic.startswith("~"):
                self._enter(place, topic.split("."))

    def _enter(self, place: int, levels: list[str]) -> None:
        if levels[-1] not in (">", "#"):
            self._root.at(levels).here.append(place)
            return
        last = self._root.at(levels[:-1])
        last.below.append(place)
        if levels[-1] == "#" and levels[:-1]:  # Qpid's: none included
            last.here.append(place)

    def __bool__(self) -> bool:
        return bool(self._all)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._all)

    def of(self, subject: Subject) -> list[Layer]:
        """Those that apply, the least specific first."""
        places = list(self._any_topic)
        if topic := subject.topic:
            places += [place for place in self._expressions if covers(self._all[place].scope.topic, topic)]
            if not topic.startswith("~"):
                self._descend(topic, places)
            places.sort()
        return [layer for place in places if _about((layer := self._all[place]).scope, subject)]

    def effective(self, subject: Subject) -> dict[str, Effective]:
        """What holds for a client or subscription, with where it comes from."""
        return effective(self.of(subject), self._defaults)

    def values(self, subject: Subject) -> dict[str, Any]:
        """What holds for it."""
        return {field: one.value for field, one in self.effective(subject).items()}

    def _descend(self, topic: str, places: list[int]) -> None:
        levels = topic.split(".")
        if not topic.startswith("$"):
            self._root.covering(levels, 0, places)
        elif (
            first := self._root.after.get(levels[0])
        ) is not None:  # only what names it begins with "$" itself
            first.covering(levels, 1, places)
