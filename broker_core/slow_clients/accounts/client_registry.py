"""Registry of clients, and the schedule by which each one is sampled once a second.

`ClientRegistry` knows which clients are connected, their subscriptions, pools and rules. The guard extends
it. `TickSchedule` selects the clients that need judging, all together or in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import EnforcementMode
from broker_core.documents.clients import EffectiveSetting
from broker_core.slow_clients.accounts.brake import RolloutBrake
from broker_core.slow_clients.accounts.client_usage import ClientUsage, WatchedSubscription
from broker_core.slow_clients.accounts.pools import Pool, build_pools
from broker_core.slow_clients.evaluate.judge import MODES
from broker_core.slow_clients.evaluate.rule_state import RuleState, RuleStateMigration, next_check_at
from broker_core.slow_clients.evaluate.samples import SampleHistory
from broker_core.slow_clients.evaluate.signal_table import BEHIND_MS
from broker_core.slow_clients.evaluate.signals import BacklogView, SubscriptionView, age_ms
from broker_core.slow_clients.rules.effective import describe_settings
from broker_core.slow_clients.rules.presets import resolve_pools
from broker_core.slow_clients.rules.rule import INSTANCE, SAMPLES, TICK_MS, UNLIMITED, PoolLimits, Rule
from broker_core.slow_clients.rules.rulebook import RuleBook, StagedRevision
from broker_core.slow_clients.rules.scopes import RuleSubject

MOMENTS: Final = 40
"""Number of slices of a second; each client belongs to one slice."""
MAX_DUE: Final = 250
"""Maximum holds that are rechecked in one slice.

Where thousands of holds end at the same time, they are rechecked late rather than block the event loop.
"""
_SECOND: Final = TICK_MS * 1_000_000
_MOMENT: Final = _SECOND // MOMENTS
"""Duration of a slice, ns."""
WORTH_A_SAMPLE: Final = 64 * 1024
"""Minimum bytes in memory for which a client gets a history.

With less in memory, nothing on disk, and no message that has waited for a second, it is not slow.
"""


class TickSchedule:
    """Schedule that assigns each client to one of 40 slices of a second.

    So the time between two samples of a client is always a second, and the clients of one slice are few. A
    *hold* is the time for which a limit must be exceeded before a rule acts. Clients whose hold ends earlier
    than their slice get an extra check.
    """

    def __init__(self) -> None:
        self._moments: list[dict[ClientUsage, None]] = [{} for _ in range(MOMENTS)]
        self._last = 0
        """Number of the slice processed last, counted from 1970."""
        self._due: list[tuple[int, int, ClientUsage]] = []
        """Heap of (time in ns, serial number, client) for holds that end before the client's next slice."""
        self._serial = count()

    def add(self, use: ClientUsage) -> None:
        """Add a client."""
        self._moments[use.connection_number % MOMENTS][use] = None

    def remove(self, use: ClientUsage) -> None:
        """Remove a client, if it is there."""
        self._moments[use.connection_number % MOMENTS].pop(use, None)

    def all_clients(self, now_ns: int) -> list[ClientUsage]:
        """Sample every client and return those that need judging."""
        return [use for moment in self._moments for use in moment if self._look_at(use, now_ns)]

    def next_slice(self, now_ns: int) -> list[ClientUsage]:
        """Sample the clients of all slices since the last call; return those that need judging.

        Clients with a hold that ends are returned too. After a pause, or a change of the clock, at most one
        second of slices is processed.
        """
        moment = now_ns // _MOMENT
        begun = 0 < self._last <= moment  # false for the first call, and after the clock was set back
        first = max(self._last + 1, moment - MOMENTS + 1) if begun else moment
        self._last = moment
        suspects = [
            use
            for passed in range(first, moment + 1)
            for use in self._moments[passed % MOMENTS]
            if self._look_at(use, now_ns)
        ]
        return list(dict.fromkeys((*suspects, *self._falling_due(now_ns))))

    def recheck(self, use: ClientUsage, now_ns: int) -> None:
        """Schedule an extra check when a hold of a client ends before its next slice.

        Without it, a hold would be rounded up to the next full second.
        """
        soonest = next_moment = now_ns + _SECOND
        for (name, identity), hold in use.rule_states.items():
            for rule in use.narrow[identity].rules if identity in use.narrow else use.rules:
                if rule.name == name:
                    at = next_check_at(rule, hold)
                    soonest = at if now_ns < at < soonest else soonest
                    break
        if soonest < next_moment:
            heappush(self._due, (soonest, next(self._serial), use))

    def _falling_due(self, now_ns: int) -> Iterator[ClientUsage]:
        """Yield clients whose hold has ended."""
        for _ in range(MAX_DUE):
            if not self._due or self._due[0][0] > now_ns:
                return
            use = heappop(self._due)[2]
            use.backlog.update_progress()
            yield use

    def _look_at(self, use: ClientUsage, now_ns: int) -> bool:
        """Sample a client and return whether it needs judging."""
        memory, disk, history = use.memory, use.disk, use.history
        if use.closing or not (memory or disk or history or use.narrow or use.rule_states or use.beyond):
            return False
        use.backlog.update_progress()
        if memory or disk or history:
            _sample(use, now_ns)
        stirs = use.needs_judging(now_ns)
        for one in use.narrow.values():
            stirs |= one.needs_judging(use, now_ns)  # no short circuit: each call also records a sample
        return stirs or bool(use.rule_states)


