"""The guard: one per instance. Keeps every client's account and has it judged when something may be over.

It acts at three places only: when something was queued (memory, a subscription's backlog) or spooled (disk), at the
tick (ages, rates, holds; and what a changed policy made too much), and on acknowledgements. At the first the cost is
two additions and two comparisons unless a limit is passed.

The caller carries decisions out, in the same turn of the loop, and reports what changed. Decisions in shadow mode are
recorded and nothing else.

    OFFLINE     outbox.take_all() → spool; `released` what left memory, `spooled` what the spool file grew by.
                From the decision on the client counts as offlined; everything new is `spooled`. When the
                spool is empty: `unspooled` what the file took, then `returned`.
    DISCONNECT  (REFUSE, DELETE_DURABLE) send the notice, close, remove the spool, `unregister`. From the decision on
                the client's use counts no more, so that nobody else is chosen for what this one is about to free.
    others      whatever leaves memory is `released`; a subscription that ends is `unsubscribe`d.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_core.config import PolicyDocument
from broker_core.slow_clients.accounts import Account
from broker_core.slow_clients.decision import Decision
from broker_core.slow_clients.evaluate import RELIEVING, Judged, Verdict, evaluate, judge
from broker_core.slow_clients.explain import decide_largest
from broker_core.slow_clients.forecast import Forecast, forecast
from broker_core.slow_clients.holds import Hold
from broker_core.slow_clients.measures import OUTBOUND
from broker_core.slow_clients.pools import Pool, build_pools
from broker_core.slow_clients.roll import Roll
from broker_core.slow_clients.rulebook import RuleBook
from broker_core.slow_clients.rules import (
    FINAL_ACTIONS,
    INSTANCE,
    Action,
    Mode,
    Rule,
    Signal,
)
from broker_core.slow_clients.signals import ClientSignals, Holds, SubscriptionSignals
from broker_core.slow_clients.snapshot import snapshot


class SlowClientGuard(Roll):
    """The roll of an instance's clients, and the judgement of them."""

    def __init__(
        self, document: PolicyDocument, host_memory: int, ulimit: int | None, default_disk_path: str
    ) -> None:
        self._later: list[Decision] = []
        """Further decisions of calls that return one; they come with the next tick."""
        self._pool_holds: dict[str, dict[str, Hold]] = {}
        super().__init__(document, host_memory, ulimit, default_disk_path)

    # ------------------------------------------------------------------------------------------ the hot path

    def queued(self, account: Account, nbytes: int, now_ns: int) -> Decision | None:
        """The client's outbox grew by nbytes. The decision may be about any client of its pool."""
        memory = account.memory = account.memory + nbytes
        pool = account.pool
        used = pool.memory_used = pool.memory_used + nbytes
        if memory > account.memory_alarm or used > pool.memory_ceiling:
            return self._memory_alarm(account, nbytes, now_ns)
        return None

    def released(self, account: Account, nbytes: int) -> None:
        """The client's outbox became smaller by nbytes."""
        if nbytes > account.memory:
            raise ValueError(f"client {account.name} can't release {nbytes} of {account.memory} bytes")
        account.memory -= nbytes
        account.pool.memory_used -= nbytes
        if account.offlined:
            account.pool.leave(-nbytes)

    def spooled(self, account: Account, nbytes: int, now_ns: int) -> Decision | None:
        """The client's spool file grew by nbytes."""
        disk = account.disk = account.disk + nbytes
        pool = account.pool
        used = pool.disk_used = pool.disk_used + nbytes
        if disk > account.disk_alarm or used > pool.disk_ceiling:
            return self._disk_alarm(account, now_ns)
        return None

    def unspooled(self, account: Account, nbytes: int) -> None:
        """The client's spool file became smaller by nbytes, or was removed."""
        if nbytes > account.disk:
            raise ValueError(f"client {account.name} can't release {nbytes} of {account.disk} bytes of disk")
        account.disk -= nbytes
        account.pool.disk_used -= nbytes

    def waiting(self, account: Account, subscription: SubscriptionSignals, now_ns: int) -> Decision | None:
        """More waits for a subscription than one of its alarms. Ask only then."""
        return self._first(self._judge_subscription(account, subscription, now_ns))

    def acknowledged(self, account: Account, subscription: SubscriptionSignals, now_ns: int) -> list[Decision]:
        """The client has acknowledged; the subscription's figures say what is owed now."""
        return self._judge_subscription(account, subscription, now_ns)

    # ------------------------------------------------------------------------------------------ judging

    def tick(self, now_ns: int) -> list[Decision]:
        """A whole round at once: take samples; judge ages, rates, holds, and whatever is over its limit."""
        return self._round(self._ticking.all(now_ns), now_ns)

    def tick_part(self, now_ns: int) -> list[Decision]:
        """Those whose turn has come: call it every 25 ms, so that no turn of the loop takes long."""
        return self._round(self._ticking.part(now_ns), now_ns)

    def _round(self, suspects: Sequence[Account], now_ns: int) -> list[Decision]:
        decisions, self._later = self._later, []
        for account in suspects:
            if not account.closing:
                decisions += self._judge_own(account, now_ns)
                if account.holds:
                    self._ticking.again(account, now_ns)
        for pool in {id(pool): pool for pool in self._pools.values()}.values():
            pool.prepare()
            while decision := self._judge_memory(pool, now_ns) or self._judge_disk(pool, now_ns):
                decisions.append(decision)
            for rule in self._slow_pool_rules:
                if rule.scope == pool.name:
                    decisions += self._judge_pool(rule, pool, now_ns)
        return decisions

    def preview(self, document: PolicyDocument, now_ns: int) -> list[Decision]:
        """What a policy would do now if it were in force: decisions in shadow. Changes nothing."""
        pools = build_pools(document, *self._host)
        clients = []
        for account in self._accounts.values():
            if not account.closing and (account.memory or account.disk or account.subscriptions):
                pool = pools.get(account.transport) or pools[INSTANCE]
                pool.memory_used += account.memory
                pool.disk_used += account.disk
                if account.offlined:
                    pool.leave(account.memory)
                clients.append(snapshot(account, pool, now_ns))
        seen = {pool.name: pool.signals() for pool in pools.values()}
        book = RuleBook(document, {name: pool.limits for name, pool in pools.items()}, shadow=True)
        return list(evaluate(book, clients, list(seen.values()), now_ns).decisions)

    def forecast(self, name: str, now_ns: int) -> Forecast | None:
        """The limit a client comes to first; None when it isn't registered or there is no honest answer."""
        account = self._accounts.get(name)
        return forecast(account.rules, tuple(account.recent(now_ns))) if account is not None else None

    def signals(self, now_ns: int) -> list[ClientSignals]:
        """All clients as plain values: what a trace records and `evaluate` takes."""
        return [snapshot(a, a.pool, now_ns) for a in self._accounts.values() if not a.closing]

    def _memory_alarm(self, account: Account, nbytes: int, now_ns: int) -> Decision | None:
        if account.closing:
            return None
        if account.offlined:
            account.pool.leave(nbytes)
        elif account.memory > account.fresh.memory:
            if decision := self._first(self._judge_own(account, now_ns)):
                return decision
        elif account.memory > account.memory_alarm:
            account.pool.by_memory.enter(account)
        return self._judge_memory(account.pool, now_ns)

    def _disk_alarm(self, account: Account, now_ns: int) -> Decision | None:
        if account.closing:
            return None
        if account.disk > account.fresh.disk:
            if decision := self._first(self._judge_own(account, now_ns)):
                return decision
        elif account.disk > account.disk_alarm:
            account.pool.by_disk.enter(account)
        return self._judge_disk(account.pool, now_ns)

    def _judge_own(self, account: Account, now_ns: int) -> list[Decision]:
        return self._heed(judge([Judged(account, account.rules, account.narrow)], (), (), now_ns, self._modes))

    def _judge_subscription(
        self, account: Account, subscription: SubscriptionSignals, now_ns: int
    ) -> list[Decision]:
        if account.closing:
            return []
        narrow = [entry for entry in account.narrow if entry[0] is subscription]
        return self._heed(judge([Judged(account, (), narrow)], (), (), now_ns, self._modes))

    def _judge_memory(self, pool: Pool, now_ns: int) -> Decision | None:
        if pool.memory_used <= pool.memory_ceiling:
            return None
        ranked = [(account.memory, account) for account in pool.by_memory.largest(2)]
        return self._judge_largest(Signal.POOL_MEMORY, pool, ranked, pool.memory_used - pool.memory_leaving, now_ns)

    def _judge_disk(self, pool: Pool, now_ns: int) -> Decision | None:
        if pool.disk_used <= pool.disk_ceiling:
            return None
        ranked = [(account.disk, account) for account in pool.by_disk.largest(2)]
        return self._judge_largest(Signal.POOL_DISK, pool, ranked, pool.disk_used, now_ns)

    def _judge_largest(
        self, signal: Signal, pool: Pool, ranked: list[tuple[int, Account]], observed: int, now_ns: int
    ) -> Decision | None:
        """One decision, as evaluate() would make it of everybody, and its effect noted; the caller asks again for more.

        With only the two largest at hand a second decision would lack its runner-up.
        """
        if not ranked:
            return None
        decision = decide_largest(self._pool_rules[pool.name, signal], 0, ranked, observed, now_ns)
        if decision is not None:
            self._note(decision)
        return decision

    def _judge_pool(self, rule: Rule, pool: Pool, now_ns: int) -> list[Decision]:
        """A pool rule of the operator's own, with all the pool's clients at hand only when it wakes."""
        signals = pool.signals(self._pool_holds.get(pool.name))
        if not self._ticking.wakes(rule, signals):
            return []
        clients = [Judged(a, ()) for a in self._accounts.values() if a.pool is pool and (a.memory or a.disk)]
        return self._heed(judge(clients, [rule], [signals], now_ns))

    def _first(self, decisions: list[Decision]) -> Decision | None:
        """An enforced one at once; the others with the next tick."""
        enforced = next((decision for decision in decisions if decision.mode is Mode.ENFORCE), None)
        self._later += [decision for decision in decisions if decision is not enforced]
        return enforced

    def _heed(self, verdict: Verdict) -> list[Decision]:
        """Note what was decided and what is to be remembered."""
        for name, holds in verdict.holds.items():
            self._remember(self._accounts[name], holds)
        for pool, pool_holds in verdict.pool_holds.items():
            self._pool_holds[pool] = dict(pool_holds)
        for decision in verdict.decisions:
            self._note(decision)
        return list(verdict.decisions)

    def _note(self, decision: Decision) -> None:
        """A decision's effect on the account, before it is carried out."""
        account = self._accounts[decision.client]
        if decision.mode is not Mode.ENFORCE or account.closing:
            return
        if decision.action in FINAL_ACTIONS:
            self._write_off(account)
            return
        if decision.action in RELIEVING and decision.signal in OUTBOUND:
            # The act takes the signal away. When it is back, it is judged anew and at once.
            key = (decision.rule, decision.subscription)
            self._remember(account, {other: hold for other, hold in account.holds.items() if other != key})
        if decision.action is Action.OFFLINE and not account.offlined:
            account.pool.offline(account)
            account.offlined_at = decision.at

    def _remember(self, account: Account, holds: Holds) -> None:
        if account.remember(holds) and not account.closing:
            account.pool.by_disk.enter(account)
            if not account.offlined:
                account.pool.by_memory.enter(account)
