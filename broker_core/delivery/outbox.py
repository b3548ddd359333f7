"""The outbox: what waits in memory for one client, first in, first out, over all of its subscriptions.

Its bytes, messages and oldest moment are exact at any time, because policies act on them. The outbox has no
limit of its own: limits belong to `slow_clients`, which is told about every change by whoever calls `offer`
and `pull`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from broker_core.batch import Batch

Rows = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class OutboxEntry:
    """One delivery: a batch for a stream, and where it came from. Never changed, so clients may share it.

    `nbytes` is what the delivery takes from the pool: the batch that will be sent. `accepted_at` (ns) is the
    moment from which the delivery's age counts: when the broker accepted the batch, or, for a batch read from
    the journal, when it was queued, because a replayed record isn't late by being old.
    """

    stream: int
    batch: Batch
    rows: Rows | None
    """Row numbers in the source batch that `batch` was selected from; None: `batch` is the whole source."""
    source: tuple[int, int] | None
    """The journal's Position (segment, offset) of the source batch; None when it isn't journaled."""
    source_length: int
    """Bytes of the source batch in the journal; 0 when it isn't journaled."""
    count: int
    nbytes: int
    accepted_at: int


class Outbox:
    """A client's entries in the order they were offered."""

    __slots__ = ("_entries", "messages", "nbytes")

    def __init__(self) -> None:
        self._entries: deque[OutboxEntry] = deque()
        self.nbytes = 0
        self.messages = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest_at(self) -> int:
        """The age's start of the first entry, in ns; 0 when nothing waits."""
        return self._entries[0].accepted_at if self._entries else 0

    @property
    def first_sequence(self) -> int:
        """Sequence of the first journaled record that waits; 0 when there is none."""
        for entry in self._entries:
            if entry.batch.first_sequence:
                return entry.batch.first_sequence
        return 0

    def first_sequence_of(self, stream: int) -> int:
        """The same of one subscription."""
        for entry in self._entries:
            if entry.stream == stream and entry.batch.first_sequence:
                return entry.batch.first_sequence
        return 0

    @property
    def unjournaled_messages(self) -> int:
        """How many of the waiting messages a bookmark can't bring back. Walks the outbox; for decisions."""
        return sum(entry.count for entry in self._entries if entry.source is None)

    def offer(self, entry: OutboxEntry) -> None:
        """Queue one delivery behind the others."""
        self._entries.append(entry)
        self.nbytes += entry.nbytes
        self.messages += entry.count

    def pull(self, max_bytes: int) -> list[OutboxEntry]:
        """Take entries from the front, up to max_bytes; the first even if it is larger. [] when empty."""
        entries = self._entries
        taken: list[OutboxEntry] = []
        room = max_bytes
        while entries and (entries[0].nbytes <= room or not taken):
            entry = entries.popleft()
            taken.append(entry)
            room -= entry.nbytes
            self.messages -= entry.count
        self.nbytes -= max_bytes - room
        return taken

    def take_all(self) -> list[OutboxEntry]:
        """Take everything, in order, for the spool or because the client closes."""
        taken = list(self._entries)
        self._entries.clear()
        self.nbytes = self.messages = 0
        return taken

    def take_stream(self, stream: int) -> list[OutboxEntry]:
        """Take the deliveries of one subscription, in order; the others stay."""
        taken = [entry for entry in self._entries if entry.stream == stream]
        if taken:
            self._entries = deque(entry for entry in self._entries if entry.stream != stream)
            self.nbytes -= sum(entry.nbytes for entry in taken)
            self.messages -= sum(entry.count for entry in taken)
        return taken
