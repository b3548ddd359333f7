"""The tick: who is worth a judgement now. A round looks at every client once, whole or in as many parts as wanted."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from broker_core.slow_clients import measures
from broker_core.slow_clients.accounts import SAMPLES, Account, History
from broker_core.slow_clients.holds import wakes
from broker_core.slow_clients.rules import TICK_MS, Rule, Shape, Signal
from broker_core.slow_clients.signals import PoolSignals, age_ms

HOT: Final = 200
"""Suspects that are looked at anew in one part of a round."""
_ROUND: Final = TICK_MS * 1_000_000
_PART: Final = _ROUND // 8
"""The longest part: who calls less often gets a longer round."""
WORTH_A_SAMPLE: Final = 64 * 1024
"""A client with less waiting in memory, and not for long, isn't slow and has no history."""
WORTH_A_SAMPLE_MS: Final = 1_000


class Ticking:
    """Where the round stands. Clients that connect during a round are looked at in the next."""

    def __init__(self) -> None:
        self._accounts: list[Account] = []
        self._done = 0
        """How many of them this round has looked at."""
        self._began = 0
        self._called = 0
        self._hot: dict[Account, None] = {}
        """Suspects of rules that look more often than once a second."""

    def all(self, accounts: Mapping[str, Account], now_ns: int) -> list[Account]:
        """Take everybody's sample; those that rules should look at."""
        self._done = len(self._accounts)
        return [account for account in list(accounts.values()) if self._look_at(account, now_ns)]

    def part(self, accounts: Mapping[str, Account], now_ns: int) -> list[Account]:
        """The same for those whose turn has come, and for those that are looked at more often."""
        if self._done >= len(self._accounts) and now_ns - self._began >= _ROUND:
            self._accounts, self._done = list(accounts.values()), 0
            # A round begins a second after the last one did, not after the call that was late; unless it is far behind.
            behind = now_ns - self._began - _ROUND
            self._began = now_ns - (behind if behind < _PART else 0)
        ahead = min(now_ns - self._called, _PART)
        self._called = now_ns
        target = -(-len(self._accounts) * (now_ns - self._began + ahead) // _ROUND)
        looked, self._done = self._accounts[self._done : target], max(self._done, target)
        suspects = [account for account in looked if self._look_at(account, now_ns)]
        return list(dict.fromkeys((*suspects, *self._hottest())))

    def _hottest(self) -> list[Account]:
        """Some of the suspects; where there are very many, in turn."""
        turn = list(islice(self._hot, HOT))
        for account in turn:
            del self._hot[account]
            if not account.closing and _is_hot(account):
                self._hot[account] = None
        return turn

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
            if _is_hot(account):
                self._hot[account] = None
            return True
        return _stirs(account, now_ns)


def _is_hot(account: Account) -> bool:
    """Whether a rule that looks more often than each second has yet to come to an end."""
    for rule in account.rules:
        if rule.check_ms < TICK_MS:
            hold = account.holds.get((rule.name, ""))
            if hold is not None and hold.done < len(rule.ladder):
                return True
    return False


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
