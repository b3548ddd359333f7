"""Outbox: deliveries of one client in memory, first in, first out; and its deliveries in flight.

The outbox knows its bytes, messages and oldest time exactly at every moment, because policies act on them. It
has no limit of its own. Limits belong to `slow_clients`, to which callers of `offer` and `pull` report every
change.

`InFlight` lists deliveries that were handed to the transport and not acknowledged by the peer, for
subscriptions without a window. Each entry remembers the connection byte at which it ends. Periodic checks and
the end of the connection ask how far the peer's kernel has acknowledged, never each message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set

from broker_core.delivery.account import DeliveryAccount
from broker_core.delivery.entries import OutboxEntry, rereadable_entries

MANY = 1_024
"""Number of entries in flight at which the sender checks the peer's progress, to keep the list short."""


_Handed = tuple[int, int, DeliveryAccount, int, int, int, int]
"""One delivery in flight. A plain tuple, because there is one for each delivery to each client.

Its fields: end byte in the connection, stream, account, messages, bytes of their bodies, sequence of the
first record, and the time from which its age counts (ns).
"""


class InFlight:
    """Deliveries in flight of subscriptions without a window, oldest first."""

    __slots__ = ("_entries", "_oldest")

    def __init__(self) -> None:
        self._entries: deque[_Handed] = deque()
        self._oldest: dict[int, int] | None = None
        """Age start of each stream's oldest delivery, ns; None: to be computed, because some were removed."""

    def __len__(self) -> int:
        return len(self._entries)

    def hand_over(self, ends_at: int, account: DeliveryAccount, entry: OutboxEntry) -> None:
        """Add a delivery that was handed to the transport. Its last byte is the connection's `ends_at`-th."""
        header = entry.batch.header
        if self._oldest is not None:
            self._oldest.setdefault(entry.stream, entry.accepted_at)
        self._entries.append(
            (
                ends_at,
                entry.stream,
                account,
                header.count,
                header.bodies_length,
                header.first_sequence,
                entry.accepted_at,
            )
        )

    def acknowledge_bytes(self, end: int) -> None:
        """Acknowledge all deliveries that end at or before byte `end` of the connection."""
        entries = self._entries
        if entries and entries[0][0] <= end:
            self._oldest = None
        while entries and entries[0][0] <= end:
            _, _, account, messages, nbytes, first, _ = entries.popleft()
            account.acknowledge(messages, nbytes, first > 0)

    def get_first_sequence(self, stream: int) -> int:
        """Return the sequence of a subscription's first record in flight; 0 when there is none."""
        return next((first for _, of, _, _, _, first, _ in self._entries if of == stream and first), 0)

    def first_sequences(self) -> dict[int, int]:
        """Return the sequence of the first record in flight by stream, in one pass.

        Streams without one are missing.
        """
        found: dict[int, int] = {}
        for _, stream, _, _, _, first, _ in self._entries:
            if first:
                found.setdefault(stream, first)
        return found

    @property
    def oldest_at(self) -> int:
        """Time from which the age of the oldest delivery in flight counts, ns; 0 when there is none."""
        return self._entries[0][6] if self._entries else 0

    def oldest_excluding(self, streams: Set[int]) -> int:
        """Return the oldest age start in flight outside of these streams, ns; 0 when there is none."""
        return next((one[6] for one in self._entries if one[1] not in streams), 0)

    def get_oldest(self, stream: int) -> int:
        """Return the age start of the oldest delivery in flight of one stream, ns; 0 when there is none."""
        if self._oldest is None:  # computed for all streams in one pass, because callers ask for many
            self._oldest = {}
            for one in self._entries:
                self._oldest.setdefault(one[1], one[6])
        return self._oldest.get(stream, 0)

    def remove_stream(self, stream: int) -> None:
        """Remove the deliveries of an ended subscription. They will never count as acknowledged."""
        self._oldest = None
        self._entries = deque(one for one in self._entries if one[1] != stream)


class Outbox:
    """Queued deliveries of one client in the order in which they were offered."""

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
        """Time from which the age of the first entry counts, ns; 0 when the outbox is empty."""
        return self._entries[0].accepted_at if self._entries else 0

    def get_queued(self, stream: int) -> tuple[int, int, int]:
        """Return one subscription's queued messages, their bytes, and oldest age start (ns, 0: none)."""
        queued = [entry for entry in self._entries if entry.stream == stream]
        return (
            sum(entry.count for entry in queued),
            sum(entry.nbytes for entry in queued),
            queued[0].accepted_at if queued else 0,
        )

    def get_first_sequence(self, stream: int) -> int:
        """Return the sequence of a subscription's first queued journaled record; 0 when there is none."""
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
        """Remove and return entries from the front, up to `max_bytes`; the first even if it is larger.

        [] when empty.
        """
        entries = self._entries
        pulled: list[OutboxEntry] = []
        free_bytes = max_bytes
        while entries and (entries[0].nbytes <= free_bytes or not pulled):
            entry = entries.popleft()
            pulled.append(entry)
            free_bytes -= entry.nbytes
            self.messages -= entry.count
        self.nbytes -= max_bytes - free_bytes
        return pulled

    def take_all(self) -> list[OutboxEntry]:
        """Remove and return all entries in order, for the spool or because the client closes."""
        entries = list(self._entries)
        self._entries.clear()
        self.nbytes = self.messages = 0
        return entries

    def take_stream(self, stream: int) -> list[OutboxEntry]:
        """Remove and return the deliveries of one subscription, in order."""
        return self._take([entry for entry in self._entries if entry.stream == stream])

    def take_journaled(self, stream: int) -> list[OutboxEntry]:
        """Remove and return the deliveries of one subscription that reading the log brings back.

        `rereadable_entries` selects them.
        """
        return self._take(rereadable_entries([entry for entry in self._entries if entry.stream == stream]))

    def _take(self, entries: list[OutboxEntry]) -> list[OutboxEntry]:
        """Remove the given entries and update the counts."""
        if entries:
            removed = set(entries)
            self._entries = deque(entry for entry in self._entries if entry not in removed)
            self.nbytes -= sum(entry.nbytes for entry in entries)
            self.messages -= sum(entry.count for entry in entries)
        return entries
