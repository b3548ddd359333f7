"""Policy loop: send to clients that changed, measure, judge, execute decisions.

Deliveries only mark clients as changed. So no decision is made, and no client is closed, in the middle of a
loop over clients. The changed clients are processed after each group of batches that the dispatcher delivers,
and at the end of the iteration. Each client is judged once for a group, however many of its batches arrived
for the client. Effects of time alone are checked once a second, for a part of the clients every
SLICE_INTERVAL_S, so that no iteration takes long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

import structlog

from broker_core.activity import LAST
from broker_core.config import PolicyDocument
from broker_core.connections.connection_view import ConnectionView
from broker_core.connections.roster import ConnectionTable
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.ports import InstanceResources
from broker_core.engine.enforcement import PolicyEnforcer
from broker_core.engine.subscription_view import LiveSubscriptionView
from broker_core.engine.system_records import SystemRecordBuffer, TrafficRecorder
from broker_core.engine.watchdog import Watchdog
from broker_core.errors import SluiceError
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.control import ReplayControl
from broker_core.replay.cursor import DurableFrontier
from broker_core.slow_clients.accounts.client_usage import ClientUsage, WatchedSubscription
from broker_core.slow_clients.accounts.guard import SlowClientGuard, drop_void_decisions
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.rules.rulebook import StagedRevision

SLICE_INTERVAL_S: Final = 0.025
"""Interval between two slices of the tick, seconds."""
SLICES_PER_S: Final = 40
"""Slices per second; each client belongs to one."""
NONREADING_CHECK_SLICES: Final = 4
"""Slices in which all clients that do not read are checked once; more slices when they are many."""
MAX_NONREADING_CHECKS: Final = 100
"""Maximum non-reading clients checked in one slice.

The limit does not apply where a full pass would then take longer than a second.
"""
MIN_FULL_CHECK_MS: Final = 900
"""Minimum time between two full checks.

With few clients a pass takes less than a second. The value is below a second, because a sleeping task may
wake slightly early.
"""
MAX_PASSES: Final = 8
"""Maximum passes per iteration.

Decisions of a pass may change other clients. Clients that are changed by the last pass wait for the next
iteration.
"""
MAX_BLOCKED_NS: Final = 50_000_000
"""A client whose socket accepted nothing, or that gave no credit, for this long reads too slowly.

