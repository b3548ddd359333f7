"""Who uses most, cheaply, among tens of thousands of clients whose use changes with every message.

A heap of what each client used when it was last looked at. Shrinking since then costs nothing: the entry says too much
and is put right when it comes to the top. Growing beyond it must be told (`enter`).

While nobody is about to ask, a client that has grown is noted once as one that isn't ranked, and grows on for nothing.
When the pool fills up, each `prepare` ranks some of these, and whoever grows is ranked at once: so a question finds
everybody ranked, and costs what left-over entries it meets. One that comes sooner ranks all the others first.

What is left over isn't cleared away all at once. When half of the heap is, it becomes the older one, and with each new
entry two are taken from its tail, where taking leaves a heap, and the good ones go to the new heap. The largest is at the
top of either.

Of equals the one with the older backlog comes first, then the one that connected first.

Pools: the memory and disk that clients share, what is used of them, and who uses most.
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

PARTS: Final = 20
"""Calls of `prepare` in which everybody is ranked: at the guard's pace half a second."""
_SPARE: Final = 64


class RankedClient(ClientView, Protocol):
    """What a client takes of its pool, and what the pool tells it: `ClientUsage`. Compared by identity."""

    memory: int
    memory_alarm: int
    """With more bytes than this it is looked at again."""
    disk: int
    disk_alarm: int
    is_offlined: bool
    fresh: ClientLimits


_Entry = tuple[int, int, int, RankedClient]
"""Minus the use, oldest_at, place in the order of connecting (no two have the same one), client."""


