"""The slow-client guard: it counts the use of every client, and judges clients that may be over a limit.

There is one guard per instance. It acts in three cases only:

- Messages are queued (memory, backlog of a subscription) or spooled (disk). This costs two additions and two
  comparisons unless a limit is passed.
- At the tick, it judges ages, rates, holds, and clients over a limit of a new policy.
- A client acknowledges messages.

The caller executes the decisions in the same event-loop iteration and reports the resulting changes:

    OFFLINE     Move the outbox to the spool. Call `on_released` with the bytes that left memory, and
                `on_spooled` with the growth of the spool file. From the decision on, the client counts as
                offlined, and new messages go to the spool. When the spool is empty, call `on_unspooled`,
                then `on_spool_empty`.
    DISCONNECT  Also REFUSE and DELETE_DURABLE. Send the notice, close, remove the spool, call `unregister`.
                From the decision on, the client's use does not count. So no other client is chosen for the
                memory and disk that this one is about to free.
    others      Call `on_released` for bytes that left memory, `unsubscribe` for a subscription that ended.

Decisions in shadow mode are only recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from copy import copy

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import FINAL_ACTIONS, EnforcementMode, PolicyAction, Signal
from broker_core.documents.clients import ForecastEntry
from broker_core.slow_clients.accounts.brake import RolloutBrake
from broker_core.slow_clients.accounts.client_registry import ClientRegistry
from broker_core.slow_clients.accounts.client_usage import ClientUsage, WatchedSubscription
from broker_core.slow_clients.accounts.pools import Pool, RankedClient
from broker_core.slow_clients.evaluate.decision import Decision, decide_largest
from broker_core.slow_clients.evaluate.forecast import ForecastInput, find_first_to_act, forecast_rule
from broker_core.slow_clients.evaluate.judge import (
    RELIEVING,
    ClientUnderRules,
    JudgeResult,
    RuledSubscriptionView,
    exemption_reason,
    judge,
    victim_order,
)
from broker_core.slow_clients.evaluate.rule_state import NO_STATE, RuleStateMigration, needs_check
from broker_core.slow_clients.evaluate.samples import series_points
from broker_core.slow_clients.evaluate.signal_table import (
    OF_POOL,
    OUTBOX,
    can_fire_without_backlog,
    pool_value,
)
from broker_core.slow_clients.evaluate.signals import RuleStates
from broker_core.slow_clients.rules.rule import INSTANCE, TICK_MS, UNLIMITED, Rule
from broker_core.slow_clients.rules.rulebook import StagedRevision

Summon = Callable[[Pool, Signal, int], None]
"""Callback with a pool, the signal of the resource it lacks, and how many of its largest users are examined.
"""


def drop_void_decisions(decisions: Iterable[Decision], client: str) -> list[Decision]:
    """Return decisions without the enforced ones about a client that has disconnected.

    Nothing can be done about these, and they must not fall on the next client of that name. Shadow decisions
    stay, because they are only recorded.
    """
    return [one for one in decisions if one.client != client or one.mode is not EnforcementMode.ENFORCE]


class SlowClientGuard(ClientRegistry):
    """Client registry of an instance that also judges the clients."""

    def __init__(
        self,
        document: PolicyDocument,
        host_memory: int,
        ulimit: int | None,
        default_disk_path: str,
        get_user_pinned_bytes: Callable[[str], int] = lambda name: 0,
        summon: Summon = lambda pool, signal, wanted: None,
    ) -> None:
        """Create a guard for an instance.

        Args:
            document: Policy in force.
            host_memory: Memory of the host, bytes.
            ulimit: Memory limit of the process, bytes; None for unlimited.
            default_disk_path: Spool directory where the policy names none.
            get_user_pinned_bytes: Returns the bytes of the log that the pins of a client's user retain, by
                client name.
            summon: Called before a client of a pool is chosen. It must call `resume_ticks` for each suspended
                client that may be chosen.
        """
        super().__init__(document, host_memory, ulimit, default_disk_path, get_user_pinned_bytes)
        self._summon = summon
        self.on_exhausted: Callable[[], None] = lambda: None
        """Called when the staged revision has used up its allowance. `withdraw_stage` must follow soon."""
        self._pending_decisions: list[Decision] = []
        """Additional decisions of calls that return only one. The next tick returns them."""
        self._first_choices: dict[tuple[str, str], tuple[int, str]] = {}
        """Cached result of `_first_choice` by pool and rule: (second, client name).

        Finding the client examines all clients.
        """

    # ------------------------------------------------------------------------------------------ the hot path

    def on_queued(self, use: ClientUsage, nbytes: int, now_ns: int) -> Decision | None:
        """Count bytes added to the client's outbox. The decision may be about any client of its pool."""
        memory = use.memory = use.memory + nbytes
        pool = use.pool
        used = pool.memory_used = pool.memory_used + nbytes
        if memory > use.memory_alarm or used > pool.memory_ceiling:
            return self._memory_alarm(use, nbytes, now_ns)
        return None

    def on_released(self, use: ClientUsage, nbytes: int) -> None:
        """Count bytes removed from the client's outbox. Raises ValueError if it has fewer bytes."""
        if nbytes > use.memory:
            raise ValueError(f"client {use.name} can't release {nbytes} of {use.memory} bytes")
        use.memory -= nbytes
        use.pool.memory_used -= nbytes
        if use.is_offlined:
            use.pool.adjust_offlined_memory(-nbytes)

    def on_spooled(self, use: ClientUsage, nbytes: int, now_ns: int) -> Decision | None:
        """Count bytes added to the client's spool file. The decision may be about any client of its pool."""
        disk = use.disk = use.disk + nbytes
        pool = use.pool
        used = pool.disk_used = pool.disk_used + nbytes
        if disk > use.disk_alarm or used > pool.disk_ceiling:
            return self._disk_alarm(use, now_ns)
        return None

    def on_unspooled(self, use: ClientUsage, nbytes: int) -> None:
        """Count bytes removed from the client's spool file. Raises ValueError if it has fewer bytes."""
        if nbytes > use.disk:
            raise ValueError(f"client {use.name} can't release {nbytes} of {use.disk} bytes of disk")
        use.disk -= nbytes
        use.pool.disk_used -= nbytes

    def judge_subscription(
        self, use: ClientUsage, watched: WatchedSubscription, now_ns: int
    ) -> list[Decision]:
        """Judge the rules about one subscription.

        Call it after an acknowledgement of its client, when its backlog is over an alarm, or while
        `has_rule_state`. The subscription's view must be up to date.
        """
        if use.is_closing or use.watched.get(watched.view.id) is not watched:
            return []
        return self._apply_result(judge([ClientUnderRules(use, (), (watched,))], (), (), now_ns, self._modes))

    def record_shadow_discard(self, decision: Decision, messages: int) -> None:
        """Record that enforcing a shadow decision would have discarded `messages` more messages."""
        use, key = self._uses.get(decision.client), (decision.rule, decision.subscription)
        if use is not None and (state := use.rule_states.get(key)) is not None:
            use.rule_states = {**use.rule_states, key: state._replace(cut=state.cut + messages)}

    def shadow_discarded(self, decision: Decision) -> int:
        """Return how many fewer messages would wait now had the rule been enforced."""
        use = self._uses.get(decision.client)
        return (
            use.rule_states.get((decision.rule, decision.subscription), NO_STATE).cut
            if use is not None
            else 0
        )

    def unregister(self, use: ClientUsage) -> None:
        """Remove a client, its use, and its enforced decisions that no tick has returned yet.

        A new client may take the name before they are executed. Shadow decisions stay, and are still
        recorded.
        """
        if self._uses.get(use.name) is use:
            self._pending_decisions = drop_void_decisions(self._pending_decisions, use.name)
        super().unregister(use)

    @property
    def has_pending_decisions(self) -> bool:
        """Whether decisions wait for the next tick."""
        return bool(self._pending_decisions)

    # ------------------------------------------------------------------------------------------ judging

    def tick(self, now_ns: int) -> list[Decision]:
        """Sample every client and judge ages, rates, holds, and everything over a limit.

        All clients are judged together, so the result equals the preview of the policy that is in force.
        """
        decisions, self._pending_decisions = self._pending_decisions, []
        suspects = dict.fromkeys(self._schedule.all_clients(now_ns))
        clients = [
            ClientUnderRules(use, use.rules, use.ruled_subscriptions.values())
            if use in suspects
            else ClientUnderRules(use, ())
            for use in self._uses.values()
            if not use.is_closing and (use.memory or use.disk or use in suspects)
        ]
        pools = list(self._pools_by_name().values())
        decisions += self._apply_result(judge(clients, self.book.pool_rules, pools, now_ns, self._modes))
        for use in suspects:
            if use.rule_states:
                self._schedule.recheck(use, now_ns)
        for pool in pools:
            pool.prepare_ranking(now_ns)
        return decisions

    def tick_part(self, now_ns: int) -> list[Decision]:
        """Sample and judge the clients of the slices that have passed since the last call.

        Call it every 25 ms. The work of a tick is divided so that no event-loop iteration takes long.
        """
        decisions, self._pending_decisions = self._pending_decisions, []
        for use in self._schedule.next_slice(now_ns):
            if not use.is_closing:
                decisions += self._judge_client_rules(use, now_ns)
                if use.rule_states:
                    self._schedule.recheck(use, now_ns)
        for pool in self._pools_by_name().values():
            pool.prepare_ranking(now_ns)
            # Disk first: a client that is disconnected for its disk use also frees memory.
            while decision := self._judge_disk(pool, now_ns) or self._judge_memory(pool, now_ns):
                decisions.append(decision)
            for rule in self._slow_pool_rules:
                if rule.scope == pool.name:
                    decisions += self._judge_pool(rule, pool, now_ns)
        return decisions

    def judge_client(self, use: ClientUsage, now_ns: int) -> list[Decision]:
        """Judge one client now, as in its slice of the tick."""
        use.backlog.update_progress()
        return self._judge_client_rules(use, now_ns)

    def preview(
        self,
        document: PolicyDocument,
        now_ns: int,
        stage: StagedRevision | None = None,
        closing: Collection[str] = (),
    ) -> list[Decision]:
        """Return the decisions of the `tick` that would follow `apply_policy`, each in its rule's own mode.

        Nothing changes.

        Args:
            document: Policy to preview.
            now_ns: Current time.
            stage: Staged revision to preview, if any. Decisions beyond its allowance come last, with
                `held_at`.
            closing: Names of clients that the policy would close first. They relieve their pools and are not
                judged.
        """
        book = self.compile_rules(document)
        pools, staged = (
            self._build_pools(book),
            self.compile_rules(stage.document) if stage is not None else book,
        )
        clients, migration = [], RuleStateMigration()
        for use in self._uses.values():
            if use.is_closing or use.name in closing:
                continue
            client = copy(use)
            client.pool = pools.get(use.transport) or pools[INSTANCE]
            client.pool.add_usage(use)
            client_book = staged if stage is not None and stage.covers(use.name) else book
            rules, subscription_rules, client.rule_states = self._rules_for(use, client_book, migration)
            if (
                use.memory
                or use.disk
                or client.rule_states
                or any(subscription_rules.values())
                or can_fire_without_backlog(rules)
            ):
                use.backlog.update_progress()
                ruled = [
                    RuledSubscriptionView(use.watched[key].view, view_rules)
                    for key, view_rules in subscription_rules.items()
                ]
                clients.append(ClientUnderRules(client, rules, ruled))
        unique_pools = {pool.name: pool for pool in pools.values()}
        decisions = judge(clients, book.pool_rules, list(unique_pools.values()), now_ns).decisions
        if stage is None:
            return list(decisions)
        executed, withheld = RolloutBrake(stage).split(decisions)
        return executed + withheld

    def forecast(self, name: str, now_ns: int) -> ForecastEntry | None:
        """Return the rule that acts on a client first, or is nearest to acting.

        Returns None when the client is not registered or uses nothing.
        """
        return find_first_to_act(self.forecasts(name, now_ns))

    def forecasts(self, name: str, now_ns: int) -> list[ForecastEntry]:
        """Return how near each rule is to acting on a client: rules of client, subscriptions and pool.

        Returns [] for a client that is not registered.
        """
        use = self._uses.get(name)
        if use is None or use.is_closing:
            return []
        use.backlog.update_progress()
        found = [*use.forecast_inputs(now_ns)]
        for one in use.ruled_subscriptions.values():
            found += one.forecast_inputs(use, now_ns)
        pooled = [rule for rule in self.book.pool_rules if rule.scope == use.pool_name]
        found += [self._pool_forecast_input(rule, use, now_ns) for rule in pooled]
        return [forecast_rule(inputs, now_ns) for inputs in found]

    def _pool_forecast_input(self, rule: Rule, use: ClientUsage, now_ns: int) -> ForecastInput:
        """Return the forecast input of a pool rule for one client."""
        pool = use.pool
        value, figure = pool_value(rule, pool), 1 if rule.signal is Signal.POOL_DISK else 0
        exemption = exemption_reason(rule, use.name)
        if not exemption and not OF_POOL[rule.signal].share(use):
            exemption = "the client uses none of the exhausted resource of the pool"
        elif not exemption and (first := self._first_choice(rule, pool, now_ns)) != use.name:
            exemption = f"{first} would be chosen first"
        state, points = (
            pool.rule_states.get(rule.name, NO_STATE),
            series_points(pool.samples, figure, value, now_ns),
        )
        return ForecastInput(rule, value, state, points, exemption=exemption)

    def _first_choice(self, rule: Rule, pool: Pool, now_ns: int) -> str:
        """Return the client that a pool rule would choose now; at most one second out of date."""
        key, second = (pool.name, rule.name), now_ns // (TICK_MS * 1_000_000)
        known = self._first_choices.get(key)
        if known is None or known[0] != second or known[1] not in self._uses:
            share = OF_POOL[rule.signal].share
            users = [
                use
                for use in self._uses.values()
                if use.pool is pool and share(use) and not exemption_reason(rule, use.name)
            ]
            first = min(users, key=lambda use: victim_order(share(use), use))
            known = self._first_choices[key] = (second, first.name)
        return known[1]

    def _memory_alarm(self, use: ClientUsage, nbytes: int, now_ns: int) -> Decision | None:
        """Judge the client and its pool after `on_queued` passed an alarm."""
        if use.is_closing:
            return None
        if use.is_offlined:
            use.pool.adjust_offlined_memory(nbytes)
        elif use.memory > use.unacted_limits.memory:
            use.backlog.update_progress()
            if decision := self._pick_enforced(self._judge_client_rules(use, now_ns)):
                return decision
        elif use.memory > use.memory_alarm:
            use.pool.by_memory.add(use)
        return self._judge_memory(use.pool, now_ns)

    def _disk_alarm(self, use: ClientUsage, now_ns: int) -> Decision | None:
        """Judge the client and its pool after `on_spooled` passed an alarm."""
        if use.is_closing:
            return None
        if use.disk > use.unacted_limits.disk:
            use.backlog.update_progress()
            if decision := self._pick_enforced(self._judge_client_rules(use, now_ns)):
                return decision
        elif use.disk > use.disk_alarm:
            use.pool.by_disk.add(use)
        return self._judge_disk(use.pool, now_ns)

    def _judge_client_rules(self, use: ClientUsage, now_ns: int) -> list[Decision]:
        """Judge the rules about a client and its subscriptions."""
        return self._apply_result(
            judge(
                [ClientUnderRules(use, use.rules, use.ruled_subscriptions.values())],
                (),
                (),
                now_ns,
                self._modes,
            )
        )

    def _judge_memory(self, pool: Pool, now_ns: int) -> Decision | None:
        """Return a decision about the largest memory user when the pool is over its limit."""
        if pool.memory_used <= pool.memory_ceiling:
            return None
        self._summon(pool, Signal.POOL_MEMORY, 2)
        ranked = [(use.memory, use) for use in pool.by_memory.largest(2)]
        observed = pool.memory_used - pool.offlined_memory
        return self._judge_largest(Signal.POOL_MEMORY, pool, ranked, observed, now_ns)

    def _judge_disk(self, pool: Pool, now_ns: int) -> Decision | None:
        """Return a decision about the largest disk user when the pool is over its limit."""
        if pool.disk_used <= pool.disk_ceiling:
            return None
        self._summon(pool, Signal.POOL_DISK, 2)
        ranked = [(use.disk, use) for use in pool.by_disk.largest(2)]
        return self._judge_largest(Signal.POOL_DISK, pool, ranked, pool.disk_used, now_ns)

    def _judge_largest(
        self, signal: Signal, pool: Pool, ranked: list[tuple[int, RankedClient]], observed: int, now_ns: int
    ) -> Decision | None:
        """Return the decision about the largest user of a pool, and apply its effect.

        It equals the first one that `judge` would make of all clients. The caller calls again for more: with
        only the two largest users at hand, a second decision would lack its runner-up.
        """
        if not ranked:
            return None
        decision = decide_largest(self._pool_rules[pool.name, signal], 0, ranked, observed, now_ns)
        if decision is not None:
            self._apply_effect(decision)
        return decision

    def _judge_pool(self, rule: Rule, pool: Pool, now_ns: int) -> list[Decision]:
        """Judge a custom pool rule. Only when it may fire, all clients of the pool are collected."""
        if rule.name not in pool.rule_states and not needs_check(rule, pool_value(rule, pool)):
            return []
        self._summon(pool, rule.signal, UNLIMITED)
        clients = [
            ClientUnderRules(a, ()) for a in self._uses.values() if a.pool is pool and (a.memory or a.disk)
        ]
        return self._apply_result(judge(clients, [rule], [pool], now_ns))

    def _pick_enforced(self, decisions: list[Decision]) -> Decision | None:
        """Return the first enforced decision, or None; the next tick returns the others."""
        enforced = next(
            (decision for decision in decisions if decision.mode is EnforcementMode.ENFORCE), None
        )
        self._pending_decisions += [decision for decision in decisions if decision is not enforced]
        return enforced

    def _apply_result(self, result: JudgeResult) -> list[Decision]:
        """Store the rule states of a result and apply its decisions. A rollout's brake is checked first."""
        brake = self.brake
        decisions = list(result.decisions)
        if decisions and brake is not None:
            decisions = self._withhold_decisions(result, brake)
        for name, states in result.rule_states.items():
            self._store_states(self._uses[name], states)
        pools = self._pools_by_name() if result.pool_states else {}
        for name, rule_states in result.pool_states.items():
            pools[name].rule_states = rule_states
        for decision in decisions:
            self._apply_effect(decision)
        return decisions

    def _withhold_decisions(self, result: JudgeResult, brake: RolloutBrake) -> list[Decision]:
        """Return the decisions that the brake admits, and the first decision that it holds back.

        Rules keep no state of a held decision, so that the instance's revision can still act.
        """
        was_exhausted, (decisions, withheld) = brake.exhausted, brake.split(result.decisions)
        for one in withheld:
            key, before = (one.rule, one.subscription), self._uses[one.client].rule_states
            if (states := result.rule_states.get(one.client)) is not None:
                states.pop(key, None)
                states.update({key: before[key]} if key in before else {})
        if withheld and not was_exhausted:
            self.on_exhausted()
            decisions.append(withheld[0])
        return decisions

    def _apply_effect(self, decision: Decision) -> None:
        """Apply a decision's effect to the client's use before it is executed."""
        use = self._uses[decision.client]
        if decision.mode is not EnforcementMode.ENFORCE or use.is_closing:
            return
        if decision.action in FINAL_ACTIONS:
            self._release_usage(use)
            return
        if decision.action in RELIEVING and decision.signal in OUTBOX:
            # The action clears the signal. When the signal returns, it is judged from the start, immediately.
            key = (decision.rule, decision.subscription)
            self._store_states(
                use, {other: state for other, state in use.rule_states.items() if other != key}
            )
        if decision.action is PolicyAction.OFFLINE and not use.is_offlined:
            use.pool.mark_offlining(use)
            use.offlined_at = decision.at

    def _store_states(self, use: ClientUsage, rule_states: RuleStates) -> None:
        """Store rule states, and rank the client again if its limits changed."""
        if use.store_rule_state(rule_states) and not use.is_closing:
            use.pool.by_disk.add(use)
            if not use.is_offlined:
                use.pool.by_memory.add(use)
