"""A policy tried on traces: the broker's own guard, fed with what was recorded. Pure, in ms of the recording.

A client follows its recording as long as the policy does to it what was done then, and is carried on by what it was seen to
take from where they part (`traces`). Every decision is the guard's (`SlowClientGuard`, which asks `evaluate.judge`): nothing
here judges.

The guard isn't asked where its answer is known. A window (`recording`) in which no signal of a client comes above what is of
interest to any of its rules, and no pool can come above what is to any of its own, leaves the guard as it was: there the client
rests, and is counted in its pool. With `rests` false everybody is looked at at each step, and what comes of it is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from operator import gt
from typing import Any, Final, NamedTuple

import numpy as np

from broker_core.config import PolicyDocument
from broker_core.config.vocabulary import FINAL_ACTIONS, Action, Mode, Signal
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.holds import calm_upto
from broker_core.slow_clients.rules.rule import UNLIMITED
from pipeline.transforms.carried import UNSEEN, Session, calm_of
from pipeline.transforms.gaps import Gaps
from pipeline.transforms.recording import OUTBOX_LEVELS, Course, Recording, Stretch, Window
from pipeline.transforms.traces import STEP_MS, Ints, Trace

QUIET: Final = 3
"""Steps without anything to remember, in which what was decided for the next tick has come."""
SLACK_MS: Final = 2_000
"""An act that comes so near to the recorded one is the same act."""
_MS: Final = 1_000_000


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


class Used(NamedTuple):
    """Bytes of a pool at each step of a window."""

    memory: Ints
    disk: Ints
    most_memory: Ints
    """On the way to it from the step before: clients don't move all at once."""
    most_disk: Ints


def try_all(policies: Iterable[PolicyDocument], host_memory: int, recording: Recording) -> list[Tried]:
    """Several policies on a recording, side by side, so that what is read of it serves all of them."""
    return tried_on(recording, [Try(policy, host_memory, recording.traces) for policy in policies])


def tried_on(recording: Recording, tries: Sequence[Try]) -> list[Tried]:
    """What came of each, in their order."""
    for window in recording.windows(lambda: any(one.busy for one in tries)):
        for one in tries:
            one.through(window)
    return [one.end() for one in tries]


