"""The hand-over from replay to live, as one small unit with one law:

    replay(b) then live equals everything after b, once, in order.

A replay reads whole batches from the journal. The batch that holds its first record also holds records before
it, and the last batch it reads may come again when the subscription goes live. A cursor knows the next record
its subscription hasn't had, takes from each batch only what is at or after it, and moves on. Nothing here
reads, waits or knows time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from broker_core.batch import EXPLICIT_SEQUENCES, Batch, Rows
from broker_core.bookmark import MAX_SEQUENCE
from broker_core.filters import BatchEvaluator
from broker_core.subscriptions.subscription import Subscription

EMPTY: Final[Rows] = np.zeros(0, np.int64)
"""No row at all. Compare by identity, or by len() == 0."""
EMPTY.flags.writeable = False


def select_for(
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


class ReplayCursor:
    """One subscription's reading position: the sequence of the next record it hasn't been given."""

    __slots__ = ("next_sequence",)

    def __init__(self, next_sequence: int) -> None:
        self.next_sequence = next_sequence

    def take(
        self, subscription: Subscription[object], batch: Batch, evaluator: BatchEvaluator | None = None
    ) -> Rows | None:
        """The rows that are new and wanted (None: all, EMPTY: none), and move past the batch.

        A batch that was taken before gives EMPTY, so the same batch may come from the journal and live.
        """
        rows = select_for(subscription, batch, self.next_sequence, evaluator)
        self.next_sequence = max(self.next_sequence, batch.last_sequence + 1)
        return rows

    def missing_before(self, batch: Batch) -> tuple[int, int] | None:
        """The first and last sequence between the position and the batch, when something is missing."""
        first = batch.first_sequence
        return (self.next_sequence, first - 1) if first > self.next_sequence else None

    def caught_up(self, newest: int) -> bool:
        """Whether everything up to and including this sequence has been taken: the moment to go live."""
        return self.next_sequence > newest
