"""What two topic patterns have to do with each other, as far as that can be said without a list of topics. Pure.

Of patterns of levels it can be said exactly. Of a regular expression it can't in general, so the answers are about
what is certain: both functions say False when they don't know.
"""

from __future__ import annotations

from broker_core.config.scopes import levels_cover
from broker_core.subscriptions.topics import TopicPattern


def inside(one: TopicPattern, other: TopicPattern) -> bool:
    """Whether certainly every topic that `one` names is one that `other` names."""
    if one.text == other.text:
        return True
    if one.exact is not None:
        return other.matches(one.exact)
    if _is_expression(one) or _is_expression(other):
        return False
    mine, others = one.text.split("."), other.text.split(".")
    if _is_own(mine) != _is_own(others):
        return False
    return levels_cover(others, mine)


def disjoint(one: TopicPattern, other: TopicPattern) -> bool:
    """Whether certainly no topic is named by both."""
    if one.exact is not None:
        return not other.matches(one.exact)
    if other.exact is not None:
        return not one.matches(other.exact)
    if _is_expression(one) or _is_expression(other):
        return False
    mine, others = one.text.split("."), other.text.split(".")
    if _is_own(mine) != _is_own(others):
        return True
    for level, another in zip(mine, others, strict=False):
        if ">" in (level, another):
            return False
        if "*" not in (level, another) and level != another:
            return True
    return len(mine) != len(others)


def _is_expression(pattern: TopicPattern) -> bool:
    return pattern.text.startswith("~")


def _is_own(levels: list[str]) -> bool:
    """Topics that start with `$` are named only by patterns that do."""
    return levels[0].startswith("$")
