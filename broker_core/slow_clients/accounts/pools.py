"""Pools: the memory and disk that clients share, their use, and a ranking of the clients by use.

The ranking finds the largest users among tens of thousands of clients whose use changes with every message.
It is a heap of the use at the time of the last ranking:

- When a client's use shrinks, nothing is done. Its entry is too large and is corrected when it reaches the
  top.
- When its use grows beyond the entry, the caller must `add` it again.

While no choice is expected, a client that has grown is only listed as unranked, once, and grows further at no
cost. When the pool fills up, each `rank_some` ranks a part of the unranked clients, and clients that grow are
ranked immediately. So a choice finds all clients ranked and only skips obsolete entries. A choice that comes
earlier first ranks all others.

Obsolete entries are removed gradually. When they are half of the heap, it becomes the older heap. With each
new entry, two entries are removed from the tail of the older heap, which leaves a valid heap. Of these, the
valid ones go to the new heap. The largest user is at the top of one of the two.

Clients with equal use are ordered by the age of their backlog, then by the order of connecting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from operator import attrgetter
from typing import Final, Protocol

from broker_core.slow_clients.evaluate.samples import TimeSeries
from broker_core.slow_clients.evaluate.signals import ClientView, PoolSignals
from broker_core.slow_clients.rules.rule import TICK_MS, UNLIMITED, ClientLimits, PoolLimits

RANKING_CALLS: Final = 20
"""Number of `rank_some` calls that rank all clients: half a second at the guard's pace of 25 ms."""
SPARE_ENTRIES: Final = 64
"""Obsolete entries that are always tolerated."""


class RankedClient(ClientView, Protocol):
    """Client with its use and the figures that the pool sets (`ClientUsage`). Compared by identity."""

    memory: int
    memory_alarm: int
    """With more bytes in memory than this, the client is checked again."""
    disk: int
    disk_alarm: int
    """With more bytes on disk than this, the client is checked again."""
    is_offlined: bool
    unacted_limits: ClientLimits
    """Lowest limits of rules that have not acted yet."""


_Entry = tuple[int, int, int, RankedClient]
"""(negated use, `oldest_at`, connection number, client); connection numbers are unique."""


