"""The guard: one per instance. Keeps every client's account and calls `evaluate` when something is over.

It acts at three places only: when something was queued (memory), when something was spooled (disk), and at
the tick (age; and what a changed policy made too much). At the first two the cost is two additions and two
comparisons unless a limit is passed.

The caller carries decisions out, in the same turn of the loop, and reports what changed:

    OFFLINE     outbox.take_all() → spool; `released` what left memory, `spooled` what the spool file grew by.
                From the decision on the client counts as offlined; everything new is `spooled`. When the
                spool is empty: `unspooled` what the file took, then `returned`.
    DISCONNECT  send the notice, close, remove the spool, `unregister`. From the decision on the client's use
                counts no more, so that nobody else is chosen for what this one is about to free.
"""

from __future__ import annotations

from broker_core.config import PolicyDocument
from broker_core.slow_clients.accounts import SAMPLES, Account, History
from broker_core.slow_clients.decision import Decision
from broker_core.slow_clients.evaluate import evaluate
from broker_core.slow_clients.pools import Pool, build_pools, nowhere
from broker_core.slow_clients.presets import amps
from broker_core.slow_clients.rules import (
    INSTANCE,
    Action,
    Choice,
    ClientLimits,
    Mode,
    Rule,
    client_limits,
    in_shadow,
)
from broker_core.slow_clients.signals import Backlog, ClientSignals, Sample

WORTH_A_SAMPLE = 64 * 1024
"""A client with less waiting in memory, and not for long, isn't slow and has no history."""
WORTH_A_SAMPLE_MS = 1_000


