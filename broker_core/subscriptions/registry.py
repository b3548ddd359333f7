"""Topic → the patterns of levels that may name it, by a walk along its levels and not by a look at every pattern.

The walk narrows, `TopicPattern.matches` decides: what a pattern means stands there alone.

Batch → which subscriptions want which of its records.

Subscriptions with the same pattern form a group, and everything is decided per group: whether a topic is one
of the group's is remembered per topic, and the matches of unfiltered subscribers are made when they subscribe
and not when a message comes. So a batch of one topic for unfiltered subscribers costs a lookup and a copy of
a list, and touches no record. Filters run once per batch for all subscriptions that share them; many are found by the
literals that they compare with (`filter_index`).

Row arrays are shared: subscriptions that want the same rows for the same reason get the same array object, so
that the caller can make `batch.select(rows)` once per id(rows) while it holds the list.
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
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern

V = TypeVar("V")


class _LevelNode(Generic[V]):
    """What follows after some levels: by the name of the next one (`*` and `>` are names too), and what ends here."""

    __slots__ = ("ends", "following")

    def __init__(self) -> None:
        self.following: dict[str, _LevelNode[V]] = {}
        self.ends: dict[V, None] = {}


class PatternIndex(Generic[V]):
    """Values by the levels of patterns, such as `a`, `*`, `b`, or `a`, `>`. Several values may have the same levels."""

    def __init__(self) -> None:
        self._root: _LevelNode[V] = _LevelNode()

    def add(self, levels: Sequence[str], value: V) -> None:
        """Put a value in."""
        level = self._root
        for name in levels:
            level = level.following.setdefault(name, _LevelNode())
        level.ends[value] = None

    def remove(self, levels: Sequence[str], value: V) -> None:
        """Take a value out, and the levels that led only to it. KeyError when it isn't in."""
        path = [self._root]
        for name in levels:
            path.append(path[-1].following[name])
        del path[-1].ends[value]
        for before, name, level in zip(reversed(path[:-1]), reversed(levels), reversed(path), strict=False):
            if level.following or level.ends:
                return
            del before.following[name]

    def candidates(self, topic: str) -> Iterator[V]:
        """The values of all patterns that name a topic, and perhaps of others; each once."""
        levels = [self._root]
        for name in topic.split("."):
            reached: list[_LevelNode[V]] = []
            for level in levels:
                rest = level.following.get(">")
                if rest is not None:
                    yield from rest.ends
                for one in ("*",) if name in ("*", ">") else (name, "*"):
                    following = level.following.get(one)
                    if following is not None:
                        reached.append(following)
            levels = reached
        for level in levels:
            yield from level.ends


T = TypeVar("T")
MAX_REMEMBERED_TOPICS = 65_536
"""Topics whose groups are remembered; with more the memory starts over."""

INDEXED_FROM = 16
"""Filters of a pattern from which on they are looked up by what messages hold, and not tried one after the other."""


class SubscriptionMatch(NamedTuple, Generic[T]):
    """A subscription and the rows it wants, ascending; None is all rows."""

    subscription: Subscription[T]
    rows: Rows | None


class _PatternGroup(Generic[T]):
    """The subscriptions with one pattern. `change`: the number of the change to the registry that made it."""

    __slots__ = ("change", "filtered", "index", "pattern", "whole")

    def __init__(self, pattern: TopicPattern, change: int) -> None:
        self.pattern = pattern
        self.change = change
        self.whole: dict[Subscription[T], SubscriptionMatch[T]] = {}
        self.filtered: dict[Filter, dict[Subscription[T], SubscriptionMatch[T]]] = {}
        self.index: FilterIndex | None = None
        """Of its filters, from INDEXED_FROM on."""

    def add(self, subscription: Subscription[T]) -> bool:
        """False when it was in."""
        chosen = subscription.filter
        members = self.whole if chosen is None else self.filtered.get(chosen)
        if members is None:
            assert chosen is not None
            members = self.filtered[chosen] = {}
            self._index_filter(chosen)
        new = subscription not in members
        members[subscription] = SubscriptionMatch(subscription, None)
        return new

    def has(self, subscription: Subscription[T]) -> bool:
        """Whether it is in."""
        chosen = subscription.filter
        return subscription in (self.whole if chosen is None else self.filtered.get(chosen, {}))

    def remove(self, subscription: Subscription[T]) -> bool:
        """False when it wasn't in."""
        chosen = subscription.filter
        if chosen is None:
            return self.whole.pop(subscription, None) is not None
        members = self.filtered.get(chosen, {})
        found = members.pop(subscription, None) is not None
        if found and not members:
            del self.filtered[chosen]
            if self.index is not None:
                self.index.remove(chosen)
        return found

    def _index_filter(self, chosen: Filter) -> None:
        if self.index is not None:
            self.index.add(chosen)
        elif len(self.filtered) >= INDEXED_FROM:
            self.index = FilterIndex()
            for one in self.filtered:
                self.index.add(one)

    @property
    def empty(self) -> bool:
        """Whether nobody is in it any more: then it has left the registry."""
        return not self.whole and not self.filtered


class _TopicCache(Generic[T]):
    """What is remembered of a topic: the groups it belongs to, true up to the registry's change number `change`."""

    __slots__ = ("change", "groups")

    def __init__(self, groups: list[_PatternGroup[T]], change: int) -> None:
        self.groups = groups
        self.change = change


