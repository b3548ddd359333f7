"""Entries by topic pattern: here they are laid over each other, in other systems the most specific counts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from broker_core.config import Scope
from broker_core.config.scopes import specificity
from broker_core.protocols.stomp.destinations import QUEUES, TEMPORARY_TOPICS

_REST: Final = frozenset(">#")
_WILDCARDS: Final = _REST | {"*"}


def is_laid_under(wider: str, pattern: str) -> bool:
    """Return whether an entry for `wider` is laid under one for `pattern`, on a topic that both are about."""
    return _rank(wider) <= _rank(pattern) and _meet(_levels(wider), _levels(pattern))


def patterns_beside_topics(patterns: Iterable[str], rest: str) -> list[str]:
    """Return patterns of queues and temporary destinations on which these patterns would act here.

    In ActiveMQ and Qpid such entries are for topics only.

    `rest` is the wildcard for all further levels, `>` or `#`.
    """
    made = []
    for pattern in patterns:
        first, dot, others = pattern.partition(".")
        if first in _REST:
            made += [f"{QUEUES}{rest}", f"{TEMPORARY_TOPICS}{rest}"]
        elif first == "*" and dot:
            made.append(f"{QUEUES}{others}")
    return sorted(set(made).difference(patterns))


def has_wildcards(pattern: str) -> bool:
    """Return whether a pattern may be of several topics."""
    return not _WILDCARDS.isdisjoint(pattern)


@lru_cache(maxsize=1_024)
def _rank(pattern: str) -> tuple[tuple[int, int, int], ...]:
    """Return how specific a pattern is; of two entries the one with the higher rank is laid on top."""
    return specificity(Scope(topic=pattern))


@lru_cache(maxsize=1_024)
def _levels(pattern: str) -> tuple[str, ...]:
    """Return a pattern's levels."""
    return tuple(pattern.split("."))


def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether both patterns match some topic. `#` is any number of levels, `>` at least one."""
    for mine, its in zip(one, other, strict=False):
        if not _REST.isdisjoint((mine, its)):
            return True
        if mine != its and "*" not in (mine, its):
            return False
    longer = max(one, other, key=len)[min(len(one), len(other)) :]
    return longer[:1] in ((), ("#",))