def _sample(use: ClientUsage, now_ns: int) -> None:
    """Add a sample to the client's history.

    A history is created when the client may be slow, and dropped after 60 samples without a backlog.
    """
    memory, disk, age = use.memory, use.disk, age_ms(use.backlog.oldest_at, now_ns)
    history = use.history
    if history is None:
        watched = memory and use.rates
        if not (memory >= WORTH_A_SAMPLE or disk or age >= BEHIND_MS or watched):
            return
        history = use.history = SampleHistory()
    look_back = 0
    if use.rates:
        lump = use.backlog.window_step_bytes
        look_back = max([rule.look_back_ms(lump) for rule in use.rates])
    history.add(now_ns, memory, disk, age, use.backlog.acked_bytes, look_back)
    if history.idle >= SAMPLES:
        use.history = None


class RulesOfClient(NamedTuple):
    """Rules of a client and of each of its subscriptions (by id), and their states."""

    rules: tuple[Rule, ...]
    narrow: dict[str, tuple[Rule, ...]]
    holds: dict[tuple[str, str], RuleState]


class ClientRegistry:
    """All clients of an instance with their use, its pools, and the rules in force."""

    def __init__(
        self,
        document: PolicyDocument,
        host_memory: int,
        ulimit: int | None,
        default_disk_path: str,
        user_holds: Callable[[str], int],
    ) -> None:
        self._host = (host_memory, ulimit, default_disk_path)
        self._uses: dict[str, ClientUsage] = {}
        self._pools: dict[str, Pool] = {}
        self._written_off = Pool(PoolLimits("", UNLIMITED, UNLIMITED, ""))
        """Pool of clients that no longer count."""
        self._connected = count(1)
        self._user_holds = user_holds
        self._ticking = TickSchedule()
        self.brake: RolloutBrake | None = None
        self.apply_policy(document)

    # ------------------------------------------------------------------------------------------ policies

    def apply_policy(self, document: PolicyDocument, stage: StagedRevision | None = None) -> None:
        """Put a revision into force.

        With a stage, the clients that it covers are judged by the limits and rules of the staged revision.
        Pools stay those of the instance. A staged revision that has used up its allowance here stays
        withdrawn.

        Call `tick` immediately afterwards: clients over a limit of the new revision are due at the next
        check.
        """
        self.brake = self._brake_for(stage)
        if self.brake is not None and self.brake.exhausted:
            stage = None
        book = self.compile_rules(document)
        self._pools = self._pools_of(book)
        self.book, self.revision, self.stage, self._document = book, document.revision, stage, document
        self._pool_rules = {(rule.scope, rule.signal): rule for rule in book.pool_rules if rule.at_enqueue}
        """AMPS rules by pool and signal: always enforced, and no client is protected from them."""
        self._slow_pool_rules = [rule for rule in book.pool_rules if not rule.at_enqueue]
        """Custom pool rules, judged at the tick only."""
        self._staged_book = self.compile_rules(stage.document) if stage is not None else book
        self._modes = MODES if book.has_shadow or self._staged_book.has_shadow else (EnforcementMode.ENFORCE,)
        succession = RuleStateMigration()
        for use in self._uses.values():
            self._put_in_force(use, self._rules_for(use, self._book_for(use.name), succession))
            if not use.closing:
                use.pool = self.pool_of(use.transport)
                use.pool.add_client(use)

    def withdraw_stage(self) -> None:
        """Judge the clients of an exhausted stage by the instance's revision again."""
        brake = self.brake
        self.apply_policy(self._document)
        self.brake = brake

    @property
    def withdrawn(self) -> int:
        """Number of the staged revision that has used up its allowance here; 0 if there is none."""
        return self.brake.revision if self.brake is not None and self.brake.exhausted else 0

    def follows(self, stage: StagedRevision | None) -> bool:
        """Return whether a stage is in force here, or withdrawn because it has used up its allowance."""
        if stage is None:
            return self.stage is None and not self.withdrawn
        if self.stage is None:
            return self.withdrawn == stage.document.revision
        return (stage.document, stage.client, stage.share) == self.stage[:3]

    def _brake_for(self, stage: StagedRevision | None) -> RolloutBrake | None:
        """Return the brake of a stage: the present one when it is of the same revision, else a new one."""
        if stage is None:
            return None
        brake = self.brake
        if brake is None or brake.revision != stage.document.revision:
            return RolloutBrake(stage)
        brake.allowed, brake.made = stage.allowed, max(brake.made, stage.made)
        return brake

    def _pools_of(self, book: RuleBook) -> dict[str, Pool]:
        """Return the pools of another policy, without clients, with the migrated states of their rules."""
        pools, before = build_pools(book.pools), self.book.pool_rules if self._uses else ()
        known = self._by_name()
        for name, pool in {pool.name: pool for pool in pools.values()}.items():
            asked, asks = (
                [rule for rule in rules if rule.scope == name] for rules in (before, book.pool_rules)
            )
            pool.holds = RuleStateMigration().migrated_state(
                asked, asks, known[name].holds if name in known else {}
            )
        return pools

    def pool_of(self, transport: str) -> Pool:
        """Return the pool from which a transport's clients draw."""
        return self._pools.get(transport) or self._pools[INSTANCE]

    def _by_name(self) -> dict[str, Pool]:
        return {pool.name: pool for pool in self._pools.values()}

    def pools(self) -> dict[str, tuple[Pool, list[str]]]:
        """Return every pool by name, with the transports that share it."""
        return {
            name: (pool, [key for key, its in self._pools.items() if its is pool and key != INSTANCE])
            for name, pool in self._by_name().items()
        }

    def effective(self, name: str) -> list[EffectiveSetting]:
        """Return every setting in force for a client, then settings that apply only to its subscriptions.

        Returns [] for a client that is not registered.
        """
        use = self._uses.get(name)
        if use is None:
            return []
        book, limits = self._book_for(name), self.pool_of(use.transport).limits
        own = describe_settings(book.effective(use.subject), limits)
        known = {(one.setting, one.origin) for one in own}
        for watched in use.watched.values():
            view = watched.view
            found = describe_settings(book.effective(use.subject_of(view)), limits, view.id)
            own += [one for one in found if (one.setting, one.origin) not in known]
        return own

    def prefetch_of(self, use: ClientUsage, topic: str) -> int | None:
        """Return the prefetch that policy sets for a client's subscription; None to use the one requested."""
        return self._book_for(use.name).prefetch_of(RuleSubject(use.transport, use.user, use.name, topic))

    def compile_rules(self, document: PolicyDocument) -> RuleBook:
        """Return the rules that another policy would have on this instance."""
        return RuleBook(document, resolve_pools(document, *self._host))

    def _book_for(self, name: str) -> RuleBook:
        """Return the rule book that applies to a client: staged or regular."""
        return self._staged_book if self.stage is not None and self.stage.covers(name) else self.book

    def revision_of(self, name: str) -> int:
        """Return the revision by which a client is judged."""
        return self._book_for(name).revision

    def rule_subjects(self) -> list[RuleSubject]:
        """Return every client, each followed by its subscriptions."""
        return [
            subject
            for use in self._uses.values()
            for subject in (use.subject, *(use.subject_of(view) for view in use.subscriptions))
        ]

    # ------------------------------------------------------------------------------------------ clients

    def register(self, name: str, transport: str, backlog: BacklogView, user: str = "") -> ClientUsage:
        """Register a client and return its usage.

        Raises:
            ValueError: The name is registered. Unregister a replaced client first.
        """
        if name in self._uses:
            raise ValueError(f"client {name} is registered")
        pool = self.pool_of(transport)
        use = ClientUsage(name, transport, user, backlog, pool, next(self._connected), self._user_holds)
        use.set_rules(self._book_for(name).rules_of_client(use.subject))
        use.refresh_limits()
        pool.add_client(use)
        self._uses[name] = use
        self._ticking.add(use)
        return use

    def unregister(self, use: ClientUsage) -> None:
        """Remove a client and release everything it uses. May be called twice."""
        if self._uses.get(use.name) is use:
            del self._uses[use.name]
            self._ticking.remove(use)
            if not use.closing:
                self._write_off(use)

    def suspend_ticks(self, use: ClientUsage) -> None:
        """Exclude a client from ticks and from its pool until `resume_ticks`.

        For callers that know that no rule of the client can fire meanwhile, such as a back-test. Its samples
        are dropped; its position in the order of connecting stays.
        """
        self._ticking.remove(use)
        use.pool.remove_client(use)
        use.memory = use.disk = 0
        use.history = None

    def resume_ticks(self, use: ClientUsage, memory: int, disk: int) -> None:
        """Include a client in ticks and in its pool again, with this use in bytes. Judges nothing."""
        use.memory, use.disk = memory, disk
        use.pool.add_client(use)
        self._ticking.add(use)

    def usage_of(self, name: str) -> ClientUsage | None:
        """Return the use of a client; None when it is not registered."""
        return self._uses.get(name)

    def on_spool_empty(self, use: ClientUsage) -> None:
        """Mark an offlined client as live again, because its spool is empty.

        Raises:
            ValueError: The spool still uses disk. Call `on_unspooled` first.
        """
        if use.disk:
            raise ValueError(f"client {use.name} can't be live with {use.disk} bytes in its spool")
        if use.is_offlined:
            use.pool.remove_client(use)
            use.is_offlined = False
            use.offlined_at = 0
            use.pool.add_client(use)

    def subscribe(self, use: ClientUsage, view: SubscriptionView) -> WatchedSubscription:
        """Register a subscription. `view` is read at each judgement, until `unsubscribe`."""
        watched = use.watched[view.id] = WatchedSubscription(view)
        use.set_subscription_rules(watched, use.rules_for(self._book_for(use.name), view))
        return watched

    def unsubscribe(self, use: ClientUsage, subscription_id: str) -> None:
        """Remove a subscription and the states of its rules."""
        watched = use.watched.pop(subscription_id, None)
        use.narrow.pop(subscription_id, None)
        if watched is not None:
            use.drop_rule_state((rule.name, subscription_id) for rule in watched.rules)

    def _rules_for(self, use: ClientUsage, book: RuleBook, succession: RuleStateMigration) -> RulesOfClient:
        """Return the rules of a book for a client and its subscriptions, with the migrated states."""
        rules = book.rules_of_client(use.subject)
        narrow = {identity: use.rules_for(book, one.view) for identity, one in use.watched.items()}
        changed = [("", use.rules, rules)]
        changed += [(key, one.rules, narrow[key]) for key, one in use.watched.items()]
        holds: dict[tuple[str, str], RuleState] = {}
        for identity, before, after in changed:
            held = use.rule_state_of(identity, before) if use.rule_states else {}
            for name, hold in succession.migrated_state(before, after, held).items():
                holds[name, identity] = hold
        return RulesOfClient(rules, narrow, holds)

    def _put_in_force(self, use: ClientUsage, given: RulesOfClient) -> None:
        """Set the rules and states of a client."""
        use.set_rules(given.rules)
        use.narrow.clear()  # keep the order of subscribing, which is the order of judging
        for identity, rules in given.narrow.items():
            use.set_subscription_rules(use.watched[identity], rules)
        use.rule_states = given.holds
        use.refresh_limits()

    def _write_off(self, use: ClientUsage) -> None:
        """Release everything that a client uses; from now on it does not count."""
        use.pool.remove_client(use)
        use.pool = self._written_off
        use.closing = True
