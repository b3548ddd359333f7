"""The loss ledger: every interval of a subscription's messages that it will not get, and why.

The law it makes checkable: what was published and matched is delivered, in the ledger, or still queued. So whoever
gives up a delivery enters it here, and nobody gives one up elsewhere. What one rule takes from one subscription
within one flush (a second) becomes one interval, however many batches it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker_core.delivery.account import DiscardCause
from broker_core.delivery.entries import OutboxEntry
from broker_core.documents.system_records import LossEntry

KEPT: Final = 10_000
"""Intervals in memory; all of them are published and stored by the control plane."""


@dataclass(slots=True)
class DiscardTally:
    """Deliveries of one subscription as numbers: every one of their records lies between `first` and `last`.

    Both are sequences, 0 when no journal keeps any of them.
    """

    messages: int = 0
    nbytes: int = 0
    first: int = 0
    last: int = 0
    unjournaled: int = 0
    """How many of the messages no journal keeps."""
    unjournaled_bytes: int = 0

    def add(self, messages: int, nbytes: int, first: int, last: int) -> None:
        """More deliveries; `first` 0 when no journal keeps them."""
        self.messages += messages
        self.nbytes += nbytes
        if first:
            self.first = min(self.first or first, first)
            self.last = max(self.last, last)
        else:
            self.unjournaled += messages
            self.unjournaled_bytes += nbytes

    def add_entry(self, entry: OutboxEntry) -> None:
        """One more delivery."""
        batch = entry.batch
        self.add(entry.count, batch.header.bodies_length, batch.first_sequence, batch.last_sequence)

    def merge(self, other: DiscardTally) -> None:
        """All that another one holds."""
        journaled = other.messages - other.unjournaled
        self.add(other.unjournaled, other.unjournaled_bytes, 0, 0)
        if journaled:
            self.add(journaled, other.nbytes - other.unjournaled_bytes, other.first, other.last)

    def split_journaled(self) -> tuple[DiscardTally, DiscardTally]:
        """What no journal keeps, and what the log has."""
        count, size = self.unjournaled, self.unjournaled_bytes
        return DiscardTally(count, size, 0, 0, count, size), DiscardTally(
            self.messages - count, self.nbytes - size, self.first, self.last
        )


def tally_entries(entries: Iterable[OutboxEntry]) -> DiscardTally:
    """Deliveries of one subscription, counted."""
    tally = DiscardTally()
    for entry in entries:
        tally.add_entry(entry)
    return tally


class LossInterval(NamedTuple):
    """One interval: a subscription will not get `what`, because of `cause`, by `rule` ("" when none did it).

    What no journal keeps nothing brings back; for the rest a bookmark before `what.first` does, as long as the log
    holds it. `at` is ns UTC.
    """

    at: int
    client: str
    subscription: str
    topic: str
    cause: DiscardCause
    rule: str
    what: DiscardTally

    def entry(self, instance: str) -> LossEntry:
        """The interval as a document: `at` in ms, `first` and `last` as bookmarks of the first and last record, or ""."""
        what = self.what
        return LossEntry(
            at=self.at // 1_000_000, client=self.client, subscription=self.subscription, topic=self.topic,
            cause=self.cause.value, rule=self.rule, messages=what.messages, bytes=what.nbytes,
            unjournaled=what.unjournaled, first=f"{instance}|{what.first}|" if what.first else "",
            last=f"{instance}|{what.last}|" if what.last else "",
        )  # fmt: skip


class LossLedger:
    """An instance's losses: those of this second, still growing, and the newest of all."""

    def __init__(self) -> None:
        self.recent: deque[LossInterval] = deque(maxlen=KEPT)
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
        what: DiscardTally,
    ) -> None:
        """Enter deliveries of one subscription that were given up."""
        if not what.messages:
            return
        self.messages += what.messages
        key = (client, subscription, topic, cause, rule)  # an id may be used anew within the second
        known = self._open.get(key)
        if known is None:
            self._open[key] = LossInterval(now_ns, client, subscription, topic, cause, rule, replace(what))
        else:
            known.what.merge(what)

    def close_intervals(self) -> list[LossInterval]:
        """End the intervals of this second; what is to be published."""
        closed = list(self._open.values())
        self._open.clear()
        self.recent.extend(closed)
        self.intervals += len(closed)
        return closed
