"""A policy tried on traces: the broker's own guard, fed with what was recorded (`trial`). Pure, in ms of the recording.

The guard isn't asked where its answer is known. A window (`recording`) in which no signal of a client comes above what is of
interest to any of its rules leaves the guard as it was: there the client rests, and is counted in its pool. Where the pool may
come above what is of interest to its own rules, the guard knows what all who rest hold together, and of each only when it is to
choose among them, or when it is he who takes the pool over its limit (`resting`). With `rests` false everybody is looked at at
each step, and what comes of it is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from operator import gt
from typing import Final

import numpy as np

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import Signal
from broker_core.slow_clients.accounts.pools import Pool
from broker_core.slow_clients.evaluate.rule_state import quiet_limit
from broker_core.slow_clients.rules.rule import UNLIMITED
from pipeline.transforms.backtest_guard import BacktestGuard, BacktestResult
from pipeline.transforms.idle_clients import DISK, MEMORY, IdleClients, IdleTotals, IdleUsage, stack_usages
from pipeline.transforms.recording import OUTBOX_LEVELS, Recording, RecordingWindow, TraceWindow, WindowCourse
from pipeline.transforms.recording_gaps import RecordingGaps
from pipeline.transforms.simulated_client import SimulatedClient
from pipeline.transforms.traces import STEP_MS, ClientTrace, Ints

QUIET: Final = 3
"""Steps without anything to remember, in which what was decided for the next tick has come."""
_MS: Final = 1_000_000


def backtest_policies(
    policies: Iterable[PolicyDocument], host_memory: int, recording: Recording
) -> list[BacktestResult]:
    """Several policies on a recording, side by side, so that what is read of it serves all of them."""
    return run_backtests(
        recording, [PolicyBacktest(policy, host_memory, recording.traces) for policy in policies]
    )


def run_backtests(recording: Recording, tries: Sequence[PolicyBacktest]) -> list[BacktestResult]:
    """What came of each, in their order."""
    for window in recording.windows(lambda: any(one.has_active_clients for one in tries)):
        for one in tries:
            one.run_window(window)
    return [one.result() for one in tries]


class PolicyBacktest:
    """One policy on all traces: who rests in a window and who is awake, and the moves of both from step to step."""

    def __init__(
        self, document: PolicyDocument, host_memory: int, traces: Sequence[ClientTrace], rests: bool = True
    ) -> None:
        """`traces` as a `Recording` has them."""
        self._trial = BacktestGuard(document, host_memory, self._summon, self._forget)
        self._pools = list(self._trial.pools.values())
        self._numbers = {name: number for number, name in enumerate(self._trial.pools)}
        self._spare = np.array([self._interest(pool.name) for pool in self._pools]).T
        self._traces = traces
        self._rests = rests
        self._next = 0
        """The trace that begins next."""
        self._awake: dict[int, SimulatedClient] = {}
        """Those that the guard looks at, by the numbers of their traces, as below."""
        self._resting: dict[int, SimulatedClient] = {}
        """Those that have parted, are looked at window by window, and rest."""
        self._asleep: list[tuple[int, int, SimulatedClient]] = []
        """Those that have parted and take all that comes, and until when that is known."""
        self._serial = count()
        self._gaps = RecordingGaps(len(traces), [*self._trial.pools])
        """Those that have parted and of whom nothing is recorded for a while."""
        self._window: RecordingWindow
        self._held: IdleTotals
        """What those that rest hold of each pool."""
        self._queue: IdleClients | None = None
        """Those that rest, in a step in which the guard knows what they hold together."""
        self._turns: list[int] = []
        """Who is awake and hasn't moved to it yet, as a heap."""
        self._summoned = 0
        """The step in which the guard has asked for somebody."""

    def _interest(self, name: str) -> tuple[int, int]:
        """Up to what memory and disk of a pool are of interest to none of its rules."""
        memory = disk = UNLIMITED
        for rule in self._trial.guard.book.pool_rules:
            if rule.scope == name and rule.signal is Signal.POOL_DISK:
                disk = min(disk, quiet_limit(rule))
            elif rule.scope == name:
                memory = min(memory, quiet_limit(rule))
        return memory, disk

    @property
    def has_active_clients(self) -> bool:
        """Whether anybody is to be looked at also where nothing is recorded."""
        return bool(self._awake or self._resting or self._gaps.sessions)

    def result(self) -> BacktestResult:
        """What came of it. The decisions of a moment are in the order of the clients' names."""
        for session in list(self._trial.present.values()):
            self._trial.end(session)
        tried = self._trial.tried
        tried.acts.sort(key=lambda act: (act["at"], act["client"]))
        return tried

    # Through a window.

    def run_window(self, window: RecordingWindow) -> None:
        """The guard's decisions from its first step to its last."""
        following: RecordingWindow | None = window
        while following is not None:
            following = self._through(following)

    def _through(self, window: RecordingWindow) -> RecordingWindow | None:
        """Up to its end, or to where those whom the guard has asked for may rest again: what is left of it."""
        self._window, self._summoned = window, 0
        due, queue = self._plan() if self._rests else self._plan_nothing()
        points, place, looked = window.points, 0, 0
        if self._awake or due or points or window.begins or queue is not None:
            for step in range(1, window.steps + 1):
                now = int(window.moments[step])
                waking = due.get(step, ())
                stirs = bool(self._awake or waking or self._begins_by(now))
                if queue is not None and (stirs or self._holding() or queue.may_exceed(step, self._spare)):
                    self._show(queue, step)
                while place < len(points) and points[place][0] < now:
                    at, number = points[place]
                    place += 1
                    self._look(at, step - 1, number)
                for session in waking:
                    self._wake(session, step)
                if self._awake or self._begins_by(now) or self._queue is not None:
                    self._look(now, step)
                    looked += 1
                self._hide(step)
                if (
                    self._summoned
                    and step - self._summoned >= QUIET
                    and step + QUIET < window.steps
                    and not self._holding()
                ):
                    self._note_rest(step)
                    self._settle(step)
                    return window.after(step)
        if looked < window.steps:
            self._note_rest(window.steps)
        if self._rests:
            self._settle(window.steps)
        return None

    def _plan(self) -> tuple[dict[int, list[SimulatedClient]], IdleClients | None]:
        """Who is to be roused at which step (those who are so at once are awake already), and those who rest in the order of
        their moves if a pool may come above what is of interest to its rules."""
        window = self._window
        leaving, staying = self._gaps.advance_window(window.moments, window.active)
        for number in leaving:
            self._resting[number] = self._gaps.leave(number, window.before)
        due: dict[int, list[SimulatedClient]] = {}
        rows: list[IdleUsage] = []
        most: Ints = np.zeros((2, len(self._pools)), np.int64)
        for session in list(self._coming()):
            stretch = window.of(session.number)
            course = stretch.course
            if session.free:
                course, session.ahead = session.project(stretch, window.moments)
            step = self._stirs(session, stretch, course)
            if step == 0:
                self._rouse_at_once(session)
                continue
            pool = self._numbers[session.use.pool_name]
            rows.append(IdleUsage(session.number, pool, course.memory, course.disk, step))
            if step <= window.steps:
                due.setdefault(step, []).append(session)
                most[:, pool] += session.max_usage(stretch)
        most += self._most_of_others()
        self._held = IdleTotals(
            [*staying, stack_usages(rows, window.steps + 1)], len(self._pools), window.steps + 1
        )
        if not self._holding() and (self._held.most + most <= self._spare).all():
            return due, None
        return due, IdleClients(self._held)

    def _plan_nothing(self) -> tuple[dict[int, list[SimulatedClient]], None]:
        """Everybody is awake."""
        self._held = IdleTotals([], len(self._pools), self._window.steps + 1)
        return {}, None

    def _most_of_others(self) -> Ints:
        """What those who are awake and those who begin may come to in the window, by kind and pool."""
        most: Ints = np.zeros((2, len(self._pools)), np.int64)
        for session in self._awake.values():
            pool = self._numbers[session.use.pool_name]
            most[:, pool] += session.max_usage(self._window.of(session.number))
        for number in self._window.begins:
            if number >= self._next:
                fresh = SimulatedClient.create(number, self._traces[number])
                pool = self._numbers[self._trial.guard.pool_for(fresh.trace.who.transport).name]
                most[:, pool] += fresh.max_usage(self._window.of(number))
        return most

    def _holding(self) -> bool:
        """Whether a pool's rules remember anything."""
        return any(pool.rule_states for pool in self._pools)

    def _coming(self) -> Iterator[SimulatedClient]:
        """Those who rest and of whom there is anything in the window, in the order of their traces."""
        while self._asleep and self._asleep[0][0] <= self._window.last:
            self._look_after(heappop(self._asleep)[2])
        present = self._trial.present
        for number in self._window.active:
            session = present.get(number)
            if session is not None and session.free and number not in self._awake:
                self._look_after(session)
        followers = (n for n in self._window.active if n in present and n not in self._awake)
        for number in sorted({*followers, *self._resting}):
            yield present[number]

    def _look_after(self, session: SimulatedClient) -> None:
        """It slept, or is looked after already."""
        known = (self._awake, self._resting, self._gaps.sessions)
        if session.gone or any(session.number in these for these in known):
            return
        session.moved = self._window.before
        session.matched = int(self._window.of(session.number).matched[0])
        self._resting[session.number] = session

    def _stirs(self, session: SimulatedClient, stretch: TraceWindow, course: WindowCourse) -> int:
        """The step from which on the guard is to look at it, 0 for at once; more than it has: it may rest through the window."""
        calm, use = session.calm, session.use
        if stretch.eventful or (
            not session.free and stretch.offlined and not (use.is_offlined and stretch.all_offlined)
        ):
            return 0
        if use.is_offlined and course.memory.any():  # such memory raises its pool's ceiling
            return 0
        if calm.rated:
            return 0 if any(course.most) else self._window.steps + 1
        step, skip = self._window.steps + 1, OUTBOX_LEVELS if use.is_offlined else 0
        if any(map(gt, course.most[skip:], calm.levels[skip:])):
            over = course.levels[skip:] > np.array(calm.levels[skip:])[:, None]
            step = int(np.argmax(over.any(axis=0)))
        if use.is_offlined:
            if self._window.last + STEP_MS - use.offlined_at // _MS > calm.spool_age:
                return 0
            if session.free and not min(session.ahead):  # its spool is empty: it is live again
                step = min(step, max(session.ahead.index(0), 1))
        return step

    # Who wakes and who rests.

    def _rouse_at_once(self, session: SimulatedClient) -> None:
        self._trial.catch_up(int(self._window.moments[1]))
        self._rouse(session, 0)

    def _wake(self, session: SimulatedClient, step: int) -> None:
        """Its rules may see something from a step on."""
        if session.gone or session.number in self._awake:
            return
        if self._queue is not None:
            self._step_out(self._queue.index_of(session.number))
        else:
            self._trial.catch_up(int(self._window.moments[step]))
            self._rouse(session, step - 1)

    def _rouse(self, session: SimulatedClient, moment: int) -> None:
        """Have the guard look at it as of one of the window's moments; it moves on from there with the others."""
        number, window = session.number, self._window
        stretch = window.of(number)
        if number in self._gaps.sessions:
            self._gaps.leave(number, int(window.moments[moment]))
        elif session.free:
            session.waiting = session.ahead[moment]
            session.moved, session.matched = int(window.moments[moment]), int(stretch.matched[moment])
        self._resting.pop(number, None)
        self._awake[number] = session
        self._trial.activate_client(session, stretch, moment)

    def _settle(self, step: int) -> None:
        """Let those rest of whom the guard remembers nothing, and take those who did to a step."""
        window, guard = self._window, self._trial.guard
        for session in list(self._resting.values()):
            session.waiting = session.ahead[step]
            session.moved = int(window.moments[step])
            session.matched = int(window.of(session.number).matched[step])
            self._leave_alone(session)
        if guard.has_pending_decisions:
            return
        for session in list(self._awake.values()):
            use = session.use
            if (
                session.quiet < QUIET
                or use.is_closing
                or use.rule_states
                or (session.calm.rated and use.history)
            ):
                continue
            guard.suspend_ticks(use)
            del self._awake[session.number]
            if session.free:
                self._resting[session.number] = session
                self._leave_alone(session)

    def _leave_alone(self, session: SimulatedClient) -> None:
        """Where nothing is recorded of it for a while, and where it takes all that comes then, it needn't be looked after."""
        if session.waiting or session.use.is_offlined:
            if self._gaps.enter(session):
                del self._resting[session.number]
        elif until := session.trace.takes_all_until(session.moved, session.step_capacity):
            del self._resting[session.number]
            heappush(self._asleep, (until, next(self._serial), session))

    def _forget(self, session: SimulatedClient) -> None:
        """It has gone."""
        for known in (self._awake, self._resting, self._gaps.sessions):
            known.pop(session.number, None)

    # Where a pool may pass its limit.

    def _show(self, queue: IdleClients, step: int) -> None:
        """The guard knows what those who rest hold together as of the step before; they are about to move to this one."""
        self._trial.catch_up(int(self._window.moments[step]))
        queue.start_step(step)
        self._queue = queue
        self._lend(self._held.used[:, :, step - 1].T.tolist())

    def _hide(self, step: int) -> None:
        if self._queue is not None:
            self._queue = None
            self._lend((-self._held.used[:, :, step].T).tolist())

    def _lend(self, changes: Iterable[tuple[int, int]]) -> None:
        for pool, (memory, disk) in zip(self._pools, changes, strict=False):
            pool.adjust_suspended_usage(memory, disk)

    def _summon(self, pool: Pool, signal: Signal, wanted: int) -> None:
        """The guard is about to choose: those of a pool who rest and hold most of it, as of where they have moved to by now."""
        queue, number = self._queue, self._numbers[pool.name]
        if queue is not None:
            self._summoned = queue.step
            kind = DISK if signal is Signal.POOL_DISK else MEMORY
            for place in (
                queue.all_holders(number) if wanted == UNLIMITED else queue.largest(number, kind, wanted)
            ):
                self._step_out(place)

    def _step_out(self, place: int) -> None:
        """Out of the queue: the guard looks at it from now on."""
        queue = self._queue
        if queue is None:
            return
        moment, number = queue.step_of(place), queue.numbers[place]
        pool, memory, disk = queue.remove(place)
        self._pools[pool].adjust_suspended_usage(-memory, -disk)
        self._rouse(self._trial.present[number], moment)
        if moment < queue.step:
            heappush(self._turns, number)

    # A moment.

    def _begins_by(self, now: int) -> bool:
        return self._next < len(self._traces) and self._traces[self._next].started_at <= now

    def _look(self, now: int, step: int, only: int | None = None) -> None:
        """A turn of the broker's: at the steps for everybody, in between for whom something was decided then."""
        trial = self._trial
        trial.catch_up(now)
        trial.now = max(now, trial.now)
        while self._begins_by(now):
            number, self._next = self._next, self._next + 1
            self._awake[number] = trial.begin(number, self._traces[number])
        if only is not None:
            self._move(only, None)
        elif self._queue is None:
            for number in sorted(self._awake):
                self._move(number, step)
        else:
            self._move_all(self._queue, step)
        trial.tick()
        if only is not None:
            trial.judge_client(self._traces[only])
        for pool, (memory, disk) in zip(self._pools, self._held.used[:, :, step].T.tolist(), strict=True):
            if self._queue is not None:
                memory = disk = 0  # are lent to the pool
            trial.note_peak(pool.name, pool.memory_used + memory, pool.disk_used + disk)

    def _move_all(self, queue: IdleClients, step: int) -> None:
        """One after the other; of those who rest only who takes a pool over its limit is moved by the guard."""
        self._turns = sorted(self._awake)
        while True:
            stop = queue.index_of(self._turns[0]) if self._turns else len(queue.numbers)
            over = queue.first_exceeding(
                stop,
                [
                    (pool.memory_ceiling - pool.memory_used, pool.disk_ceiling - pool.disk_used)
                    for pool in self._pools
                ],
            )
            self._lend(queue.move(over))
            if over < stop:
                self._step_out(over)
            elif self._turns:
                self._move(heappop(self._turns), step)
            else:
                return

    def _move(self, number: int, step: int | None) -> None:
        session = self._awake.get(number)
        if session is None:
            return
        if self._trial.now > session.until:
            self._trial.end(session)
        else:
            self._trial.update_client(session, self._window.of(number), step)

    def _note_rest(self, stop: int) -> None:
        """The most that was used at steps up to one at which nobody was looked at."""
        for pool, (memory, disk) in zip(
            self._pools, self._held.used[:, :, 1 : stop + 1].max(axis=2).T.tolist(), strict=True
        ):
            self._trial.note_peak(pool.name, memory, disk)
