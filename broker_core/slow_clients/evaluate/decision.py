"""Decisions: one explained action of a rule on a client, and how one is made from a rung that is due.

The same object is sent to the client before the close, stored, shown in the console and read by Spark. It
therefore carries everything needed to understand it. `wording` formats it as sentences, documents and
notices.
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
    """Explained action on a client: who is acted on, how, by which rule, on what evidence, and at what cost.

    Decisions are never modified; use `dataclasses.replace`. The class is not declared frozen, because that
    makes each decision 8 µs slower, and a choice may take 50 µs.
    """

    at: int
    """Time of the decision, ns UTC."""
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
    """The client's own use of the measured quantity, in the unit of `observed`."""
    chosen_over: DecisionCandidate | None
    """The client that would have been chosen next.

    None when the rule acts on the client that passed the limit, or when no other client used the resource.
    """
    kept: int
    """Messages preserved: in the spool after OFFLINE, replayable from the resume bookmark after DISCONNECT.
    """
    lost: int
    """Messages that cannot be recovered: not journaled, and the client is disconnected."""
    resume_bookmark: str
    samples: Sequence[ClientSample] = ()
    subscription: str = ""
    """Id of the subscription that is acted on; "" when the action is on the whole client."""
    topic: str = ""
    """Topic or pattern of that subscription."""
    rung: int = 0
    """Index of the rung in the rule's ladder of `rungs` rungs, from 0."""
    rungs: int = 1
    for_ms: int = 0
    """How long a pause lasts (0: until resumed), or how long a name is refused."""
    hold_ms: int = 0
    """How long the limit had to be exceeded without interruption."""
    worst_case_ms: int = 0
    """Maximum time between crossing the limit and the action."""
    first_lost: str = ""
    """Bookmark of the first lost record, set by the code that executes the decision."""
    last_lost: str = ""
    """Bookmark of the last lost record, set by the code that executes the decision."""
    resume_token: str = ""
    told: str = "unknown"
    """Whether the client received the notice: yes, no, unknown. Set after the action."""

    times: int = 1
    """How often the action was executed within the second. `lost` is the sum of all.

    Only DISCARD_OLDEST is executed more than once.
    """
    shape: Shape = Shape.HARD
    problem: str = ""
    """Error of the disk, when a disk error and no limit is the reason; "" otherwise."""
    held_at: int | None = None
    """Allowance of the staged rollout that held this decision back: nothing was done. None otherwise."""


_ENDING = FINAL_ACTIONS | {PolicyAction.CANCEL_SUBSCRIPTION}


class DecisionContext(NamedTuple):
    """Figures of a client that all decisions about it share.

    Reading them costs time in proportion to the client's subscriptions. Code that decides about each
    subscription therefore reads them once.
    """

    waiting: BacklogCounts
    samples: Sequence[ClientSample]

    @classmethod
    def of(cls, client: ClientView, now_ns: int) -> DecisionContext:
        """Read the figures of `client` now."""
        return cls(client.backlog.count_messages(), client.recent_samples(now_ns))


def decide(
    rule: Rule,
    rung: int,
    client: ClientView,
    subscription: SubscriptionView | None,
    observed: int,
    used: int,
    runner_up: DecisionCandidate | None,
    now_ns: int,
    context: DecisionContext,
    cut: int = 0,
) -> Decision | None:
    """Return the decision of a due rung, or None when the action would change nothing.

    None is returned, for example, to offline an offlined client, or to discard from an empty outbox.

    Args:
        rule: The rule that fired.
        rung: Index of the due rung in the rule's ladder.
        client: The client to act on.
        subscription: The subscription to act on; None for the whole client.
        observed: Value of the signal.
        used: The client's own use of the measured quantity.
        runner_up: The client that would have been chosen next, if any.
        now_ns: Current time.
        context: Figures of the client that its decisions share.
        cut: Messages that the rule has already discarded in shadow mode (`RuleState.cut`).
    """
    waiting = context.waiting
    action = _action(rule, rung, client, subscription, waiting)
    if action is None:
        return None
    recoverable, lost = _estimate_cost(action, rule, client, waiting, subscription, cut)
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
        kept=recoverable,
        lost=lost,
        resume_bookmark=waiting.resume_bookmark,
        samples=context.samples,
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
    """Return the decision about the largest user of a pool, or None when the action would change nothing.

    `ranked` has (use, client), largest first. The second entry, if any, becomes `chosen_over`.
    """
    used, client = ranked[0]
    runner_up = DecisionCandidate(ranked[1][1].name, ranked[1][0]) if len(ranked) > 1 else None
    return decide(
        rule, rung, client, None, observed, used, runner_up, now_ns, DecisionContext.of(client, now_ns)
    )


