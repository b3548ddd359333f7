"""Entries by topic pattern that are laid over each other here, and stand alone in the systems that files come from."""

from __future__ import annotations

from typing import Final

from broker_core.config import Scope
from broker_core.slow_clients.rules.scopes import specificity

_WILDCARDS: Final = frozenset("*>#")


def is_laid_under(wider: str, pattern: str) -> bool:
    """Return whether an entry for `wider` is laid under one for `pattern`, on a topic that both are about."""
    return specificity(Scope(topic=wider)) <= specificity(Scope(topic=pattern)) and _meet(
        wider.split("."), pattern.split(".")
    )


def has_wildcards(pattern: str) -> bool:
    """Return whether a pattern may be of several topics."""
    return not _WILDCARDS.isdisjoint(pattern)


def _meet(one: list[str], other: list[str]) -> bool:
    """Return whether some topic is named by both patterns."""
    if one[:1] == ["#"] or other[:1] == ["#"]:
        return True
    if not one or not other:
        return one == other
    if ">" in (one[0], other[0]):
        return True
    return ("*" in (one[0], other[0]) or one[0] == other[0]) and _meet(one[1:], other[1:])
