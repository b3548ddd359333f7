"""Scopes: whom a setting applies to, and how scopes stand to each other. Pure; without clients at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True)
class Scope:
    """Whom something applies to: everything that is set must match. Nothing set is the whole instance.

    transport      a transport's name
    topic          a topic or pattern: each subscription to it, or to part of it, is measured alone
    user           a user's name
    client         a client's name, where "*" stands for any characters
    subscription   a subscription's id, or the name of a durable one
    """

    transport: str = ""
    topic: str = ""
    user: str = ""
    client: str = ""
    subscription: str = ""

    @property
    def per_subscription(self) -> bool:
        """Whether it speaks of subscriptions rather than of clients."""
        return bool(self.topic or self.subscription)

    def __str__(self) -> str:
        named = [f"{key.name} {value}" for key in fields(self) if (value := getattr(self, key.name))]
        return ", ".join(named) or "instance"


EVERYBODY: Final = Scope()


def specificity(scope: Scope) -> tuple[tuple[int, int, int], ...]:
    """Greater is more specific: subscription, client, user, transport, topic."""
    return (
        (1 if scope.subscription else 0, 0, 0),
        _of_glob(scope.client),
        (1 if scope.user else 0, 0, 0),
        (1 if scope.transport else 0, 0, 0),
        _of_topic(scope.topic),
    )


def is_scope_within(wide: Scope, narrow: Scope) -> bool:
    """Whether one scope applies wherever the other does, as far as can be said without the clients. Of an expression
    ("~") that is known only for itself."""
    return (
        wide.transport in ("", narrow.transport)
        and wide.user in ("", narrow.user)
        and wide.subscription in ("", narrow.subscription)
        and (not wide.client or (narrow.client != "" and glob_matches(wide.client, narrow.client)))
        and (not wide.topic or (narrow.topic != "" and pattern_covers(wide.topic, narrow.topic)))
    )


def intersect_scopes(one: Scope, other: Scope) -> Scope | None:
    """The scope of those whom both are about, where that can be said: of two patterns the narrower, if one covers the
    other; None where they have nobody in common for certain, or it can't be said."""
    found: dict[str, str] = {}
    for key in fields(Scope):
        mine, its = getattr(one, key.name), getattr(other, key.name)
        if is_scope_within(Scope(**{key.name: mine}), Scope(**{key.name: its})):
            found[key.name] = its
        elif is_scope_within(Scope(**{key.name: its}), Scope(**{key.name: mine})):
            found[key.name] = mine
        else:
            return None
    return Scope(**found)


def glob_matches(pattern: str, name: str) -> bool:
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


def _unknown(expression: str, topic: str) -> bool:
    return False


def pattern_covers(pattern: str, topic: str, expressed: Callable[[str, str], bool] = _unknown) -> bool:
    """Whether a pattern names every topic that a subscription's topic or pattern names.

    Qpid's "#" at the end stands for any number of levels, none included. `expressed` says whether an expression ("~…")
    names a topic.
    """
    if pattern == topic:
        return True
    if pattern == "#":
        return pattern_covers(">", topic)
    if pattern.endswith(".#"):
        return topic == pattern[:-2] or pattern_covers(f"{pattern[:-2]}.>", topic)
    if topic.startswith("~"):
        return False
    if pattern.startswith("~"):
        return is_exact(topic) and expressed(pattern, topic)
    if topic.startswith("$") and not pattern.startswith("$"):
        return False
    return levels_cover(pattern.split("."), topic.split("."))


def is_exact(topic: str) -> bool:
    """Whether it names one topic."""
    return not topic.startswith("~") and not any(level in ("*", ">", "#") for level in topic.split("."))


def levels_cover(pattern: list[str], topic: list[str]) -> bool:
    """Whether a pattern of levels names every topic that a topic or pattern of levels names, the broker's own apart."""
    for place, level in enumerate(pattern):
        if level == ">":
            return len(topic) > place
        if place >= len(topic) or topic[place] == ">" or level not in ("*", topic[place]):
            return False
    return len(topic) == len(pattern)


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
