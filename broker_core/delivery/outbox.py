"""The outbox: what waits in memory for one client, first in, first out, over all of its subscriptions.

Its bytes, messages and oldest moment are exact at any time, because policies act on them. The outbox has no
limit of its own: limits belong to `slow_clients`, which is told about every change by whoever calls `offer`
and `pull`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from broker_core.delivery.entry import OutboxEntry, of_log


class Outbox:
    """A client's entries in the order they were offered."""

    __slots__ = ("_entries", "messages", "nbytes")

    def __init__(self) -> None:
        self._entries: deque[OutboxEntry] = deque()
        self.nbytes = 0
        self.messages = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[OutboxEntry]:
        return iter(self._entries)

    @property
    def oldest_at(self) -> int:
        """The age's start of the first entry, in ns; 0 when nothing waits."""
        return self._entries[0].accepted_at if self._entries else 0

    def of_stream(self, stream: int) -> tuple[int, int, int]:
        """What waits for one subscription: messages, bytes, and from when the oldest one's age counts (ns, 0 for none)."""
        mine = [entry for entry in self._entries if entry.stream == stream]
        return (
            sum(entry.count for entry in mine),
            sum(entry.nbytes for entry in mine),
            mine[0].accepted_at if mine else 0,
        )

    def first_sequence_of(self, stream: int) -> int:
        """Sequence of the first journaled record that waits for a subscription; 0 when there is none."""
        for entry in self._entries:
            if entry.stream == stream and entry.batch.first_sequence:
                return entry.batch.first_sequence
        return 0

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
        return self._take([entry for entry in self._entries if entry.stream == stream])

    def take_of_log(self, stream: int) -> list[OutboxEntry]:
        """Take those deliveries of one subscription that reading the log brings back (`of_log`); the others stay."""
        return self._take(of_log([entry for entry in self._entries if entry.stream == stream]))

    def _take(self, taken: list[OutboxEntry]) -> list[OutboxEntry]:
        if taken:
            gone = set(taken)
            self._entries = deque(entry for entry in self._entries if entry not in gone)
            self.nbytes -= sum(entry.nbytes for entry in taken)
            self.messages -= sum(entry.count for entry in taken)
        return taken