class SlowClientGuard:
    """Accounts of all clients of an instance, its pools, and the rules in force."""

    def __init__(
        self, document: PolicyDocument, host_memory: int, ulimit: int | None, default_disk_path: str
    ) -> None:
        self._accounts: dict[str, Account] = {}
        self._written_off = nowhere()
        self.apply_policy(document, host_memory, ulimit, default_disk_path)

    # ------------------------------------------------------------------------------------------ policies

    def apply_policy(
        self, document: PolicyDocument, host_memory: int, ulimit: int | None, default_disk_path: str
    ) -> None:
        """Put a revision in force, whole. The next tick finds who is over its limits: call it at once."""
        self._host = (host_memory, ulimit, default_disk_path)
        self._pools = build_pools(document, *self._host)
        self.revision = document.revision
        self.rules = _rules(document, self._pools)
        enforced = [rule for rule in self.rules if rule.mode is Mode.ENFORCE]
        self._own_rules = [rule for rule in enforced if rule.choose is Choice.SELF]
        self._pool_rules = [rule for rule in enforced if rule.choose is Choice.LARGEST_IN_POOL]
        names = [INSTANCE, *(transport.name for transport in document.transports)]
        self._limits = {name: client_limits(self.rules, name) for name in names}
        for account in self._accounts.values():
            account.limits = self.limits_of(account.transport)
            if not account.closing:
                self.pool_of(account.transport).open(account)

    def pool_of(self, transport: str) -> Pool:
        """The pool that a transport's clients draw on."""
        return self._pools.get(transport) or self._pools[INSTANCE]

    def limits_of(self, transport: str) -> ClientLimits:
        """What one client of a transport may use."""
        return self._limits.get(transport) or self._limits[INSTANCE]

    def pools(self) -> dict[str, tuple[Pool, list[str]]]:
        """Every pool by name, with the transports that share it."""
        listed: dict[str, tuple[Pool, list[str]]] = {}
        for transport, pool in self._pools.items():
            transports = listed.setdefault(pool.name, (pool, []))[1]
            if transport != INSTANCE:
                transports.append(transport)
        return listed

    # ------------------------------------------------------------------------------------------ clients

    def register(self, name: str, transport: str, backlog: Backlog) -> Account:
        """Open an account. Raises ValueError when the name has one: unregister a replaced client first."""
        if name in self._accounts:
            raise ValueError(f"client {name} is registered")
        pool = self.pool_of(transport)
        account = Account(name, transport, backlog, pool, self.limits_of(transport))
        pool.open(account)
        self._accounts[name] = account
        return account

    def unregister(self, account: Account) -> None:
        """Close an account and give back all it uses. May be called twice."""
        if self._accounts.get(account.name) is account:
            del self._accounts[account.name]
            if not account.closing:
                self._write_off(account)

    def account(self, name: str) -> Account | None:
        """The account of that client."""
        return self._accounts.get(name)

    def returned(self, account: Account) -> None:
        """The client's spool is empty and it is live again. Raises ValueError while its spool takes disk."""
        if account.disk:
            raise ValueError(f"client {account.name} can't be live with {account.disk} bytes in its spool")
        if account.offlined:
            account.pool.close(account)
            account.offlined = False
            account.pool.open(account)

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

    # ------------------------------------------------------------------------------------------ judging

    def tick(self, now_ns: int) -> list[Decision]:
        """Once a second: take samples; judge ages, and whatever is over its limit. Decisions in order."""
        decisions: list[Decision] = []
        suspects = [account for account in self._accounts.values() if self._look_at(account, now_ns)]
        for account in suspects:
            if decision := self._judge_own(account, now_ns):
                decisions.append(decision)
        for pool in {id(pool): pool for pool in self._pools.values()}.values():
            while decision := self._judge_memory(pool, now_ns) or self._judge_disk(pool, now_ns):
                decisions.append(decision)
        return decisions

    def preview(self, document: PolicyDocument, now_ns: int) -> list[Decision]:
        """What a policy would do now if it were in force: decisions in shadow. Changes nothing."""
        pools = build_pools(document, *self._host)
        clients = []
        for account in self._accounts.values():
            if not account.closing and (account.memory or account.disk):
                pool = pools.get(account.transport) or pools[INSTANCE]
                pool.memory_used += account.memory
                pool.disk_used += account.disk
                if account.offlined:
                    pool.leave(account.memory)
                clients.append(_signals(account, pool, now_ns))
        seen = {pool.name: pool.signals() for pool in pools.values()}
        return evaluate(in_shadow(_rules(document, pools)), clients, seen.values(), now_ns)

    def signals(self, now_ns: int) -> list[ClientSignals]:
        """All clients as evaluate() sees them."""
        return [_signals(a, a.pool, now_ns) for a in self._accounts.values() if not a.closing]

    def _memory_alarm(self, account: Account, nbytes: int, now_ns: int) -> Decision | None:
        if account.closing:
            return None
        if account.offlined:
            account.pool.leave(nbytes)
        elif account.memory > account.limits.memory:
            return self._judge_own(account, now_ns)
        elif account.memory > account.memory_alarm:
            account.pool.by_memory.enter(account)
        return self._judge_memory(account.pool, now_ns)

    def _disk_alarm(self, account: Account, now_ns: int) -> Decision | None:
        if account.closing:
            return None
        if account.disk > account.limits.disk:
            return self._judge_own(account, now_ns)
        if account.disk > account.disk_alarm:
            account.pool.by_disk.enter(account)
        return self._judge_disk(account.pool, now_ns)

    def _judge_own(self, account: Account, now_ns: int) -> Decision | None:
        return self._judge(self._own_rules, [account], account.pool, now_ns)

    def _judge_memory(self, pool: Pool, now_ns: int) -> Decision | None:
        if pool.memory_used <= pool.memory_ceiling:
            return None
        return self._judge(self._pool_rules, pool.by_memory.largest(2), pool, now_ns)

    def _judge_disk(self, pool: Pool, now_ns: int) -> Decision | None:
        if pool.disk_used <= pool.disk_ceiling:
            return None
        return self._judge(self._pool_rules, pool.by_disk.largest(2), pool, now_ns)

    def _judge(self, rules: list[Rule], accounts: list[Account], pool: Pool, now_ns: int) -> Decision | None:
        """The first decision, its effect on the accounts already noted; the caller asks again for more.

        With only the two largest at hand a second decision would lack its runner-up.
        """
        clients = [_signals(account, pool, now_ns) for account in accounts]
        decisions = evaluate(rules, clients, [pool.signals()], now_ns)
        if not decisions:
            return None
        account = self._accounts[decisions[0].client]
        if decisions[0].action is Action.DISCONNECT:
            self._write_off(account)
        else:
            pool.close(account)
            account.offlined = True
            pool.open(account)
        return decisions[0]

    def _write_off(self, account: Account) -> None:
        account.pool.close(account)
        account.pool = self._written_off
        account.closing = True

    def _look_at(self, account: Account, now_ns: int) -> bool:
        """Take a sample if there is something to see; True if the client is over one of its own limits."""
        memory, disk, history = account.memory, account.disk, account.history
        if not (memory or disk or history) or account.closing:
            return False
        age_ms = _age_ms(account.backlog.oldest_at, now_ns)
        if history is not None or memory >= WORTH_A_SAMPLE or disk or age_ms >= WORTH_A_SAMPLE_MS:
            _remember(account, now_ns, age_ms)
        limits = account.limits
        over_memory = memory > limits.memory and not account.offlined
        return over_memory or disk > limits.disk or age_ms > limits.age_ms


def _rules(document: PolicyDocument, pools: dict[str, Pool]) -> tuple[Rule, ...]:
    return amps.compile_rules(document, {transport: pool.limits for transport, pool in pools.items()})


def _age_ms(oldest_at: int, now_ns: int) -> int:
    return max(0, now_ns - oldest_at) // 1_000_000 if oldest_at else 0


def _remember(account: Account, now_ns: int, age_ms: int) -> None:
    history = account.history = account.history or History()
    history.add(now_ns, account.memory, account.disk, age_ms)
    if history.idle >= SAMPLES:
        account.history = None


def _signals(account: Account, pool: Pool, now_ns: int) -> ClientSignals:
    waiting, oldest = account.backlog.waiting(), account.backlog.oldest_at
    past = account.history.samples()[1 - SAMPLES :] if account.history else ()
    now = Sample(now_ns, account.memory, account.disk, _age_ms(oldest, now_ns))
    return ClientSignals(
        name=account.name,
        transport=account.transport,
        pool=pool.name,
        outbox_bytes=account.memory,
        outbox_messages=waiting.outbox_messages,
        spool_bytes=account.disk,
        spool_messages=waiting.spool_messages,
        oldest_at=oldest,
        offlined=account.offlined,
        write_blocked_since=waiting.write_blocked_since,
        unjournaled_messages=waiting.unjournaled_messages,
        resume_bookmark=waiting.resume_bookmark,
        samples=(*past, now),
    )
