"""What was handed to one client's transport and its peer hasn't acknowledged, of subscriptions without a window.

Kept per entry handed over: the byte of the connection at which it ends, and what it holds. How far the peer's kernel has
come is looked at by the tick and at the end, never per message; what windows count isn't here.

The outbox: what waits in memory for one client, first in, first out, over all of its subscriptions.

Its bytes, messages and oldest moment are exact at any time, because policies act on them. The outbox has no
limit of its own: limits belong to `slow_clients`, which is told about every change by whoever calls `offer`
and `pull`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Set

from broker_core.delivery.account import DeliveryAccount
from broker_core.delivery.entries import OutboxEntry, rereadable_entries

MANY = 1_024
"""Entries at which the sender looks itself how far the peer has come, so that they stay few."""


_Handed = tuple[int, int, DeliveryAccount, int, int, int, int]
"""One entry: the byte of the connection that is its last, its stream, its account, its messages, the bytes of their bodies,
the sequence of the first, and from when its age counts (ns). There is one for each delivery to each client, so it is plain."""


class InFlight:
    """Oldest first."""

    __slots__ = ("_entries", "_oldest")

    def __init__(self) -> None:
        self._entries: deque[_Handed] = deque()
        self._oldest: dict[int, int] | None = None
        """From when the age of each stream's oldest counts; None: nobody has asked since some were taken."""

    def __len__(self) -> int:
        return len(self._entries)

    def hand_over(self, ends_at: int, account: DeliveryAccount, entry: OutboxEntry) -> None:
        """An entry was given to the transport; its last byte is the connection's `ends_at`-th."""
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

    def acknowledge_bytes(self, upto: int) -> None:
        """The peer has acknowledged so many bytes of the connection."""
        entries = self._entries
        if entries and entries[0][0] <= upto:
            self._oldest = None
        while entries and entries[0][0] <= upto:
            _, _, account, messages, nbytes, first, _ = entries.popleft()
            account.acknowledge(messages, nbytes, first > 0)

    def first_sequence_of(self, stream: int) -> int:
        """Sequence of a subscription's first record that isn't acknowledged; 0 when there is none."""
        return next((first for _, of, _, _, _, first, _ in self._entries if of == stream and first), 0)

    def first_sequences(self) -> dict[int, int]:
        """The same for each stream that has one, in one pass."""
        found: dict[int, int] = {}
        for _, stream, _, _, _, first, _ in self._entries:
            if first:
                found.setdefault(stream, first)
        return found

    @property
    def oldest_at(self) -> int:
        """From when the age of the oldest counts, ns; 0 when there is none."""
        return self._entries[0][6] if self._entries else 0

    def oldest_excluding(self, streams: Set[int]) -> int:
        """The same of all but these subscriptions."""
        return next((one[6] for one in self._entries if one[1] not in streams), 0)

    def oldest_of(self, stream: int) -> int:
        """The same of one subscription."""
        if self._oldest is None:  # asked of many at once
            self._oldest = {}
            for one in self._entries:
                self._oldest.setdefault(one[1], one[6])
        return self._oldest.get(stream, 0)

    def remove_stream(self, stream: int) -> None:
        """A subscription has ended: nothing of it is acknowledged any more."""
        self._oldest = None
        self._entries = deque(one for one in self._entries if one[1] != stream)


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

    def take_journaled(self, stream: int) -> list[OutboxEntry]:
        """Take those deliveries of one subscription that reading the log brings back (`rereadable_entries`); the others stay."""
        return self._take(rereadable_entries([entry for entry in self._entries if entry.stream == stream]))

    def _take(self, taken: list[OutboxEntry]) -> list[OutboxEntry]:
        if taken:
            gone = set(taken)
            self._entries = deque(entry for entry in self._entries if entry not in gone)
            self.nbytes -= sum(entry.nbytes for entry in taken)
            self.messages -= sum(entry.count for entry in taken)
        return taken
