"""Loss ledger: every interval of a subscription's messages that it will not get, and the cause.

It makes one invariant checkable: every message that was published and matched is delivered, in the ledger, or
still queued. So every discard is recorded here, and no code discards a delivery without it. The messages that
one rule discards of one subscription within one second become one interval, however many batches they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from broker_core.delivery.account import DiscardCause
from broker_core.delivery.entries import OutboxEntry
from broker_core.documents.system_records import LossEntry

MAX_RECENT_INTERVALS: Final = 10_000
"""Number of intervals in memory. All intervals are published and stored by the control plane."""


@dataclass(slots=True)
class DiscardTally:
    """Counts of some deliveries of one subscription.

    Each of their journaled records lies between `first` and `last`.

    Both are sequences; 0 when all of the messages are unjournaled.
    """

    messages: int = 0
    nbytes: int = 0
    first: int = 0
    last: int = 0
    unjournaled: int = 0
    """Number of unjournaled messages."""
    unjournaled_bytes: int = 0
    _is_ordered: bool = field(default=True, compare=False)
    """Whether each addition lies after those before, so that no record is counted twice."""

    @property
    def is_exact(self) -> bool:
        """Whether each record of the log from `first` to `last` is one of these messages.

        Otherwise both are outer bounds: records that do not belong to the tally lie between them.
        """
        return not self.first or (
            self._is_ordered and self.messages - self.unjournaled == self.last - self.first + 1
        )

    def add(self, messages: int, nbytes: int, first: int, last: int) -> None:
        """Add deliveries; `first` 0 when they are unjournaled."""
        self.messages += messages
        self.nbytes += nbytes
        if first:
            self._is_ordered = self._is_ordered and first > self.last
            self.first = min(self.first or first, first)
            self.last = max(self.last, last)
        else:
            self.unjournaled += messages
            self.unjournaled_bytes += nbytes

    def add_entry(self, entry: OutboxEntry) -> None:
        """Add one delivery."""
        batch = entry.batch
        self.add(entry.count, batch.header.bodies_length, batch.first_sequence, batch.last_sequence)

    def merge(self, other: DiscardTally) -> None:
        """Add all counts of another tally."""
        journaled = other.messages - other.unjournaled
        self.add(other.unjournaled, other.unjournaled_bytes, 0, 0)
        if journaled:
            self.add(journaled, other.nbytes - other.unjournaled_bytes, other.first, other.last)
            self._is_ordered = self._is_ordered and other._is_ordered

    def split_journaled(self) -> tuple[DiscardTally, DiscardTally]:
        """Return two tallies: the unjournaled messages and the journaled ones."""
        count, size = self.unjournaled, self.unjournaled_bytes
        return DiscardTally(count, size, 0, 0, count, size), DiscardTally(
            self.messages - count, self.nbytes - size, self.first, self.last, _is_ordered=self._is_ordered
        )


def tally_entries(entries: Iterable[OutboxEntry]) -> DiscardTally:
    """Return the tally of some deliveries of one subscription."""
    tally = DiscardTally()
    for entry in entries:
        tally.add_entry(entry)
    return tally


class LossInterval(NamedTuple):
    """Interval that a subscription will not get: `tally`, because of `cause`, by `rule` ("": by no rule).

    Unjournaled messages are lost. A bookmark before `tally.first` brings the others back while the log holds
    them. `at` is ns UTC.
    """

    at: int
    client: str
    subscription: str
    topic: str
    cause: DiscardCause
    rule: str
    tally: DiscardTally

    def to_entry(self, instance: str) -> LossEntry:
        """Return the interval as a document.

        `at` is in ms. `first` and `last` are bookmarks of the first and last record, or "".
        """
        tally = self.tally
        return LossEntry(
            at=self.at // 1_000_000,
            client=self.client,
            subscription=self.subscription,
            topic=self.topic,
            cause=self.cause.value,
            rule=self.rule,
            messages=tally.messages,
            bytes=tally.nbytes,
            unjournaled=tally.unjournaled,
            first=f"{instance}|{tally.first}|" if tally.first else "",
            last=f"{instance}|{tally.last}|" if tally.last else "",
            exact=tally.is_exact,
        )


class LossLedger:
    """Losses of one instance: the growing intervals of the current second, and the newest closed ones."""

    def __init__(self) -> None:
        self.recent: deque[LossInterval] = deque(maxlen=MAX_RECENT_INTERVALS)
        self.intervals = 0
        self.messages = 0
        self._open: dict[tuple[str, str, str, DiscardCause, str], LossInterval] = {}

    def record_loss(
        self,
        now_ns: int,
        client: str,
        subscription: str,
        topic: str,
        cause: DiscardCause,
        rule: str,
        tally: DiscardTally,
    ) -> None:
        """Record discarded deliveries of one subscription."""
        if not tally.messages:
            return
        self.messages += tally.messages
        key = (client, subscription, topic, cause, rule)  # a subscription id may be reused within the second
        known = self._open.get(key)
        if known is None:
            self._open[key] = LossInterval(now_ns, client, subscription, topic, cause, rule, replace(tally))
        else:
            known.tally.merge(tally)

    def close_intervals(self) -> list[LossInterval]:
        """Close the intervals of the current second. Return them for publication."""
        closed = list(self._open.values())
        self._open.clear()
        self.recent.extend(closed)
        self.intervals += len(closed)
        return closed
