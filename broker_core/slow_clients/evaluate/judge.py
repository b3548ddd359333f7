"""The judge: clients with their rules, pools and the time in; decisions out.

Pure. The broker calls it with the few clients that the guard selected, a preview with all clients. The
decisions are the same, because each rule concerns one client, one subscription, or the largest user of a
pool. For the pools' own limits the guard calls `decision.decide_largest` directly, with the two largest
users, as the judge does.

Decisions are returned in the order in which they must be executed. Each one includes the effect of those
before it: a disconnected or offlined client relieves its pool, so no second client is chosen needlessly.
Shadow rules are judged after the enforced rules and independently, as if no other rule existed.

The judge stores nothing. Rule states (since when a limit is exceeded, which rung has acted) come in with the
signals. States that changed are returned in the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from broker_core.config.rule_terms import (
    FINAL_ACTIONS,
    SIGNALS_LOWERED_BY_DISCARD,
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
    NO_STATE,
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
"""Actions that move waiting messages out of memory and leave the client connected."""
_FREEING: Final = RELIEVING | FINAL_ACTIONS
"""Actions that free memory or disk of the pool."""


class JudgeResult(NamedTuple):
    """Decisions in the order of execution, and complete rule states of the clients and pools that changed."""

    decisions: list[Decision]
    rule_states: dict[str, dict[tuple[str, str], RuleState]]
    pool_states: dict[str, dict[str, RuleState]]


NOTHING: Final = JudgeResult([], {}, {})
"""Empty result, shared; never modified."""


class RuledSubscription(Protocol):
    """Subscription and the rules that apply to it."""

    @property
    def view(self) -> SubscriptionView: ...
    @property
    def rules(self) -> tuple[Rule, ...]: ...


class RuledSubscriptionView(NamedTuple):
    """Subscription and its rules, created for a single judgement."""

    view: SubscriptionView
    rules: tuple[Rule, ...]


class ClientUnderRules(NamedTuple):
    """Client with the rules about itself and about its subscriptions."""

    client: ClientView
    rules: tuple[Rule, ...]
    ruled_subscriptions: Collection[RuledSubscription] = ()
    """Subscriptions that have rules."""


MODES: Final = (EnforcementMode.ENFORCE, EnforcementMode.SHADOW)


def judge(
    clients: Sequence[ClientUnderRules],
    pool_rules: Sequence[Rule],
    pools: Sequence[PoolSignals],
    now_ns: int,
    modes: Sequence[EnforcementMode] = MODES,
) -> JudgeResult:
    """Return the decisions of the rules about these clients and pools now.

    Almost always the result is NOTHING, and almost nothing is allocated.

    Args:
        clients: Clients to judge. For a rule that chooses the largest user of a pool, they must include the
            pool's two largest users: the one to act on, and the runner-up for the explanation.
        pool_rules: Rules about pools.
        pools: Pools to judge.
        now_ns: Current time.
        modes: Modes to judge, in this order.
    """
    result = NOTHING
    for mode in modes:
        result = _JudgePass(mode, clients, pools, now_ns, result).run(pool_rules)
    return result


def victim_order(used: int, client: ClientView) -> tuple[int, int, int, str]:
    """Return the sort key by which a pool's user is chosen; the smallest key comes first.

    Order: largest use, oldest backlog, earliest connection, name.
    """
    return -used, client.backlog.oldest_at, client.connection_number, client.name


def exemption_reason(rule: Rule, client: str) -> str:
    """Return why a rule never acts on a client; "" when it may act."""
    if not rule.protected:  # the usual case
        return ""
    return "the rule protects it" if any(glob_matches(one, client) for one in rule.protected) else ""


@dataclass(slots=True)
class _PendingEffects:
    """Expected effects of the decisions made so far in one pass."""

    ended_clients: set[str] = field(default_factory=set)
    """Names of clients that will be disconnected."""
    relieved_clients: set[str] = field(default_factory=set)
    """Names of clients whose memory will be relieved."""
    memory: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes of memory that will be freed, by pool."""
    disk: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes of disk that will be freed, by pool."""


_NONE: Final = _PendingEffects()
"""Empty effects, shared; never modified."""


class _JudgePass:
    """Pass over the rules of one mode.

    Result and effects are created only when there is something to record.
    """

    __slots__ = ("_clients", "_context", "_effects", "_mode", "_now", "_pools", "_result")

    def __init__(
        self,
        mode: EnforcementMode,
        clients: Sequence[ClientUnderRules],
        pools: Sequence[PoolSignals],
        now_ns: int,
        result: JudgeResult,
    ) -> None:
        self._mode = mode
        self._clients = clients
        self._pools = pools
        self._now = now_ns
        self._result = result
        self._effects = _NONE
        self._context: tuple[ClientView, DecisionContext] | None = None

    def run(self, pool_rules: Sequence[Rule]) -> JudgeResult:
        mode = self._mode
        for client, rules, ruled_subscriptions in self._clients:
            for rule in rules:
                if rule.mode is mode:
                    self._judge(rule, client, None)
            for one in ruled_subscriptions:
                for rule in one.rules:
                    if rule.mode is mode:
                        self._judge(rule, client, one.view)
        for rule in pool_rules:
            if rule.mode is mode:
                for pool in self._pools:
                    if pool.name == rule.scope:
                        self._judge_pool(rule, pool)
        return self._result

    def _judge(self, rule: Rule, client: ClientView, subscription: SubscriptionView | None) -> None:
        """Judge one rule about a client, or about one of its subscriptions."""
        if client.name in self._effects.ended_clients or exemption_reason(rule, client.name):
            return
        if subscription is None:
            value = client_value(rule, client, self._now)
        else:
            value = subscription_value(rule, client, subscription, self._now)
        if client.name in self._effects.relieved_clients and rule.signal in OUTBOX:
            value = NOT_APPLICABLE
        key = (rule.name, subscription.id if subscription is not None else "")
        state = client.rule_states.get(key)
        if state is None and not needs_check(rule, value):
            return
        previous, cut = state or NO_STATE, 0
        if previous.cut and value != NOT_APPLICABLE:
            # A shadow rule that discards: had it been enforced, the client would have read newer messages
            # instead, until none was left. So the cut never exceeds the messages that wait.
            waiting = subscription.outbox_messages if subscription is not None else client.backlog.messages
            cut = min(previous.cut, waiting)
            if rule.signal in SIGNALS_LOWERED_BY_DISCARD:
                value = remaining_backlog(rule, client, subscription, cut)[rule.unit is Unit.BYTES]
        # Only rates use the total: of messages for a subscription, of bytes for a client.
        acked = subscription.acked_messages if subscription is not None else client.backlog.acked_bytes
        current, rung, observed = check_rule(rule, value, previous, self._now, acked)
        if rung is not None:
            context = self._get_context(client)
            decision = decide(
                rule, rung, client, subscription, observed, observed, None, self._now, context, cut
            )
            if decision is not None:
                self._record_decision(decision, client)
                if decision.action is PolicyAction.DISCARD_OLDEST and self._mode is EnforcementMode.SHADOW:
                    cut += decision.lost
            elif rule.ladder[rung].action is PolicyAction.DISCARD_OLDEST:
                # Nothing to discard yet: the rung stays due.
                current = current._replace(done=previous.done, acted_at=previous.acted_at)
        current = current._replace(cut=cut) if current.cut != cut else current
        if current != previous:
            self._record_state(client, key, current)

    def _get_context(self, client: ClientView) -> DecisionContext:
        """Return the figures of a client that its decisions share.

        All decisions are made before any is executed, so the figures are the same for all.
        """
        if self._context is None or self._context[0] is not client:
            self._context = (client, DecisionContext.of(client, self._now))
        return self._context[1]

    def _record_decision(self, decision: Decision, client: ClientView) -> None:
        """Record a decision and its expected effects."""
        self._writable_result.decisions.append(decision)
        if self._effects is _NONE:
            self._effects = _PendingEffects()
        name, pool, effects = client.name, client.pool_name, self._effects
        final = decision.action in FINAL_ACTIONS
        moves = final or (decision.action in RELIEVING and not decision.subscription)
        if moves and name not in effects.relieved_clients:
            effects.relieved_clients.add(name)
            if not client.is_offlined:
                effects.memory[pool] += client.memory
        if final:
            effects.ended_clients.add(name)
            effects.disk[pool] += client.disk

    @property
    def _writable_result(self) -> JudgeResult:
        """The result, created at the first write."""
        if self._result is NOTHING:
            self._result = JudgeResult([], {}, {})
        return self._result

    def _record_state(self, client: ClientView, key: tuple[str, str], state: RuleState) -> None:
        """Record the new state of a rule in the result."""
        states = self._writable_result.rule_states.get(client.name)
        if states is None:
            states = self._writable_result.rule_states[client.name] = dict(client.rule_states)
        if state == NO_STATE:
            states.pop(key, None)
        else:
            states[key] = state

    # ------------------------------------------------------------------------------------------ pools

    def _judge_pool(self, rule: Rule, pool: PoolSignals) -> None:
        """Judge one rule about a pool."""
        value = self._pool_use(rule, pool)
        state = pool.rule_states.get(rule.name)
        if state is None and not needs_check(rule, value):
            return
        if rule.at_enqueue:  # no state: its actions relieve the pool
            self._decide_largest(rule, 0, pool)
            return
        check = check_rule(rule, value, state or NO_STATE, self._now)
        if check.state != (state or NO_STATE):
            states = self._writable_result.pool_states.setdefault(pool.name, dict(pool.rule_states))
            states[rule.name] = check.state
        if check.rung is not None:
            self._decide_largest(rule, check.rung, pool)

    def _decide_largest(self, rule: Rule, rung: int, pool: PoolSignals) -> None:
        """Choose the largest user, then the next, until the pool is within its limit.

        An action that frees nothing is applied to one client only.
        """
        ranked = self._rank_users(rule, pool)
        for index, (_, client) in enumerate(ranked):
            observed = self._pool_use(rule, pool)
            if index and observed <= rule.limit:
                break
            decision = decide_largest(rule, rung, ranked[index : index + 2], observed, self._now)
            if decision is not None:
                self._record_decision(decision, client)
                if decision.action not in _FREEING:
                    break

    def _rank_users(self, rule: Rule, pool: PoolSignals) -> list[tuple[int, ClientView]]:
        """Return the pool's users with their use: largest first, of equals the one with the older backlog."""
        users, share = [], OF_POOL[rule.signal].share
        for client, *_ in self._clients:
            is_relieved = rule.signal is Signal.POOL_MEMORY and client.name in self._effects.relieved_clients
            if client.pool_name != pool.name or is_relieved or client.name in self._effects.ended_clients:
                continue
            if (used := share(client)) > 0 and not exemption_reason(rule, client.name):
                users.append((used, client))
        users.sort(key=lambda user: victim_order(*user))
        return users

    def _pool_use(self, rule: Rule, pool: PoolSignals) -> int:
        """Return the pool's use after the effects of the decisions so far."""
        relieved = self._effects.disk if rule.signal is Signal.POOL_DISK else self._effects.memory
        return pool_value(rule, pool) - relieved.get(pool.name, 0)
