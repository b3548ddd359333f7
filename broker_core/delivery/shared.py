"""One batch on its way to many subscriptions: those that want the same rows on the same stream share one delivery."""

from __future__ import annotations

from typing import Final

from broker_core.batch import Batch, Rows
from broker_core.delivery.entry import OutboxEntry
from broker_core.journal.segment import BatchPosition

APART_NS: Final = 10_000_000_000
"""More than a record takes from its acceptance to here, unless this broker was away from its group, stood still, or its clock isn't the
one that the record was stamped with."""


def age_from(accepted_at: int, now: int) -> int:
    """From when the age of what comes live counts, ns: its acceptance, or now where that says nothing of how long it waits for its clients."""
    return accepted_at if 0 <= now - accepted_at <= APART_NS else now


class Shared:
    """`position` is where the batch stands in the journal; None while it isn't there, or never will be. `now` (ns): of that moment."""

    __slots__ = ("_entries", "_parts", "_since", "batch", "journaled", "position")

    def __init__(self, batch: Batch, position: BatchPosition | None, now: int) -> None:
        self.batch = batch
        self._since = age_from(batch.accepted_at, now)
        self.position = position
        self.journaled = batch.header.first_sequence > 0
        self._parts: dict[int, Batch] = {}
        self._entries: dict[tuple[int, int], OutboxEntry] = {}

    def part(self, rows: Rows | None) -> Batch:
        """The batch of these rows (None: all). Rows that are the same object are cut once."""
        if rows is None:
            return self.batch
        part = self._parts.get(id(rows))
        if part is None:
            part = self._parts[id(rows)] = self.batch.select(rows)
        return part

    def entry(self, stream: int, rows: Rows | None) -> OutboxEntry:
        """The delivery of these rows on a stream. Most clients' subscription is stream 1 of their connection."""
        key = (stream, id(rows))
        entry = self._entries.get(key)
        if entry is None:
            batch, part = self.batch, self.part(rows)
            entry = self._entries[key] = OutboxEntry(
                stream, part, rows, self.position, batch.nbytes, part.count, part.nbytes, self._since
            )
        return entry
