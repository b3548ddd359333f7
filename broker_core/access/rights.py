"""Permissions of one user on one transport.

Permissions of several entitlements add up. A subscription is served as requested if an entitlement covers its
pattern. A wider one is narrowed to the topics that entitlements name, and the acknowledgement says so.
Filters of entitlements are joined to the subscription's own filter by AND. If entitlements with different
filters each cover a part of the pattern, no single subscription can express the result. It is then refused,
and the error names the patterns to subscribe to separately.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from broker_core.errors import ClientError
from broker_core.filters import Filter, all_filters, any_filter
from broker_core.subscriptions.topics import TopicPattern, are_disjoint, is_subpattern

MAX_REMEMBERED_TOPICS = 8_192
"""Maximum number of topics whose permission is cached. The cache is cleared when it is full."""


class CompiledEntitlement(NamedTuple):
    """Entitlement with compiled patterns and filter."""

    publish: tuple[TopicPattern, ...]
    subscribe: tuple[TopicPattern, ...]
    filter: Filter | None


class GrantedSubscription(NamedTuple):
    """Part of a requested subscription that is permitted.

    `narrowed` says that the pattern covers fewer topics than requested.
    """

    pattern: TopicPattern
    filter: Filter | None
    narrowed: bool


class Rights:
    """Permissions of one user on one transport. Rights with an equal `basis` are equal."""

    def __init__(self, entitled: Sequence[CompiledEntitlement] | None = None, basis: Hashable = None) -> None:
        """Create the permissions.

        Args:
            entitled: Entitlements that apply. None: everything is permitted.
            basis: Data from which they were made, for comparison.
        """
        self.basis = basis
        self._entitled = entitled
        self._publishable: dict[str, bool] = {}

    def check_publish(self, topics: Iterable[str]) -> None:
        """Check that all topics may be published to. Costs one look-up per topic.

        Raises:
            ClientError: `not_entitled`, for the first topic that may not.
        """
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
        """Return the permitted part of a subscription.

        Raises:
            ClientError: `not_entitled`.
        """
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
    """Return the pattern that matches topics of `asked` that any of the other patterns matches, too."""
    tests = [pattern.matches for pattern in patterns]
    # The text must differ from that of the requested pattern: subscriptions with equal texts are matched as
    # one.
    text = f"{asked.text} within {' or '.join(sorted({pattern.text for pattern in patterns}))}"
    return TopicPattern(
        text, None, lambda topic: asked.matches(topic) and any(test(topic) for test in tests), asked.levels
    )


def _listed(patterns: Sequence[TopicPattern]) -> str:
    texts = sorted({pattern.text for pattern in patterns})
    return ", ".join(texts[:10]) + (f" and {len(texts) - 10} more" if len(texts) > 10 else "")
