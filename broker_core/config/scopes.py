"""Scopes: the clients or subscriptions that a setting applies to, and comparisons between scopes. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True)
class Scope:
    """Clients or subscriptions that a setting applies to.

    All non-empty fields must match; an empty scope matches all.

    Attributes:
        transport: Name of a transport.
        topic: Topic or pattern. Each subscription to it, or to a part of it, is measured separately.
        user: Name of a user.
        client: Name of a client, in which `*` matches any characters.
        subscription: Id of a subscription, or the name of a durable one.
    """

    transport: str = ""
    topic: str = ""
    user: str = ""
    client: str = ""
    subscription: str = ""

    @property
    def per_subscription(self) -> bool:
        """Whether the scope selects subscriptions rather than whole clients."""
        return bool(self.topic or self.subscription)

    def __str__(self) -> str:
        named = [f"{key.name} {value}" for key in fields(self) if (value := getattr(self, key.name))]
        return ", ".join(named) or "instance"


EVERYBODY: Final = Scope()


def specificity(scope: Scope) -> tuple[tuple[int, int, int], ...]:
    """Return a sort key; a greater key is more specific.

    The fields count in the order subscription, client, user, transport, topic.
    """
    return (
        (1 if scope.subscription else 0, 0, 0),
        _of_glob(scope.client),
        (1 if scope.user else 0, 0, 0),
        (1 if scope.transport else 0, 0, 0),
        _of_topic(scope.topic),
    )


def is_scope_within(wide: Scope, narrow: Scope) -> bool:
    """Return whether `wide` applies wherever `narrow` does, as far as their text shows.

    A regular expression ("~…") is only known to be within itself.
    """
    return (
        wide.transport in ("", narrow.transport)
        and wide.user in ("", narrow.user)
        and wide.subscription in ("", narrow.subscription)
        and (not wide.client or (narrow.client != "" and glob_matches(wide.client, narrow.client)))
        and (not wide.topic or (narrow.topic != "" and pattern_covers(wide.topic, narrow.topic)))
    )


def intersect_scopes(one: Scope, other: Scope) -> Scope | None:
    """Return the scope that both scopes have in common.

    Of two patterns, the narrower one is taken if the other covers it. Returns None if the scopes are
    disjoint, or if their common part cannot be expressed.
    """
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
    """Return whether a name matches a pattern in which `*` stands for any characters."""
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
    """Return whether a pattern matches every topic that a subscription's topic or pattern matches.

    Args:
        pattern: Topic pattern. Qpid's `#` at its end stands for any number of levels, including none.
        topic: Topic or pattern of a subscription.
        expressed: Returns whether a regular expression ("~…") matches a topic. Default: never.
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
    """Return whether a topic or pattern names exactly one topic."""
    return not topic.startswith("~") and not any(level in ("*", ">", "#") for level in topic.split("."))


def levels_cover(pattern: list[str], topic: list[str]) -> bool:
    """Return whether a pattern, split into levels, matches every topic that `topic` matches.

    Topics of the broker itself, which begin with `$`, are the caller's concern.
    """
    for place, level in enumerate(pattern):
        if level == ">":
            return len(topic) > place
        if place >= len(topic) or topic[place] == ">" or level not in ("*", topic[place]):
            return False
    return len(topic) == len(pattern)


def _of_glob(pattern: str) -> tuple[int, int, int]:
    return (0, 0, 0) if not pattern else (1, int("*" not in pattern), len(pattern))


def _of_topic(pattern: str) -> tuple[int, int, int]:
    """Return the sort key of a topic pattern.

    Order: exact topics, then patterns with `*`, then regular expressions, then patterns with `>`. Within one
    kind, more literal levels are more specific.
    """
    if not pattern:
        return (0, 0, 0)
    if pattern.startswith("~"):
        return (2, 0, len(pattern))
    levels = pattern.split(".")
    literal = sum(level not in ("*", ">", "#") for level in levels)
    rank = 1 if levels[-1] in (">", "#") else 4 if literal == len(levels) else 3
    return (rank, literal, len(levels))
