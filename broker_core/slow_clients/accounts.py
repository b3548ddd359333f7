"""One client's account with a pool, and its recent history. Plain numbers, kept exact by the guard."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from broker_core.slow_clients.rules import ClientLimits
from broker_core.slow_clients.signals import Backlog, Sample

if TYPE_CHECKING:
    from broker_core.slow_clients.pools import Pool

SAMPLES: Final = 60


class Account:
    """What a client takes from its pool. Only the guard writes it; everybody may read.

    `memory_alarm` and `disk_alarm` are the one number each that the hot path compares with: the client's
    limit, or the bound up to which its place in the pool's ranking is good, whichever is lower.
    """

    __slots__ = (
        "backlog",
        "closing",
        "disk",
        "disk_alarm",
        "history",
        "limits",
        "memory",
        "memory_alarm",
        "name",
        "offlined",
        "pool",
        "transport",
    )

    def __init__(self, name: str, transport: str, backlog: Backlog, pool: Pool, limits: ClientLimits) -> None:
        self.name = name
        self.transport = transport
        self.backlog = backlog
        self.pool = pool
        self.limits = limits
        self.memory = 0
        self.disk = 0
        self.memory_alarm = 0
        self.disk_alarm = 0
        self.offlined = False
        self.closing = False
        self.history: History | None = None

    @property
    def memory_percent(self) -> float:
        """Share of the pool's memory limit, 0 to 100 and more."""
        return 100.0 * self.memory / self.pool.limits.memory

    @property
    def disk_percent(self) -> float:
        """Share of the pool's disk limit, 0 to 100 and more."""
        return 100.0 * self.disk / self.pool.limits.disk


class History:
    """The last 60 samples of one client, in 1.9 KiB, because there may be twenty thousand slow clients."""

    __slots__ = ("_next", "_values", "idle")

    def __init__(self) -> None:
        self._values = array("q")
        self._next = 0
        self.idle = 0
        """How many of the newest samples were empty."""

    def add(self, at: int, memory: int, disk: int, age_ms: int) -> None:
        """Note one sample; the 61st replaces the first."""
        values, slot = self._values, self._next
        if len(values) < 4 * SAMPLES:
            values.extend((at, memory, disk, age_ms))
        else:
            values[slot], values[slot + 1], values[slot + 2], values[slot + 3] = at, memory, disk, age_ms
        self._next = (slot + 4) % (4 * SAMPLES)
        self.idle = 0 if memory or disk else self.idle + 1

    def samples(self) -> tuple[Sample, ...]:
        """Oldest first."""
        values = self._values
        first = self._next if len(values) == 4 * SAMPLES else 0
        ordered = values[first:] + values[:first]
        return tuple(Sample(*ordered[slot : slot + 4]) for slot in range(0, len(ordered), 4))
