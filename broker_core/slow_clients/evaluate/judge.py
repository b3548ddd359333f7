"""judge(): clients with their rules, pools and the time in; decisions out. Pure, and the only judge there is.

The broker calls it with the few clients the guard has picked out, a preview with all of them: the answers are the
same, because a rule looks at one client, one subscription, or the largest of a pool.

Decisions come in the order in which they are to be carried out, and each takes the effect of those before it
into use: a client that leaves memory or disk relieves its pool, so no second one is chosen needlessly.
Rules in shadow are judged after the enforced ones and by themselves, as if only they existed.

What rules must remember between two looks (since when a limit is passed, which rung has acted) comes in with the
signals as `holds`, and what has changed of it goes out in the verdict; nothing is kept here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from broker_core.config.rule_terms import (
    FINAL_ACTIONS,
    WAITING_SIGNALS,
    EnforcementMode,
    PolicyAction,
    Signal,
    Unit,
)
from broker_core.config.scopes import glob_matches
from broker_core.slow_clients.evaluate.decision import (
    Decision,
    DecisionContext,
    decide,
    decide_largest,
    remaining_backlog,
)
from broker_core.slow_clients.evaluate.rule_state import (
    NO_HOLD,
    NOT_APPLICABLE,
    RuleState,
    check_rule,
    needs_check,
)
from broker_core.slow_clients.evaluate.signal_table import (
    OF_POOL,
    OUTBOX,
    client_value,
    pool_value,
    subscription_value,
)
from broker_core.slow_clients.evaluate.signals import ClientView, PoolSignals, SubscriptionView
from broker_core.slow_clients.rules.rule import Rule

RELIEVING: Final = frozenset({PolicyAction.OFFLINE, PolicyAction.CONTINUE_FROM_JOURNAL})
"""Take what waits out of memory, and leave the client connected."""
_FREEING: Final = RELIEVING | FINAL_ACTIONS


class JudgeResult(NamedTuple):
    """Decisions in the order of carrying out, and the holds of clients and pools that changed, whole."""

    decisions: list[Decision]
    holds: dict[str, dict[tuple[str, str], RuleState]]
    pool_holds: dict[str, dict[str, RuleState]]


NOTHING: Final = JudgeResult([], {}, {})
"""Never written to."""


class RuledSubscription(Protocol):
    """A subscription with the rules that look at it."""

    @property
    def view(self) -> SubscriptionView: ...
    @property
    def rules(self) -> tuple[Rule, ...]: ...


class RuledSubscriptionView(NamedTuple):
    """One that is made for a single judgement."""

    view: SubscriptionView
    rules: tuple[Rule, ...]


class ClientUnderRules(NamedTuple):
    """A client with its rules."""

    client: ClientView
    rules: tuple[Rule, ...]
    narrow: Collection[RuledSubscription] = ()
    """Its subscriptions that rules look at."""


MODES: Final = (EnforcementMode.ENFORCE, EnforcementMode.SHADOW)


def judge(
    clients: Sequence[ClientUnderRules],
    pool_rules: Sequence[Rule],
    pools: Sequence[PoolSignals],
    now_ns: int,
    modes: Sequence[EnforcementMode] = MODES,
) -> JudgeResult:
    """What the rules say about these clients now, of these modes; NOTHING, and next to nothing allocated, almost always.

    For rules that choose the largest, `clients` must hold at least the pool's two largest users of what the
    rule measures: the one to act on, and the runner-up for the explanation.
    """
    outcome = NOTHING
    for mode in modes:
        outcome = _JudgePass(mode, clients, pools, now_ns, outcome).run(pool_rules)
    return outcome


def victim_order(used: int, client: ClientView) -> tuple[int, int, int, str]:
    """Who is chosen of a pool's users: the least comes first."""
    return -used, client.backlog.oldest_at, client.connection_number, client.name


def exemption_reason(rule: Rule, client: str) -> str:
    """Why a rule doesn't act on a client whatever it sees; "" when it does."""
    if not rule.protected:  # as about always
        return ""
    return "the rule protects it" if any(glob_matches(one, client) for one in rule.protected) else ""


