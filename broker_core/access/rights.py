"""What one user may do on one transport.

Entitlements add up. A subscription whose pattern an entitlement covers is served as asked; a broader one is narrowed
to the topics that entitlements name, and its acknowledgement says so. Filters of entitlements are joined to the
subscription's own by AND. Where entitlements with different filters each cover a part of what is asked, no single
subscription can say what is meant: it is refused, with the patterns to subscribe to instead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from broker_core.errors import ClientError
from broker_core.filters import Filter, all_filters, any_filter
from broker_core.subscriptions.topics import TopicPattern, are_disjoint, is_subpattern

MAX_REMEMBERED_TOPICS = 8_192


class CompiledEntitlement(NamedTuple):
    """One entitlement, compiled."""

    publish: tuple[TopicPattern, ...]
    subscribe: tuple[TopicPattern, ...]
    filter: Filter | None


class GrantedSubscription(NamedTuple):
    """What a subscription gets of what it asked for."""

    pattern: TopicPattern
    filter: Filter | None
    narrowed: bool


class Rights:
    """`entitled` is None for everything. `basis` is what it was made from: equal bases are equal rights."""

    def __init__(self, entitled: Sequence[CompiledEntitlement] | None = None, basis: Hashable = None) -> None:
        self.basis = basis
        self._entitled = entitled
        self._publishable: dict[str, bool] = {}

    def check_publish(self, topics: Iterable[str]) -> None:
        """ClientError not_entitled for the first topic that may not be published to. A look-up a topic."""
        if self._entitled is None:
            return
        for topic in topics:
            known = self._publishable.get(topic)
            if not (self._learn(topic) if known is None else known):
                raise ClientError(
                    "not_entitled",
                    f"You may not publish to {topic[:80]!r}.",
                    "An entitlement in the transport's access policy would allow it.",
                    topic=topic,
                )

    def _learn(self, topic: str) -> bool:
        if len(self._publishable) >= MAX_REMEMBERED_TOPICS:
            self._publishable.clear()
        may = any(pattern.matches(topic) for entitled in self._entitled or () for pattern in entitled.publish)
        self._publishable[topic] = may
        return may

    def check_subscribe(self, asked: TopicPattern, chosen: Filter | None) -> GrantedSubscription:
        """What a subscription to a pattern with a filter gets. Raises ClientError not_entitled."""
        if self._entitled is None:
            return GrantedSubscription(asked, chosen, False)
        meant = [one for one in self._entitled if not all(are_disjoint(asked, its) for its in one.subscribe)]
        if not meant:
            raise ClientError(
                "not_entitled",
                f"You may not subscribe to {asked.text[:80]!r}.",
                "An entitlement in the transport's access policy would allow it.",
            )
        covering = [one for one in meant if any(is_subpattern(asked, its) for its in one.subscribe)]
        if any(entitled.filter is None for entitled in covering):
            return GrantedSubscription(asked, chosen, False)
        filters = list(dict.fromkeys(entitled.filter for entitled in meant))
        if len(covering) == len(meant):
            return GrantedSubscription(asked, all_filters(chosen, any_filter(*filters)), False)
        patterns = [p for entitled in meant for p in entitled.subscribe if not are_disjoint(p, asked)]
        if len(filters) > 1:
            raise ClientError(
                "not_entitled",
                f"You may see parts of {asked.text[:80]!r} with different filters.",
                f"Subscribe separately to {_listed(patterns)}.",
            )
        return GrantedSubscription(_within(asked, patterns), all_filters(chosen, filters[0]), True)


EVERYTHING = Rights()


def _within(asked: TopicPattern, patterns: Sequence[TopicPattern]) -> TopicPattern:
    tests = [pattern.matches for pattern in patterns]
    # The text tells it from the pattern that was asked for: subscriptions with equal texts are matched as one.
    text = f"{asked.text} within {' or '.join(sorted({pattern.text for pattern in patterns}))}"
    return TopicPattern(
        text, None, lambda topic: asked.matches(topic) and any(test(topic) for test in tests), asked.levels
    )


def _listed(patterns: Sequence[TopicPattern]) -> str:
    texts = sorted({pattern.text for pattern in patterns})
    return ", ".join(texts[:10]) + (f" and {len(texts) - 10} more" if len(texts) > 10 else "")
