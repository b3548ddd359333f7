"""Who uses most, cheaply, among tens of thousands of clients whose use changes with every message.

A heap of upper bounds. A client's entry says "uses at most this much"; growing within the bound and shrinking
cost nothing, and growing past it enters the client anew with twice its use. Only when somebody asks for the
largest are the bounds at the top replaced by the true figures, until the top is true. Each such replacement
is paid for by an entry that was made before, so a question costs O(log n) amortised, and a message costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final

from broker_core.slow_clients.accounts import Account

SMALLEST_BOUND: Final = 64 * 1024
_SPARE: Final = 64


class Ranking:
    """Clients of one pool by their use of one resource.

    `used` reads the use; `bounded` is told each new bound, and the caller must `enter` the client again when
    its use passes it.
    """

    __slots__ = ("_bounded", "_heap", "_serial", "_serials", "_used")

    def __init__(self, used: Callable[[Account], int], bounded: Callable[[Account, int], None]) -> None:
        self._used = used
        self._bounded = bounded
        self._heap: list[tuple[int, int, Account]] = []
        self._serials: dict[Account, int] = {}
        """The serial number of each client's one good entry; entries with another number are left-overs."""
        self._serial = count(1)

    def __len__(self) -> int:
        return len(self._serials)

    def enter(self, account: Account) -> None:
        """Enter a client, or enter it anew because its use passed its bound."""
        if len(self._heap) > 4 * len(self._serials) + _SPARE:
            self._heap = [entry for entry in self._heap if self._serials.get(entry[2]) == entry[1]]
            heapify(self._heap)
        heappush(self._heap, self._entry(account, max(SMALLEST_BOUND, 2 * self._used(account))))

    def discard(self, account: Account) -> None:
        """Take a client out; it needn't be in."""
        self._serials.pop(account, None)

    def largest(self, wanted: int) -> list[Account]:
        """The clients with the largest use above 0, largest first, `wanted` at most."""
        heap = self._heap
        true: list[tuple[int, int, Account]] = []
        while heap and len(true) < wanted:
            bound, serial, account = heap[0]
            if self._serials.get(account) != serial:
                heappop(heap)
            elif (used := self._used(account)) == -bound:
                true.append(heappop(heap))
            else:
                heapreplace(heap, self._entry(account, used))
        for entry in true:
            heappush(heap, entry)
        return [account for bound, _, account in true if bound]

    def _entry(self, account: Account, bound: int) -> tuple[int, int, Account]:
        serial = self._serials[account] = next(self._serial)
        self._bounded(account, bound)
        return (-bound, serial, account)