Its subscriptions of the log then fall back to reading the log.
"""
log = structlog.get_logger("sluice.settle")


class PolicyLoop:
    """Clients of one instance as policy sees them, and the loop that sends to them and judges them.

    Implements `connections.ports.PolicyPort`.
    """

    def __init__(
        self,
        facilities: InstanceResources,
        frontier: DurableFrontier,
        roster: ConnectionTable,
        control: ReplayControl,
        guard: SlowClientGuard,
        events: SystemRecordBuffer,
    ) -> None:
        self._clock, self._journal = facilities.clock, facilities.journal
        self._roster = roster
        self._control = control
        self.guard = guard
        # Deferred to the next iteration: the guard is in the middle of judging when the allowance ends.
        guard.on_exhausted = self._schedule_withdrawal
        self._events = events
        self.enforcer: PolicyEnforcer
        self._usages: dict[ConnectionView, ClientUsage] = {}
        self._watched: dict[tuple[ConnectionView, int], tuple[LiveSubscriptionView, WatchedSubscription]] = {}
        """View and rules of every subscription, by client and stream."""
        self._changed: dict[ConnectionView, None] = {}
        """Clients that have changed since they were last processed."""
        self._not_reading: dict[ConnectionView, None] = {}
        """Clients that do not read from their sockets, the one checked least recently first.

        Writes to them are coalesced into chunks.
        """
        self._is_scheduled = False
        self._pending_decisions: list[Decision] = []
        """Decisions made between iterations, already applied by the guard. The next pass executes them."""
        self.watchdog = Watchdog(facilities, frontier)
        self.traffic = TrafficRecorder()
        self.late_ms = 0
        """How late the event loop ran at the last slice, ms. All messages waited for this time."""
        self._unchecked: list[ConnectionView] = []
        """Clients of the present pass that no slice has checked yet."""
        self._slice_size = 0
        self._is_full_check, self._full_check_at = False, -MIN_FULL_CHECK_MS
        """Whether the present pass is a full check, made once a second, and the time of the last one."""

    # Clients and subscriptions.

    def on_logged_on(self, connection: ConnectionView) -> None:
        """Register a client that has logged on."""
        self._usages[connection] = self.guard.register(
            connection.name, connection.transport, connection.backlog, connection.user
        )

    def on_disconnected(self, connection: ConnectionView) -> None:
        """Remove a client that has disconnected."""
        use = self._usages.pop(connection, None)
        if use is not None:
            self.guard.unregister(use)
            self._pending_decisions = drop_void_decisions(self._pending_decisions, use.name)
            self.traffic.on_disconnected(use.name)
        self._changed.pop(connection, None)
        self._not_reading.pop(connection, None)
        for target in connection.subscriptions.values():
            self._watched.pop((connection, target.stream), None)
        self.watchdog.forget(connection)

    def on_spool_failed(self, connection: ConnectionView, error: SluiceError) -> None:
        """Disconnect a client whose backlog cannot be written to its spool."""
        self.enforcer.on_spool_failed(connection, error)

    def on_subscribed(self, connection: ConnectionView, target: ClientSubscription, prefetch: int) -> None:
        """Register a new subscription. Must be called before any record is offered to it."""
        view = LiveSubscriptionView(connection, target, prefetch, self._journal)
        view.mark_acknowledged(self._clock.now_ns())
        self._watched[connection, target.stream] = view, self.guard.subscribe(self._usages[connection], view)
        self._assign_queue(connection, target)

    def on_unsubscribed(self, connection: ConnectionView, target: ClientSubscription) -> None:
        """Remove a subscription that has ended."""
        self._watched.pop((connection, target.stream), None)
        use = self._usages.get(connection)
        if use is not None:
            self.guard.unsubscribe(use, target.id)

    def prefetch_for(self, connection: ConnectionView, topic: str) -> int | None:
        """Return the prefetch that policy sets for a subscription; None to use the one requested."""
        return self.guard.prefetch_for(self._usages[connection], topic)

    def find_usage(self, connection: ConnectionView) -> ClientUsage | None:
        """Return a client's use of its pool; None before its logon and after its end."""
        return self._usages.get(connection)

    def find_view(
        self, connection: ConnectionView, target: ClientSubscription
    ) -> LiveSubscriptionView | None:
        """Return a subscription as rules see it; None for an unknown one."""
        found = self._watched.get((connection, target.stream))
        return found[0] if found is not None else None

    def on_live(self, connection: ConnectionView) -> None:
        """Mark a client as live after it has drained its spool."""
        self._pending_decisions += self._report_usage(connection)
        use = self._usages.get(connection)
        if use is not None:
            self.guard.on_spool_empty(use)

    def on_acknowledged(self, connection: ConnectionView, target: ClientSubscription) -> None:
        """Record that a subscription's client has acknowledged messages."""
        view = self.find_view(connection, target)
        if view is not None:
            view.last_ack_at, view.acked = self._clock.now_ns(), True
            view.mark_acknowledged(view.last_ack_at)
        self.mark_changed(connection)

    def apply(self, policy: PolicyDocument, stage: StagedRevision | None) -> None:
        """Put a revision into force and act on clients that are over its limits."""
        self.guard.apply_policy(policy, stage)
        self._assign_queues()

    def _schedule_withdrawal(self) -> None:
        """Schedule the withdrawal of an exhausted stage."""
        asyncio.get_running_loop().call_soon(self._withdraw_stage)

    def _withdraw_stage(self) -> None:
        """Judge the clients of an exhausted stage by the instance's revision again, and act on them."""
        brake = self.guard.brake
        if brake is None or not brake.exhausted or self.guard.stage is None:
            return
        log.warning("rollout_withdrawn", revision=brake.revision, allowed=brake.allowed)
        self.guard.withdraw_stage()
        self._assign_queues()

    def _assign_queues(self) -> None:
        """Give each subscription with rules its own queue, and judge all clients."""
        for connection in self._usages:
            for target in connection.subscriptions.values():
                self._assign_queue(connection, target)
        self.judge_all()

    def _assign_queue(self, connection: ConnectionView, target: ClientSubscription) -> None:
        """Give a subscription with rules its own queue, so that its backlog can be measured separately."""
        found = self._watched.get((connection, target.stream))
        if found is not None and found[1].has_rules:
            connection.backlog.ensure_queue(target.stream)
            connection.backlog.changed_streams.add(target.stream)
            self.mark_changed(connection)

    # End of an event-loop iteration.

    def mark_changed(self, connection: ConnectionView) -> None:
        """Mark a client whose backlog has changed.

        It is processed at the end of the iteration, or before by `process_changed_clients`.
        """
        self._changed[connection] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.process_changed_clients)

    def process_changed_clients(self) -> None:
        """Send, measure, decide and enforce, for all clients that have changed.

        An exception while processing one client ends only that client: it cannot be served, or policy cannot
        measure it. Other clients are processed in the same iteration, and decisions about them are executed.
        """
        self._is_scheduled = True  # clients that change meanwhile are processed by this loop
        try:
            for _ in range(MAX_PASSES):
                changed, self._changed = self._changed, {}
                if not changed:
                    break
                self._run_pass(changed)
        finally:
            # Even after an exception, clients that are still marked must be processed.
            self._is_scheduled = bool(self._changed)
            if self._is_scheduled:
                asyncio.get_running_loop().call_soon(self.process_changed_clients)

    def _run_pass(self, changed: Iterable[ConnectionView]) -> None:
        # Hot path, run for every delivery to every client: no function call around the loop bodies.
        """Send to, measure and judge the clients that changed, then execute the decisions."""
        for connection in changed:
            try:
                connection.backlog.send()
            except Exception:
                self._close_failed(connection, "The broker couldn't send this client's waiting messages.")
        # Sending marks only the client itself, and it is measured below: remove the mark.
        for connection in changed:
            self._changed.pop(connection, None)
        decisions, self._pending_decisions = self._pending_decisions, []
        for connection in changed:
            try:
                self._judge(connection, decisions)
            except Exception:
                self._close_failed(connection, "The broker couldn't check this client against the policy.")
        self._enforce(decisions)

    def _close_failed(self, connection: ConnectionView, reason: str) -> None:
        """Close a client whose processing has failed. Call it in an exception handler."""
        log.exception("settling_failed", client=connection.name, why=reason)
        try:
            connection.close("internal_error", reason)
        except Exception:
            # Remove it even if closing fails, so that it is not processed again and again.
            log.exception("closing_failed", client=connection.name)
            self.on_disconnected(connection)

    def _enforce(self, decisions: Iterable[Decision]) -> None:
        """Execute decisions; a failing one does not prevent the others."""
        for decision in decisions:
            try:
                self.enforcer.execute(decision)
            except Exception:
                log.exception("decision_failed", client=decision.client, action=decision.action.value)

    def _judge(self, connection: ConnectionView, decisions: list[Decision]) -> None:
        """Append the decisions about a client's present use.

        Appended decisions are executed even if this raises.
        """
        use, backlog = self._usages.get(connection), connection.backlog
        if use is None or backlog.state is ClientState.CLOSED:
            return
        if backlog.outbox.nbytes or backlog.queues.nonempty:
            self._fall_back_if_behind(connection, use)
        decisions += self._report_usage(connection)
        if backlog.changed_streams:
            touched, backlog.changed_streams = backlog.changed_streams, set()
            for stream in touched:
                decisions += self._judge_subscription(connection, use, stream)

    def _judge_subscription(
        self, connection: ConnectionView, use: ClientUsage, stream: int
    ) -> list[Decision]:
        """Return the decisions about a subscription with its own queue that has changed."""
        backlog, now = connection.backlog, self._clock.now_ns()
        queue = backlog.queues.get(stream)
        if queue is not None and queue.update_window_full(now, backlog.is_spooled(stream)):
            self._events.add(now, connection.name, "slow", backlog.state.value)
        view, watched = self._watched.get((connection, stream), (None, None))
        if view is None or watched is None or not watched.has_rules:
            return []
        if view.acked:
            view.acked = False
            return self.guard.judge_subscription(use, watched, now)
        if watched.is_over_alarm or use.has_rule_state(watched):
            backlog.update_progress()  # acknowledged bytes no longer count
            return self.guard.judge_subscription(use, watched, now)
        return []

    def _fall_back_if_behind(self, connection: ConnectionView, use: ClientUsage) -> None:
        """Let subscriptions of the log fall back to reading it when their client is behind or over an alarm.

        Only subscriptions whose `can_fall_back` is true do: these must not make their client slow (seed 002).
        Behind means that the socket has accepted nothing, or the client has given no credit, for
        MAX_BLOCKED_NS.
        """
        backlog, now = connection.backlog, self._clock.now_ns()
        is_behind = backlog.unwritable_since and now - backlog.unwritable_since >= MAX_BLOCKED_NS
        growth = backlog.nbytes - use.memory
        is_over_alarm = (
            use.memory + growth > use.memory_alarm or use.pool.memory_used + growth > use.pool.memory_ceiling
        )
        waiting_streams = {
            stream
            for stream, queue in backlog.queues.nonempty.items()
            if queue.spent_since and now - queue.spent_since >= MAX_BLOCKED_NS
        }
        if not is_behind and not is_over_alarm and not waiting_streams:
            return
        for target in list(connection.subscriptions.values()):
            if not is_behind and not is_over_alarm and target.stream not in waiting_streams:
                continue
            if target.can_fall_back and target.cursor.is_live and target.account.waiting.messages:
                self._control.fall_back(target)
        self._changed.pop(connection, None)

    def _report_usage(self, connection: ConnectionView) -> list[Decision]:
        """Report a client's present use of memory and disk to the guard, and return its decisions."""
        use, backlog = self._usages.get(connection), connection.backlog
        if use is None:
            return []
        memory, disk = backlog.nbytes - use.memory, backlog.spool_bytes - use.disk
        if not memory and not disk:  # almost always: the socket accepted everything
            return []
        decisions, now = [], self._clock.now_ns()
        if memory > 0:
            decisions.append(self.guard.on_queued(use, memory, now))
        elif memory < 0:
            self.guard.on_released(use, -memory)
        if disk > 0:
            decisions.append(self.guard.on_spooled(use, disk, now))
        elif disk < 0:
            self.guard.on_unspooled(use, -disk)
        return [decision for decision in decisions if decision is not None]

    # Effects of time.

    def judge_all(self) -> None:
        """Judge all clients now, for example against a changed policy."""
        self.process_changed_clients()
        self._enforce(self.guard.tick(self._clock.now_ns()))
        self.process_changed_clients()

    async def run(self) -> None:
        """Check all clients once a second, a part of them every SLICE_INTERVAL_S, until cancelled."""
        while True:
            before = self._clock.monotonic_ms()
            await asyncio.sleep(SLICE_INTERVAL_S)
            self.late_ms = max(self._clock.monotonic_ms() - before - int(SLICE_INTERVAL_S * 1_000), 0)
            try:
                self.tick_slice()
            except Exception:
                # A failure must not end the task that judges all clients.
                log.exception("judging_failed")

    def tick_slice(self) -> None:
        """Update the progress of the next slice of clients, and decide about those whose slice is due."""
        LAST.latest, LAST.periodic_task = "periodic_task", "judging clients"
        if not self._unchecked:
            self._unchecked = list(self._usages)
            self._slice_size = -(-len(self._unchecked) // SLICES_PER_S)
            # With few clients a pass takes less than a second: full checks then wait for their second.
            now = self._clock.monotonic_ms()
            self._is_full_check = now - self._full_check_at >= MIN_FULL_CHECK_MS
            if self._is_full_check:
                self._full_check_at = now
        # Removed before the check: a client whose check fails must not block the others.
        slice_clients = self._unchecked[: self._slice_size]
        del self._unchecked[: self._slice_size]
        self.watchdog.note_shared_work()
        for connection in slice_clients:
            self._check_safely(self._check_client, connection)
        checks = len(self._not_reading)
        checks = max(
            min(-(-checks // NONREADING_CHECK_SLICES), MAX_NONREADING_CHECKS), -(-checks // SLICES_PER_S)
        )
        for connection in list(islice(self._not_reading, checks)):
            self._check_safely(self._check_nonreading_client, connection)
        self._enforce(self.guard.tick_part(self._clock.now_ns()))

    def _check_safely(self, check: Callable[[ConnectionView], None], connection: ConnectionView) -> None:
        """Check one client; close it if the check fails."""
        if not connection.is_closed:
            try:
                check(connection)
            except Exception:
                self._close_failed(connection, "The broker couldn't measure this client's progress.")

    def _check_nonreading_client(self, connection: ConnectionView) -> None:
        """Check a client that does not read: flush its chunk, and see whether it reads again."""
        del self._not_reading[connection]
        backlog = connection.backlog
        backlog.update_progress()
        if backlog.is_coalescing():
            self._not_reading[connection] = None
        # A writable socket that gave no signal is left to the watchdog, which reports it.
        if backlog.has_waiters and not (backlog.unwritable_since and connection.sink.is_writable):
            self.mark_changed(connection)

    def _check_client(self, connection: ConnectionView) -> None:
        """Check one client: acknowledged bytes, traffic sample, blocked socket, watchdog."""
        backlog = connection.backlog
        backlog.update_progress_if_due()
        if connection not in self._not_reading and backlog.is_coalescing():
            self._not_reading[connection] = None
        if self._is_full_check and (use := self._usages.get(connection)) is not None:
            self.traffic.sample_client(connection, use, self._clock.now_ns())
        # Only where the socket accepts nothing. A backlog that a writable socket is not given is left to the
        # watchdog, which reports it.
        if (
            backlog.unwritable_since
            and not connection.sink.is_writable
            and (backlog.outbox.nbytes or backlog.queues.nonempty)
        ):
            self.mark_changed(connection)
        if self._is_full_check:
            self.watchdog.check_client(connection)
