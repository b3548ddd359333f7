"""Which of several groups has a topic. Pure.

The most specific pattern decides, in whatever order the groups are named: `prices.eu.>` takes precedence over `prices.>`, and that
over `>`. So that there always is one, the patterns of two groups either have no topic in common, or one contains the other;
anything else is refused when the routes are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from broker_core.errors import OperatorError
from broker_core.subscriptions.topics import TopicPattern, are_disjoint, is_subpattern

MOST_PATTERNS = 1_000
MOST_REMEMBERED = 65_536
"""Topics whose groups are remembered; when there are more, all are looked up again."""


class Route(NamedTuple):
    """The topics of a pattern belong to a group, except for those of narrower patterns."""

    pattern: TopicPattern
    group: str


class Routes:
    """`topics` are each group's patterns. OperatorError bad_groups when they aren't clear, ClientError bad_pattern."""

    def __init__(self, topics: Mapping[str, Sequence[str]]) -> None:
        routes = [
            Route(TopicPattern.parse(text), group)
            for group, texts in topics.items()
            for text in dict.fromkeys(texts)
        ]
        if not all(topics.values()) or not topics or len(routes) > MOST_PATTERNS:
            raise _bad(
                f"Each group needs topics, and all groups together can have at most {MOST_PATTERNS} patterns."
            )
        for route in routes:
            if route.pattern.text.startswith("~"):
                raise _bad(
                    f"{route.pattern.text[:80]!r} is a regular expression, which can't be compared with other patterns."
                )
        for one, other in combinations(routes, 2):
            if one.group != other.group:
                _check(one, other)
        around = {
            route: sum(is_subpattern(route.pattern, other.pattern) for other in routes if other is not route)
            for route in routes
        }
        # What lies within another pattern lies within all that are around that one as well: it has more, and comes before.
        self._routes = sorted(routes, key=lambda route: -around[route])
        self._known: dict[str, str] = {}

    def group_of(self, topic: str) -> str:
        """The group that has a topic. OperatorError no_group_for_topic."""
        known = self._known.get(topic)
        return known if known is not None else self._find(topic)

    def _find(self, topic: str) -> str:
        found = next((route.group for route in self._routes if route.pattern.matches(topic)), None)
        if found is None:
            raise _nobody(topic)
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[topic] = found
        return found

    def groups_of(self, text: str) -> list[str]:
        """The groups that may have a topic of this pattern, each once. ClientError bad_pattern, OperatorError no_group_for_topic."""
        asked = TopicPattern.parse(text)
        if asked.exact is not None:
            return [self.group_of(asked.exact)]
        found = []
        for route in self._routes:
            if not are_disjoint(asked, route.pattern):
                found.append(route.group)
            if is_subpattern(asked, route.pattern):
                break  # wider ones name these topics as well, and have none of them
        if not found:
            raise _nobody(text)
        return list(dict.fromkeys(found))


def _check(one: Route, other: Route) -> None:
    if one.pattern == other.pattern:
        raise _bad(f"{one.pattern.text!r} is a pattern of both {one.group!r} and {other.group!r}.")
    apart = are_disjoint(one.pattern, other.pattern)
    if not (apart or is_subpattern(one.pattern, other.pattern) or is_subpattern(other.pattern, one.pattern)):
        raise _bad(
            f"{one.pattern.text!r} of {one.group!r} and {other.pattern.text!r} of {other.group!r} overlap, "
            "and neither contains the other."
        )


def _bad(sentence: str) -> OperatorError:
    return OperatorError("bad_groups", sentence, "Give each group its own patterns; one may contain another.")


def _nobody(topic: str) -> OperatorError:
    return OperatorError(
        "no_group_for_topic",
        f"No group has the topic {topic[:80]!r}.",
        'Give a group its pattern, or ">" for all remaining topics. Topics that begin with $ belong to each broker itself.',
    )
