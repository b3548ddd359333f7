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

SLICES: Final = 40
"""Number of slices of a second; each client belongs to one slice."""
MAX_RECHECKS: Final = 250
"""Maximum holds that are rechecked in one slice.

Where thousands of holds end at the same time, they are rechecked late rather than block the event loop.
"""
_SECOND_NS: Final = TICK_MS * 1_000_000
_SLICE_NS: Final = _SECOND_NS // SLICES
"""Duration of a slice, ns."""
MIN_SAMPLED_BYTES: Final = 64 * 1024
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
        self._slices: list[dict[ClientUsage, None]] = [{} for _ in range(SLICES)]
        self._last = 0
        """Number of the slice processed last, counted from 1970."""
        self._due_checks: list[tuple[int, int, ClientUsage]] = []
        """Heap of (time in ns, serial number, client) for holds that end before the client's next slice."""
        self._serial = count()

    def add(self, use: ClientUsage) -> None:
        """Add a client."""
        self._slices[use.connection_number % SLICES][use] = None

    def remove(self, use: ClientUsage) -> None:
        """Remove a client, if it is there."""
        self._slices[use.connection_number % SLICES].pop(use, None)

    def all_clients(self, now_ns: int) -> list[ClientUsage]:
        """Sample every client and return those that need judging."""
        return [use for members in self._slices for use in members if self._sample_client(use, now_ns)]

    def next_slice(self, now_ns: int) -> list[ClientUsage]:
        """Sample the clients of all slices since the last call; return those that need judging.

        Clients with a hold that ends are returned too. After a pause, or a change of the clock, at most one
        second of slices is processed.
        """
        slice_number = now_ns // _SLICE_NS
        is_continued = (
            0 < self._last <= slice_number
        )  # false for the first call, and after the clock was set back
        first = max(self._last + 1, slice_number - SLICES + 1) if is_continued else slice_number
        self._last = slice_number
        suspects = [
            use
            for number in range(first, slice_number + 1)
            for use in self._slices[number % SLICES]
            if self._sample_client(use, now_ns)
        ]
        return list(dict.fromkeys((*suspects, *self._pop_due_clients(now_ns))))

    def recheck(self, use: ClientUsage, now_ns: int) -> None:
        """Schedule an extra check when a hold of a client ends before its next slice.

        Without it, a hold would be rounded up to the next full second.
        """
        soonest = next_slice_at = now_ns + _SECOND_NS
        for (name, identity), state in use.rule_states.items():
            for rule in (
                use.ruled_subscriptions[identity].rules if identity in use.ruled_subscriptions else use.rules
            ):
                if rule.name == name:
                    at = next_check_at(rule, state)
                    soonest = at if now_ns < at < soonest else soonest
                    break
        if soonest < next_slice_at:
            heappush(self._due_checks, (soonest, next(self._serial), use))

    def _pop_due_clients(self, now_ns: int) -> Iterator[ClientUsage]:
        """Yield clients whose hold has ended."""
        for _ in range(MAX_RECHECKS):
            if not self._due_checks or self._due_checks[0][0] > now_ns:
                return
            use = heappop(self._due_checks)[2]
            use.backlog.update_progress()
            yield use

    def _sample_client(self, use: ClientUsage, now_ns: int) -> bool:
        """Sample a client and return whether it needs judging."""
        memory, disk, history = use.memory, use.disk, use.history
        if use.is_closing or not (
            memory
            or disk
            or history
            or use.ruled_subscriptions
            or use.rule_states
            or use.fires_without_backlog
        ):
            return False
        use.backlog.update_progress()
        if memory or disk or history:
            _record_sample(use, now_ns)
        needs_judging = use.needs_judging(now_ns)
        for one in use.ruled_subscriptions.values():
            needs_judging |= one.needs_judging(
                use, now_ns
            )  # no short circuit: each call also records a sample
        return needs_judging or bool(use.rule_states)


def _record_sample(use: ClientUsage, now_ns: int) -> None:
    """Add a sample to the client's history.

    A history is created when the client may be slow, and dropped after 60 samples without a backlog.
    """
    memory, disk, age = use.memory, use.disk, age_ms(use.backlog.oldest_at, now_ns)
    history = use.history
    if history is None:
        watched = memory and use.rate_rules
        if not (memory >= MIN_SAMPLED_BYTES or disk or age >= BEHIND_MS or watched):
            return
        history = use.history = SampleHistory()
    period_ms = 0
    if use.rate_rules:
        step_bytes = use.backlog.window_step_bytes
        period_ms = max([rule.rate_period_ms(step_bytes) for rule in use.rate_rules])
    history.add(now_ns, memory, disk, age, use.backlog.acked_bytes, period_ms)
    if history.idle >= SAMPLES:
        use.history = None


