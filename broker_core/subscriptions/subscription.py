"""One subscription: who wants which records, on which stream.

The rows that one subscription wants of a batch: what a replay takes out of the journal.

A replay reads whole batches. The batch that holds its first record also holds records before it, and the last batch it
reads may come again when the subscription goes live: its cursor (`replay.cursor`) knows the next record it hasn't had, and
only what is at or after it is taken. Nothing here reads, waits or knows time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np

from broker_core.batch import EXPLICIT_SEQUENCES, Batch, Rows
from broker_core.bookmark import MAX_SEQUENCE
from broker_core.filters import BatchEvaluator, DecoderOf, Filter
from broker_core.subscriptions.topics import TopicPattern

T_co = TypeVar("T_co", covariant=True)


@dataclass(slots=True, eq=False, frozen=True)
class Subscription(Generic[T_co]):
    """What one client asked for. Two subscriptions are never equal: identity counts."""

    client: T_co
    """Whoever added it; the registry hands it back and never looks at it. None where nobody did."""
    id: str
    """The client's own word for the subscription."""
    stream: int
    """The number that stands in the frames delivered for it."""
    pattern: TopicPattern
    filter: Filter | None = None
    decoder_of: DecoderOf | None = None
    """How the filter and keys read a topic's bodies in a replay; as JSON without it."""


EMPTY: Final[Rows] = np.zeros(0, np.int64)
"""No row at all. Compare by identity, or by len() == 0."""
EMPTY.flags.writeable = False


def select_rows(
    subscription: Subscription[object],
    batch: Batch,
    from_sequence: int,
    evaluator: BatchEvaluator | None = None,
    upto: int = MAX_SEQUENCE,
) -> Rows | None:
    """The rows one subscription wants of a batch: from_sequence <= sequence <= upto, pattern, filter.

    None is all rows, EMPTY is none of them. A batch that isn't journaled has no sequences: all its rows are
    new. An evaluator of the same batch may be passed, so that several subscriptions share the decoding.
    """
    rows = _within(batch, from_sequence, upto)
    if rows is EMPTY:
        return EMPTY
    rows = _of_pattern(subscription, batch, rows)
    if rows is EMPTY or subscription.filter is None:
        return rows
    return _shortest(
        batch, (evaluator or BatchEvaluator(batch, subscription.decoder_of)).rows(subscription.filter, rows)
    )


def _within(batch: Batch, first: int, last: int) -> Rows | None:
    begins = batch.first_sequence
    if begins == 0 or (begins >= first and batch.last_sequence <= last):
        return None
    if batch.flags & EXPLICIT_SEQUENCES:
        sequences = batch.sequences()
        start, stop = (int(at) for at in np.searchsorted(sequences, np.array([first, last + 1], np.uint64)))
    else:
        start, stop = max(first - begins, 0), min(last + 1 - begins, batch.count)
    return EMPTY if start >= stop else np.arange(start, stop)


def _of_pattern(subscription: Subscription[object], batch: Batch, rows: Rows | None) -> Rows | None:
    matches = subscription.pattern.matches
    topic = batch.single_topic
    if topic is not None:
        return rows if matches(topic) else EMPTY
    wanted = [matches(name) for name in batch.topics]
    if all(wanted):
        return rows
    if not any(wanted):
        return EMPTY
    table = np.array([False, *wanted])  # row topics count from 1
    if rows is None:
        return _shortest(batch, np.flatnonzero(table[batch.topic_indexes]))
    return _shortest(batch, rows[table[batch.topic_indexes[rows]]])


def _shortest(batch: Batch, rows: Rows) -> Rows | None:
    """None for all rows and EMPTY for none, so that callers can tell by identity."""
    if not len(rows):
        return EMPTY
    return None if len(rows) == batch.count else rows
