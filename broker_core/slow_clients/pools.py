"""Pools: the memory and disk that clients share, what is used of them, and who uses most."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from broker_core.config import PolicyDocument
from broker_core.slow_clients.accounts import Account
from broker_core.slow_clients.holds import Hold
from broker_core.slow_clients.presets import amps
from broker_core.slow_clients.ranking import Ranking
from broker_core.slow_clients.rules import UNLIMITED, PoolLimits
from broker_core.slow_clients.signals import PoolSignals

NEARLY_FULL: Final = 8
"""With less than one part in so many left, the pool's users are ranked in advance."""


class Pool:
    """A shared budget. Its figures are the sums over its clients' accounts, never negative.

    `memory_ceiling` is what the hot path compares `memory_used` with: the limit and what offlined clients
    hold. That memory is on its way to disk already, and offlining somebody else wouldn't hasten it.
    """

    __slots__ = (
        "by_disk",
        "by_memory",
        "disk_ceiling",
        "disk_used",
        "limits",
        "memory_ceiling",
        "memory_leaving",
        "memory_used",
    )

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self.memory_used = 0
        self.memory_leaving = 0
        self.memory_ceiling = limits.memory
        self.disk_used = 0
        self.disk_ceiling = limits.disk
        self.by_memory = Ranking(attrgetter("memory"), _bound_memory)
        self.by_disk = Ranking(attrgetter("disk"), _bound_disk)

    @property
    def name(self) -> str:
        return self.limits.name

    @property
    def memory_limit(self) -> int:
        return self.limits.memory

    @property
    def disk_limit(self) -> int:
        return self.limits.disk

    @property
    def disk_path(self) -> str:
        return self.limits.disk_path

    def signals(self, holds: Mapping[str, Hold] | None = None) -> PoolSignals:
        """The pool's figures now, with what pool rules remember."""
        return PoolSignals(self.name, self.memory_used, self.memory_leaving, self.disk_used, holds or {})

    def leave(self, delta: int) -> None:
        """Memory of offlined clients became more or less by delta."""
        self.memory_leaving += delta
        self.memory_ceiling = self.limits.memory + self.memory_leaving

    def offline(self, account: Account) -> None:
        """The client's memory is leaving: it is no longer ranked by it, nor does it count against the pool."""
        account.offlined = True
        account.memory_alarm = -1
        self.by_memory.discard(account)
        self.leave(account.memory)

    def open(self, account: Account) -> None:
        """Take over an account with what it uses; its limits are in force at once."""
        account.pool = self
        self.memory_used += account.memory
        self.disk_used += account.disk
        self.by_disk.enter(account)
        if account.offlined:
            account.memory_alarm = -1
            self.leave(account.memory)
        else:
            self.by_memory.enter(account)

    def prepare(self) -> None:
        """Have the largest users ranked before somebody must be chosen. Call it at every part of the tick."""
        for ranking, used, ceiling in (
            (self.by_memory, self.memory_used, self.memory_ceiling),
            (self.by_disk, self.disk_used, self.disk_ceiling),
        ):
            if used > ceiling - ceiling // NEARLY_FULL:
                ranking.prepare()
            else:
                ranking.rest()

    def close(self, account: Account) -> None:
        """Give back what an account uses and forget it."""
        self.memory_used -= account.memory
        self.disk_used -= account.disk
        self.by_memory.discard(account)
        self.by_disk.discard(account)
        if account.offlined:
            self.leave(-account.memory)


def nowhere() -> Pool:
    """A pool for accounts that no longer count."""
    return Pool(PoolLimits("", UNLIMITED, UNLIMITED, ""))


def build_pools(
    document: PolicyDocument, host_memory: int, ulimit: int | None, default_disk_path: str
) -> dict[str, Pool]:
    """Each transport's pool by the transport's name, and the instance's as INSTANCE ("").

    A shared pool is one object. `host_memory` and `ulimit` are bytes (None: unlimited); `default_disk_path`
    is taken where MessageDiskPath isn't set.
    """
    resolved = amps.resolve_pools(document, host_memory, ulimit, default_disk_path)
    made = {limits.name: Pool(limits) for limits in resolved.values()}
    return {transport: made[limits.name] for transport, limits in resolved.items()}


# Called for each entry of a ranking, hence without `min`.


def _bound_memory(account: Account, bound: int) -> None:
    limit = account.fresh.memory
    account.memory_alarm = bound if bound < limit else limit


def _bound_disk(account: Account, bound: int) -> None:
    limit = account.fresh.disk
    account.disk_alarm = bound if bound < limit else limit