@dataclass(slots=True)
class _PendingEffects:
    """What the decisions of one pass will bring about."""

    gone: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    """Whose memory is being relieved."""
    memory: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By how many bytes, by pool."""
    disk: dict[str, int] = field(default_factory=lambda: defaultdict(int))


_NONE: Final = _PendingEffects()
"""Never written to."""


class _JudgePass:
    """One pass over one mode's rules. What it writes to is made when there is something to write."""

    __slots__ = ("_clients", "_effects", "_mode", "_now", "_outcome", "_pools", "_seen")

    def __init__(
        self,
        mode: EnforcementMode,
        clients: Sequence[ClientUnderRules],
        pools: Sequence[PoolSignals],
        now_ns: int,
        outcome: JudgeResult,
    ) -> None:
        self._mode = mode
        self._clients = clients
        self._pools = pools
        self._now = now_ns
        self._outcome = outcome
        self._effects = _NONE
        self._seen: tuple[ClientView, DecisionContext] | None = None

    def run(self, pool_rules: Sequence[Rule]) -> JudgeResult:
        mode = self._mode
        for client, rules, narrow in self._clients:
            for rule in rules:
                if rule.mode is mode:
                    self._judge(rule, client, None)
            for one in narrow:
                for rule in one.rules:
                    if rule.mode is mode:
                        self._judge(rule, client, one.view)
        for rule in pool_rules:
            if rule.mode is mode:
                for pool in self._pools:
                    if pool.name == rule.scope:
                        self._judge_pool(rule, pool)
        return self._outcome

    def _judge(self, rule: Rule, client: ClientView, subscription: SubscriptionView | None) -> None:
        if client.name in self._effects.gone or exemption_reason(rule, client.name):
            return
        if subscription is None:
            value = client_value(rule, client, self._now)
        else:
            value = subscription_value(rule, client, subscription, self._now)
        if client.name in self._effects.moved and rule.signal in OUTBOX:
            value = NOT_APPLICABLE
        key = (rule.name, subscription.id if subscription is not None else "")
        hold = client.rule_states.get(key)
        if hold is None and not needs_check(rule, value):
            return
        before, cut = hold or NO_HOLD, 0
        if before.cut and value != NOT_APPLICABLE:
            # What the client takes it would have taken of what is newer, until nothing of that waited.
            waits = subscription.outbox_messages if subscription is not None else client.backlog.messages
            cut = min(before.cut, waits)
            if rule.signal in WAITING_SIGNALS:
                value = remaining_backlog(rule, client, subscription, cut)[rule.unit is Unit.BYTES]
        after, rung, observed = check_rule(rule, value, before, self._now, client.backlog.acked_bytes)
        if rung is not None:
            found = self._look_at(client)
            decision = decide(
                rule, rung, client, subscription, observed, observed, None, self._now, found, cut
            )
            if decision is not None:
                self._take(decision, client)
                if decision.action is PolicyAction.DISCARD_OLDEST and self._mode is EnforcementMode.SHADOW:
                    cut += decision.lost
            elif rule.ladder[rung].action is PolicyAction.DISCARD_OLDEST:
                # There was nothing to discard. It is due as soon as there is.
                after = after._replace(done=before.done, acted_at=before.acted_at)
        after = after._replace(cut=cut) if after.cut != cut else after
        if after != before:
            self._remember(client, key, after)

    def _look_at(self, client: ClientView) -> DecisionContext:
        """What its decisions say of it: nothing is done before all of them are made, so for all of them the same."""
        if self._seen is None or self._seen[0] is not client:
            self._seen = (client, DecisionContext.of(client, self._now))
        return self._seen[1]

    def _take(self, decision: Decision, client: ClientView) -> None:
        """Note a decision, and what it will bring about."""
        self._written.decisions.append(decision)
        if self._effects is _NONE:
            self._effects = _PendingEffects()
        name, pool, effects = client.name, client.pool_name, self._effects
        final = decision.action in FINAL_ACTIONS
        moves = final or (decision.action in RELIEVING and not decision.subscription)
        if moves and name not in effects.moved:
            effects.moved.add(name)
            if not client.is_offlined:
                effects.memory[pool] += client.memory
        if final:
            effects.gone.add(name)
            effects.disk[pool] += client.disk

    @property
    def _written(self) -> JudgeResult:
        if self._outcome is NOTHING:
            self._outcome = JudgeResult([], {}, {})
        return self._outcome

    def _remember(self, client: ClientView, key: tuple[str, str], hold: RuleState) -> None:
        holds = self._written.holds.get(client.name)
        if holds is None:
            holds = self._written.holds[client.name] = dict(client.rule_states)
        if hold == NO_HOLD:
            holds.pop(key, None)
        else:
            holds[key] = hold

    # ------------------------------------------------------------------------------------------ pools

    def _judge_pool(self, rule: Rule, pool: PoolSignals) -> None:
        value = self._pressure(rule, pool)
        hold = pool.holds.get(rule.name)
        if hold is None and not needs_check(rule, value):
            return
        if rule.at_enqueue:  # nothing to remember: its acts relieve the pool
            self._choose(rule, 0, pool)
            return
        looked = check_rule(rule, value, hold or NO_HOLD, self._now)
        if looked.hold != (hold or NO_HOLD):
            holds = self._written.pool_holds.setdefault(pool.name, dict(pool.holds))
            holds[rule.name] = looked.hold
        if looked.rung is not None:
            self._choose(rule, looked.rung, pool)

    def _choose(self, rule: Rule, rung: int, pool: PoolSignals) -> None:
        """The largest user, then the next, until the pool is within; an act that relieves nothing is done to one."""
        ranked = self._ranked(rule, pool)
        for place, (_, client) in enumerate(ranked):
            observed = self._pressure(rule, pool)
            if place and observed <= rule.limit:
                break
            decision = decide_largest(rule, rung, ranked[place : place + 2], observed, self._now)
            if decision is not None:
                self._take(decision, client)
                if decision.action not in _FREEING:
                    break

    def _ranked(self, rule: Rule, pool: PoolSignals) -> list[tuple[int, ClientView]]:
        """Users of what the pool is short of: the largest first; of equals the one whose backlog is older."""
        users, share = [], OF_POOL[rule.signal].share
        for client, *_ in self._clients:
            moved = rule.signal is Signal.POOL_MEMORY and client.name in self._effects.moved
            if client.pool_name != pool.name or moved or client.name in self._effects.gone:
                continue
            if (used := share(client)) > 0 and not exemption_reason(rule, client.name):
                users.append((used, client))
        users.sort(key=lambda user: victim_order(*user))
        return users

    def _pressure(self, rule: Rule, pool: PoolSignals) -> int:
        relieved = self._effects.disk if rule.signal is Signal.POOL_DISK else self._effects.memory
        return pool_value(rule, pool) - relieved.get(pool.name, 0)
