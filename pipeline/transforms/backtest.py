"""A policy tested on recorded traces, with the broker's own guard. Pure, in ms of the recording.

The guard (`backtest_guard`) is not called where its answer is known. In a window (`recording`) where no
signal of a client exceeds the quiet limits of its rules, the guard's state stays unchanged. The client is
then idle: only its pool usage is counted. If a pool may exceed the quiet limits of its own rules, the guard
knows the total usage of all idle clients (`idle_clients`). It gets a single idle client only to choose
among clients, or if this client takes the pool over its limit. With `rests` false every client is checked
at each step, with the same result.

A client *diverges* when the policy and the recording do different things to it. From then on it is
simulated (`simulated_client`).
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
"""Steps without rule state after which a client may become idle.

Decisions for the next tick have come by then.
"""
_MS: Final = 1_000_000


def backtest_policies(
    policies: Iterable[PolicyDocument], host_memory: int, recording: Recording
) -> list[BacktestResult]:
    """Run several policies on a recording side by side, so that all share one reading of it."""
    return run_backtests(
        recording, [PolicyBacktest(policy, host_memory, recording.traces) for policy in policies]
    )


def run_backtests(recording: Recording, tries: Sequence[PolicyBacktest]) -> list[BacktestResult]:
    """Run back-tests on a recording; return their results in order."""
    for window in recording.windows(lambda: any(one.has_active_clients for one in tries)):
        for one in tries:
            one.run_window(window)
    return [one.result() for one in tries]


class PolicyBacktest:
    """Back-test of one policy on all traces.

    It keeps which clients are idle in a window and which the guard checks, and moves both from step to
    step.
    """

    def __init__(
        self, document: PolicyDocument, host_memory: int, traces: Sequence[ClientTrace], rests: bool = True
    ) -> None:
        """Create a back-test.

        `traces`: in the order of `Recording.traces`. `rests`: whether clients can be idle.
        """
        self._trial = BacktestGuard(document, host_memory, self._summon, self._forget)
        self._pools = list(self._trial.pools.values())
        self._numbers = {name: number for number, name in enumerate(self._trial.pools)}
        self._spare = np.array([self._interest(pool.name) for pool in self._pools]).T
        self._traces = traces
        self._rests = rests
        self._next = 0
        """Index of the next trace to begin."""
        self._awake: dict[int, SimulatedClient] = {}
        """Clients that the guard checks, by index of their trace, as in the following attributes."""
        self._resting: dict[int, SimulatedClient] = {}
        """Idle clients that have diverged and are simulated window by window."""
        self._asleep: list[tuple[int, int, SimulatedClient]] = []
        """Diverged clients that keep up with everything, as a heap by the time until which this is known."""
        self._serial = count()
        self._gaps = RecordingGaps(len(traces), [*self._trial.pools])
        """Diverged clients without recorded samples for a while."""
        self._window: RecordingWindow
        self._held: IdleTotals
        """Usage of each pool by idle clients."""
        self._queue: IdleClients | None = None
        """Idle clients in a step in which the guard knows their total usage; else None."""
        self._turns: list[int] = []
        """Heap of active clients that haven't moved to the step yet."""
        self._summoned = 0
        """The newest step of the window in which the guard asked for idle clients; 0: none."""

    def _interest(self, name: str) -> tuple[int, int]:
        """Return the memory and disk of a pool up to which none of its rules reacts."""
        memory = disk = UNLIMITED
        for rule in self._trial.guard.book.pool_rules:
            if rule.scope == name and rule.signal is Signal.POOL_DISK:
                disk = min(disk, quiet_limit(rule))
            elif rule.scope == name:
                memory = min(memory, quiet_limit(rule))
        return memory, disk

    @property
    def has_active_clients(self) -> bool:
        """Whether some client must be checked even where nothing is recorded."""
        return bool(self._awake or self._resting or self._gaps.sessions)

    def result(self) -> BacktestResult:
        """End all sessions and return the result. Decisions of one time are sorted by client."""
        for session in list(self._trial.present.values()):
            self._trial.end(session)
        tried = self._trial.tried
        tried.acts.sort(key=lambda act: (act["at"], act["client"]))
        return tried

    # Windows.

    def run_window(self, window: RecordingWindow) -> None:
        """Run all steps of a window."""
        following: RecordingWindow | None = window
        while following is not None:
            following = self._through(following)

    def _through(self, window: RecordingWindow) -> RecordingWindow | None:
        """Run a window, up to its end or to a step at which clients may become idle again.

        Return the rest of it.
        """
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
        """Return which clients become active at which step, and the queue of idle clients.

        Clients that become active immediately are activated here. The queue is None unless a pool may
        exceed the quiet limits of its rules.
        """
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
        """Plan a window in which every client is active."""
        self._held = IdleTotals([], len(self._pools), self._window.steps + 1)
        return {}, None

    def _most_of_others(self) -> Ints:
        """Return the maximum usage of active and beginning clients in the window, by kind and pool."""
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
        """Whether the rules of some pool have state."""
        return any(pool.rule_states for pool in self._pools)

    def _coming(self) -> Iterator[SimulatedClient]:
        """Yield idle clients with anything recorded in the window, in the order of their traces."""
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
        """Simulate a client that was asleep, unless it is simulated already."""
        known = (self._awake, self._resting, self._gaps.sessions)
        if session.gone or any(session.number in these for these in known):
            return
        session.moved = self._window.before
        session.matched = int(self._window.of(session.number).matched[0])
        self._resting[session.number] = session

    def _stirs(self, session: SimulatedClient, stretch: TraceWindow, course: WindowCourse) -> int:
        """Return the step from which the guard must check a client.

        0: immediately; more steps than the window has: never.
        """
        calm, use = session.calm, session.use
        if stretch.eventful or (
            not session.free and stretch.offlined and not (use.is_offlined and stretch.all_offlined)
        ):
            return 0
        if use.is_offlined and course.memory.any():  # memory of an offlined client raises its pool's ceiling
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
            if session.free and not min(session.ahead):  # its spool is empty, so it becomes live
                step = min(step, max(session.ahead.index(0), 1))
        return step

    # Active and idle clients.

    def _rouse_at_once(self, session: SimulatedClient) -> None:
        self._trial.catch_up(int(self._window.moments[1]))
        self._rouse(session, 0)

    def _wake(self, session: SimulatedClient, step: int) -> None:
        """Activate a client at a step, because its rules may react from there on."""
        if session.gone or session.number in self._awake:
            return
        if self._queue is not None:
            self._step_out(self._queue.index_of(session.number))
        else:
            self._trial.catch_up(int(self._window.moments[step]))
            self._rouse(session, step - 1)

    def _rouse(self, session: SimulatedClient, moment: int) -> None:
        """Activate a client as of a position in the window's moments. Afterwards it moves with the others."""
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
        """Make clients without rule state idle, and move simulated idle clients to `step`."""
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
        """Stop simulating an idle client window by window, if its course is known.

        It is known in a recording gap, or if the client's capacity suffices for all arrivals.
        """
        if session.waiting or session.use.is_offlined:
            if self._gaps.enter(session):
                del self._resting[session.number]
        elif until := session.trace.takes_all_until(session.moved, session.step_capacity):
            del self._resting[session.number]
            heappush(self._asleep, (until, next(self._serial), session))

    def _forget(self, session: SimulatedClient) -> None:
        """Remove a client that ended."""
        for known in (self._awake, self._resting, self._gaps.sessions):
            known.pop(session.number, None)

    # Pools near their limits.

    def _show(self, queue: IdleClients, step: int) -> None:
        """Add the idle clients' total usage at the step before to the guard's pools.

        They are about to move to `step`.
        """
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
        """Activate the idle clients that use most of a pool.

        The guard is about to choose among the pool's clients. Usage is that after the moves so far.
        """
        queue, number = self._queue, self._numbers[pool.name]
        if queue is not None:
            self._summoned = queue.step
            kind = DISK if signal is Signal.POOL_DISK else MEMORY
            for place in (
                queue.all_holders(number) if wanted == UNLIMITED else queue.largest(number, kind, wanted)
            ):
                self._step_out(place)

    def _step_out(self, place: int) -> None:
        """Remove a client from the queue, and activate it."""
        queue = self._queue
        if queue is None:
            return
        moment, number = queue.step_of(place), queue.numbers[place]
        pool, memory, disk = queue.remove(place)
        self._pools[pool].adjust_suspended_usage(-memory, -disk)
        self._rouse(self._trial.present[number], moment)
        if moment < queue.step:
            heappush(self._turns, number)

    # Moments.

    def _begins_by(self, now: int) -> bool:
        return self._next < len(self._traces) and self._traces[self._next].started_at <= now

    def _look(self, now: int, step: int, only: int | None = None) -> None:
        """Run one iteration of the broker: at a step for all clients, between steps for the client `only`."""
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
                memory = disk = 0  # the pool's usage includes them
            trial.note_peak(pool.name, pool.memory_used + memory, pool.disk_used + disk)

    def _move_all(self, queue: IdleClients, step: int) -> None:
        """Move all clients to the step in trace order.

        The guard moves only those idle ones that take a pool over its limit.
        """
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
        """Record the pools' peaks at the steps up to `stop`, at which no client was checked."""
        for pool, (memory, disk) in zip(
            self._pools, self._held.used[:, :, 1 : stop + 1].max(axis=2).T.tolist(), strict=True
        ):
            self._trial.note_peak(pool.name, memory, disk)
