"""The tick: who is worth a judgement now. Each client is looked at once a second, all at once or in parts."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final

from broker_core.slow_clients import measures
from broker_core.slow_clients.accounts import SAMPLES, Account, History
from broker_core.slow_clients.holds import Hold, next_look, wakes
from broker_core.slow_clients.rules import TICK_MS, Rule, Shape, Signal
from broker_core.slow_clients.signals import PoolSignals, age_ms

MOMENTS: Final = 40
"""Into which a second is divided."""
MOST_DUE: Final = 250
"""Looks at holds that end, in one part: where thousands end at once they come late rather than stop the loop."""
_SECOND: Final = TICK_MS * 1_000_000
_MOMENT: Final = _SECOND // MOMENTS
WORTH_A_SAMPLE: Final = 64 * 1024
"""A client with less waiting in memory, and not for long, isn't slow and has no history."""
WORTH_A_SAMPLE_MS: Final = 1_000


class Ticking:
    """Every client has its moment in each second, so that the time between two looks at it is a second whatever the
    others do; and the clients of one moment are few."""

    def __init__(self) -> None:
        self._moments: list[dict[Account, None]] = [{} for _ in range(MOMENTS)]
        self._last = 0
        """The moment that was looked at last, counted from 1970."""
        self._due: list[tuple[int, int, Account]] = []
        """Clients whose hold ends before their next moment: when, and which."""
        self._serial = count()

    def add(self, account: Account) -> None:
        """A client has connected."""
        self._moments[account.connected % MOMENTS][account] = None

    def remove(self, account: Account) -> None:
        """A client has gone."""
        self._moments[account.connected % MOMENTS].pop(account, None)

    def all(self, now_ns: int) -> list[Account]:
        """Take everybody's sample; those that rules should look at."""
        return [account for moment in self._moments for account in moment if self._look_at(account, now_ns)]

    def part(self, now_ns: int) -> list[Account]:
        """The same for those whose moment has come since the last call, and for those whose hold ends."""
        moment = now_ns // _MOMENT
        begun = 0 < self._last <= moment  # neither the first call, nor has the clock gone back
        first = max(self._last + 1, moment - MOMENTS + 1) if begun else moment
        self._last = moment
        suspects = [
            account
            for passed in range(first, moment + 1)
            for account in self._moments[passed % MOMENTS]
            if self._look_at(account, now_ns)
        ]
        return list(dict.fromkeys((*suspects, *self._falling_due(now_ns))))

    def again(self, account: Account, now_ns: int) -> None:
        """A hold that ends before the client's next moment is looked at when it ends, so that a hold isn't rounded up."""
        due = [next_look(rule, hold) for rule, hold in _held(account)]
        soonest = min((at for at in due if now_ns < at < now_ns + _SECOND), default=0)
        if soonest:
            heappush(self._due, (soonest, next(self._serial), account))

    def _falling_due(self, now_ns: int) -> Iterator[Account]:
        for _ in range(MOST_DUE):
            if not self._due or self._due[0][0] > now_ns:
                return
            yield heappop(self._due)[2]

    def wakes(self, rule: Rule, pool: PoolSignals) -> bool:
        """Whether a pool's rule should be looked at."""
        used = pool.disk_used if rule.signal is Signal.POOL_DISK else pool.memory_used - pool.memory_leaving
        return rule.name in pool.holds or wakes(rule, used)

    def _look_at(self, account: Account, now_ns: int) -> bool:
        memory, disk, history = account.memory, account.disk, account.history
        if account.closing or not (memory or disk or history or account.narrow or account.holds):
            return False
        if memory or disk or history:
            _sample(account, now_ns)
        if account.holds:
            return True
        return _stirs(account, now_ns)


def _held(account: Account) -> Iterator[tuple[Rule, Hold]]:
    for rule in account.rules:
        if (hold := account.holds.get((rule.name, ""))) is not None:
            yield rule, hold
    for one, rules in account.narrow:
        for rule in rules:
            if (hold := account.holds.get((rule.name, one.id))) is not None:
                yield rule, hold


def _sample(account: Account, now_ns: int) -> None:
    memory, disk, age = account.memory, account.disk, age_ms(account.backlog.oldest_at, now_ns)
    history = account.history
    if history is None:
        watched = memory and any(rule.shape is Shape.RATE_BELOW for rule in account.rules)
        if not (memory >= WORTH_A_SAMPLE or disk or age >= WORTH_A_SAMPLE_MS or watched):
            return
        history = account.history = History()
    history.add(now_ns, memory, disk, age, account.backlog.sent_bytes)
    if history.idle >= SAMPLES:
        account.history = None


def _stirs(account: Account, now_ns: int) -> bool:
    """Whether a rule that remembers nothing of the client should be asked about it."""
    for rule in account.rules:
        if wakes(rule, measures.of_client(rule, account, now_ns)):
            return True
    return any(
        wakes(rule, measures.of_subscription(rule, account, one, now_ns)) for one, rules in account.narrow for rule in rules
    )
