"""The end of a turn: whoever has changed is sent what the socket takes, measured, judged; then what was decided is done.

Deliveries only mark clients as changed. So a decision is never made, and nobody is ever closed, in the middle of a loop over
clients, and each client is judged once a turn however many batches came for it. What time alone changes is looked at once
a second, a part of the clients every PART_S, so that no turn of the loop takes long.
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
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.rules.rulebook import StagedRevision

PART_S: Final = 0.025
PARTS: Final = 40
"""Of a second, in which everybody is looked at once."""
LUMPS_IN: Final = 4
"""Parts in which everybody is looked at once who reads nothing; more when they are many."""
MAX_LUMPS: Final = 100
"""In one part, unless that would take longer than a second."""
WHOLE_MS: Final = 900
"""Rounds that follow one another in less are of a few clients. Not a second: what sleeps for one may wake a little early."""
MAX_ROUNDS: Final = 8
"""What is decided may make others change; after so many rounds of that the rest waits for the next turn."""
BEHIND_NS: Final = 50_000_000
"""A client whose socket has taken nothing for so long takes less than comes: its subscriptions of the log go back to it. So
does one that has had no credit for so long."""
log = structlog.get_logger("sluice.settle")


class PolicyLoop:
    """One instance's clients as policy sees them. Satisfies `connections.ports.PolicyPort`."""

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
        # In a turn of its own: the guard is in the middle of a judgement when the allowance ends.
        guard.on_exhausted = self._withdraw_soon
        self._events = events
        self.enforces: PolicyEnforcer
        self._uses: dict[ConnectionView, ClientUsage] = {}
        self._watched: dict[tuple[ConnectionView, int], tuple[LiveSubscriptionView, WatchedSubscription]] = {}
        """Every subscription, by client and stream, as rules see it and with what they want of it."""
        self._dirty: dict[ConnectionView, None] = {}
        self._resting: dict[ConnectionView, None] = {}
        """Those who leave unread what they have, the longest not looked at first: what comes for them is handed over in lumps."""
        self._scheduled = False
        self._decided: list[Decision] = []
        """Made between turns, and noted by the guard: done in the next round."""
        self.watchdog = Watchdog(facilities, frontier)
        self.traffic = TrafficRecorder()
        self.late_ms = 0
        """How late the loop ran at the last look, in ms: everybody's messages waited as long."""
        self._part: list[ConnectionView] = []
        self._part_size = 0
        self._whole, self._whole_at = False, -WHOLE_MS
        """Whether this round is one of those, a second apart, at which everything is looked at; and when the last was."""

    # Who is there.

    def on_joined(self, connection: ConnectionView) -> None:
        """A client has logged on."""
        self._uses[connection] = self.guard.register(
            connection.name, connection.transport, connection.backlog, connection.user
        )

    def on_left(self, connection: ConnectionView) -> None:
        """A client is gone."""
        use = self._uses.pop(connection, None)
        if use is not None:
            self.guard.unregister(use)
            self.traffic.on_left(use.name)
        self._dirty.pop(connection, None)
        self._resting.pop(connection, None)
        for target in connection.subscriptions.values():
            self._watched.pop((connection, target.stream), None)
        self.watchdog.forget(connection)

    def on_spool_failed(self, connection: ConnectionView, error: SluiceError) -> None:
        """What waits for a client can't be written to its spool."""
        self.enforces.on_spool_failed(connection, error)

    def on_subscribed(self, connection: ConnectionView, target: ClientSubscription, prefetch: int) -> None:
        """A subscription begins; before anything is offered to it."""
        view = LiveSubscriptionView(connection, target, prefetch, self._journal)
        self._watched[connection, target.stream] = view, self.guard.subscribe(self._uses[connection], view)
        self._give_lane(connection, target)

    def on_unsubscribed(self, connection: ConnectionView, target: ClientSubscription) -> None:
        """A subscription has ended."""
        self._watched.pop((connection, target.stream), None)
        use = self._uses.get(connection)
        if use is not None:
            self.guard.unsubscribe(use, target.id)

    def prefetch_of(self, connection: ConnectionView, topic: str) -> int | None:
        """The prefetch that policy sets for a subscription; None: what it asks for."""
        return self.guard.prefetch_of(self._uses[connection], topic)

    def usage_of(self, connection: ConnectionView) -> ClientUsage | None:
        """What a client takes of its pool; None before its logon and after its end."""
        return self._uses.get(connection)

    def view_of(self, connection: ConnectionView, target: ClientSubscription) -> LiveSubscriptionView | None:
        """A subscription as rules see it."""
        found = self._watched.get((connection, target.stream))
        return found[0] if found is not None else None

    def on_live(self, connection: ConnectionView) -> None:
        """A client has drained its spool."""
        self._decided += self._measure(connection)
        use = self._uses.get(connection)
        if use is not None:
            self.guard.on_spool_empty(use)

    def on_acknowledged(self, connection: ConnectionView, target: ClientSubscription) -> None:
        """A subscription's client has acknowledged messages."""
        view = self.view_of(connection, target)
        if view is not None:
            view.last_ack_at, view.acked = self._clock.now_ns(), True
        self.mark_changed(connection)

    def apply(self, policy: PolicyDocument, stage: StagedRevision | None) -> None:
        """Put a revision in force, and act on whoever is over its limits."""
        self.guard.apply_policy(policy, stage)
        self._give_lanes()

    def _withdraw_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._withdraw_stage)

    def _withdraw_stage(self) -> None:
        """Judge the clients of an exhausted stage by the instance's revision again, and act on them at once."""
        brake = self.guard.brake
        if brake is None or not brake.exhausted or self.guard.stage is None:
            return
        log.warning("rollout_withdrawn", revision=brake.revision, allowed=brake.allowed)
        self.guard.withdraw_stage()
        self._give_lanes()

    def _give_lanes(self) -> None:
        """Give each judged subscription its lane, and judge everybody at once."""
        for connection in self._uses:
            for target in connection.subscriptions.values():
                self._give_lane(connection, target)
        self.judge_all()

    def _give_lane(self, connection: ConnectionView, target: ClientSubscription) -> None:
        """What waits for a subscription that rules look at is kept apart from its neighbours', so that it can be told."""
        found = self._watched.get((connection, target.stream))
        if found is not None and found[1].has_rules:
            connection.backlog.ensure_queue(target.stream)
            connection.backlog.touched.add(target.stream)
            self.mark_changed(connection)

    # The end of a turn.

    def mark_changed(self, connection: ConnectionView) -> None:
        """What waits for a client has changed: look at the end of the turn."""
        self._dirty[connection] = None
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.run_turn_end)

    def run_turn_end(self) -> None:
        """Send, measure, decide and enforce, for all clients that have changed.

        What one client's turn raises ends that client alone: it can't be served, or policy can't see what it takes. The
        others go on in the same turn, and what was decided about them is done.
        """
        self._scheduled = True  # what changes meanwhile is looked at here
        try:
            for _ in range(MAX_ROUNDS):
                changed, self._dirty = self._dirty, {}
                if not changed:
                    break
                self._settle_round(changed)
        finally:
            # Whatever happens above, somebody settles those that have changed.
            self._scheduled = bool(self._dirty)
            if self._scheduled:
                asyncio.get_running_loop().call_soon(self.run_turn_end)

    def _settle_round(self, changed: Iterable[ConnectionView]) -> None:
        # Loops without a function between: they are turned for every delivery to every client.
        for connection in changed:
            try:
                connection.backlog.send()
            except Exception:
                self._end(connection, "What waits for this client couldn't be sent.")
        # Sending marks nobody's neighbours; what it changed of these is measured now.
        for connection in changed:
            self._dirty.pop(connection, None)
        decisions, self._decided = self._decided, []
        for connection in changed:
            try:
                self._judge(connection, decisions)
            except Exception:
                self._end(connection, "What this client takes couldn't be judged.")
        self._enforce(decisions)

    def _end(self, connection: ConnectionView, why: str) -> None:
        """Close the client of which something has just failed."""
        log.exception("settling_failed", client=connection.name, why=why)
        try:
            connection.close("internal_error", why)
        except Exception:
            # Even then it must not be looked at for ever.
            log.exception("closing_failed", client=connection.name)
            self.on_left(connection)

    def _enforce(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            try:
                self.enforces.execute(decision)
            except Exception:
                log.exception("decision_failed", client=decision.client, action=decision.action.value)

    def _judge(self, connection: ConnectionView, decisions: list[Decision]) -> None:
        """Add what policy says about what a client holds now. What was added is done, whatever fails behind it."""
        use, backlog = self._uses.get(connection), connection.backlog
        if use is None or backlog.state is ClientState.CLOSED:
            return
        if backlog.outbox.nbytes or backlog.lanes.filled:
            self._relieve(connection, use)
        decisions += self._measure(connection)
        if backlog.touched:
            touched, backlog.touched = backlog.touched, set()
            for stream in touched:
                decisions += self._judge_subscription(connection, use, stream)

    def _judge_subscription(
        self, connection: ConnectionView, use: ClientUsage, stream: int
    ) -> list[Decision]:
        """The same about a subscription that has a lane, and for which something has happened."""
        backlog, now = connection.backlog, self._clock.now_ns()
        lane = backlog.lanes.get(stream)
        if lane is not None and lane.update_window_full(now, backlog.is_spooled(stream)):
            self._events.add(now, connection.name, "slow", backlog.state.value)
        view, watched = self._watched.get((connection, stream), (None, None))
        if view is None or watched is None or not watched.has_rules:
            return []
        if view.acked:
            view.acked = False
            return self.guard.judge_subscription(use, watched, now)
        if watched.is_over_alarm or use.has_rule_state(watched):
            backlog.update_progress()  # what its peer has acknowledged meanwhile isn't owed
            return self.guard.judge_subscription(use, watched, now)
        return []

    def _relieve(self, connection: ConnectionView, use: ClientUsage) -> None:
        """A subscription of the log never makes its client a slow one: it goes back to reading the log (seed 002)."""
        backlog, now = connection.backlog, self._clock.now_ns()
        behind = backlog.unwritable_since and now - backlog.unwritable_since >= BEHIND_NS
        grown = backlog.nbytes - use.memory
        passes = (
            use.memory + grown > use.memory_alarm or use.pool.memory_used + grown > use.pool.memory_ceiling
        )
        waits = {
            stream
            for stream, lane in backlog.lanes.filled.items()
            if lane.spent_since and now - lane.spent_since >= BEHIND_NS
        }
        if not behind and not passes and not waits:
            return
        for target in list(connection.subscriptions.values()):
            if not behind and not passes and target.stream not in waits:
                continue
            if target.can_fall_back and target.cursor.is_live and target.account.waiting.messages:
                self._control.fall_back(target)
        self._dirty.pop(connection, None)

    def _measure(self, connection: ConnectionView) -> list[Decision]:
        """Tell the guard what a client takes of memory and disk now."""
        use, backlog = self._uses.get(connection), connection.backlog
        if use is None:
            return []
        memory, disk = backlog.nbytes - use.memory, backlog.spool_bytes - use.disk
        if not memory and not disk:  # almost always: the socket took all
            return []
        made, now = [], self._clock.now_ns()
        if memory > 0:
            made.append(self.guard.on_queued(use, memory, now))
        elif memory < 0:
            self.guard.on_released(use, -memory)
        if disk > 0:
            made.append(self.guard.on_spooled(use, disk, now))
        elif disk < 0:
            self.guard.on_unspooled(use, -disk)
        return [decision for decision in made if decision is not None]

    # What time changes.

    def judge_all(self) -> None:
        """Judge everybody at once: what a changed policy made too much."""
        self.run_turn_end()
        self._enforce(self.guard.tick(self._clock.now_ns()))
        self.run_turn_end()

    async def run(self) -> None:
        """Look at everybody once a second, a part every PART_S."""
        while True:
            before = self._clock.monotonic_ms()
            await asyncio.sleep(PART_S)
            self.late_ms = max(self._clock.monotonic_ms() - before - int(PART_S * 1_000), 0)
            try:
                self.tick_slice()
            except Exception:
                # One client's failure must not end the judging of all others.
                log.exception("judging_failed")

    def tick_slice(self) -> None:
        """What the peers of the next part of the clients have taken; and decide about those whose moment has come."""
        LAST.latest, LAST.chore = "chore", "judging clients"
        if not self._part:
            self._part = list(self._uses)
            self._part_size = -(-len(self._part) // PARTS)
            # A few clients are gone round more often: all that need be looked at once a second waits for its second.
            now = self._clock.monotonic_ms()
            self._whole = now - self._whole_at >= WHOLE_MS
            if self._whole:
                self._whole_at = now
        # Taken off first: who can't be looked at must not be in everybody's way for ever.
        part = self._part[: self._part_size]
        del self._part[: self._part_size]
        self.watchdog.start_round()
        for connection in part:
            self._try(self._look_at, connection)
        number = len(self._resting)
        number = max(min(-(-number // LUMPS_IN), MAX_LUMPS), -(-number // PARTS))
        for connection in list(islice(self._resting, number)):
            self._try(self._look_at_resting, connection)
        self._enforce(self.guard.tick_part(self._clock.now_ns()))

    def _try(self, look: Callable[[ConnectionView], None], connection: ConnectionView) -> None:
        if not connection.is_closed:
            try:
                look(connection)
            except Exception:
                self._end(connection, "What this client has taken couldn't be looked up.")

    def _look_at_resting(self, connection: ConnectionView) -> None:
        """Its lump is handed over; from here on it may be one of those that read."""
        del self._resting[connection]
        backlog = connection.backlog
        backlog.update_progress()
        if backlog.is_coalescing():
            self._resting[connection] = None
        # A socket that takes again and hasn't said so is for the watchdog to find.
        if backlog.has_waiters and not (backlog.unwritable_since and connection.sink.is_writable):
            self.mark_changed(connection)

    def _look_at(self, connection: ConnectionView) -> None:
        backlog = connection.backlog
        backlog.update_progress_if_due()
        if connection not in self._resting and backlog.is_coalescing():
            self._resting[connection] = None
        if self._whole and (use := self._uses.get(connection)) is not None:
            self.traffic.sample_client(connection, use, self._clock.now_ns())
        # Only where the socket takes nothing: what it would take and isn't given is for the watchdog to find.
        if (
            backlog.unwritable_since
            and not connection.sink.is_writable
            and (backlog.outbox.nbytes or backlog.lanes.filled)
        ):
            self.mark_changed(connection)
        if self._whole:
            self.watchdog.check_client(connection)