class ClientRules(NamedTuple):
    """Rules of a client and of each of its subscriptions (by id), and their states."""

    rules: tuple[Rule, ...]
    subscription_rules: dict[str, tuple[Rule, ...]]
    rule_states: dict[tuple[str, str], RuleState]


class ClientRegistry:
    """All clients of an instance with their use, its pools, and the rules in force."""

    def __init__(
        self,
        document: PolicyDocument,
        host_memory: int,
        ulimit: int | None,
        default_disk_path: str,
        get_user_pinned_bytes: Callable[[str], int],
    ) -> None:
        self._host = (host_memory, ulimit, default_disk_path)
        self._uses: dict[str, ClientUsage] = {}
        self._pools: dict[str, Pool] = {}
        self._closing_pool = Pool(PoolLimits("", UNLIMITED, UNLIMITED, ""))
        """Pool of clients that no longer count."""
        self._connection_numbers = count(1)
        self._get_user_pinned_bytes = get_user_pinned_bytes
        self._schedule = TickSchedule()
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
        self._pools = self._build_pools(book)
        self.book, self.revision, self.stage, self._document = book, document.revision, stage, document
        self._pool_rules = {(rule.scope, rule.signal): rule for rule in book.pool_rules if rule.at_enqueue}
        """AMPS rules by pool and signal: always enforced, and no client is protected from them."""
        self._slow_pool_rules = [rule for rule in book.pool_rules if not rule.at_enqueue]
        """Custom pool rules, judged at the tick only."""
        self._staged_book = self.compile_rules(stage.document) if stage is not None else book
        self._modes = MODES if book.has_shadow or self._staged_book.has_shadow else (EnforcementMode.ENFORCE,)
        migration = RuleStateMigration()
        for use in self._uses.values():
            self._apply_rules(use, self._rules_for(use, self._book_for(use.name), migration))
            if not use.is_closing:
                use.pool = self.pool_for(use.transport)
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

    def _build_pools(self, book: RuleBook) -> dict[str, Pool]:
        """Return the pools of another policy, without clients, with the migrated states of their rules."""
        pools, previous = build_pools(book.pools), self.book.pool_rules if self._uses else ()
        previous_pools = self._pools_by_name()
        for name, pool in {pool.name: pool for pool in pools.values()}.items():
            previous_rules, rules = (
                [rule for rule in rules if rule.scope == name] for rules in (previous, book.pool_rules)
            )
            pool.rule_states = RuleStateMigration().migrated_state(
                previous_rules, rules, previous_pools[name].rule_states if name in previous_pools else {}
            )
        return pools

    def pool_for(self, transport: str) -> Pool:
        """Return the pool from which a transport's clients draw."""
        return self._pools.get(transport) or self._pools[INSTANCE]

    def _pools_by_name(self) -> dict[str, Pool]:
        return {pool.name: pool for pool in self._pools.values()}

    def pools(self) -> dict[str, tuple[Pool, list[str]]]:
        """Return every pool by name, with the transports that share it."""
        return {
            name: (
                pool,
                [key for key, assigned in self._pools.items() if assigned is pool and key != INSTANCE],
            )
            for name, pool in self._pools_by_name().items()
        }

    def effective(self, name: str) -> list[EffectiveSetting]:
        """Return every setting in force for a client, then settings that apply only to its subscriptions.

        Returns [] for a client that is not registered.
        """
        use = self._uses.get(name)
        if use is None:
            return []
        book, limits = self._book_for(name), self.pool_for(use.transport).limits
        settings = describe_settings(book.effective(use.subject), limits)
        known = {(one.setting, one.origin) for one in settings}
        for watched in use.watched.values():
            view = watched.view
            found = describe_settings(book.effective(use.subject_for(view)), limits, view.id)
            settings += [one for one in found if (one.setting, one.origin) not in known]
        return settings

    def prefetch_for(self, use: ClientUsage, topic: str) -> int | None:
        """Return the prefetch that policy sets for a client's subscription; None to use the one requested."""
        return self._book_for(use.name).prefetch_for(RuleSubject(use.transport, use.user, use.name, topic))

    def compile_rules(self, document: PolicyDocument) -> RuleBook:
        """Return the rules that another policy would have on this instance."""
        return RuleBook(document, resolve_pools(document, *self._host))

    def _book_for(self, name: str) -> RuleBook:
        """Return the rule book that applies to a client: staged or regular."""
        return self._staged_book if self.stage is not None and self.stage.covers(name) else self.book

    def revision_for(self, name: str) -> int:
        """Return the revision by which a client is judged."""
        return self._book_for(name).revision

    def rule_subjects(self) -> list[RuleSubject]:
        """Return every client, each followed by its subscriptions."""
        return [
            subject
            for use in self._uses.values()
            for subject in (use.subject, *(use.subject_for(view) for view in use.subscriptions))
        ]

    # ------------------------------------------------------------------------------------------ clients

    def register(self, name: str, transport: str, backlog: BacklogView, user: str = "") -> ClientUsage:
        """Register a client and return its usage.

        Raises:
            ValueError: The name is registered. Unregister a replaced client first.
        """
        if name in self._uses:
            raise ValueError(f"client {name} is registered")
        pool = self.pool_for(transport)
        use = ClientUsage(
            name, transport, user, backlog, pool, next(self._connection_numbers), self._get_user_pinned_bytes
        )
        use.set_rules(self._book_for(name).client_rules_for(use.subject))
        use.refresh_limits()
        pool.add_client(use)
        self._uses[name] = use
        self._schedule.add(use)
        return use

    def unregister(self, use: ClientUsage) -> None:
        """Remove a client and release everything it uses. May be called twice."""
        if self._uses.get(use.name) is use:
            del self._uses[use.name]
            self._schedule.remove(use)
            if not use.is_closing:
                self._release_usage(use)

    def suspend_ticks(self, use: ClientUsage) -> None:
        """Exclude a client from ticks and from its pool until `resume_ticks`.

        For callers that know that no rule of the client can fire meanwhile, such as a back-test. Its samples
        are dropped; its position in the order of connecting stays.
        """
        self._schedule.remove(use)
        use.pool.remove_client(use)
        use.memory = use.disk = 0
        use.history = None

    def resume_ticks(self, use: ClientUsage, memory: int, disk: int) -> None:
        """Include a client in ticks and in its pool again, with this use in bytes. Judges nothing."""
        use.memory, use.disk = memory, disk
        use.pool.add_client(use)
        self._schedule.add(use)

    def find_usage(self, name: str) -> ClientUsage | None:
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
        use.ruled_subscriptions.pop(subscription_id, None)
        if watched is not None:
            use.drop_rule_state((rule.name, subscription_id) for rule in watched.rules)

    def _rules_for(self, use: ClientUsage, book: RuleBook, migration: RuleStateMigration) -> ClientRules:
        """Return the rules of a book for a client and its subscriptions, with the migrated states."""
        rules = book.client_rules_for(use.subject)
        subscription_rules = {
            identity: use.rules_for(book, one.view) for identity, one in use.watched.items()
        }
        changed = [("", use.rules, rules)]
        changed += [(key, one.rules, subscription_rules[key]) for key, one in use.watched.items()]
        rule_states: dict[tuple[str, str], RuleState] = {}
        for identity, previous, current in changed:
            previous_states = use.rule_states_for(identity, previous) if use.rule_states else {}
            for name, state in migration.migrated_state(previous, current, previous_states).items():
                rule_states[name, identity] = state
        return ClientRules(rules, subscription_rules, rule_states)

    def _apply_rules(self, use: ClientUsage, client_rules: ClientRules) -> None:
        """Set the rules and states of a client."""
        use.set_rules(client_rules.rules)
        use.ruled_subscriptions.clear()  # keep the order of subscribing, which is the order of judging
        for identity, rules in client_rules.subscription_rules.items():
            use.set_subscription_rules(use.watched[identity], rules)
        use.rule_states = client_rules.rule_states
        use.refresh_limits()

    def _release_usage(self, use: ClientUsage) -> None:
        """Release everything that a client uses; from now on it does not count."""
        use.pool.remove_client(use)
        use.pool = self._closing_pool
        use.is_closing = True