class UsageRanking:
    """Clients of one pool by their use of one resource.

    `used` reads the use; `bounded` is told each new bound, and the caller must `enter` the client again when
    its use passes it.
    """

    __slots__ = ("_alert", "_bounded", "_entries", "_heap", "_older", "_taken", "_unranked", "_used")

    def __init__(
        self, used: Callable[[RankedClient], int], bounded: Callable[[RankedClient, int], None]
    ) -> None:
        self._used = used
        self._bounded = bounded
        self._heap: list[_Entry] = []
        self._older: list[_Entry] = []
        self._taken: list[_Entry] = []
        """Taken out to see who comes next. Whoever is the largest will hardly be put back: it is about to be acted on."""
        self._entries: dict[RankedClient, _Entry] = {}
        """Each ranked client's one good entry; other entries in the heaps are left over."""
        self._unranked: dict[RankedClient, None] = {}
        self._alert = False
        """Whether a client that grows is ranked at once."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._unranked)

    def add(self, use: RankedClient) -> None:
        """Enter a client, or enter it anew because its use passed its bound."""
        if self._alert:
            self._unranked.pop(use, None)
            self._rank(use)
            self._tidy(2)
        else:
            self._entries.pop(use, None)
            self._unranked[use] = None
            self._bounded(use, UNLIMITED)

    def discard(self, use: RankedClient) -> None:
        """Take a client out; it needn't be in."""
        self._entries.pop(use, None)
        self._unranked.pop(use, None)

    def rank_some(self) -> None:
        """Somebody may ask soon: rank some of those that aren't ranked."""
        self._alert = True
        for use in list(islice(self._unranked, len(self) // PARTS + 1)):
            self.add(use)

    def stop_ranking(self) -> None:
        """Nobody will ask soon."""
        self._alert = False
        self._tidy(len(self._older) // PARTS + 1)

    def largest(self, wanted: int) -> list[RankedClient]:
        """The clients with the largest use above 0, largest first, `wanted` (1 or more) at most."""
        self._alert = True
        taken, self._taken = self._taken, []
        for entry in taken:
            if self._entries.get(entry[3]) is entry:
                heappush(self._heap, entry)
        if self._unranked:
            self._rank_all()
        while (heap := self._with_largest()) and len(self._taken) < wanted - 1:
            self._taken.append(heappop(heap))
        return [entry[3] for entry in (*self._taken, *heap[:1])]

    def _with_largest(self) -> list[_Entry]:
        """The heap that has the largest client at its top, with its true figures; an empty one when nobody uses any."""
        entries, read = self._entries, self._used
        while heap := self._with_top():
            entry = heap[0]
            minus, oldest, place, use = entry
            if entries.get(use) is not entry:
                heappop(heap)
                continue
            used, since = read(use), use.backlog.oldest_at
            if used == -minus and since == oldest:
                return heap if used else []
            entries[use] = entry = (-used, since, place, use)
            self._bounded(use, used)
            heapreplace(heap, entry)
        return heap

    def _with_top(self) -> list[_Entry]:
        heap, older = self._heap, self._older
        return older if older and (not heap or older[0] < heap[0]) else heap

    def _rank(self, use: RankedClient) -> None:
        used = self._used(use)
        entry = self._entries[use] = (-used, use.backlog.oldest_at, use.connection_number, use)
        self._bounded(use, used)
        heappush(self._heap, entry)

    def _rank_all(self) -> None:
        if 8 * len(self._unranked) < len(self._entries):
            for use in list(self._unranked):
                self.add(use)
            return
        read, bounded = self._used, self._bounded
        ranked = [(-read(one), one.backlog.oldest_at, one.connection_number, one) for one in self._unranked]
        for minus, _, _, use in ranked:
            bounded(use, -minus)
        self._entries.update(zip(self._unranked, ranked, strict=True))
        self._unranked.clear()
        self._heap, self._older = list(self._entries.values()), []
        heapify(self._heap)

    def _tidy(self, moves: int) -> None:
        older = self._older
        if not older:
            if len(self._heap) <= 2 * len(self._entries) + _SPARE:
                return
            self._heap, self._older = older, self._heap
            older = self._older
        for _ in range(min(moves, len(older))):
            entry = older.pop()
            if self._entries.get(entry[3]) is entry:
                heappush(self._heap, entry)


NEARLY_FULL: Final = 8
"""With less than one part in so many left, the pool's users are ranked in advance."""


class Pool(PoolSignals):
    """A shared budget. Its figures are the sums over its clients, never negative.

    `memory_ceiling` is what the hot path compares `memory_used` with: the limit and what offlined clients
    hold. That memory is on its way to disk already, and offlining somebody else wouldn't hasten it.
    """

    def __init__(self, limits: PoolLimits) -> None:
        super().__init__(limits.name)
        self.limits = limits
        self.memory_ceiling = limits.memory
        self.disk_ceiling = limits.disk
        self.looks = TimeSeries(2)
        """Memory that offlining can relieve, and disk: looked at each second."""
        self.by_memory = UsageRanking(attrgetter("memory"), _bound_memory)
        self.by_disk = UsageRanking(attrgetter("disk"), _bound_disk)

    def adjust_leaving_memory(self, delta: int) -> None:
        """Memory of offlined clients became more or less by delta."""
        self.memory_leaving += delta
        self.memory_ceiling = self.limits.memory + self.memory_leaving

    def mark_offlining(self, use: RankedClient) -> None:
        """The client's memory is leaving: it is no longer ranked by it, nor does it count against the pool."""
        use.is_offlined = True
        use.memory_alarm = -1
        self.by_memory.discard(use)
        self.adjust_leaving_memory(use.memory)

    def add_usage(self, use: RankedClient) -> None:
        """Add what a client uses."""
        self.memory_used += use.memory
        self.disk_used += use.disk
        if use.is_offlined:
            self.adjust_leaving_memory(use.memory)

    def adjust_resting_usage(self, memory: int, disk: int) -> None:
        """So much more, or less, is used by clients that rest."""
        self.memory_used += memory
        self.disk_used += disk

    def add_client(self, use: RankedClient) -> None:
        """Take a client over with what it uses; its limits are in force at once."""
        self.add_usage(use)
        self.by_disk.add(use)
        if not use.is_offlined:
            self.by_memory.add(use)

    def prepare_ranking(self, now_ns: int) -> None:
        """Have the largest users ranked before somebody must be chosen. Call it at every part of the tick."""
        if now_ns - self.looks.last_at >= TICK_MS * 1_000_000:
            self.looks.add(now_ns, (self.memory_used - self.memory_leaving, self.disk_used))
        for ranking, used, ceiling in (
            (self.by_memory, self.memory_used, self.memory_ceiling),
            (self.by_disk, self.disk_used, self.disk_ceiling),
        ):
            if used > ceiling - ceiling // NEARLY_FULL:
                ranking.rank_some()
            else:
                ranking.stop_ranking()

    def remove_client(self, use: RankedClient) -> None:
        """Give back what a client uses and forget it."""
        self.memory_used -= use.memory
        self.disk_used -= use.disk
        self.by_memory.discard(use)
        self.by_disk.discard(use)
        if use.is_offlined:
            self.adjust_leaving_memory(-use.memory)


def build_pools(limits: Mapping[str, PoolLimits]) -> dict[str, Pool]:
    """Each transport's pool by the transport's name, and the instance's as INSTANCE (""), empty. A shared one is one object."""
    made = {one.name: Pool(one) for one in limits.values()}
    return {transport: made[one.name] for transport, one in limits.items()}


# Called for each entry of a ranking, hence without `min`.


def _bound_memory(use: RankedClient, bound: int) -> None:
    limit = use.fresh.memory
    use.memory_alarm = bound if bound < limit else limit


def _bound_disk(use: RankedClient, bound: int) -> None:
    limit = use.fresh.disk
    use.disk_alarm = bound if bound < limit else limit
