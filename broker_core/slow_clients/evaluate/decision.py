"""A decision: one explained act on a client.

The same object is sent to the client before the close, stored, shown in the console and read by Spark, so it
carries everything needed to understand it without looking elsewhere. `sentences` and `telling` say it to each of them.

Makes the decision of a rung that is due: the action it comes to here, and everything that explains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from broker_core.config.rule_terms import (
    FINAL_ACTIONS,
    SIGNALS,
    DecisionReason,
    EnforcementMode,
    PolicyAction,
    Shape,
    Signal,
    TargetSelection,
    Unit,
)
from broker_core.documents.system_records import DecisionCandidate
from broker_core.slow_clients.evaluate.signal_table import OUTBOX
from broker_core.slow_clients.evaluate.signals import (
    BacklogCounts,
    ClientSample,
    ClientView,
    SubscriptionView,
)
from broker_core.slow_clients.rules.rule import Rule


@dataclass(slots=True)
class Decision:
    """Who is acted on, how, by which rule, on what evidence, and what that costs.

    Nobody changes one: `replace` it. Not declared frozen, since that makes each 8 µs slower, of the 50 a choice may take.
    """

    at: int
    """ns UTC"""
    client: str
    transport: str
    pool: str
    action: PolicyAction
    reason: DecisionReason
    rule: str
    setting: str
    revision: int
    mode: EnforcementMode
    choose: TargetSelection
    signal: Signal
    observed: int
    limit: int
    unit: Unit
    used: int
    """The client's own use of what the rule measures, in the same unit."""
    chosen_over: DecisionCandidate | None
    """Who would have been next; None when the rule acts on the offender itself, or nobody else used any."""
    kept: int
    """Messages kept: in the spool after OFFLINE, replayable from the resume bookmark after DISCONNECT."""
    lost: int
    """Messages that nothing can bring back: not journaled, and the client is disconnected."""
    resume_bookmark: str
    samples: Sequence[ClientSample] = ()
    subscription: str = ""
    """The id of the subscription that is acted on; "" when it is the whole client."""
    topic: str = ""
    """What that subscription subscribes to."""
    rung: int = 0
    """Which rung of the rule's ladder, from 0, of `rungs`."""
    rungs: int = 1
    for_ms: int = 0
    """How long a pause lasts (0: until resumed), or a name is refused."""
    hold_ms: int = 0
    """How long the limit had to be passed without a dip."""
    worst_case_ms: int = 0
    """The longest the act can have come after the limit was passed."""
    first_lost: str = ""
    """Bookmarks of the first and last record lost, filled in by whoever carries the decision out."""
    last_lost: str = ""
    resume_token: str = ""
    told: str = "unknown"
    """Whether the client got the notice: yes, no, unknown. Filled in after the act."""

    times: int = 1
    """How often it was done within the second: `lost` is of all of them. Only DISCARD_OLDEST is done more than once."""
    shape: Shape = Shape.HARD
    problem: str = ""
    """What the disk said, where that and no limit is why."""
    held_at: int | None = None
    """The allowance of its staged rollout, when that held the decision: nothing was done. None otherwise."""


_ENDING = FINAL_ACTIONS | {PolicyAction.CANCEL_SUBSCRIPTION}


class DecisionContext(NamedTuple):
    """What every decision about a client says of it. It costs as much as the client has subscriptions, so whoever decides
    about each of them looks once."""

    waiting: BacklogCounts
    samples: Sequence[ClientSample]

    @classmethod
    def of(cls, client: ClientView, now_ns: int) -> DecisionContext:
        return cls(client.backlog.waiting(), client.recent_samples(now_ns))


def decide(
    rule: Rule,
    rung: int,
    client: ClientView,
    subscription: SubscriptionView | None,
    observed: int,
    used: int,
    runner_up: DecisionCandidate | None,
    now_ns: int,
    found: DecisionContext,
    cut: int = 0,
) -> Decision | None:
    """The decision; None when the action is already the case, as for a client that is offlined, or would discard nothing.
    `cut` as in `LeaseHolder`."""
    waiting = found.waiting
    action = _action(rule, rung, client, subscription, waiting)
    if action is None:
        return None
    kept, lost = _cost(action, rule, client, waiting, subscription, cut)
    if action is PolicyAction.DISCARD_OLDEST and not lost:
        return None
    return Decision(
        at=now_ns,
        client=client.name,
        transport=client.transport,
        pool=client.pool_name,
        action=action,
        reason=rule.reason,
        rule=rule.name,
        setting=rule.setting,
        revision=rule.revision,
        mode=rule.mode,
        choose=rule.target_selection,
        signal=rule.signal,
        observed=observed,
        limit=rule.count if rule.shape is Shape.COUNT_IN_WINDOW else rule.limit,
        unit=rule.unit,
        used=used,
        chosen_over=runner_up,
        kept=kept,
        lost=lost,
        resume_bookmark=waiting.resume_bookmark,
        samples=found.samples,
        subscription="" if subscription is None else subscription.id,
        topic="" if subscription is None else subscription.topic,
        rung=rung,
        rungs=len(rule.ladder),
        for_ms=rule.ladder[rung].for_ms,
        hold_ms=rule.hold_ms,
        worst_case_ms=rule.worst_case_ms(rung, client.backlog.window_step_bytes),
        shape=rule.shape,
    )


