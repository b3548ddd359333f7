"""Scopes: whom a setting applies to, which of two is the more specific, and the settings that come of their layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from broker_core.config import Scope
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


def by_specificity(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The least specific first; of equals, the one that stands later in the policy wins."""
    return tuple(sorted(layers, key=lambda layer: specificity(layer.scope)))


def specificity(scope: Scope) -> tuple[tuple[int, int, int], ...]:
    """Greater is more specific: subscription, client, user, transport, topic."""
    return (
        (1 if scope.subscription else 0, 0, 0),
        _of_glob(scope.client),
        (1 if scope.user else 0, 0, 0),
        (1 if scope.transport else 0, 0, 0),
        _of_topic(scope.topic),
    )


def matches(scope: Scope, subject: Subject) -> bool:
    """Whether the scope is about that client or subscription."""
    return (
        (not scope.transport or scope.transport == subject.transport)
        and (not scope.user or scope.user == subject.user)
        and (not scope.client or glob(scope.client, subject.client))
        and (not scope.topic or (subject.topic != "" and covers(scope.topic, subject.topic)))
        and (not scope.subscription or scope.subscription in (subject.subscription, subject.name))
    )


def glob(pattern: str, name: str) -> bool:
    """Whether a name fits a pattern in which "*" stands for any characters."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    *middle, last = rest
    place = len(first)
    for part in middle:
        found = name.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return name.endswith(last) and len(name) - len(last) >= place


@lru_cache(maxsize=8_192)
def covers(pattern: str, topic: str) -> bool:
    """Whether a pattern names every topic that a subscription's topic or pattern names.

    Qpid's "#" at the end stands for any number of levels, none included.
    """
    if pattern == topic:
        return True
    if pattern == "#":
        return covers(">", topic)
    if pattern.endswith(".#"):
        return topic == pattern[:-2] or covers(f"{pattern[:-2]}.>", topic)
    if topic.startswith("~"):
        return False
    if pattern.startswith("~"):
        return _is_exact(topic) and _matches(pattern, topic)
    if topic.startswith("$") and not pattern.startswith("$"):
        return False
    return _levels_cover(pattern.split("."), topic.split("."))


def _levels_cover(pattern: list[str], topic: list[str]) -> bool:
    for place, level in enumerate(pattern):
        if level == ">":
            return len(topic) > place
        if place >= len(topic) or topic[place] == ">" or level not in ("*", topic[place]):
            return False
    return len(topic) == len(pattern)


def _is_exact(topic: str) -> bool:
    return not any(level in ("*", ">") for level in topic.split("."))


def _matches(pattern: str, topic: str) -> bool:
    try:
        return TopicPattern.parse(pattern).matches(topic)
    except ClientError:
        return False  # review() has refused it, or it comes from an older revision


def _of_glob(pattern: str) -> tuple[int, int, int]:
    return (0, 0, 0) if not pattern else (1, int("*" not in pattern), len(pattern))


def _of_topic(pattern: str) -> tuple[int, int, int]:
    """An exact topic before "*", before an expression, before ">"; among those, more literal levels."""
    if not pattern:
        return (0, 0, 0)
    if pattern.startswith("~"):
        return (2, 0, len(pattern))
    levels = pattern.split(".")
    literal = sum(level not in ("*", ">", "#") for level in levels)
    rank = 1 if levels[-1] in (">", "#") else 4 if literal == len(levels) else 3
    return (rank, literal, len(levels))
