"""Decision which records are journaled, by topic and content.

A record is journaled if its topic matches a journaled entry and no unjournaled pattern. Topics under
`$SLUICE.` are always journaled. An entry with a filter journals the records that pass it; other records of
its topics are delivered and not stored. A topic that also matches an entry without a filter is journaled
completely. A topic's message type is that of the first entry that matches it. It determines how filters read
its bodies, those of subscriptions too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from broker_core.batch import Batch
from broker_core.config import InstanceSettings, JournaledTopic
from broker_core.errors import ClientError, OperatorError
from broker_core.filters import BatchEvaluator, Filter, compile_filter
from broker_core.filters.message_types import SOH, Decoder, decoder_for
from broker_core.names import EVENTS_PREFIX
from broker_core.subscriptions.partition import BatchPartition
from broker_core.subscriptions.topics import TopicPattern, are_disjoint, is_subpattern

Extent = Literal["", "part", "all"]
"""Extent of a subscription's topics that is no longer journaled."""
_EVENTS = TopicPattern.parse(f"{EVENTS_PREFIX}>")


class _CompiledEntry(NamedTuple):
    """Journaled entry with its compiled pattern, filter and decoder."""

    pattern: TopicPattern
    filter: Filter | None
    decoder: Decoder | None


class JournaledTopics:
    """Journaled topics of an instance. Answers are cached by topic.

    Raises OperatorError bad_policy when a pattern or a filter can't be compiled.
    """

    def __init__(self, settings: InstanceSettings) -> None:
        try:
            self._entries = [_entry(topic) for topic in settings.journaled_topics]
            self._not = [TopicPattern.parse(text) for text in settings.unjournaled_topics]
            self._sync = [TopicPattern.parse(text) for text in settings.sync_topics]
        except ClientError as error:
            raise OperatorError(
                "bad_policy",
                f"The journaled topics can't be used: {error.sentence}",
                error.fix,
                problems=[error.sentence],
            ) from None
        self.has_sync = bool(self._sync)
        """Whether `persisted` of any topic waits for a group's sync members."""
        self.decides_by_content = any(entry.filter for entry in self._entries)
        """Whether an entry has a filter. Otherwise the topics of a batch decide, without reading records."""
        self._has_types = any(entry.decoder for entry in self._entries)
        self.is_journaled = lru_cache(maxsize=65_536)(self._is_journaled)
        self.all_journaled = lru_cache(maxsize=8_192)(self._all_journaled)
        self.decoder_of = lru_cache(maxsize=65_536)(self._decoder_of)
        self._filters_of = lru_cache(maxsize=65_536)(self._find_filters)
        self.may_journal_any = lru_cache(maxsize=8_192)(self._may_journal_any)
        self.any_sync = lru_cache(maxsize=8_192)(self._any_sync)

    def _any_sync(self, topics: tuple[str, ...]) -> bool:
        """Return whether `persisted` of one of these topics waits for a group's sync members."""
        return any(pattern.matches(topic) for topic in topics for pattern in self._sync)

    def _is_journaled(self, topic: str) -> bool:
        """Return whether records of a topic are journaled, or may be."""
        return topic.startswith(EVENTS_PREFIX) or self._find_filters(topic) != ()

    def covers_nothing(self, pattern: TopicPattern) -> bool:
        """Return whether certainly no topic of a pattern is journaled.

        For a regular expression the answer may be unknown: False.
        """
        if pattern.exact is not None:
            return not self.is_journaled(pattern.exact)
        if not are_disjoint(pattern, _EVENTS):
            return False
        if any(is_subpattern(pattern, other) for other in self._not):
            return True
        included = [
            one.pattern
            for one in self._entries
            if not any(is_subpattern(one.pattern, other) for other in self._not)
        ]
        return all(are_disjoint(pattern, one) for one in included)

    def _may_journal_any(self, text: str) -> bool:
        """Return whether a topic of a pattern is journaled, or may be."""
        return not self.covers_nothing(TopicPattern.parse(text))

    def covers_all(self, pattern: TopicPattern) -> bool:
        """Return whether certainly every record of every topic of a pattern is journaled."""
        if pattern.exact is not None:
            return pattern.exact.startswith(EVENTS_PREFIX) or self._filters_of(pattern.exact) is None
        if is_subpattern(pattern, _EVENTS):
            return True
        is_included = any(
            entry.filter is None and is_subpattern(pattern, entry.pattern) for entry in self._entries
        )
        return is_included and all(are_disjoint(pattern, one) for one in self._not)

    def narrowed_from(self, before: JournaledTopics, pattern: TopicPattern) -> Extent:
        """Return the extent of a pattern that `before` journaled and this doesn't: "all", "part" or "".

        If that is uncertain, the result is "part" whenever a topic may be missing.
        """
        if before.covers_nothing(pattern):
            return ""
        if self.covers_nothing(pattern):
            return "all"
        if self.covers_all(pattern):
            return ""
        if pattern.exact is not None:
            filters_before, filters_now = before._filters_of(pattern.exact), self._filters_of(pattern.exact)
            return (
                ""
                if filters_before is not None
                and filters_now is not None
                and set(filters_before) <= set(filters_now)
                else "part"
            )
        entries = [one for one in before._entries if before._reaches(one.pattern, pattern)]
        if not all(self._covers_entry(one, pattern) for one in entries):
            return "part"
        newly_excluded = [
            one for one in self._not if not any(is_subpattern(one, other) for other in before._not)
        ]
        lost = any(
            not are_disjoint(one, pattern) and not are_disjoint(one, entry.pattern)
            for one in newly_excluded
            for entry in entries
        )
        return "part" if lost else ""

    def _reaches(self, one: TopicPattern, pattern: TopicPattern) -> bool:
        """Return whether an entry may journal topics of a pattern: it matches some and isn't excluded."""
        return not are_disjoint(one, pattern) and not any(is_subpattern(one, other) for other in self._not)

    def _covers_entry(self, entry: _CompiledEntry, pattern: TopicPattern) -> bool:
        """Return whether this certainly journals all records of a pattern that an earlier entry journaled."""
        return any(
            (is_subpattern(entry.pattern, one.pattern) or is_subpattern(pattern, one.pattern))
            and one.filter in (None, entry.filter)
            for one in self._entries
        )

    def _find_filters(self, topic: str) -> tuple[Filter, ...] | None:
        """Return the filters of which a record must pass one; None if all are journaled, () if none is."""
        if topic.startswith(EVENTS_PREFIX):
            return None
        if any(pattern.matches(topic) for pattern in self._not):
            return ()
        found = [entry.filter for entry in self._entries if entry.pattern.matches(topic)]
        return None if None in found else tuple(dict.fromkeys(chosen for chosen in found if chosen))

    def _decoder_of(self, topic: str) -> Decoder | None:
        """Return the decoder with which filters read a topic's bodies; None means JSON."""
        if not self._has_types or topic.startswith(EVENTS_PREFIX):
            return None
        return next((entry.decoder for entry in self._entries if entry.pattern.matches(topic)), None)

    def _all_journaled(self, topics: tuple[str, ...]) -> bool | None:
        """Return True if all topics are journaled, False if none is, None if records must be checked."""
        if self.decides_by_content and any(self._filters_of(topic) for topic in topics):
            return None
        answers = {self.is_journaled(topic) for topic in topics}
        return answers.pop() if len(answers) == 1 else None

    def split_batch(self, batch: Batch) -> BatchPartition:
        """Split a batch into its unjournaled and its journaled records, each in their order.

        A real split yields new batches without sequences.
        """
        journaled = self.all_journaled(batch.topics)
        if journaled is not None:
            return BatchPartition(None, batch) if journaled else BatchPartition(batch, None)
        is_journaled = self._find_journaled_rows(batch)
        unjournaled_rows, journaled_rows = np.flatnonzero(~is_journaled), np.flatnonzero(is_journaled)
        if not len(unjournaled_rows) or not len(journaled_rows):
            return BatchPartition(None, batch) if len(journaled_rows) else BatchPartition(batch, None)
        return BatchPartition(
            batch.select(unjournaled_rows, explicit=False),
            batch.select(journaled_rows, explicit=False),
            is_journaled,
        )

    def _find_journaled_rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is journaled."""
        topics = batch.topics
        is_journaled: npt.NDArray[np.bool_] = np.array([False, *map(self.is_journaled, topics)])[
            batch.topic_indexes
        ]
        evaluator: BatchEvaluator | None = None
        for number, topic in enumerate(topics, 1):
            filters = self._filters_of(topic)
            if not filters:
                continue
            evaluator = evaluator or BatchEvaluator(batch, self.decoder_of)
            topic_rows = np.flatnonzero(batch.topic_indexes == number)
            is_journaled[topic_rows] = False
            for chosen in filters:
                is_journaled[evaluator.rows(chosen, topic_rows)] = True
        return is_journaled


def _entry(topic: JournaledTopic) -> _CompiledEntry:
    chosen = None if topic.filter is None else compile_filter(topic.filter)
    return _CompiledEntry(
        TopicPattern.parse(topic.topic), chosen, decoder_for(topic.message_type, topic.separator or SOH)
    )
