"""A policy tried on traces: the broker's own guard, fed with what was recorded. Pure, in ms of the recording.

A client follows its recording as long as the policy does to it what was done then, and is carried on by what it was seen to
take from where they part (`traces`). Every decision is the guard's (`SlowClientGuard`, which asks `evaluate.judge`): nothing
here knows a rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count, zip_longest
from typing import Any, Final

import numpy as np

from broker_core.config import PolicyDocument
from broker_core.config.vocabulary import FINAL_ACTIONS, Action, Mode, Signal
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.accounts.pool_use import PoolUse
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.signals import Waiting
from pipeline.transforms.traces import AHEAD_MS, STEP_MS, Figured, Trace

CALM: Final = 2
"""Steps without anything to remember, in which what was decided for the next tick has come."""
SLACK_MS: Final = 2_000
"""An act that comes so near to the recorded one is the same act."""
UNSEEN: Final = frozenset(
    {
        Signal.WINDOW_FULL,
        Signal.UNACKED_MESSAGES,
        Signal.UNACKED_AGE,
        Signal.ACK_SILENCE,
        Signal.CONFLATION_BYTES,
        Signal.PINNED_BYTES,
        Signal.USER_PINNED_BYTES,
    }
)
"""Of single subscriptions' windows, of conflation and of what holds the log nothing is recorded: rules on them aren't judged."""
_MS: Final = 1_000_000


class Remembered:
    """A client's backlog at a moment of the try. The guard reads it as a session's; it also is its only subscription."""

    def __init__(self, trace: Trace) -> None:
        self.id = "only"
        self.topic = trace.who.topic
        self.name = ""
        self.durable = self.journaled = self.paused = self.rate_limited = False
        self.prefetch = self.conflation_bytes = self.pinned_bytes = 0
        self.unacked_messages = self.unacked_since = self.acked_at = 0
        self.window_full_since = self.window_full_count = 0
        self.oldest_at = self.unacked_at = self.blocked_since = 0
        self.messages = self.owed_messages = self.owed_bytes = self.taken_bytes = self.lump_bytes = 0
        self.outbox_bytes = self.unjournaled = 0

    @property
    def backlog_bytes(self) -> int:
        return self.owed_bytes

    @property
    def backlog_messages(self) -> int:
        return self.owed_messages

    @property
    def outbox_messages(self) -> int:
        return self.messages

    def look(self) -> None:
        """It was looked at when it was set."""

    def waiting(self) -> Waiting:
        return Waiting(self.messages, max(self.owed_messages - self.messages, 0), self.unjournaled, "")


@dataclass(slots=True)
class Session:
    """One trace under the policy."""

    trace: Trace
    backlog: Remembered
    use: PoolUse
    until: int
    """ms; afterwards nothing is known of it."""
    free: bool = False
    """It has parted from its recording."""
    waiting: float = 0.0
    """Bytes of bodies owed, since then."""
    taken: float = 0.0
    moved: int = 0
    """When it was carried on last, and what had come for it by then."""
    matched: int = 0
    offlined_since: int = 0
    offlined_ms: int = 0
    free_from_log: bool = False
    ahead: list[Figured] = field(default_factory=list)
    """What is recorded of the next steps, from `ahead_from` on."""
    ahead_from: int = 0
    calm: int = 0
    """Steps since the guard had anything to remember of it."""


@dataclass(slots=True)
class Tried:
    """What a policy would have done."""

    acts: list[dict[str, Any]] = field(default_factory=list)
    offlined_ms: Counter[str] = field(default_factory=Counter)
    peaks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each pool, memory and disk."""
    lost: int = 0
    parted: int = 0
    """Sessions that were carried on by what they were seen to take."""
    unjudged: list[str] = field(default_factory=list)
    """Rules of which nothing can be said."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "acts": self.acts, "offlined_ms": dict(self.offlined_ms), "peaks": self.peaks, "lost": self.lost,
            "parted": self.parted, "unjudged": self.unjudged,
        }  # fmt: skip


def try_all(policies: Iterable[PolicyDocument], host_memory: int, traces: Sequence[Trace]) -> list[Tried]:
    """Several policies on all traces, side by side in the time of the recording, so that what is read of it serves all of them."""
    tries = [Try(policy, host_memory) for policy in policies]
    for _ in zip_longest(*(one.slices(traces) for one in tries)):
        pass
    return [one.tried for one in tries]


class Try:
    """One policy on all traces."""

    def __init__(self, document: PolicyDocument, host_memory: int) -> None:
        self._guard = SlowClientGuard(document, host_memory, None, "/nowhere")
        self.tried = Tried()
        self._sessions: dict[str, Session] = {}
        self._asleep: list[tuple[int, int, Session]] = []
        """When which sessions are looked at again. Nothing waits for them: the guard needn't know of them until then, and it is they that most
        of a day's looks would be at."""
        self._serial = count()
        self._document = document
        self._now = 0
        self._on_grid = True

    def run(self, traces: Sequence[Trace]) -> Tried:
        """The guard's decisions from the first look to the last."""
        for _ in self.slices(traces):
            pass
        return self.tried

    def slices(self, traces: Sequence[Trace]) -> Iterator[None]:
        """The same, stopping each time that so much of the recording has passed as is read of it at once."""
        self.tried.unjudged = unjudged(self._document)
        coming = sorted(traces, key=lambda one: (one.begun, one.who), reverse=True)
        moments = [(at, place, one) for place, one in enumerate(traces) for at in one.points]
        heapify(moments)
        grid = coming[-1].begun if coming else 0
        following = grid + AHEAD_MS
        while coming or self._sessions or self._asleep:
            if not self._sessions:
                soonest = min([one.begun for one in coming[-1:]] + [wake for wake, _, _ in self._asleep[:1]])
                grid += (
                    max(soonest - grid + STEP_MS - 1, 0) // STEP_MS * STEP_MS
                    if self._asleep
                    else max(soonest - grid, 0)
                )
            while moments and moments[0][0] < grid:
                at, _, trace = heappop(moments)
                self._look(at, coming, trace)
            self._look(grid, coming)
            grid += STEP_MS
            while grid >= following:
                yield
                following += AHEAD_MS

    def _look(self, now: int, coming: list[Trace], only: Trace | None = None) -> None:
        """A turn of the broker's: at the grid's moments for everybody, in between for whom something was decided then."""
        self._now, self._on_grid = max(now, self._now), only is None
        while coming and coming[-1].begun <= now:
            self._begin(coming.pop())
        while self._asleep and self._asleep[0][0] <= now:
            self._wake(heappop(self._asleep)[2])
        for session in list(self._sessions.values()):
            if only is not None and session.trace is not only:
                continue
            if now > session.until:
                self._end(session)
            else:
                self._move(session)
        for decision in self._guard.tick_part(self._now * _MS):
            self._carry_out(decision)
        if only is not None:  # the broker looked at it then, whenever its turn is here
            looked_at = self._sessions.get(only.who.name)
            if looked_at is not None and looked_at.trace is only and not looked_at.use.closing:
                for decision in self._guard.look_at(looked_at.use, self._now * _MS):
                    self._carry_out(decision)
        self._note_peaks()

    def _begin(self, trace: Trace) -> None:
        before = self._sessions.get(trace.who.name)
        if before is not None:
            self._end(before)
        backlog = Remembered(trace)
        until = max(trace.ended, trace.final)
        self._sessions[trace.who.name] = Session(trace, backlog, self._entered(trace, backlog), until)

    def _entered(self, trace: Trace, backlog: Remembered) -> PoolUse:
        use = self._guard.register(trace.who.name, trace.who.transport, backlog, trace.who.user)
        if trace.who.topic:
            self._guard.subscribe(use, backlog)
        return use

    def _sleep(self, session: Session, until: int) -> None:
        """Have the guard forget a client of which it remembers nothing."""
        self._guard.unregister(session.use)
        del self._sessions[session.trace.who.name]
        heappush(self._asleep, (until, next(self._serial), session))

    def _wake(self, session: Session) -> None:
        if session.trace.who.name in self._sessions:  # it has connected anew, and that is another session
            self.tried.offlined_ms[session.trace.who.name] += session.offlined_ms
            return
        session.use = self._entered(session.trace, session.backlog)
        session.calm = 0
        self._sessions[session.trace.who.name] = session

    def _end(self, session: Session) -> None:
        self._live_again(session)
        self.tried.offlined_ms[session.trace.who.name] += session.offlined_ms
        self.tried.parted += session.free
        self._guard.unregister(session.use)
        self._sessions.pop(session.trace.who.name, None)

    # A client's figures at this moment.

    def _move(self, session: Session) -> None:
        if not session.free and self._parts(session):
            self._part(session)
        if session.free:
            memory, disk = self._carried_on(session)
        else:
            memory, disk = self._followed(session)
        self._set(session, memory, disk)
        use = session.use
        waits = memory or disk or session.waiting or use.offlined or use.closing
        if waits or use.holds or use.history or use.beyond:
            session.calm = 0
            return
        session.calm += 1
        if session.calm > CALM and session.calm % CALM == 0 and (until := self._nothing_until(session)):
            self._sleep(session, until)

    def _nothing_until(self, session: Session) -> int:
        """Until when nothing will wait for it; 0: not even now, or that can't be said."""
        trace, now = session.trace, self._now
        until = trace.nothing_until(now)
        if until and session.free:  # whether it takes what comes
            came = trace.at("matched_bytes", until) - trace.at("matched_bytes", now)
            return until if came * 1_000 <= trace.capacity * (until - now) else 0
        return until

    def _parts(self, session: Session) -> bool:
        """Whether what was done then and what is done now have become two things."""
        trace, now = session.trace, self._now
        if session.use.offlined:
            return not (trace.offlined_near(now, SLACK_MS) or self._came_back(session))
        return bool(trace.offlined) and any(start + SLACK_MS < now < end for start, end in trace.offlined)

    def _came_back(self, session: Session) -> bool:
        """Whether it is offlined here, and the recorded episode that this is has ended."""
        return session.trace.came_back(session.offlined_since, self._now, SLACK_MS)

    def _part(self, session: Session) -> None:
        session.free = True
        session.moved = self._now
        session.matched = session.trace.at("matched_bytes", self._now)
        session.waiting = float(session.trace.at("owed_bytes", self._now))
        session.taken = float(session.trace.at("taken_bytes", self._now))

    def _followed(self, session: Session) -> tuple[int, int]:
        of, now = session.backlog, self._now
        step, beside = divmod(now - session.ahead_from, STEP_MS)
        if not self._on_grid:
            seen = session.trace.figures(np.array([now]))[0]
        else:
            if beside or not 0 <= step < len(session.ahead):
                session.ahead_from, step = now, 0
                session.ahead = session.trace.ahead(now)
            seen = session.ahead[step]
        of.messages, of.owed_messages, of.owed_bytes = seen.messages, seen.owed_messages, seen.owed_bytes
        of.taken_bytes, of.unjournaled, of.lump_bytes = seen.taken_bytes, seen.unjournaled, seen.lump_bytes
        of.oldest_at, of.unacked_at, of.blocked_since = seen.oldest_at, seen.unacked_at, seen.blocked_since
        return seen.memory, seen.disk

    def _carried_on(self, session: Session) -> tuple[int, int]:
        trace, of, now = session.trace, session.backlog, self._now
        matched = trace.at("matched_bytes", now)
        came = matched - session.matched
        room = trace.capacity * (now - session.moved) / 1_000 if now > session.moved else 0.0
        session.moved, session.matched = now, matched
        took = min(session.waiting + came, room)
        session.waiting += came - took
        session.taken += took
        waiting = session.waiting
        of.owed_bytes = int(waiting)
        of.owed_messages = int(waiting / trace.size)
        of.taken_bytes = int(session.taken)
        of.oldest_at = trace.matched_at(matched - waiting) * _MS if waiting else 0
        of.unacked_at = 0
        of.blocked_since = (
            int(trace.columns["blocked_since"][max(trace.place(now), 0)]) * _MS if waiting else 0
        )
        of.unjournaled = of.owed_messages if trace.unjournaled else 0
        if session.use.offlined:
            of.messages = 0
            if not waiting:
                self._set(session, 0, 0)
                self._live_again(session)
                return 0, 0
            return 0, int(waiting * (trace.disk_factor or trace.factor))
        of.messages = of.owed_messages
        return (0 if session.free_from_log else int(waiting * trace.factor)), 0

    def _set(self, session: Session, memory: int, disk: int) -> None:
        """Tell the guard, as the broker does at the end of a turn, and do what it decides at once."""
        use, guard, now = session.use, self._guard, self._now * _MS
        session.backlog.outbox_bytes = memory
        if not session.free and use.offlined and not disk and self._came_back(session):
            guard.unspooled(use, use.disk)
            self._live_again(session)
        made: list[Decision | None] = []
        if memory > use.memory:
            made.append(guard.queued(use, memory - use.memory, now))
        elif memory < use.memory:
            guard.released(use, use.memory - memory)
        if disk > use.disk:
            made.append(guard.spooled(use, disk - use.disk, now))
        elif disk < use.disk:
            guard.unspooled(use, use.disk - disk)
        watched = use.watched.get("only")
        if watched is not None and watched.judged and watched.alarmed:
            made += guard.judge_subscription(use, watched, now)
        for decision in made:
            if decision is not None:
                self._carry_out(decision)

    def _live_again(self, session: Session) -> None:
        if session.offlined_since:
            session.offlined_ms += self._now - session.offlined_since
            session.offlined_since = 0
        if session.use.offlined and not session.use.disk and not session.use.closing:
            self._guard.returned(session.use)

    # What is decided.

    def _carry_out(self, decision: Decision) -> None:
        """Note it, and what the broker would do to the client's backlog."""
        session = self._sessions.get(decision.client)
        if session is None:
            return
        final = decision.action in FINAL_ACTIONS or decision.action is Action.CANCEL_SUBSCRIPTION
        lost = decision.lost if decision.mode is Mode.ENFORCE and final else 0
        self.tried.acts.append(
            {
                "at": self._now, "client": decision.client, "action": decision.action.value,
                "reason": decision.reason.value, "rule": decision.rule, "mode": decision.mode.value,
                "signal": decision.signal.value, "observed": decision.observed, "limit": decision.limit,
                "unit": decision.unit.value, "revision": decision.revision, "lost": lost,
                "memory": session.use.memory, "disk": session.use.disk,
            }
        )  # fmt: skip
        if decision.mode is not Mode.ENFORCE:
            return
        self.tried.lost += lost
        if final:
            self._end(session)
        elif decision.action is Action.OFFLINE:
            session.offlined_since = session.offlined_since or self._now
            if not session.trace.offlined_near(self._now, SLACK_MS):
                self._part(session)
        elif decision.action is Action.CONTINUE_FROM_JOURNAL:
            self._part(session)
            session.free_from_log = True
        elif decision.action in (Action.DISCARD_OLDEST, Action.CONFLATE):
            self._part(session)
            kept = min(session.waiting, decision.limit / session.trace.factor)
            self.tried.lost += int((session.waiting - kept) / session.trace.size)
            session.waiting = kept

    def _note_peaks(self) -> None:
        for name, (pool, _) in self._guard.pools().items():
            memory, disk = self.tried.peaks.get(name, (0, 0))
            self.tried.peaks[name] = (max(memory, pool.memory_used), max(disk, pool.disk_used))


def unjudged(document: PolicyDocument) -> list[str]:
    """What of a policy is told by figures that aren't recorded."""
    told = [f"rule {rule.name} on {rule.signal.value}" for rule in document.rules if rule.signal in UNSEEN]
    return told + (["ActiveMQ's slow consumers, told by their prefetch windows"] if document.activemq else [])
