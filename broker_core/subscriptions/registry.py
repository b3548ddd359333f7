"""Registry of live subscriptions: finds the subscriptions that match a batch, and their rows.

Subscriptions with the same pattern form a group, and matching works per group. The groups of a topic are
cached. The matches of unfiltered subscribers are created when they subscribe, not per message. So a batch of
one topic for unfiltered subscribers costs a lookup and a copy of a list, and touches no record. A filter runs
once per batch for all subscriptions that share it; many filters are found through the literals that they
require (`filter_index`).

Row arrays are shared: subscriptions that match the same rows for the same reason get the same array object.
So the caller can compute `batch.select(rows)` once per id(rows) while it keeps the list.

`PatternIndex` finds candidate patterns by a walk along a topic's levels instead of a test of every pattern.
`TopicPattern.matches` then decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from broker_core.batch import Batch, Rows
from broker_core.filters import BatchEvaluator, DecoderOf, Filter
from broker_core.subscriptions.filter_index import FilterIndex
from broker_core.subscriptions.subscription import TopicSubscription
from broker_core.subscriptions.topics import TopicPattern

V = TypeVar("V")


class _LevelNode(Generic[V]):
    """Node of the pattern tree: children by level name (also `*`, `>`), values of patterns ending here."""

    __slots__ = ("ends", "following")

    def __init__(self) -> None:
        self.following: dict[str, _LevelNode[V]] = {}
        self.ends: dict[V, None] = {}


class PatternIndex(Generic[V]):
    """Tree of values by the levels of patterns, such as `a`, `*`, `b` or `a`, `>`.

    Several values may have the same levels.
    """

    def __init__(self) -> None:
        self._root: _LevelNode[V] = _LevelNode()

    def add(self, levels: Sequence[str], value: V) -> None:
        """Add a value."""
        level = self._root
        for name in levels:
            level = level.following.setdefault(name, _LevelNode())
        level.ends[value] = None

    def remove(self, levels: Sequence[str], value: V) -> None:
        """Remove a value and the levels that led only to it. Raises KeyError when it isn't there."""
        path = [self._root]
        for name in levels:
            path.append(path[-1].following[name])
        del path[-1].ends[value]
        for before, name, level in zip(reversed(path[:-1]), reversed(levels), reversed(path), strict=False):
            if level.following or level.ends:
                return
            del before.following[name]

    def candidates(self, topic: str) -> Iterator[V]:
        """Yield the values of all patterns that match a topic, and perhaps of others, each once."""
        levels = [self._root]
        for name in topic.split("."):
            reached: list[_LevelNode[V]] = []
            for level in levels:
                tail_level = level.following.get(">")
                if tail_level is not None:
                    yield from tail_level.ends
                for one in ("*",) if name in ("*", ">") else (name, "*"):
                    following = level.following.get(one)
                    if following is not None:
                        reached.append(following)
            levels = reached
        for level in levels:
            yield from level.ends


T = TypeVar("T")
MAX_REMEMBERED_TOPICS = 65_536
"""Maximum number of topics whose groups are cached; beyond it the cache is emptied."""

INDEXED_FROM = 16
"""Number of filters per pattern from which on they are indexed instead of tested one after the other."""


class SubscriptionMatch(NamedTuple, Generic[T]):
    """Subscription and its matching rows, ascending; None means all rows."""

    subscription: TopicSubscription[T]
    rows: Rows | None


