"""How topic patterns stand to each other: whether one covers another, whether they have topics in common.

Exact for topics and for patterns by levels. What a regular expression covers can't be told in general, so it covers
only itself and topics, and it may have topics in common with anything.
"""

from __future__ import annotations

from broker_core.subscriptions.topics import TopicPattern


def covers(wide: TopicPattern, narrow: TopicPattern) -> bool:
    """Whether every topic of `narrow` is one of `wide`. False when that can't be told."""
    if wide == narrow:
        return True
    if narrow.exact is not None:
        return wide.matches(narrow.exact)
    if _is_expression(wide) or _is_expression(narrow):
        return False
    outer, inner = wide.text.split("."), narrow.text.split(".")
    if _speaks_of_the_brokers_own(outer, inner):
        return False
    for number, level in enumerate(outer):
        if level == ">":
            return len(inner) > number
        if number >= len(inner) or inner[number] == ">" or level not in ("*", inner[number]):
            return False
    return len(outer) == len(inner)


def overlap(one: TopicPattern, other: TopicPattern) -> bool:
    """Whether there may be a topic that both name. False only when there is none."""
    if one.exact is not None:
        return other.matches(one.exact)
    if other.exact is not None:
        return one.matches(other.exact)
    if _is_expression(one) or _is_expression(other):
        return True
    left, right = one.text.split("."), other.text.split(".")
    if _speaks_of_the_brokers_own(left, right) or _speaks_of_the_brokers_own(right, left):
        return False
    for here, there in zip(left, right, strict=False):
        if ">" in (here, there):
            return True
        if "*" not in (here, there) and here != there:
            return False
    return len(left) == len(right)


def _is_expression(pattern: TopicPattern) -> bool:
    return pattern.text.startswith("~")


def _speaks_of_the_brokers_own(outer: list[str], inner: list[str]) -> bool:
    """Wildcards at the first level don't match topics that start with `$`."""
    return inner[0].startswith("$") and outer[0] in ("*", ">")
