"""Order of entries by topic pattern.

Sluice merges them by specificity; other systems use only the most specific one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import combinations
from typing import Any, Final

from broker_core.config import Scope
from broker_core.config.scopes import pattern_covers, specificity
from broker_core.protocols.stomp.destinations import QUEUES, TEMPORARY_TOPICS

_MULTI_LEVEL: Final = frozenset(">#")
"""Wildcards for all further levels."""
_WILDCARDS: Final = _MULTI_LEVEL | {"*"}


def is_laid_under(wider: str, pattern: str) -> bool:
    """Return whether entries for two patterns share a topic, and `pattern` takes precedence over `wider`."""
    return _rank(wider) <= _rank(pattern) and _meet(_levels(wider), _levels(pattern))


def partly_overlapping(entries: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the patterns that share topics with another one, though neither covers the other.

    Examples are `*.b` and `a.*`. For a common topic the other system may use the other entry than Sluice.
    Entries with equal settings don't count.

    Args:
        entries: Settings of each entry by its pattern.
    """
    found: set[str] = set()
    for one, other in combinations(sorted(entries), 2):
        if (
            entries[one] != entries[other]
            and _meet(_levels(one), _levels(other))
            and not (pattern_covers(one, other) or pattern_covers(other, one))
        ):
            found |= {one, other}
    return found


def patterns_beside_topics(patterns: Iterable[str], wildcard: str) -> list[str]:
    """Return patterns of queues and temporary destinations that entries for `patterns` also cover in Sluice.

    In ActiveMQ and Qpid such entries are for topics only. `wildcard` is the wildcard for all further levels,
    `>` or `#`.
    """
    made = []
    for pattern in patterns:
        first, dot, others = pattern.partition(".")
        if first in _MULTI_LEVEL:
            made += [f"{QUEUES}{wildcard}", f"{TEMPORARY_TOPICS}{wildcard}"]
        elif first == "*" and dot:
            made.append(f"{QUEUES}{others}")
    return sorted(set(made).difference(patterns))


def has_wildcards(pattern: str) -> bool:
    """Return whether a pattern may match several topics."""
    return not _WILDCARDS.isdisjoint(pattern)


@lru_cache(maxsize=1_024)
def _rank(pattern: str) -> tuple[tuple[int, int, int], ...]:
    """Return the specificity of a pattern. Of two entries the one with the higher rank takes precedence."""
    return specificity(Scope(topic=pattern))


@lru_cache(maxsize=1_024)
def _levels(pattern: str) -> tuple[str, ...]:
    """Return a pattern's levels."""
    return tuple(pattern.split("."))


def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether two patterns have a topic in common. `#` is any number of levels, `>` at least one."""
    for first_level, second_level in zip(one, other, strict=False):
        if not _MULTI_LEVEL.isdisjoint((first_level, second_level)):
            return True
        if first_level != second_level and "*" not in (first_level, second_level):
            return False
    longer = max(one, other, key=len)[min(len(one), len(other)) :]
    return longer[:1] in ((), ("#",))