class _PatternGroup(Generic[T]):
    """Subscriptions with the same pattern.

    `change`: number of the registry's change that created the group.
    """

    __slots__ = ("change", "filtered", "index", "pattern", "unfiltered")

    def __init__(self, pattern: TopicPattern, change: int) -> None:
        self.pattern = pattern
        self.change = change
        self.unfiltered: dict[TopicSubscription[T], SubscriptionMatch[T]] = {}
        """Matches of its subscriptions without a filter: all rows."""
        self.filtered: dict[Filter, dict[TopicSubscription[T], SubscriptionMatch[T]]] = {}
        """Its subscriptions by filter."""
        self.index: FilterIndex | None = None
        """Index of its filters, once it has INDEXED_FROM of them."""

    def add(self, subscription: TopicSubscription[T]) -> bool:
        """Add a subscription; return False when it was already in the group."""
        chosen = subscription.filter
        members = self.unfiltered if chosen is None else self.filtered.get(chosen)
        if members is None:
            assert chosen is not None
            members = self.filtered[chosen] = {}
            self._index_filter(chosen)
        new = subscription not in members
        members[subscription] = SubscriptionMatch(subscription, None)
        return new

    def has(self, subscription: TopicSubscription[T]) -> bool:
        """Return whether the subscription is in the group."""
        chosen = subscription.filter
        return subscription in (self.unfiltered if chosen is None else self.filtered.get(chosen, {}))

    def remove(self, subscription: TopicSubscription[T]) -> bool:
        """Remove a subscription; return False when it wasn't in the group."""
        chosen = subscription.filter
        if chosen is None:
            return self.unfiltered.pop(subscription, None) is not None
        members = self.filtered.get(chosen, {})
        found = members.pop(subscription, None) is not None
        if found and not members:
            del self.filtered[chosen]
            if self.index is not None:
                self.index.remove(chosen)
        return found

    def _index_filter(self, chosen: Filter) -> None:
        """Add a filter to the index, or build the index when there are enough filters."""
        if self.index is not None:
            self.index.add(chosen)
        elif len(self.filtered) >= INDEXED_FROM:
            self.index = FilterIndex()
            for one in self.filtered:
                self.index.add(one)

    @property
    def empty(self) -> bool:
        """Whether the group has no subscription; the registry has then removed it."""
        return not self.unfiltered and not self.filtered


class _TopicCache(Generic[T]):
    """Cached groups of a topic, valid up to the registry's change number `change`."""

    __slots__ = ("change", "groups")

    def __init__(self, groups: list[_PatternGroup[T]], change: int) -> None:
        self.groups = groups
        self.change = change


class SubscriptionRegistry(Generic[T]):
    """Live subscriptions of an instance. Not thread-safe: use it from the event loop.

    Adding or removing a group is a change, and changes are numbered. The cached groups of a topic are updated
    when the next batch of the topic arrives: patterns with levels are found by the topic's levels, and newer
    regular expressions are tested. So after a subscribe each topic costs a walk along its levels, not a test
    of every pattern.
    """

    def __init__(self, decoder_of: DecoderOf | None) -> None:
        self._decoder_of = decoder_of
        """Function that returns the decoder of a topic's bodies; None: all are JSON."""
        self._groups: dict[str, _PatternGroup[T]] = {}
        self._index = PatternIndex[_PatternGroup[T]]()
        self._expressions: dict[_PatternGroup[T], None] = {}
        """Groups whose pattern is a regular expression, newest last."""
        self._remembered: dict[str, _TopicCache[T]] = {}
        self._change = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def has(self, subscription: TopicSubscription[T]) -> bool:
        """Return whether batches are matched for this subscription."""
        group = self._groups.get(subscription.pattern.text)
        return group is not None and group.has(subscription)

    def __iter__(self) -> Iterator[TopicSubscription[T]]:
        for group in self._groups.values():
            yield from group.unfiltered
            for members in group.filtered.values():
                yield from members

    def add(self, subscription: TopicSubscription[T]) -> None:
        """Add a subscription; it takes part from the next batch on."""
        pattern = subscription.pattern
        group = self._groups.get(pattern.text)
        if group is None:
            self._change += 1
            group = self._groups[pattern.text] = _PatternGroup(pattern, self._change)
            if pattern.levels is None:
                self._expressions[group] = None
            else:
                self._index.add(pattern.levels, group)
        self._size += group.add(subscription)

    def remove(self, subscription: TopicSubscription[T]) -> bool:
        """Remove a subscription; return False when it wasn't there."""
        pattern = subscription.pattern
        group = self._groups.get(pattern.text)
        if group is None or not group.remove(subscription):
            return False
        self._size -= 1
        if group.empty:
            self._change += 1
            del self._groups[pattern.text]
            if pattern.levels is None:
                del self._expressions[group]
            else:
                self._index.remove(pattern.levels, group)
        return True

    def match(self, batch: Batch) -> list[SubscriptionMatch[T]]:
        """Return the subscriptions that match rows of a batch, with these rows.

        The list belongs to the caller.
        """
        topic = batch.single_topic
        if topic is None:
            return self._match_mixed(batch)
        found: list[SubscriptionMatch[T]] = []
        evaluator: BatchEvaluator | None = None
        known = self._remembered.get(topic)
        for group in (
            known.groups if known is not None and known.change == self._change else self._groups_of(topic)
        ):
            found += group.unfiltered.values()
            if group.filtered:
                evaluator = evaluator or BatchEvaluator(batch, self._decoder_of)
                _match_filtered(group, evaluator, None, found)
        return found

    def _groups_of(self, topic: str) -> list[_PatternGroup[T]]:
        """Return the groups that match a topic, from the cache if that is up to date."""
        known = self._remembered.get(topic)
        if known is None:
            if len(self._remembered) >= MAX_REMEMBERED_TOPICS:
                self._remembered.clear()
            known = self._remembered[topic] = _TopicCache([], 0)
        if known.change != self._change:
            known.groups = self._up_to_date(topic, known)
            known.change = self._change
        return known.groups

    def _up_to_date(self, topic: str, known: _TopicCache[T]) -> list[_PatternGroup[T]]:
        """Return the groups that match a topic now, testing only expressions newer than the cache."""
        groups = [group for group in self._index.candidates(topic) if group.pattern.matches(topic)]
        groups += [group for group in known.groups if group in self._expressions]
        for group in reversed(self._expressions):
            if group.change <= known.change:
                break
            if group.pattern.matches(topic):
                groups.append(group)
        return groups

    def _match_mixed(self, batch: Batch) -> list[SubscriptionMatch[T]]:
        """Match a batch of several topics: find each group's set of topics, then the rows of each set."""
        topics = batch.topics
        topic_sets: dict[_PatternGroup[T], int] = {}
        for number, topic in enumerate(topics):
            for group in self._groups_of(topic):
                topic_sets[group] = topic_sets.get(group, 0) | 1 << number
        found: list[SubscriptionMatch[T]] = []
        parts = _RowsByTopics(batch, len(topics))
        evaluator = BatchEvaluator(batch, self._decoder_of)
        for group, topic_set in topic_sets.items():
            rows = parts.rows(batch, topic_set)
            if rows is not None and not len(rows):
                continue
            found += group.unfiltered.values() if rows is None else _with_rows(group.unfiltered, rows)
            _match_filtered(group, evaluator, rows, found)
        return found


