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


ALL_CLIENTS: Final = Scope()


def specificity(scope: Scope) -> tuple[tuple[int, int, int], ...]:
    """Return a sort key; a greater key is more specific.

    The fields count in the order subscription, client, user, transport, topic.
    """
    return (
        (1 if scope.subscription else 0, 0, 0),
        _client_rank(scope.client),
        (1 if scope.user else 0, 0, 0),
        (1 if scope.transport else 0, 0, 0),
        _topic_rank(scope.topic),
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
        value, other_value = getattr(one, key.name), getattr(other, key.name)
        if is_scope_within(Scope(**{key.name: value}), Scope(**{key.name: other_value})):
            found[key.name] = other_value
        elif is_scope_within(Scope(**{key.name: other_value}), Scope(**{key.name: value})):
            found[key.name] = value
        else:
            return None
    return Scope(**found)


def glob_matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern in which `*` stands for any characters."""
    first, *later_parts = pattern.split("*")
    if not later_parts:
        return name == pattern
    if not name.startswith(first):
        return False
    *middle, last = later_parts
    position = len(first)
    for literal in middle:
        found = name.find(literal, position)
        if found < 0:
            return False
        position = found + len(literal)
    return name.endswith(last) and len(name) - len(last) >= position


def _never_matches(expression: str, topic: str) -> bool:
    return False


def pattern_covers(
    pattern: str, topic: str, matches_expression: Callable[[str, str], bool] = _never_matches
) -> bool:
    """Return whether a pattern matches every topic that a subscription's topic or pattern matches.

    Args:
        pattern: Topic pattern. Qpid's `#` at its end stands for any number of levels, including none.
        topic: Topic or pattern of a subscription.
        matches_expression: Returns whether a regular expression ("~…") matches a topic. Default: never.
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
        return is_exact(topic) and matches_expression(pattern, topic)
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
    for index, level in enumerate(pattern):
        if level == ">":
            return len(topic) > index
        if index >= len(topic) or topic[index] == ">" or level not in ("*", topic[index]):
            return False
    return len(topic) == len(pattern)


def _client_rank(pattern: str) -> tuple[int, int, int]:
    return (0, 0, 0) if not pattern else (1, int("*" not in pattern), len(pattern))


def _topic_rank(pattern: str) -> tuple[int, int, int]:
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
