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

    def __init__(
        self, entitlements: Sequence[CompiledEntitlement] | None = None, basis: Hashable = None
    ) -> None:
        """Create the permissions.

        Args:
            entitlements: Entitlements that apply. None: everything is permitted.
            basis: Data from which they were made, for comparison.
        """
        self.basis = basis
        self._entitlements = entitlements
        self._publish_permissions: dict[str, bool] = {}

    def check_publish(self, topics: Iterable[str]) -> None:
        """Check that all topics may be published to. Costs one look-up per topic.

        Raises:
            ClientError: `not_entitled`, for the first topic that may not.
        """
        if self._entitlements is None:
            return
        for topic in topics:
            known = self._publish_permissions.get(topic)
            if not (self._store_permission(topic) if known is None else known):
                raise ClientError(
                    "not_entitled",
                    f"You may not publish to {topic[:80]!r}.",
                    "An entitlement in the transport's access policy would allow it.",
                    topic=topic,
                )

    def _store_permission(self, topic: str) -> bool:
        if len(self._publish_permissions) >= MAX_REMEMBERED_TOPICS:
            self._publish_permissions.clear()
        is_permitted = any(
            pattern.matches(topic)
            for entitlement in self._entitlements or ()
            for pattern in entitlement.publish
        )
        self._publish_permissions[topic] = is_permitted
        return is_permitted

    def check_subscribe(self, requested: TopicPattern, own_filter: Filter | None) -> GrantedSubscription:
        """Return the permitted part of a subscription.

        Raises:
            ClientError: `not_entitled`.
        """
        if self._entitlements is None:
            return GrantedSubscription(requested, own_filter, False)
        relevant = [
            one
            for one in self._entitlements
            if not all(are_disjoint(requested, permitted) for permitted in one.subscribe)
        ]
        if not relevant:
            raise ClientError(
                "not_entitled",
                f"You may not subscribe to {requested.text[:80]!r}.",
                "An entitlement in the transport's access policy would allow it.",
            )
        covering = [
            one for one in relevant if any(is_subpattern(requested, permitted) for permitted in one.subscribe)
        ]
        if any(entitlement.filter is None for entitlement in covering):
            return GrantedSubscription(requested, own_filter, False)
        filters = list(dict.fromkeys(entitlement.filter for entitlement in relevant))
        if len(covering) == len(relevant):
            return GrantedSubscription(requested, all_filters(own_filter, any_filter(*filters)), False)
        patterns = [
            p for entitlement in relevant for p in entitlement.subscribe if not are_disjoint(p, requested)
        ]
        if len(filters) > 1:
            raise ClientError(
                "not_entitled",
                f"You may see parts of {requested.text[:80]!r} with different filters.",
                f"Subscribe separately to {_format_patterns(patterns)}.",
            )
        return GrantedSubscription(
            _intersect_pattern(requested, patterns), all_filters(own_filter, filters[0]), True
        )


ALL_RIGHTS = Rights()


def _intersect_pattern(requested: TopicPattern, patterns: Sequence[TopicPattern]) -> TopicPattern:
    """Return the pattern that matches topics of `requested` that any of the other patterns matches, too."""
    tests = [pattern.matches for pattern in patterns]
    # The text must differ from that of the requested pattern: subscriptions with equal texts are matched as
    # one.
    text = f"{requested.text} within {' or '.join(sorted({pattern.text for pattern in patterns}))}"
    return TopicPattern(
        text,
        None,
        lambda topic: requested.matches(topic) and any(test(topic) for test in tests),
        requested.levels,
    )


def _format_patterns(patterns: Sequence[TopicPattern]) -> str:
    texts = sorted({pattern.text for pattern in patterns})
    return ", ".join(texts[:10]) + (f" and {len(texts) - 10} more" if len(texts) > 10 else "")