class _RowsByTopics:
    """Rows of each set of topics in one batch. A set is a bit mask in the order of the batch's dictionary."""

    __slots__ = ("_count", "_indexes", "_number", "_rows")

    def __init__(self, batch: Batch, number: int) -> None:
        self._count = batch.count
        self._number = number
        self._indexes: npt.NDArray[np.uint16] | None = None
        self._rows: dict[int, Rows | None] = {(1 << number) - 1: None}

    def rows(self, batch: Batch, topic_set: int) -> Rows | None:
        """Return the rows whose topic is in the set; None when these are all rows."""
        if topic_set not in self._rows:
            if self._indexes is None:
                self._indexes = np.ascontiguousarray(batch.topic_indexes)
            rows = np.flatnonzero(self._is_in(self._indexes, topic_set))
            self._rows[topic_set] = None if len(rows) == self._count else rows
        return self._rows[topic_set]

    def _is_in(self, indexes: npt.NDArray[np.uint16], topic_set: int) -> npt.NDArray[np.bool_]:
        # Topic numbers of rows start at 1, bits of the set at 0: entry 0 of the table is never read.
        if topic_set & (topic_set - 1) == 0:
            same: npt.NDArray[np.bool_] = indexes == topic_set.bit_length()
            return same
        bits = "0" + format(topic_set, f"0{self._number}b")[::-1]
        table: npt.NDArray[np.bool_] = np.frombuffer(bits.encode(), np.uint8) == ord("1")
        return table[indexes]


def _match_filtered(
    group: _PatternGroup[T],
    evaluator: BatchEvaluator,
    candidates: Rows | None,
    found: list[SubscriptionMatch[T]],
) -> None:
    """Append the matches of a group's filtered subscriptions to `found`.

    `candidates` are the rows of the group's topics; None means all rows.
    """
    filters: Iterable[tuple[Filter, Sequence[int] | Rows | None]] = zip(group.filtered, repeat(None))
    if group.index is not None:
        guarded = group.index.candidates(evaluator.messages(candidates))
        filters = chain(zip(group.index.unguarded, repeat(None)), guarded.items())
    for chosen, among in filters:
        members, rows = group.filtered[chosen], evaluator.rows(chosen, candidates, among)
        if len(rows) == evaluator.count:
            found += members.values()
        elif len(rows):
            found += _with_rows(members, rows)


def _with_rows(members: Iterable[TopicSubscription[T]], rows: Rows) -> list[SubscriptionMatch[T]]:
    return [SubscriptionMatch(subscription, rows) for subscription in members]
