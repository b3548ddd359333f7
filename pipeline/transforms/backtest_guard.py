"""The guard of a back-test.

It receives clients as recorded, or as simulated, and its decisions are applied to them.

Every decision is that of the broker's `SlowClientGuard`, which calls `evaluate.judge`; this module judges
nothing. A client follows its recording as long as the policy makes the recorded decisions. Times are ms of
the recording.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import FINAL_ACTIONS, EnforcementMode, PolicyAction
from broker_core.slow_clients.accounts.guard import SlowClientGuard, Summon
from broker_core.slow_clients.evaluate.decision import Decision
from pipeline.transforms.recording import TraceWindow
from pipeline.transforms.simulated_client import UNSEEN, SimulatedClient, quiet_limits
from pipeline.transforms.traces import STEP_MS, ClientTrace

SLACK_MS: Final = 2_000
"""An action within this time of the recorded one counts as the same action."""
_MS: Final = 1_000_000


@dataclass(slots=True)
class BacktestResult:
    """Effects that a policy would have had."""

    acts: list[dict[str, Any]] = field(default_factory=list)
    offlined_ms: Counter[str] = field(default_factory=Counter)
    peaks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Peak memory and disk of each pool."""
    lost: int = 0
    parted: int = 0
    """Sessions that diverged from their recording and were simulated."""
    unjudged: list[str] = field(default_factory=list)
    """Rules that the recording can't judge."""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON-compatible values."""
        return {
            "acts": self.acts,
            "offlined_ms": dict(self.offlined_ms),
            "peaks": self.peaks,
            "lost": self.lost,
            "parted": self.parted,
            "unjudged": self.unjudged,
        }


class BacktestGuard:
    """The guard with its present clients, by name and by index of their traces."""

    def __init__(
        self,
        document: PolicyDocument,
        host_memory: int,
        summon: Summon,
        ended: Callable[[SimulatedClient], None],
    ) -> None:
        """Create a guard. `summon`: as for `SlowClientGuard`; `ended`: called with each client that ends."""
        self.guard = SlowClientGuard(document, host_memory, None, "/nowhere", summon=summon)
        self.pools = {name: pool for name, (pool, _) in self.guard.pools().items()}
        self.tried = BacktestResult(unjudged=unsupported_rules(document))
        self.present: dict[int, SimulatedClient] = {}
        self._ended = ended
        self._by_name: dict[str, SimulatedClient] = {}
        self.now = self._ticked = 0

    # Begin, move and end of clients.

    def begin(self, number: int, trace: ClientTrace) -> SimulatedClient:
        """Register the client of a trace. An earlier client with that name ends."""
        before = self._by_name.get(trace.who.name)
        if before is not None:
            self.end(before)
        session = SimulatedClient.create(number, trace)
        session.use = self.guard.register(
            trace.who.name, trace.who.transport, session.backlog, trace.who.user
        )
        if trace.who.topic:
            self.guard.subscribe(session.use, session.backlog)
        session.calm = quiet_limits(session.use)
        self._by_name[trace.who.name] = self.present[number] = session
        return session

    def end(self, session: SimulatedClient) -> None:
        """End a client, for any reason."""
        self._ended(session)
        self._live_again(session)
        self.tried.offlined_ms[session.trace.who.name] += session.offlined_ms
        self.tried.parted += session.free
        self.guard.unregister(session.use)
        session.gone = True
        self._by_name.pop(session.trace.who.name, None)
        self.present.pop(session.number, None)

    def update_client(self, session: SimulatedClient, stretch: TraceWindow, step: int | None) -> None:
        """Move a client to the present time, and pass its figures to the guard.

        `step`: index in the window; None: between two steps.
        """
        if not session.free and self._parts(session):
            session.diverge(self.now)
        if session.free:
            matched = (
                session.trace.value_at("matched_bytes", self.now)
                if step is None
                else int(stretch.matched[step])
            )
            session.advance(self.now, matched)
            self._tell(session, *session.update_backlog())
            if session.use.is_offlined and not session.waiting:
                self._live_again(session)
        else:
            seen = session.trace.samples_at(np.array([self.now]))[0] if step is None else stretch.rows[step]
            self._tell(session, *session.follow_recording(seen))
        session.quiet = 0 if session.use.rule_states or session.use.is_closing else session.quiet + 1

    def activate_client(self, session: SimulatedClient, stretch: TraceWindow, moment: int) -> None:
        """Let the guard check an idle client again, with its figures at index `moment` of the window."""
        memory, disk = (
            session.update_backlog() if session.free else session.follow_recording(stretch.rows[moment])
        )
        session.backlog.outbox_bytes = memory
        session.quiet = 0
        self.guard.resume_ticks(session.use, memory, disk)

    # Ticks.

    def tick(self) -> None:
        """Run the guard's tick of the present time."""
        self._tick(self.now)

    def catch_up(self, now: int) -> None:
        """Run the guard's tick of the step before `now`, if it was skipped.

        So the next tick covers one step only.
        """
        if 0 < self._ticked < now - STEP_MS:
            self._tick(now - STEP_MS)

    def _tick(self, now: int) -> None:
        self._ticked = now
        for decision in self.guard.tick_part(now * _MS):
            self._carry_out(decision)

    def judge_client(self, trace: ClientTrace) -> None:
        """Judge a client now, because the broker judged it at this time."""
        session = self._by_name.get(trace.who.name)
        if session is not None and session.trace is trace and not session.use.is_closing:
            for decision in self.guard.judge_client(session.use, self.now * _MS):
                self._carry_out(decision)

    def note_peak(self, name: str, memory: int, disk: int) -> None:
        """Record a pool's usage at one time for its peaks."""
        known = self.tried.peaks.get(name, (0, 0))
        self.tried.peaks[name] = (max(memory, known[0]), max(disk, known[1]))

    # Recording and divergence.

    def _parts(self, session: SimulatedClient) -> bool:
        """Return whether a client's present state and its recording differ, so that it diverges."""
        trace, now = session.trace, self.now
        if session.use.is_offlined:
            return not (trace.was_offlined_near(now, SLACK_MS) or self._came_back(session))
        return bool(trace.offlined) and any(start + SLACK_MS < now < end for start, end in trace.offlined)

    def _came_back(self, session: SimulatedClient) -> bool:
        """Whether the client is offlined here, and the corresponding recorded episode has ended."""
        return session.trace.is_resumed(session.offlined_since, self.now, SLACK_MS)

    def _tell(self, session: SimulatedClient, memory: int, disk: int) -> None:
        """Pass a client's figures to the guard, and apply its decisions.

        The broker does the same at the end of an event-loop iteration.
        """
        use, guard, now = session.use, self.guard, self.now * _MS
        session.backlog.outbox_bytes = memory
        if not session.free and use.is_offlined and not disk and self._came_back(session):
            guard.on_unspooled(use, use.disk)
            self._live_again(session)
        made: list[Decision | None] = []
        if memory > use.memory:
            made.append(guard.on_queued(use, memory - use.memory, now))
        elif memory < use.memory:
            guard.on_released(use, use.memory - memory)
        if disk > use.disk:
            made.append(guard.on_spooled(use, disk - use.disk, now))
        elif disk < use.disk:
            guard.on_unspooled(use, use.disk - disk)
        watched = use.watched.get("only")
        if watched is not None and watched.has_rules and watched.is_over_alarm:
            made += guard.judge_subscription(use, watched, now)
        for decision in made:
            if decision is not None:
                self._carry_out(decision)

    def _live_again(self, session: SimulatedClient) -> None:
        if session.offlined_since:
            session.offlined_ms += self.now - session.offlined_since
            session.offlined_since = 0
        if session.use.is_offlined and not session.use.disk and not session.use.is_closing:
            self.guard.on_spool_empty(session.use)

    # Decisions.

    def _carry_out(self, decision: Decision) -> None:
        """Record a decision, and apply its effect on the client's backlog."""
        session = self._by_name.get(decision.client)
        if session is None:
            return
        session.quiet = 0
        final = decision.action in FINAL_ACTIONS or decision.action is PolicyAction.CANCEL_SUBSCRIPTION
        lost = decision.lost if decision.mode is EnforcementMode.ENFORCE and final else 0
        self.tried.acts.append(
            {
                "at": self.now,
                "client": decision.client,
                "action": decision.action.value,
                "reason": decision.reason.value,
                "rule": decision.rule,
                "mode": decision.mode.value,
                "signal": decision.signal.value,
                "observed": decision.observed,
                "limit": decision.limit,
                "unit": decision.unit.value,
                "revision": decision.revision,
                "lost": lost,
                "memory": session.use.memory,
                "disk": session.use.disk,
            }
        )
        if decision.mode is not EnforcementMode.ENFORCE:
            return
        self.tried.lost += lost
        if final:
            self.end(session)
        elif decision.action is PolicyAction.OFFLINE:
            session.offlined_since = session.offlined_since or self.now
            if not session.trace.was_offlined_near(self.now, SLACK_MS):
                session.diverge(self.now)
        elif decision.action is PolicyAction.CONTINUE_FROM_JOURNAL:
            session.diverge(self.now)
            session.free_from_log = True
        elif decision.action in (PolicyAction.DISCARD_OLDEST, PolicyAction.CONFLATE):
            session.diverge(self.now)
            dropped = session.limit_backlog(int(decision.limit / session.trace.factor))
            self.tried.lost += int(dropped / session.trace.size)


def unsupported_rules(document: PolicyDocument) -> list[str]:
    """Return the parts of a policy that need figures which aren't recorded."""
    told = [f"rule {rule.name} on {rule.signal.value}" for rule in document.rules if rule.signal in UNSEEN]
    return told + (["ActiveMQ's slow consumers, told by their prefetch windows"] if document.activemq else [])