def decide_largest(
    rule: Rule, rung: int, ranked: Sequence[tuple[int, ClientView]], observed: int, now_ns: int
) -> Decision | None:
    """The same about the first of a pool's users, who are ranked by their use; the second is who would have been next."""
    used, client = ranked[0]
    runner_up = DecisionCandidate(ranked[1][1].name, ranked[1][0]) if len(ranked) > 1 else None
    return decide(
        rule, rung, client, None, observed, used, runner_up, now_ns, DecisionContext.of(client, now_ns)
    )


def _action(
    rule: Rule, rung: int, client: ClientView, subscription: SubscriptionView | None, waiting: BacklogCounts
) -> PolicyAction | None:
    action = rule.ladder[rung].action
    if action is PolicyAction.DELETE_DURABLE and (subscription is None or not subscription.durable):
        return PolicyAction.DISCONNECT
    if action is PolicyAction.CONTINUE_FROM_JOURNAL and not _in_journal(client, waiting, subscription):
        action = PolicyAction.OFFLINE
    if action is PolicyAction.OFFLINE and client.is_offlined:
        return None
    if action is PolicyAction.PAUSE and subscription is not None and subscription.paused:
        return None
    return action


def _in_journal(client: ClientView, waiting: BacklogCounts, subscription: SubscriptionView | None) -> bool:
    """Whether all that waits can be read from the journal instead: the log keeps it, and whose it is reads there."""
    if subscription is not None:
        return subscription.journaled
    kept = waiting.resume_bookmark != "" and waiting.unjournaled_messages == 0
    return kept and all(one.journaled or not one.backlog_messages for one in client.subscriptions)


def _cost(
    action: PolicyAction,
    rule: Rule,
    client: ClientView,
    held: BacklogCounts,
    subscription: SubscriptionView | None,
    cut: int,
) -> tuple[int, int]:
    """Messages kept and messages that nothing brings back, as far as can be said before the act."""
    if subscription is None or action in FINAL_ACTIONS or action is PolicyAction.OFFLINE:
        waiting = held.outbox_messages + held.spool_messages
        lost = held.unjournaled_messages if action in _ENDING else 0
        return waiting - lost, lost
    if action is PolicyAction.DISCARD_OLDEST:
        lost = _discarded(rule, client, subscription, cut)
        return subscription.outbox_messages - cut - lost, lost
    waiting = subscription.backlog_messages
    lost = waiting if action is PolicyAction.CANCEL_SUBSCRIPTION and not subscription.journaled else 0
    return waiting - lost, lost


def remaining_backlog(
    rule: Rule, client: ClientView, one: SubscriptionView | None, cut: int
) -> tuple[int, int]:
    """Messages and bytes of what a rule on WAITING_SIGNALS measures, of a client or one of its subscriptions, when so many
    of those that wait in memory were given up: of the mean size."""
    backlog = client.backlog
    if rule.signal in OUTBOX:
        messages = backlog.messages if one is None else one.outbox_messages
        nbytes = client.memory if one is None else one.outbox_bytes
    else:
        messages = backlog.owed_messages if one is None else one.backlog_messages
        nbytes = backlog.owed_bytes if one is None else one.backlog_bytes
    return messages - cut, nbytes * (messages - cut) // max(1, messages)


def _discarded(rule: Rule, client: ClientView, one: SubscriptionView, cut: int) -> int:
    """How many messages too many there are, of those that can be discarded: they wait in memory. With a limit in bytes,
    at the mean size of what the rule measures; the act itself goes by the true sizes."""
    messages, nbytes = remaining_backlog(rule, client, one, cut)
    if SIGNALS[rule.signal].unit is Unit.BYTES:
        excess = -(-max(0, nbytes - rule.limit) * messages // max(1, nbytes))
    else:
        excess = max(0, messages - rule.limit)
    return min(excess, one.outbox_messages - cut)
