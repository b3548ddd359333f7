"""What was handed to one client's transport and its peer hasn't acknowledged, of subscriptions without a window.

Kept per entry handed over: the byte of the connection at which it ends, and what it holds. How far the peer's kernel has
come is looked at by the tick and at the end, never per message; what windows count isn't here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set

from broker_core.delivery.account import Account
from broker_core.delivery.entry import OutboxEntry

MANY = 1_024
"""Entries at which the sender looks itself how far the peer has come, so that they stay few."""


_Handed = tuple[int, int, Account, int, int, int, int]
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

    def hand_over(self, ends_at: int, account: Account, entry: OutboxEntry) -> None:
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

    def taken(self, upto: int) -> None:
        """The peer has acknowledged so many bytes of the connection."""
        entries = self._entries
        if entries and entries[0][0] <= upto:
            self._oldest = None
        while entries and entries[0][0] <= upto:
            _, _, account, messages, nbytes, first, _ = entries.popleft()
            account.acknowledge(messages, nbytes, first > 0)

    def first_of(self, stream: int) -> int:
        """Sequence of a subscription's first record that isn't acknowledged; 0 when there is none."""
        return next((first for _, of, _, _, _, first, _ in self._entries if of == stream and first), 0)

    def firsts(self) -> dict[int, int]:
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

    def oldest_but(self, streams: Set[int]) -> int:
        """The same of all but these subscriptions."""
        return next((one[6] for one in self._entries if one[1] not in streams), 0)

    def oldest_of(self, stream: int) -> int:
        """The same of one subscription."""
        if self._oldest is None:  # asked of many at once
            self._oldest = {}
            for one in self._entries:
                self._oldest.setdefault(one[1], one[6])
        return self._oldest.get(stream, 0)

    def end(self, stream: int) -> None:
        """A subscription has ended: nothing of it is acknowledged any more."""
        self._oldest = None
        self._entries = deque(one for one in self._entries if one[1] != stream)
