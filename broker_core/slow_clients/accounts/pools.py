"""Pools: the memory and disk that clients share, what is used of them, and who uses most."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from broker_core.slow_clients.accounts.ranking import PoolClient, Ranking
from broker_core.slow_clients.evaluate.signals import PoolSignals
from broker_core.slow_clients.evaluate.trail import Trail
from broker_core.slow_clients.rules.rule import TICK_MS, PoolLimits

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
        self.looks = Trail(2)
        """Memory that offlining can relieve, and disk: looked at each second."""
        self.by_memory = Ranking(attrgetter("memory"), _bound_memory)
        self.by_disk = Ranking(attrgetter("disk"), _bound_disk)

    def leave(self, delta: int) -> None:
        """Memory of offlined clients became more or less by delta."""
        self.memory_leaving += delta
        self.memory_ceiling = self.limits.memory + self.memory_leaving

    def offline(self, use: PoolClient) -> None:
        """The client's memory is leaving: it is no longer ranked by it, nor does it count against the pool."""
        use.offlined = True
        use.memory_alarm = -1
        self.by_memory.discard(use)
        self.leave(use.memory)

    def take_in(self, use: PoolClient) -> None:
        """Add what a client uses."""
        self.memory_used += use.memory
        self.disk_used += use.disk
        if use.offlined:
            self.leave(use.memory)

    def lend(self, memory: int, disk: int) -> None:
        """So much more, or less, is used by clients that rest."""
        self.memory_used += memory
        self.disk_used += disk

    def open(self, use: PoolClient) -> None:
        """Take a client over with what it uses; its limits are in force at once."""
        self.take_in(use)
        self.by_disk.enter(use)
        if not use.offlined:
            self.by_memory.enter(use)

    def prepare(self, now_ns: int) -> None:
        """Have the largest users ranked before somebody must be chosen. Call it at every part of the tick."""
        if now_ns - self.looks.last_at >= TICK_MS * 1_000_000:
            self.looks.add(now_ns, (self.memory_used - self.memory_leaving, self.disk_used))
        for ranking, used, ceiling in (
            (self.by_memory, self.memory_used, self.memory_ceiling),
            (self.by_disk, self.disk_used, self.disk_ceiling),
        ):
            if used > ceiling - ceiling // NEARLY_FULL:
                ranking.prepare()
            else:
                ranking.rest()

    def close(self, use: PoolClient) -> None:
        """Give back what a client uses and forget it."""
        self.memory_used -= use.memory
        self.disk_used -= use.disk
        self.by_memory.discard(use)
        self.by_disk.discard(use)
        if use.offlined:
            self.leave(-use.memory)


def build_pools(limits: Mapping[str, PoolLimits]) -> dict[str, Pool]:
    """Each transport's pool by the transport's name, and the instance's as INSTANCE (""), empty. A shared one is one object."""
    made = {one.name: Pool(one) for one in limits.values()}
    return {transport: made[one.name] for transport, one in limits.items()}


# Called for each entry of a ranking, hence without `min`.


def _bound_memory(use: PoolClient, bound: int) -> None:
    limit = use.fresh.memory
    use.memory_alarm = bound if bound < limit else limit


def _bound_disk(use: PoolClient, bound: int) -> None:
    limit = use.fresh.disk
    use.disk_alarm = bound if bound < limit else limit
