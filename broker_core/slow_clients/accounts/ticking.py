"""The tick: who is worth a judgement now. Each client is looked at once a second, all at once or in parts."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final

from broker_core.slow_clients.accounts.history import History
from broker_core.slow_clients.accounts.pool_use import PoolUse
from broker_core.slow_clients.evaluate.holds import next_look
from broker_core.slow_clients.evaluate.signal_table import BEHIND_MS
from broker_core.slow_clients.evaluate.signals import age_ms
from broker_core.slow_clients.rules.rule import SAMPLES, TICK_MS

MOMENTS: Final = 40
"""Into which a second is divided."""
MOST_DUE: Final = 250
"""Looks at holds that end, in one part: where thousands end at once they come late rather than stop the loop."""
_SECOND: Final = TICK_MS * 1_000_000
_MOMENT: Final = _SECOND // MOMENTS
WORTH_A_SAMPLE: Final = 64 * 1024
"""A client with less waiting in memory, and not for long, isn't slow and has no history."""


class Ticking:
    """Every client has its moment in each second, so that the time between two looks at it is a second whatever the
    others do; and the clients of one moment are few."""

    def __init__(self) -> None:
        self._moments: list[dict[PoolUse, None]] = [{} for _ in range(MOMENTS)]
        self._last = 0
        """The moment that was looked at last, counted from 1970."""
        self._due: list[tuple[int, int, PoolUse]] = []
        """Clients whose hold ends before their next moment: when, and which."""
        self._serial = count()

    def add(self, use: PoolUse) -> None:
        """A client has connected."""
        self._moments[use.connected % MOMENTS][use] = None

    def remove(self, use: PoolUse) -> None:
        """A client has gone."""
        self._moments[use.connected % MOMENTS].pop(use, None)

    def all(self, now_ns: int) -> list[PoolUse]:
        """Take everybody's sample; those that rules should look at."""
        return [use for moment in self._moments for use in moment if self._look_at(use, now_ns)]

    def part(self, now_ns: int) -> list[PoolUse]:
        """The same for those whose moment has come since the last call, and for those whose hold ends."""
        moment = now_ns // _MOMENT
        begun = 0 < self._last <= moment  # neither the first call, nor has the clock gone back
        first = max(self._last + 1, moment - MOMENTS + 1) if begun else moment
        self._last = moment
        suspects = [
            use
            for passed in range(first, moment + 1)
            for use in self._moments[passed % MOMENTS]
            if self._look_at(use, now_ns)
        ]
        return list(dict.fromkeys((*suspects, *self._falling_due(now_ns))))

    def again(self, use: PoolUse, now_ns: int) -> None:
        """A hold that ends before the client's next moment is looked at when it ends, so that a hold isn't rounded up."""
        soonest = next_moment = now_ns + _SECOND
        for (name, identity), hold in use.holds.items():
            for rule in use.narrow[identity].rules if identity in use.narrow else use.rules:
                if rule.name == name:
                    at = next_look(rule, hold)
                    soonest = at if now_ns < at < soonest else soonest
                    break
        if soonest < next_moment:
            heappush(self._due, (soonest, next(self._serial), use))

    def _falling_due(self, now_ns: int) -> Iterator[PoolUse]:
        for _ in range(MOST_DUE):
            if not self._due or self._due[0][0] > now_ns:
                return
            use = heappop(self._due)[2]
            use.backlog.look()
            yield use

    def _look_at(self, use: PoolUse, now_ns: int) -> bool:
        memory, disk, history = use.memory, use.disk, use.history
        if use.closing or not (memory or disk or history or use.narrow or use.holds or use.beyond):
            return False
        use.backlog.look()
        if memory or disk or history:
            _sample(use, now_ns)
        stirs = use.stirs(now_ns)
        for one in use.narrow.values():
            stirs |= one.stirs(use, now_ns)  # all of them: looking keeps what was seen
        return stirs or bool(use.holds)


def _sample(use: PoolUse, now_ns: int) -> None:
    memory, disk, age = use.memory, use.disk, age_ms(use.backlog.oldest_at, now_ns)
    history = use.history
    if history is None:
        watched = memory and use.rates
        if not (memory >= WORTH_A_SAMPLE or disk or age >= BEHIND_MS or watched):
            return
        history = use.history = History()
    look_back = 0
    if use.rates:
        lump = use.backlog.lump_bytes
        look_back = max([rule.look_back_ms(lump) for rule in use.rates])
    history.add(now_ns, memory, disk, age, use.backlog.taken_bytes, look_back)
    if history.idle >= SAMPLES:
        use.history = None