class Try:
    """One policy on all traces."""

    def __init__(
        self, document: PolicyDocument, host_memory: int, traces: Sequence[Trace], rests: bool = True
    ) -> None:
        """`traces` as a `Recording` has them."""
        self._guard = SlowClientGuard(document, host_memory, None, "/nowhere")
        self._pools = {name: pool for name, (pool, _) in self._guard.pools().items()}
        self._spare = {name: self._interest(name) for name in self._pools}
        self._tried = Tried(unjudged=unjudged(document))
        self._traces = traces
        self._rests = rests
        self._next = 0
        """The trace that begins next."""
        self._by_name: dict[str, Session] = {}
        self._present: dict[int, Session] = {}
        """By the numbers of their traces, as below."""
        self._awake: dict[int, Session] = {}
        """Those that the guard looks at."""
        self._resting: dict[int, Session] = {}
        """Those that have parted, are looked at window by window, and rest."""
        self._asleep: list[tuple[int, int, Session]] = []
        """Those that have parted and take all that comes, and until when that is known."""
        self._serial = count()
        self._gaps = Gaps(len(traces), [*self._pools])
        """Those that have parted and of whom nothing is recorded for a while."""
        self._used: dict[str, Used] = {}
        """What those that rest hold of each pool."""
        self._now = self._ticked = 0
        self._window: Window

    def _interest(self, name: str) -> tuple[int, int]:
        """Up to what memory and disk of a pool are of interest to none of its rules."""
        memory = disk = UNLIMITED
        for rule in self._guard.book.pool_rules:
            if rule.scope == name and rule.signal is Signal.POOL_DISK:
                disk = min(disk, calm_upto(rule))
            elif rule.scope == name:
                memory = min(memory, calm_upto(rule))
        return memory, disk

    @property
    def busy(self) -> bool:
        """Whether anybody is to be looked at also where nothing is recorded."""
        return bool(self._awake or self._resting or self._gaps.sessions)

    def end(self) -> Tried:
        """What came of it. The decisions of a moment are in the order of the clients' names."""
        for session in list(self._present.values()):
            self._end(session)
        self._tried.acts.sort(key=lambda act: (act["at"], act["client"]))
        return self._tried

    # Through a window.

    def through(self, window: Window) -> None:
        """The guard's decisions from its first step to its last."""
        following: Window | None = window
        while following is not None:
            following = self._through(following)

    def _through(self, window: Window) -> Window | None:
        """As far as it could be planned; what is left of it."""
        self._window, self._used = window, {}
        due, near = self._plan() if self._rests else ({}, False)
        points, place, looked, crowded = window.points, 0, 0, 0
        if self._awake or due or points or window.begins or near:
            for step in range(1, window.steps + 1):
                now = int(window.moments[step])
                if near and not crowded and self._may_pass(step):
                    self._rouse_all(step)
                    due, crowded = {}, step
                while place < len(points) and points[place][0] < now:
                    at, number = points[place]
                    place += 1
                    self._look(at, step - 1, self._traces[number])
                for session in due.get(step, ()):
                    self._catch_up(now)
                    self._rouse(session, step)
                if self._awake or self._begins_by(now):
                    self._look(now, step)
                    looked += 1
                if crowded and step - crowded == QUIET and step + QUIET < window.steps:
                    self._settle()
                    return window.after(step)
        if looked < window.steps:
            for name, used in self._used.items():
                self._note_peak(name, int(used.memory[1:].max()), int(used.disk[1:].max()))
        if self._rests:
            self._settle()
        return None

    def _plan(self) -> tuple[dict[int, list[Session]], bool]:
        """Who is to be roused at which step (those who are so at once are awake already), and whether a pool may come above
        what is of interest to its rules."""
        window, most = self._window, {name: [0, 0] for name in self._pools}
        leaving, held = self._gaps.through(window.moments, window.active)
        for number in leaving:
            self._resting[number] = self._gaps.leave(number, window.before)
        if held is not None:
            for place, name in enumerate(self._pools):
                used = Used(
                    held.memory[place], held.disk[place], held.most_memory[place], held.most_disk[place]
                )
                self._used[name] = used
                _add(most[name], (int(used.most_memory.max()), int(used.most_disk.max())))
        due: dict[int, list[Session]] = {}
        for session in list(self._coming()):
            stretch = window.of(session.number)
            course = stretch.course
            if session.free:
                course, session.ahead = session.course(stretch, window.moments)
            step = self._stirs(session, stretch, course)
            if step == 0:
                self._catch_up(int(window.moments[1]))
                self._rouse(session, 0)
                continue
            self._count(session, course, step)
            if step <= window.steps:
                due.setdefault(step, []).append(session)
                _add(most[session.use.pool_name], session.most(stretch))
            else:
                _add(most[session.use.pool_name], (int(course.memory.max()), int(course.disk.max())))
        for session in self._awake.values():
            _add(most[session.use.pool_name], session.most(window.of(session.number)))
        for number in window.begins:
            if number >= self._next:
                fresh = Session.fresh(number, self._traces[number])
                pool = self._guard.pool_of(fresh.trace.who.transport)
                _add(most[pool.name], fresh.most(window.of(number)))
        return due, any(
            pool.holds or most[name][0] > self._spare[name][0] or most[name][1] > self._spare[name][1]
            for name, pool in self._pools.items()
        )

    def _may_pass(self, step: int) -> bool:
        """Whether a pool may come above what is of interest to its rules, in whatever order its clients move to this step."""
        most = {name: [0, 0] for name in self._pools}
        for name, used in self._used.items():
            _add(most[name], (int(used.most_memory[step]), int(used.most_disk[step])))
        for session in self._awake.values():
            _add(most[session.use.pool_name], session.most_at(self._window.of(session.number), step))
        following, now = self._next, int(self._window.moments[step])
        while following < len(self._traces) and self._traces[following].begun <= now:
            fresh = Session.fresh(following, self._traces[following])
            pool = self._guard.pool_of(fresh.trace.who.transport)
            _add(most[pool.name], fresh.most(self._window.of(following)))
            following += 1
        return any(
            pool.holds or most[name][0] > self._spare[name][0] or most[name][1] > self._spare[name][1]
            for name, pool in self._pools.items()
        )

    def _rouse_all(self, step: int) -> None:
        """Everybody, as of the step before this one."""
        before = int(self._window.moments[step - 1])
        self._catch_up(int(self._window.moments[step]))
        followers = (n for n in self._window.active if n in self._present and n not in self._awake)
        for number in sorted({*followers, *self._resting, *self._gaps.sessions}):
            if number in self._gaps.sessions:
                self._gaps.leave(number, before)
                self._rouse(self._present[number], 0)
            else:
                session = self._present[number]
                if session.free and number not in self._resting:
                    continue  # it takes all that comes
                self._rouse(session, step, at_once=True)
        for name, used in self._used.items():
            if step > 1:
                self._note_peak(name, int(used.memory[1:step].max()), int(used.disk[1:step].max()))
            for column in used:  # from the step before on they are the guard's
                column[step - 1 :] = 0

    def _coming(self) -> Iterator[Session]:
        """Those who rest and of whom there is anything in the window, in the order of their traces."""
        while self._asleep and self._asleep[0][0] <= self._window.last:
            self._look_after(heappop(self._asleep)[2])
        for number in self._window.active:
            session = self._present.get(number)
            if session is not None and session.free and number not in self._awake:
                self._look_after(session)
        followers = (
            number for number in self._window.active if number in self._present and number not in self._awake
        )
        for number in sorted({*followers, *self._resting}):
            yield self._present[number]

    def _look_after(self, session: Session) -> None:
        """It slept, or is looked after already."""
        known = (self._awake, self._resting, self._gaps.sessions)
        if session.gone or any(session.number in these for these in known):
            return
        session.moved = self._window.before
        session.matched = int(self._window.of(session.number).matched[0])
        self._resting[session.number] = session

    def _stirs(self, session: Session, stretch: Stretch, course: Course) -> int:
        """The step from which on the guard is to look at it, 0 for at once; more than it has: it may rest through the window."""
        calm, use = session.calm, session.use
        if stretch.eventful or (
            not session.free and stretch.offlined and not (use.offlined and stretch.all_offlined)
        ):
            return 0
        if calm.rated:
            return 0 if any(course.most) else self._window.steps + 1
        step, skip = self._window.steps + 1, OUTBOX_LEVELS if use.offlined else 0
        if any(map(gt, course.most[skip:], calm.levels[skip:])):
            over = course.levels[skip:, 1:] > np.array(calm.levels[skip:])[:, None]
            step = int(np.argmax(over.any(axis=0))) + 1
        if use.offlined:
            if self._window.last + STEP_MS - use.offlined_at // _MS > calm.spool_age:
                return 0
            if session.free and not min(session.ahead):  # its spool is empty: it is live again
                step = min(step, max(session.ahead.index(0), 1))
        return step

    def _count(self, session: Session, course: Course, until: int) -> None:
        """What it holds of its pool while it rests."""
        name = session.use.pool_name
        if name not in self._used:
            self._used[name] = Used(*(np.zeros(self._window.steps + 1, np.int64) for _ in Used._fields))
        used = self._used[name]
        used.memory[:until] += course.memory[:until]
        used.disk[:until] += course.disk[:until]
        used.most_memory[1:until] += np.maximum(course.memory[: until - 1], course.memory[1:until])
        used.most_disk[1:until] += np.maximum(course.disk[: until - 1], course.disk[1:until])
        if until <= self._window.steps:  # it is roused by then, and moves as the others do
            memory, disk = session.most(self._window.of(session.number))
            used.most_memory[until] += memory
            used.most_disk[until] += disk

    def _catch_up(self, now: int) -> None:
        """The guard's tick of the step before, if it wasn't asked then: its next one is to be of a step and no more."""
        if 0 < self._ticked < now - STEP_MS:
            self._tick(now - STEP_MS)

    def _rouse(self, session: Session, step: int, at_once: bool = False) -> None:
        """Have the guard look at it from a step on, of which the guard is told when all move to it; `at_once` and at 0 of the
        step before that already."""
        window, before = self._window, max(step - 1, 0)
        stretch = window.of(session.number)
        self._guard.rouse(session.use)
        self._resting.pop(session.number, None)
        self._awake[session.number] = session
        session.quiet = 0
        if session.free and step:
            session.waiting = session.ahead[before]
            session.moved, session.matched = int(window.moments[before]), int(stretch.matched[before])
        if step and not at_once:
            return
        if session.free:
            self._set(session, *session.show())
        else:
            seen = stretch.rows[before]
            session.backlog.show(seen)
            self._set(session, seen.memory, seen.disk)

    def _settle(self) -> None:
        """Let those rest of whom the guard remembers nothing, and take those who did to the window's end."""
        window = self._window
        for session in list(self._resting.values()):
            session.waiting = session.ahead[-1]
            session.moved, session.matched = window.last, int(window.of(session.number).matched[-1])
            self._leave_alone(session)
        if self._guard.pending:
            return
        for session in list(self._awake.values()):
            use = session.use
            if session.quiet < QUIET or use.closing or use.holds or (session.calm.rated and use.history):
                continue
            if use.memory:
                self._guard.released(use, use.memory)
            if use.disk:
                self._guard.unspooled(use, use.disk)
            self._guard.rest(use)
            del self._awake[session.number]
            if session.free:
                self._resting[session.number] = session
                self._leave_alone(session)

    def _leave_alone(self, session: Session) -> None:
        """Where nothing is recorded of it for a while, and where it takes all that comes then, it needn't be looked after."""
        if session.waiting or session.use.offlined:
            if self._gaps.enter(session):
                del self._resting[session.number]
        elif until := session.trace.takes_all_until(session.moved, session.room):
            del self._resting[session.number]
            heappush(self._asleep, (until, next(self._serial), session))

    # A moment.

    def _begins_by(self, now: int) -> bool:
        return self._next < len(self._traces) and self._traces[self._next].begun <= now

    def _look(self, now: int, step: int, only: Trace | None = None) -> None:
        """A turn of the broker's: at the steps for everybody, in between for whom something was decided then."""
        self._catch_up(now)
        self._now = max(now, self._now)
        while self._begins_by(now):
            self._begin(self._next)
            self._next += 1
        for number in sorted(self._awake):
            session = self._awake.get(number)
            if session is None or (only is not None and session.trace is not only):
                continue
            if now > session.until:
                self._end(session)
            else:
                self._move(session, step if only is None else None)
        self._tick(self._now)
        if only is not None:  # the broker looked at it then, whenever its turn is here
            looked_at = self._by_name.get(only.who.name)
            if looked_at is not None and looked_at.trace is only and not looked_at.use.closing:
                for decision in self._guard.look_at(looked_at.use, self._now * _MS):
                    self._carry_out(decision)
        for name, pool in self._pools.items():
            rest = self._used.get(name)
            memory, disk = (int(rest.memory[step]), int(rest.disk[step])) if rest is not None else (0, 0)
            self._note_peak(name, pool.memory_used + memory, pool.disk_used + disk)

    def _tick(self, now: int) -> None:
        self._ticked = now
        for decision in self._guard.tick_part(now * _MS):
            self._carry_out(decision)

    def _begin(self, number: int) -> None:
        trace = self._traces[number]
        before = self._by_name.get(trace.who.name)
        if before is not None:
            self._end(before)
        session = Session.fresh(number, trace)
        session.use = self._guard.register(
            trace.who.name, trace.who.transport, session.backlog, trace.who.user
        )
        if trace.who.topic:
            self._guard.subscribe(session.use, session.backlog)
        session.calm = calm_of(session.use)
        self._by_name[trace.who.name] = self._present[number] = self._awake[number] = session

    def _end(self, session: Session) -> None:
        self._live_again(session)
        self._tried.offlined_ms[session.trace.who.name] += session.offlined_ms
        self._tried.parted += session.free
        self._guard.unregister(session.use)
        session.gone = True
        self._by_name.pop(session.trace.who.name, None)
        for known in (self._present, self._awake, self._resting, self._gaps.sessions):
            known.pop(session.number, None)

    # A client's figures at this moment.

    def _move(self, session: Session, step: int | None) -> None:
        """`step` of the window; None: at a moment between two."""
        stretch = self._window.of(session.number)
        if not session.free and self._parts(session):
            session.part(self._now)
        if session.free:
            matched = (
                session.trace.at("matched_bytes", self._now) if step is None else int(stretch.matched[step])
            )
            session.carry_on(self._now, matched)
            memory, disk = session.show()
            self._set(session, memory, disk)
            if session.use.offlined and not session.waiting:
                self._live_again(session)
        else:
            seen = session.trace.figures(np.array([self._now]))[0] if step is None else stretch.rows[step]
            session.backlog.show(seen)
            self._set(session, seen.memory, seen.disk)
        session.quiet = 0 if session.use.holds or session.use.closing else session.quiet + 1

    def _parts(self, session: Session) -> bool:
        """Whether what was done then and what is done now have become two things."""
        trace, now = session.trace, self._now
        if session.use.offlined:
            return not (trace.offlined_near(now, SLACK_MS) or self._came_back(session))
        return bool(trace.offlined) and any(start + SLACK_MS < now < end for start, end in trace.offlined)

    def _came_back(self, session: Session) -> bool:
        """Whether it is offlined here, and the recorded episode that this is has ended."""
        return session.trace.came_back(session.offlined_since, self._now, SLACK_MS)

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
        session = self._by_name.get(decision.client)
        if session is None:
            return
        session.quiet = 0
        final = decision.action in FINAL_ACTIONS or decision.action is Action.CANCEL_SUBSCRIPTION
        lost = decision.lost if decision.mode is Mode.ENFORCE and final else 0
        self._tried.acts.append(
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
        self._tried.lost += lost
        if final:
            self._end(session)
        elif decision.action is Action.OFFLINE:
            session.offlined_since = session.offlined_since or self._now
            if not session.trace.offlined_near(self._now, SLACK_MS):
                session.part(self._now)
        elif decision.action is Action.CONTINUE_FROM_JOURNAL:
            session.part(self._now)
            session.free_from_log = True
        elif decision.action in (Action.DISCARD_OLDEST, Action.CONFLATE):
            session.part(self._now)
            dropped = session.drop(int(decision.limit / session.trace.factor))
            self._tried.lost += int(dropped / session.trace.size)

    def _note_peak(self, name: str, memory: int, disk: int) -> None:
        known = self._tried.peaks.get(name, (0, 0))
        self._tried.peaks[name] = (max(memory, known[0]), max(disk, known[1]))


def _add(sums: list[int], one: tuple[int, int]) -> None:
    sums[0] += one[0]
    sums[1] += one[1]


def unjudged(document: PolicyDocument) -> list[str]:
    """What of a policy is told by figures that aren't recorded."""
    told = [f"rule {rule.name} on {rule.signal.value}" for rule in document.rules if rule.signal in UNSEEN]
    return told + (["ActiveMQ's slow consumers, told by their prefetch windows"] if document.activemq else [])