class UsageRanking:
    """Ranking of the clients of one pool by their use of one resource."""

    __slots__ = (
        "_entries",
        "_newer",
        "_older",
        "_on_bounded",
        "_popped",
        "_ranks_immediately",
        "_unranked",
        "_used",
    )

    def __init__(
        self, used: Callable[[RankedClient], int], on_bounded: Callable[[RankedClient, int], None]
    ) -> None:
        """Create an empty ranking.

        Args:
            used: Returns a client's current use in bytes.
            on_bounded: Receives each new bound of a client. The caller must `add` the client again when its
                use exceeds the bound.
        """
        self._used = used
        self._on_bounded = on_bounded
        self._newer: list[_Entry] = []
        self._older: list[_Entry] = []
        """Older heap, whose entries move to `_newer` step by step."""
        self._popped: list[_Entry] = []
        """Entries that `largest` took out, to see the next ones.

        They are put back by the next call. The largest client rarely is: it is about to be acted on.
        """
        self._entries: dict[RankedClient, _Entry] = {}
        """Valid entry of each ranked client; all other entries in the heaps are obsolete."""
        self._unranked: dict[RankedClient, None] = {}
        self._ranks_immediately = False
        """Whether a client that grows is ranked immediately."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._unranked)

    def add(self, use: RankedClient) -> None:
        """Add a client, or rank it again because its use exceeded its bound."""
        if self._ranks_immediately:
            self._unranked.pop(use, None)
            self._rank(use)
            self._move_older_entries(2)
        else:
            self._entries.pop(use, None)
            self._unranked[use] = None
            self._on_bounded(use, UNLIMITED)

    def discard(self, use: RankedClient) -> None:
        """Remove a client, if it is there."""
        self._entries.pop(use, None)
        self._unranked.pop(use, None)

    def rank_some(self) -> None:
        """Rank a part of the unranked clients, because a choice is expected soon."""
        self._ranks_immediately = True
        for use in list(islice(self._unranked, len(self) // RANKING_CALLS + 1)):
            self.add(use)

    def stop_ranking(self) -> None:
        """Stop ranking clients that grow, because no choice is expected soon."""
        self._ranks_immediately = False
        self._move_older_entries(len(self._older) // RANKING_CALLS + 1)

    def largest(self, number: int) -> list[RankedClient]:
        """Return at most `number` (1 or more) clients with a use above 0, largest first."""
        self._ranks_immediately = True
        popped, self._popped = self._popped, []
        for entry in popped:
            if self._entries.get(entry[3]) is entry:
                heappush(self._newer, entry)
        if self._unranked:
            self._rank_all()
        while (heap := self._heap_with_largest()) and len(self._popped) < number - 1:
            self._popped.append(heappop(heap))
        return [entry[3] for entry in (*self._popped, *heap[:1])]

    def _heap_with_largest(self) -> list[_Entry]:
        """Return the heap with the largest client at its top, corrected; [] when no client uses any."""
        entries, read = self._entries, self._used
        while heap := self._heap_with_top():
            entry = heap[0]
            negated, oldest, number, use = entry
            if entries.get(use) is not entry:
                heappop(heap)
                continue
            used, since = read(use), use.backlog.oldest_at
            if used == -negated and since == oldest:
                return heap if used else []
            entries[use] = entry = (-used, since, number, use)
            self._on_bounded(use, used)
            heapreplace(heap, entry)
        return heap

    def _heap_with_top(self) -> list[_Entry]:
        """Return the heap whose top entry is larger."""
        heap, older = self._newer, self._older
        return older if older and (not heap or older[0] < heap[0]) else heap

    def _rank(self, use: RankedClient) -> None:
        """Push a new valid entry for a client."""
        used = self._used(use)
        entry = self._entries[use] = (-used, use.backlog.oldest_at, use.connection_number, use)
        self._on_bounded(use, used)
        heappush(self._newer, entry)

    def _rank_all(self) -> None:
        """Rank all unranked clients: one by one if they are few, otherwise by rebuilding the heap."""
        if 8 * len(self._unranked) < len(self._entries):
            for use in list(self._unranked):
                self.add(use)
            return
        read, on_bounded = self._used, self._on_bounded
        ranked = [(-read(one), one.backlog.oldest_at, one.connection_number, one) for one in self._unranked]
        for minus, _, _, use in ranked:
            on_bounded(use, -minus)
        self._entries.update(zip(self._unranked, ranked, strict=True))
        self._unranked.clear()
        self._newer, self._older = list(self._entries.values()), []
        heapify(self._newer)

    def _move_older_entries(self, moves: int) -> None:
        """Move at most `moves` entries out of the older heap.

        If it is empty and half of the other is obsolete, swap.
        """
        older = self._older
        if not older:
            if len(self._newer) <= 2 * len(self._entries) + SPARE_ENTRIES:
                return
            self._newer, self._older = older, self._newer
            older = self._older
        for _ in range(min(moves, len(older))):
            entry = older.pop()
            if self._entries.get(entry[3]) is entry:
                heappush(self._newer, entry)


NEARLY_FULL: Final = 8
"""With less than 1 / NEARLY_FULL of a pool free, its users are ranked in advance."""


class Pool(PoolSignals):
    """Memory and disk budget that clients share. Its figures are sums over its clients, never negative.

    `memory_ceiling` is the number that the hot path compares `memory_used` with: the limit plus the memory of
    offlined clients. That memory is already on its way to disk, and to offline another client would not free
    it sooner.
    """

    def __init__(self, limits: PoolLimits) -> None:
        super().__init__(limits.name)
        self.limits = limits
        self.memory_ceiling = limits.memory
        self.disk_ceiling = limits.disk
        self.samples = TimeSeries(2)
        """Samples, one per second: memory that offlining can relieve, and disk."""
        self.by_memory = UsageRanking(attrgetter("memory"), _bound_memory)
        self.by_disk = UsageRanking(attrgetter("disk"), _bound_disk)

    def adjust_offlined_memory(self, delta: int) -> None:
        """Add `delta` bytes (may be negative) to the memory of offlined clients."""
        self.offlined_memory += delta
        self.memory_ceiling = self.limits.memory + self.offlined_memory

    def mark_offlining(self, use: RankedClient) -> None:
        """Mark a client as offlined and remove it from the memory ranking.

        Its memory no longer counts against the pool's limit.
        """
        use.is_offlined = True
        use.memory_alarm = -1
        self.by_memory.discard(use)
        self.adjust_offlined_memory(use.memory)

    def add_usage(self, use: RankedClient) -> None:
        """Add the use of a client to the pool's sums."""
        self.memory_used += use.memory
        self.disk_used += use.disk
        if use.is_offlined:
            self.adjust_offlined_memory(use.memory)

    def adjust_suspended_usage(self, memory: int, disk: int) -> None:
        """Add the use of suspended clients to the pool's sums, bytes; may be negative."""
        self.memory_used += memory
        self.disk_used += disk

    def add_client(self, use: RankedClient) -> None:
        """Add a client with its present use; the pool's limits apply to it immediately."""
        self.add_usage(use)
        self.by_disk.add(use)
        if not use.is_offlined:
            self.by_memory.add(use)

    def prepare_ranking(self, now_ns: int) -> None:
        """Rank the largest users in advance when the pool is nearly full.

        Call it at every slice of the tick.
        """
        if now_ns - self.samples.last_at >= TICK_MS * 1_000_000:
            self.samples.add(now_ns, (self.memory_used - self.offlined_memory, self.disk_used))
        for ranking, used, ceiling in (
            (self.by_memory, self.memory_used, self.memory_ceiling),
            (self.by_disk, self.disk_used, self.disk_ceiling),
        ):
            if used > ceiling - ceiling // NEARLY_FULL:
                ranking.rank_some()
            else:
                ranking.stop_ranking()

    def remove_client(self, use: RankedClient) -> None:
        """Remove a client and its use."""
        self.memory_used -= use.memory
        self.disk_used -= use.disk
        self.by_memory.discard(use)
        self.by_disk.discard(use)
        if use.is_offlined:
            self.adjust_offlined_memory(-use.memory)


def build_pools(limits: Mapping[str, PoolLimits]) -> dict[str, Pool]:
    """Return an empty pool for each transport by name; INSTANCE ("") has the instance's.

    Transports that share a pool get the same object.
    """
    made = {one.name: Pool(one) for one in limits.values()}
    return {transport: made[one.name] for transport, one in limits.items()}


# Hot path, called for each entry of a ranking: a conditional expression is faster than `min`.


def _bound_memory(use: RankedClient, bound: int) -> None:
    """Set the client's memory alarm to the bound, or to its limit if that is lower."""
    limit = use.unacted_limits.memory
    use.memory_alarm = bound if bound < limit else limit


def _bound_disk(use: RankedClient, bound: int) -> None:
    """Set the client's disk alarm to the bound, or to its limit if that is lower."""
    limit = use.unacted_limits.disk
    use.disk_alarm = bound if bound < limit else limit
