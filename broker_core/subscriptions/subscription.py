"""Topic subscription: its client, its pattern and filter, and the selection of its rows from a batch.

A replay reads whole batches. The batch with its first record may also have earlier records, and the last
batch that it reads may arrive again when the subscription becomes live. So `select_rows` takes the cursor's
next sequence (`replay.cursor`) and returns only rows from there on. This module has no I/O and no time.
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
class TopicSubscription(Generic[T_co]):
    """Request of one client: pattern and filter. Two subscriptions are never equal: identity counts."""

    client: T_co
    """Owner of the subscription; the registry returns it and never uses it. None if there is none."""
    id: str
    """Identifier that the client chose for the subscription."""
    stream: int
    """Number in the frames delivered for it."""
    pattern: TopicPattern
    filter: Filter | None = None
    decoder_of: DecoderOf | None = None
    """Function that returns the decoder of a topic's bodies for filters and keys in a replay; None: JSON."""


EMPTY: Final[Rows] = np.zeros(0, np.int64)
"""Selection of no rows. Compare by identity, or by len() == 0."""
EMPTY.flags.writeable = False


def select_rows(
    subscription: TopicSubscription[object],
    batch: Batch,
    from_sequence: int,
    evaluator: BatchEvaluator | None = None,
    upto: int = MAX_SEQUENCE,
) -> Rows | None:
    """Return the rows of a batch that match a subscription, from `from_sequence` to `upto`.

    None means all rows, EMPTY means none. An unjournaled batch has no sequences: all its rows count as new.
    Pass an evaluator of the same batch to share the decoded bodies among subscriptions.
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
    """Return the rows with sequences from `first` to `last`; None for all, EMPTY for none."""
    begins = batch.first_sequence
    if begins == 0 or (begins >= first and batch.last_sequence <= last):
        return None
    if batch.flags & EXPLICIT_SEQUENCES:
        sequences = batch.sequences()
        start, stop = (int(at) for at in np.searchsorted(sequences, np.array([first, last + 1], np.uint64)))
    else:
        start, stop = max(first - begins, 0), min(last + 1 - begins, batch.count)
    return EMPTY if start >= stop else np.arange(start, stop)


def _of_pattern(subscription: TopicSubscription[object], batch: Batch, rows: Rows | None) -> Rows | None:
    """Return those of `rows` whose topic matches; None for all, EMPTY for none."""
    matches = subscription.pattern.matches
    topic = batch.single_topic
    if topic is not None:
        return rows if matches(topic) else EMPTY
    topic_matches = [matches(name) for name in batch.topics]
    if all(topic_matches):
        return rows
    if not any(topic_matches):
        return EMPTY
    table = np.array([False, *topic_matches])  # row topics count from 1
    if rows is None:
        return _shortest(batch, np.flatnonzero(table[batch.topic_indexes]))
    return _shortest(batch, rows[table[batch.topic_indexes[rows]]])


def _shortest(batch: Batch, rows: Rows) -> Rows | None:
    """Return None for all rows and EMPTY for none, so that callers can compare by identity."""
    if not len(rows):
        return EMPTY
    return None if len(rows) == batch.count else rows
