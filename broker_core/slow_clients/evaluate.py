"""evaluate(): rules, clients, pools and the time in; decisions out. Pure, and the only judge there is.

The broker calls it with the few clients the guard has picked out, a preview and the pipeline's back-test with
all of them: the answers are the same, because a rule looks at one client, or at the largest of a pool.

Decisions come in the order in which they are to be carried out, and each takes the effect of those before it
into account: a client that leaves memory or disk relieves its pool, so no second one is chosen needlessly.
Rules in shadow are judged after the enforced ones and by themselves, as if only they existed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from broker_core.slow_clients.decision import Candidate, Decision
from broker_core.slow_clients.rules import INSTANCE, Action, Choice, Mode, Rule, Signal
from broker_core.slow_clients.signals import ClientSignals, PoolSignals


def evaluate(
    rules: Sequence[Rule], clients: Iterable[ClientSignals], pools: Iterable[PoolSignals], now_ns: int
) -> list[Decision]:
    """What the rules say about these clients now; [] almost always.

    For rules that choose the largest, `clients` must hold at least the pool's two largest users of what the
    rule measures: the one to act on, and the runner-up for the explanation.
    """
    listed, pooled = list(clients), list(pools)
    decisions: list[Decision] = []
    for mode in (Mode.ENFORCE, Mode.SHADOW):
        active = [rule for rule in rules if rule.mode is mode]
        if active:
            decisions += _Judgement(listed, pooled, now_ns).all(active)
    return decisions


class _Judgement:
    """One pass over one mode's rules, with the effect of the decisions taken so far."""

    def __init__(self, clients: list[ClientSignals], pools: list[PoolSignals], now_ns: int) -> None:
        self._clients = clients
        self._pools = pools
        self._now = now_ns
        self._offlined = {client.name for client in clients if client.offlined}
        self._gone: set[str] = set()
        self._decisions: list[Decision] = []
        self._memory_relief: dict[str, int] = defaultdict(int)
        self._disk_relief: dict[str, int] = defaultdict(int)

    def all(self, rules: list[Rule]) -> list[Decision]:
        scoped: dict[str, list[Rule]] = defaultdict(list)
        for rule in rules:
            if rule.choose is Choice.SELF:
                scoped[rule.scope].append(rule)
        for client in self._clients:
            for rule in scoped.get(client.transport) or scoped.get(INSTANCE) or ():
                observed = self._own(rule.signal, client)
                if observed > rule.limit:
                    self._decide(rule, client, observed, observed, None)
        for rule in rules:
            if rule.choose is Choice.LARGEST_IN_POOL:
                self._judge_pools(rule)
        return self._decisions

    def _own(self, signal: Signal, client: ClientSignals) -> int:
        """A client's own use; -1 when the signal doesn't apply to it (any more)."""
        if client.name in self._gone:
            return -1
        if signal is Signal.OLDEST_AGE:
            return client.age_ms(self._now)
        if signal in (Signal.SPOOL_BYTES, Signal.POOL_DISK):
            return client.spool_bytes
        return -1 if client.name in self._offlined else client.outbox_bytes

    def _judge_pools(self, rule: Rule) -> None:
        for pool in self._pools:
            if pool.name != rule.scope or self._pressure(rule.signal, pool) <= rule.limit:
                continue
            users = [(self._own(rule.signal, client), client) for client in self._clients]
            ranked = [user for user in users if user[0] > 0 and user[1].pool == pool.name]
            ranked.sort(key=lambda user: (-user[0], user[1].name))
            for place, (used, client) in enumerate(ranked):
                observed = self._pressure(rule.signal, pool)
                if observed <= rule.limit:
                    break
                after = ranked[place + 1] if place + 1 < len(ranked) else None
                runner_up = Candidate(after[1].name, after[0]) if after else None
                self._decide(rule, client, observed, used, runner_up)

    def _pressure(self, signal: Signal, pool: PoolSignals) -> int:
        if signal is Signal.POOL_DISK:
            return pool.disk_used - self._disk_relief[pool.name]
        return pool.memory_used - pool.memory_leaving - self._memory_relief[pool.name]

    def _decide(
        self, rule: Rule, client: ClientSignals, observed: int, used: int, runner_up: Candidate | None
    ) -> None:
        waiting = client.outbox_messages + client.spool_messages
        lost = client.unjournaled_messages if rule.action is Action.DISCONNECT else 0
        self._decisions.append(Decision(
            self._now, client.name, client.transport, client.pool, rule.action, rule.reason, rule.name,
            rule.setting, rule.revision, rule.mode, rule.choose, rule.signal, observed, rule.limit, rule.unit,
            used, runner_up, waiting - lost, lost, client.resume_bookmark, client.samples,
        ))
        if client.name not in self._offlined:
            self._offlined.add(client.name)
            self._memory_relief[client.pool] += client.outbox_bytes
        if rule.action is Action.DISCONNECT:
            self._gone.add(client.name)
            self._disk_relief[client.pool] += client.spool_bytes
