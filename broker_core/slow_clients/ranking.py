"""Who uses most, cheaply, among tens of thousands of clients whose use changes with every message.

A heap of upper bounds. A client's entry says "uses at most this much, and its backlog is at least this old"; growing
within the bound and shrinking cost nothing, and growing past it enters the client anew with some more. Only when
somebody asks for the largest are the bounds at the top replaced by the true figures, until the top is true. Each such
replacement is paid for by an entry that was made before, so a question costs O(log n) amortised, and a message costs
nothing. When thousands would have to be replaced for one answer, all are ranked anew at once instead.

Of equals the one with the older backlog comes first, then the one that connected first.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final

from broker_core.slow_clients.accounts import Account

SLACK: Final = 64 * 1024
"""A bound is a sixteenth and this much above the use: so few others come near the largest."""
_SPARE: Final = 64
_REPLACED: Final = 256
"""So many replacements for one answer, and all are ranked anew."""

_Entry = tuple[int, int, int, int, Account]
"""Minus the bound, oldest_at or less, place in the order of connecting, serial number, client."""


class Ranking:
    """Clients of one pool by their use of one resource.

    `used` reads the use; `bounded` is told each new bound, and the caller must `enter` the client again when
    its use passes it.
    """

    __slots__ = ("_bounded", "_heap", "_serial", "_serials", "_used")

    def __init__(self, used: Callable[[Account], int], bounded: Callable[[Account, int], None]) -> None:
        self._used = used
        self._bounded = bounded
        self._heap: list[_Entry] = []
        self._serials: dict[Account, int] = {}
        """The serial number of each client's one good entry; entries with another number are left-overs."""
        self._serial = count(1)

    def __len__(self) -> int:
        return len(self._serials)

    def enter(self, account: Account) -> None:
        """Enter a client, or enter it anew because its use passed its bound."""
        if len(self._heap) > 4 * len(self._serials) + _SPARE:
            self._heap = [entry for entry in self._heap if self._serials.get(entry[4]) == entry[3]]
            heapify(self._heap)
        used = self._used(account)
        bound = used + (used >> 4) + SLACK
        serial = self._serials[account] = next(self._serial)
        self._bounded(account, bound)
        heappush(self._heap, (-bound, 0, account.connected, serial, account))

    def discard(self, account: Account) -> None:
        """Take a client out; it needn't be in."""
        self._serials.pop(account, None)

    def largest(self, wanted: int) -> list[Account]:
        """The clients with the largest use above 0, largest first, `wanted` at most."""
        true: list[_Entry] = []
        replaced = 0
        while self._heap and len(true) < wanted:
            heap = self._heap
            bound, oldest, _, serial, account = heap[0]
            if self._serials.get(account) != serial:
                heappop(heap)
                continue
            used, since = self._used(account), account.backlog.oldest_at
            if used == -bound and since <= oldest:
                true.append(heappop(heap))
            elif replaced < _REPLACED:
                replaced += 1
                serial = self._serials[account] = next(self._serial)
                self._bounded(account, used)
                heapreplace(heap, (-used, since, account.connected, serial, account))
            else:
                replaced, true = 0, []
                self._rank_anew()
        for entry in true:
            heappush(self._heap, entry)
        return [entry[4] for entry in true if entry[0]]

    def _rank_anew(self) -> None:
        """True figures for all. Sorted entries are a heap; one serial number does for entries of different clients."""
        serial, read, bounded = next(self._serial), self._used, self._bounded
        self._serials = dict.fromkeys(self._serials, serial)
        ranked: list[_Entry] = []
        for account in self._serials:
            used = read(account)
            bounded(account, used)
            ranked.append((-used, account.backlog.oldest_at, account.connected, serial, account))
        ranked.sort()
        self._heap = ranked
