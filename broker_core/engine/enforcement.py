"""Execution of policy decisions: one function for each action, and nowhere else.

Each takes the connection and the decision in progress. It calls `record` with the results of the
action: whether the client was notified, and what it lost. It does so immediately or when the client has
replied, and once, except that

- a discard that discards nothing, and an offlining that fails, record nothing,
- a conflation records once for each subscription.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from broker_core.config.rule_terms import (
    DecisionReason,
    EnforcementMode,
    PolicyAction,
    Signal,
    TargetSelection,
    Unit,
)
from broker_core.connections.connection_view import ConnectionView
from broker_core.connections.ports import ConnectionServices
from broker_core.delivery.account import DiscardCause, MessageVolume
from broker_core.delivery.discards import NOTHING_UNDELIVERED, UndeliveredSummary
from broker_core.delivery.keep_latest import keep_latest, simulate_keep_latest
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.spool.spool import Spool
from broker_core.engine.system_records import RecentDecisions, SystemRecordBuffer
from broker_core.errors import OperatorError, SluiceError
from broker_core.protocols import replies
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.owed_records import OwedRecords
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.wording import decision_sentence, notice_fields
from broker_core.subscriptions.keys import KeyOf, parse_key

RETRY_AFTER_MS = 1_000
"""Minimum time after which a client is asked to reconnect or resubscribe."""
BACKLOG_SIGNALS: Final = frozenset({Signal.BACKLOG_BYTES, Signal.BACKLOG_MESSAGES})
"""Signals that also count delivered, unacknowledged messages."""
log = structlog.get_logger("sluice.enforcement")


class DecisionInProgress:
    """Decision while it is executed. `identity` names it to the client, the console and the journal."""

    def __init__(
        self, decision: Decision, identity: str, record_decision: Callable[[Decision, str], None]
    ) -> None:
        self.decision = decision
        self.identity = identity
        self._record_decision = record_decision

    def record(self, told: str = "no", **found: Any) -> None:
        """Record the decision with the results of its action, because the action is done.

        Args:
            told: Whether the client was notified: yes, no or unknown.
            **found: Fields of `Decision` to replace.
        """
        self._record_decision(replace(self.decision, told=told, **found), self.identity)


ActionMethod = Callable[[ConnectionView, DecisionInProgress], None]


class PolicyEnforcer:
    """Executor of policy decisions, with one method for each action.

    Operators' actions use the same methods.
    """

    def __init__(
        self,
        services: ConnectionServices,
        guard: SlowClientGuard,
        decisions: RecentDecisions,
        events: SystemRecordBuffer,
    ) -> None:
        self._services = services
        self._clock = services.facilities.clock
        self._guard = guard
        self._decisions = decisions
        self._events = events
        self._spools = 0
        self._closing_later: set[ConnectionView] = set()
        """Clients that are closed when the records that they were owed are counted."""
        self._actions: Final[dict[PolicyAction, ActionMethod]] = {
            PolicyAction.NOTIFY: lambda _, progress: progress.record(),
            PolicyAction.WARN: self._send_notice,
            PolicyAction.CONFLATE: self._conflate,
            PolicyAction.DISCARD_OLDEST: self._discard_oldest,
            PolicyAction.OFFLINE: self._offline,
            PolicyAction.CONTINUE_FROM_JOURNAL: self._continue_from_journal,
            PolicyAction.PAUSE: self._pause,
            PolicyAction.CANCEL_SUBSCRIPTION: self._cancel_subscription,
            PolicyAction.ASK_TO_CLOSE: self._request_close,
            PolicyAction.DISCONNECT: self._disconnect,
            PolicyAction.REFUSE: self._refuse,
            PolicyAction.DELETE_DURABLE: self._delete_durable,
        }

    def execute(self, decision: Decision) -> None:
        """Execute a decision and record it. A shadow decision is recorded and not executed.

        A shadow conflation gives the subscription a queue of its own, to count the messages that it would
        remove.

        An enforced decision about a client that has disconnected is void: it has no effect and no record.
        """
        progress = DecisionInProgress(decision, self._decisions.make_id(), self._decisions.add)
        connection = self._services.roster.clients.get(decision.client)
        if (
            decision.mode is EnforcementMode.SHADOW
            and decision.action is PolicyAction.CONFLATE
            and connection is not None
        ):
            self._simulate_conflation(connection, progress)
        elif decision.mode is EnforcementMode.SHADOW:
            progress.record()
        elif connection is not None:
            try:
                self._actions[decision.action](connection, progress)
            except Exception:
                # A failure must affect only this client: decisions about others follow.
                log.exception("act_failed", client=connection.name, action=decision.action.value)
                connection.close(
                    "internal_error", "The broker couldn't execute a policy's decision on this client."
                )

    def on_spool_failed(self, connection: ConnectionView, error: SluiceError) -> None:
        """Disconnect a client whose backlog cannot be written to its spool.

        No rule decides this, but the decision has all fields of a rule's decision.
        """
        backlog, pool = connection.backlog, self._guard.pool_for(connection.transport)
        used = backlog.spool_bytes
        log.error("spool_failed", client=connection.name, path=pool.limits.disk_path, why=error.sentence)
        self.execute(
            Decision(
                at=self._clock.now_ns(),
                client=connection.name,
                transport=connection.transport,
                pool=pool.name,
                action=PolicyAction.DISCONNECT,
                reason=DecisionReason.SPOOL_FAILED,
                rule="spool",
                setting="message_disk_path",
                revision=self._guard.revision_for(connection.name),
                mode=EnforcementMode.ENFORCE,
                choose=TargetSelection.SELF,
                signal=Signal.SPOOL_BYTES,
                observed=used,
                limit=pool.limits.disk,
                unit=Unit.BYTES,
                used=used,
                chosen_over=None,
                kept=0,
                lost=0,
                resume_bookmark="",
                problem=error.sentence,
            )
        )

    # Actions on a backlog.

    def _conflate(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Keep only the latest waiting message of each key."""
        for target in _unshared(_targets(connection, progress.decision)):
            keep_latest(
                connection.backlog,
                self._services.facilities,
                target.stream,
                _make_key_reader(target),
                progress.decision.rule,
                lambda lost, kept: progress.record(lost=lost, kept=kept),
            )

    def _simulate_conflation(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Count the messages that conflation would remove, for a shadow decision."""
        decision = progress.decision

        def on_counted(lost: int, remaining: int) -> None:
            self._guard.record_shadow_discard(decision, lost)
            progress.record(lost=lost, kept=remaining)

        for target in _unshared(_targets(connection, decision)):
            queue, cut = (
                connection.backlog.ensure_queue(target.stream),
                self._guard.shadow_discarded(decision),
            )
            simulate_keep_latest(
                queue, self._services.facilities, _make_key_reader(target), decision.rule, cut, on_counted
            )

    def _discard_oldest(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Discard the oldest waiting messages until the subscription is within the limit."""
        decision = progress.decision
        lost = remaining = 0
        for target in _unshared(_targets(connection, decision)):
            volume = _counted_volume(connection, target, decision.signal)
            messages, nbytes = (
                (volume.messages - decision.limit, 0)
                if decision.unit is Unit.MESSAGES
                else (0, volume.nbytes - decision.limit)
            )
            lost += connection.backlog.discard_oldest(target.stream, messages, nbytes, decision.rule)
            remaining += target.account.waiting.messages
        if lost:
            progress.record(lost=lost, kept=remaining)
        connection.mark_changed()

    def _offline(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Move a client's backlog to its spool, and record the number of messages in the spool."""
        if connection.backlog.state is ClientState.LIVE:
            self.move_to_spool(connection)
        if connection.is_closed:
            return  # the spool could not be written: `on_spool_failed` has decided
        spool = connection.backlog.spool
        progress.record(
            kept=spool.messages if spool is not None else 0
        )  # messages in flight are not in the spool

    def move_to_spool(self, connection: ConnectionView) -> None:
        """Offline a live client.

        Its subscriptions of the log fall back to reading the log; all other messages wait in its spool.
        """
        spool = self._new_spool(connection)
        for target in list(connection.subscriptions.values()):
            if target.can_fall_back:
                self._services.control.fall_back(target)
        connection.backlog.go_offline(spool)
        for target in connection.subscriptions.values():
            if target.conflating is not None:
                target.conflating.on_offlined()
        self._events.add(self._clock.now_ns(), connection.name, "offline_start", "offlined")

    def _new_spool(self, connection: ConnectionView) -> Spool:
        """Return a new spool file of a client. It is written later."""
        self._spools += 1
        directory = Path(self._guard.pool_for(connection.transport).limits.disk_path)
        with suppress(OSError):  # reported when the spool is written
            directory.mkdir(parents=True, exist_ok=True)
        return Spool(
            directory / f"{self._services.facilities.instance}.{connection.name}.{self._spools}.spool",
            files=self._services.facilities.journal.files,
        )

    def _continue_from_journal(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Drop waiting messages from memory and read them from the journal, from the last sent one on."""
        for target in _targets(connection, progress.decision):
            self._services.control.fall_back(target)
        progress.record()

    def _pause(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Stop sending to the subscription, for a time or until it is resumed."""
        for target in _targets(connection, progress.decision):
            pause_subscription(connection, target, progress.decision.for_ms)
        self._send_notice(connection, progress)

    # Actions on a subscription or a connection.

    def _cancel_subscription(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """End the subscription and notify the client; its other subscriptions continue."""
        connection.save_resume_points()
        decision, total = progress.decision, NOTHING_UNDELIVERED
        for target in _targets(connection, decision):
            ending = connection.end(target, DiscardCause.CANCELLED, decision.rule)
            total = total.plus(ending)
            connection.reply(
                replies.SubscriptionCancelled(
                    id=target.id,
                    code=decision.reason.value,
                    message=decision_sentence(_with_ending(connection, decision, ending)),
                    decision=progress.identity,
                    retry_after_ms=RETRY_AFTER_MS,
                    kept=ending.recoverable.messages,
                    lost=ending.unrecoverable.messages,
                    bookmark=connection.resume_bookmark(ending),
                )
            )
        progress.decision = _with_ending(connection, decision, total)
        self._send_notice(connection, progress)

    def _request_close(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Ask the client to close.

        It is never closed by force: the rule asks again (seed 003), or has a wider rung.
        """
        connection.reply(
            replies.CloseRequested(
                code=progress.decision.reason.value,
                message=decision_sentence(progress.decision),
                retry_after_ms=RETRY_AFTER_MS,
            )
        )
        self._send_notice(connection, progress)

    def _disconnect(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Notify the client and close its connection."""
        self._close(connection, progress, RETRY_AFTER_MS)

    def _refuse(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Notify the client, close its connection, and refuse its name for a time."""
        self._services.refused.add(connection.name, progress.decision, self._clock.monotonic_ms())
        self._close(connection, progress, max(progress.decision.for_ms, RETRY_AFTER_MS))

    def _delete_durable(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Delete the durable subscription with its position, notify the client, and close its connection.

        The client is closed when the records that it was owed are counted, because the notice states them. A
        decision that is made meanwhile has no effect and no record.
        """
        if connection in self._closing_later:
            return
        connection.save_resume_points()
        progress.decision = replace(progress.decision, resume_token=connection.resume_token())
        durables, ending, counts = self._services.durables, NOTHING_UNDELIVERED, list[OwedRecords]()
        for target in _targets(connection, progress.decision):
            if target.durable:
                durables.delete(connection.durable_owner(target.durable), target.durable)
                ended = connection.end(target, DiscardCause.CANCELLED, progress.decision.rule)
                ending = ending.plus(ended)
                if (owed := durables.take_owed(target)) is not None:
                    counts.append(owed)
        if counts:
            self._closing_later.add(connection)
            self._services.facilities.spawn(self._close_counted(connection, progress, ending, counts))
        else:
            self._close_ended(connection, progress, RETRY_AFTER_MS, ending)

    async def _close_counted(
        self,
        connection: ConnectionView,
        progress: DecisionInProgress,
        ending: UndeliveredSummary,
        counts: Iterable[OwedRecords],
    ) -> None:
        """Close a client when what its deleted durable subscriptions were owed is counted."""
        try:
            for owed in counts:
                ending = ending.plus(await owed.wait())
        finally:
            self._closing_later.discard(connection)
        if connection.is_closed:
            progress.decision = _with_ending(connection, progress.decision, ending)
            progress.record()
        else:
            self._close_ended(connection, progress, RETRY_AFTER_MS, ending)

    def _send_notice(self, connection: ConnectionView, progress: DecisionInProgress) -> None:
        """Send the notice to the client.

        The decision is recorded when the notice is acknowledged or fails.
        """
        connection.notices.send(progress.identity, _notice(progress, None), progress.record)

    def _close(self, connection: ConnectionView, progress: DecisionInProgress, retry_after_ms: int) -> None:
        """Close the connection with a final notice."""
        connection.save_resume_points()
        progress.decision = replace(progress.decision, resume_token=connection.resume_token())
        self._close_ended(connection, progress, retry_after_ms, NOTHING_UNDELIVERED)

    def _close_ended(
        self,
        connection: ConnectionView,
        progress: DecisionInProgress,
        retry_after_ms: int,
        ended: UndeliveredSummary,
    ) -> None:
        """Close the connection with a final notice. `ended`: messages of subscriptions that ended before."""
        # End the session before building the notice: what is kept and lost is known only when no further
        # acknowledgement can arrive.
        ending = ended.plus(connection.end_session(progress.decision.reason.value))
        progress.decision = _with_ending(connection, progress.decision, ending)
        connection.close_by_decision(
            progress.identity, _notice(progress, retry_after_ms), ending, progress.record
        )


def pause_subscription(connection: ConnectionView, target: ClientSubscription, for_ms: int = 0) -> None:
    """Stop sending to a subscription for `for_ms`, or until it is resumed (0).

    New messages wait, and count as backlog. A later pause replaces an earlier one, including its end.
    """
    queue = connection.backlog.ensure_queue(target.stream)
    queue.paused = True
    queue.pauses = number = queue.pauses + 1

    def resume_when_due() -> None:
        if queue.pauses == number:
            resume_subscription(connection, target)

    if for_ms:
        asyncio.get_running_loop().call_later(for_ms / 1_000, resume_when_due)


def resume_subscription(connection: ConnectionView, target: ClientSubscription) -> None:
    """Resume sending to a paused subscription."""
    queue = connection.backlog.queues.get(target.stream)
    if queue is not None and queue.paused:
        queue.paused = False
        connection.backlog.resume_sending()


def offline_client(enforcement: PolicyEnforcer, connection: ConnectionView) -> None:
    """Offline a client for an operator, as policy would.

    Raises:
        OperatorError: not_live, when the client is not live, or was closed because its spool cannot be
            written.
    """
    if connection.backlog.state is not ClientState.LIVE:
        raise OperatorError(
            "not_live",
            f"{connection.name} is {connection.backlog.state.value} already.",
            "There is nothing to do.",
        )
    enforcement.move_to_spool(connection)
    if connection.is_closed:
        raise OperatorError(
            "not_live",
            f"The spool of {connection.name} couldn't be written, so it was closed.",
            "Its decision, spool_failed, reports the retained and lost messages and the disk's error.",
        )


def _counted_volume(connection: ConnectionView, target: ClientSubscription, signal: Signal) -> MessageVolume:
    """Return the messages and bytes of a subscription that a rule on this signal counts."""
    account = target.account
    waiting = account.waiting.minus(account.in_log)
    if signal not in BACKLOG_SIGNALS:
        return waiting
    return (
        account.outstanding
        if connection.backlog.has_ack_window(target.stream)
        else waiting.plus(account.in_flight)
    )


def _targets(connection: ConnectionView, decision: Decision) -> list[ClientSubscription]:
    """Return the subscription that a decision names, or all subscriptions of the client."""
    if not decision.subscription:
        return list(connection.subscriptions.values())
    found = connection.subscriptions.get(decision.subscription)
    return [found] if found is not None else []


def _make_key_reader(target: ClientSubscription) -> KeyOf:
    """Return a function that returns the conflation key of a record."""
    return parse_key(target.snapshot_key or "topic").key_of_record(target.subscription.decoder_of)


def _unshared(targets: Iterable[ClientSubscription]) -> list[ClientSubscription]:
    """Return the subscriptions whose messages may be discarded. Shared ones belong to other clients, too."""
    return [target for target in targets if not target.is_shared]


def _with_ending(connection: ConnectionView, decision: Decision, ending: UndeliveredSummary) -> Decision:
    """Return the decision with the exact results of its action, which before it are only estimated."""
    return replace(
        decision,
        kept=ending.recoverable.messages,
        lost=ending.unrecoverable.messages,
        resume_bookmark=connection.resume_bookmark(ending) or "",
    )


def _notice(progress: DecisionInProgress, retry_after_ms: int | None) -> replies.DecisionNotice:
    """Return the notice about a decision for the client."""
    decision = progress.decision
    return replies.DecisionNotice(
        **notice_fields(decision),
        retry_after_ms=retry_after_ms,
        decision=progress.identity,
        subscription=decision.subscription or None,
        resume_token=decision.resume_token or None,
    )