class SubscriptionRegistry(Generic[T]):
    """The live subscriptions of an instance, each of a T. Not thread-safe: it belongs to the loop.

    A group that appears or goes is a change, and changes are numbered. What is remembered of a topic is brought up to
    date when the topic is met again: patterns of levels are found by its levels, and of expressions those are tried
    that are newer. So a subscribe costs each topic a walk along its levels, and not a look at every pattern.
    """

    def __init__(self, decoder_of: DecoderOf | None) -> None:
        self._decoder_of = decoder_of
        """How filters read a topic's bodies; None: all are JSON."""
        self._groups: dict[str, _PatternGroup[T]] = {}
        self._index = PatternIndex[_PatternGroup[T]]()
        self._expressions: dict[_PatternGroup[T], None] = {}
        """The groups without levels, the newest at the end."""
        self._remembered: dict[str, _TopicCache[T]] = {}
        self._change = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def has(self, subscription: Subscription[T]) -> bool:
        """Whether batches are matched for it."""
        group = self._groups.get(subscription.pattern.text)
        return group is not None and group.has(subscription)

    def __iter__(self) -> Iterator[Subscription[T]]:
        for group in self._groups.values():
            yield from group.whole
            for members in group.filtered.values():
                yield from members

    def add(self, subscription: Subscription[T]) -> None:
        """Let a subscription take part from the next batch on."""
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

    def remove(self, subscription: Subscription[T]) -> bool:
        """Take a subscription out; False when it wasn't in."""
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
        """Who wants which rows of a batch; the list is the caller's. Who wants none isn't in it."""
        topic = batch.single_topic
        if topic is None:
            return self._match_mixed(batch)
        found: list[SubscriptionMatch[T]] = []
        evaluator: BatchEvaluator | None = None
        known = self._remembered.get(topic)
        for group in (
            known.groups if known is not None and known.change == self._change else self._groups_of(topic)
        ):
            found += group.whole.values()
            if group.filtered:
                evaluator = evaluator or BatchEvaluator(batch, self._decoder_of)
                _match_filtered(group, evaluator, None, found)
        return found

    def _groups_of(self, topic: str) -> list[_PatternGroup[T]]:
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
        groups = [group for group in self._index.candidates(topic) if group.pattern.matches(topic)]
        groups += [group for group in known.groups if group in self._expressions]
        for group in reversed(self._expressions):
            if group.change <= known.change:
                break
            if group.pattern.matches(topic):
                groups.append(group)
        return groups

    def _match_mixed(self, batch: Batch) -> list[SubscriptionMatch[T]]:
        """A batch of several topics: which topics each group wants, then the rows of each such set."""
        topics = batch.topics
        wanted: dict[_PatternGroup[T], int] = {}
        for number, topic in enumerate(topics):
            for group in self._groups_of(topic):
                wanted[group] = wanted.get(group, 0) | 1 << number
        found: list[SubscriptionMatch[T]] = []
        parts = _RowsByTopics(batch, len(topics))
        evaluator = BatchEvaluator(batch, self._decoder_of)
        for group, topic_set in wanted.items():
            rows = parts.rows(batch, topic_set)
            if rows is not None and not len(rows):
                continue
            found += group.whole.values() if rows is None else _with_rows(group.whole, rows)
            _match_filtered(group, evaluator, rows, found)
        return found


class _RowsByTopics:
    """The rows of each set of topics of one batch; a set is a bit mask in the dictionary's order."""

    __slots__ = ("_count", "_indexes", "_number", "_rows")

    def __init__(self, batch: Batch, number: int) -> None:
        self._count = batch.count
        self._number = number
        self._indexes: npt.NDArray[np.uint16] | None = None
        self._rows: dict[int, Rows | None] = {(1 << number) - 1: None}

    def rows(self, batch: Batch, topic_set: int) -> Rows | None:
        """The rows whose topic is in the set, None when that is all of them."""
        if topic_set not in self._rows:
            if self._indexes is None:
                self._indexes = np.ascontiguousarray(batch.topic_indexes)
            rows = np.flatnonzero(self._is_in(self._indexes, topic_set))
            self._rows[topic_set] = None if len(rows) == self._count else rows
        return self._rows[topic_set]

    def _is_in(self, indexes: npt.NDArray[np.uint16], topic_set: int) -> npt.NDArray[np.bool_]:
        # Topics of rows count from 1, bits of the set from 0: place 0 of the table is never asked.
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
    wanted: Iterable[tuple[Filter, Sequence[int] | Rows | None]] = zip(group.filtered, repeat(None))
    if group.index is not None:
        guarded = group.index.candidates(evaluator.messages(candidates))
        wanted = chain(zip(group.index.unguarded, repeat(None)), guarded.items())
    for chosen, among in wanted:
        members, rows = group.filtered[chosen], evaluator.rows(chosen, candidates, among)
        if len(rows) == evaluator.count:
            found += members.values()
        elif len(rows):
            found += _with_rows(members, rows)


def _with_rows(members: Iterable[Subscription[T]], rows: Rows) -> list[SubscriptionMatch[T]]:
    return [SubscriptionMatch(subscription, rows) for subscription in members]