def _action(
    rule: Rule, rung: int, client: ClientView, subscription: SubscriptionView | None, waiting: BacklogCounts
) -> PolicyAction | None:
    """Return the action that the rung amounts to for this client; None when it is already in effect."""
    action = rule.ladder[rung].action
    if action is PolicyAction.DELETE_DURABLE and (subscription is None or not subscription.durable):
        return PolicyAction.DISCONNECT
    if action is PolicyAction.CONTINUE_FROM_JOURNAL and not _in_journal(client, waiting, subscription):
        action = PolicyAction.OFFLINE
    if action is PolicyAction.OFFLINE and (client.is_offlined or _has_nothing_to_spool(client)):
        return None
    if action is PolicyAction.PAUSE and subscription is not None and subscription.paused:
        return None
    return action


def _has_nothing_to_spool(client: ClientView) -> bool:
    """Return whether the client owes only records of queues that it was sent and has not acknowledged.

    Records that wait for a queue's consumers are not in any client's memory, so a spool would stay empty.
    """
    owing = [one for one in client.subscriptions if one.backlog_messages]
    return bool(owing) and all(one.shared and not one.outbox_messages for one in owing)


def _in_journal(client: ClientView, waiting: BacklogCounts, subscription: SubscriptionView | None) -> bool:
    """Return whether all waiting messages can be read from the journal instead.

    They can when the log has them all and every subscription with a backlog reads from the log.
    """
    if subscription is not None:
        return subscription.journaled
    is_rereadable = waiting.resume_bookmark != "" and waiting.unjournaled_messages == 0
    return is_rereadable and all(one.journaled or not one.backlog_messages for one in client.subscriptions)


def _estimate_cost(
    action: PolicyAction,
    rule: Rule,
    client: ClientView,
    counts: BacklogCounts,
    subscription: SubscriptionView | None,
    cut: int,
) -> tuple[int, int]:
    """Return the messages kept and the messages lost by an action, as estimated before the action."""
    if subscription is None or action in FINAL_ACTIONS or action is PolicyAction.OFFLINE:
        waiting = counts.outbox_messages + counts.spool_messages
        lost = counts.unjournaled_messages if action in _ENDING else 0
        return waiting - lost, lost
    if action is PolicyAction.DISCARD_OLDEST:
        lost = _excess_messages(rule, client, subscription, cut)
        return subscription.outbox_messages - cut - lost, lost
    waiting = subscription.backlog_messages
    lost = waiting if action is PolicyAction.CANCEL_SUBSCRIPTION and not subscription.journaled else 0
    return waiting - lost, lost


def remaining_backlog(
    rule: Rule, client: ClientView, one: SubscriptionView | None, cut: int
) -> tuple[int, int]:
    """Return the messages and bytes that a rule on SIGNALS_LOWERED_BY_DISCARD would measure after a cut.

    `one` is the subscription, or None for the whole client. `cut` is the number of messages removed from
    memory; bytes are reduced by the mean message size.
    """
    backlog = client.backlog
    if rule.signal in OUTBOX:
        messages = backlog.messages if one is None else one.outbox_messages
        nbytes = client.memory if one is None else one.outbox_bytes
    else:
        messages = backlog.owed_messages if one is None else one.backlog_messages
        nbytes = backlog.owed_bytes if one is None else one.backlog_bytes
    return messages - cut, nbytes * (messages - cut) // max(1, messages)


def _excess_messages(rule: Rule, client: ClientView, one: SubscriptionView, cut: int) -> int:
    """Return how many messages must be discarded to be within the limit, of those that wait in memory.

    For a limit in bytes the number is estimated from the mean message size. The action itself uses the exact
    sizes.
    """
    messages, nbytes = remaining_backlog(rule, client, one, cut)
    if SIGNALS[rule.signal].unit is Unit.BYTES:
        excess = -(-max(0, nbytes - rule.limit) * messages // max(1, nbytes))
    else:
        excess = max(0, messages - rule.limit)
    return min(excess, one.outbox_messages - cut)
