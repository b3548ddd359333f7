"""A policy tested on recorded traces, with the broker's own guard. Pure, in ms of the recording.

The guard (`backtest_guard`) is not called where its answer is known. In a window (`recording`) where no
signal of a client exceeds the quiet limits of its rules, the guard's state stays unchanged. The client is
then idle: only its pool usage is counted. If a pool may exceed the quiet limits of its own rules, the guard
knows the total usage of all idle clients (`idle_clients`). It gets a single idle client only to choose
among clients, or if this client takes the pool over its limit. With `is_idle` false every client is checked
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

QUIET_STEPS: Final = 3
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


def run_backtests(recording: Recording, backtests: Sequence[PolicyBacktest]) -> list[BacktestResult]:
    """Run back-tests on a recording; return their results in order."""
    for window in recording.windows(lambda: any(backtest.has_active_clients for backtest in backtests)):
        for backtest in backtests:
            backtest.run_window(window)
    return [backtest.result() for backtest in backtests]


class PolicyBacktest:
    """Back-test of one policy on all traces.

    It keeps which clients are idle in a window and which the guard checks, and moves both from step to
    step.
    """

    def __init__(
        self,
        document: PolicyDocument,
        host_memory: int,
        traces: Sequence[ClientTrace],
        allows_idle: bool = True,
    ) -> None:
        """Create a back-test.

        `traces`: in the order of `Recording.traces`. `allows_idle`: whether clients can be idle.
        """
        self._backtest_guard = BacktestGuard(
            document, host_memory, self._activate_largest, self._remove_client
        )
        self._pools = list(self._backtest_guard.pools.values())
        self._numbers = {name: number for number, name in enumerate(self._backtest_guard.pools)}
        self._quiet_usage = np.array([self._quiet_usage_of(pool.name) for pool in self._pools]).T
        self._traces = traces
        self._allows_idle = allows_idle
        self._next_trace = 0
        """Index of the next trace to begin."""
        self._active: dict[int, SimulatedClient] = {}
        """Clients that the guard checks, by index of their trace, as in the following attributes."""
        self._idle: dict[int, SimulatedClient] = {}
        """Idle clients that have diverged and are simulated window by window."""
        self._unsimulated: list[tuple[int, int, SimulatedClient]] = []
        """Diverged clients that keep up with everything, as a heap by the time until which this is known."""
        self._serial = count()
        self._gaps = RecordingGaps(len(traces), [*self._backtest_guard.pools])
        """Diverged clients without recorded samples for a while."""
        self._window: RecordingWindow
        self._idle_totals: IdleTotals
        """Usage of each pool by idle clients."""
        self._queue: IdleClients | None = None
        """Idle clients in a step in which the guard knows their total usage; else None."""
        self._pending_moves: list[int] = []
        """Heap of active clients that haven't moved to the step yet."""
        self._last_activation_step = 0
        """The newest step of the window in which the guard asked for idle clients; 0: none."""

    def _quiet_usage_of(self, name: str) -> tuple[int, int]:
        """Return the memory and disk of a pool up to which none of its rules reacts."""
        memory = disk = UNLIMITED
        for rule in self._backtest_guard.guard.book.pool_rules:
            if rule.scope == name and rule.signal is Signal.POOL_DISK:
                disk = min(disk, quiet_limit(rule))
            elif rule.scope == name:
                memory = min(memory, quiet_limit(rule))
        return memory, disk

    @property
    def has_active_clients(self) -> bool:
        """Whether some client must be checked even where nothing is recorded."""
        return bool(self._active or self._idle or self._gaps.sessions)

    def result(self) -> BacktestResult:
        """End all sessions and return the result. Decisions of one time are sorted by client."""
        for session in list(self._backtest_guard.present.values()):
            self._backtest_guard.end(session)
        result = self._backtest_guard.result
        result.acts.sort(key=lambda act: (act["at"], act["client"]))
        return result

    # Windows.

    def run_window(self, window: RecordingWindow) -> None:
        """Run all steps of a window."""
        following: RecordingWindow | None = window
        while following is not None:
            following = self._run_steps(following)

    def _run_steps(self, window: RecordingWindow) -> RecordingWindow | None:
        """Run a window, up to its end or to a step at which clients may become idle again.

        Return the rest of it.
        """
        self._window, self._last_activation_step = window, 0
        activations, queue = self._plan_activations() if self._allows_idle else self._plan_all_active()
        points, point, iterations = window.points, 0, 0
        if self._active or activations or points or window.begins or queue is not None:
            for step in range(1, window.steps + 1):
                now = int(window.moments[step])
                activated = activations.get(step, ())
                has_activity = bool(self._active or activated or self._has_beginning(now))
                if queue is not None and (
                    has_activity or self._has_pool_state() or queue.may_exceed(step, self._quiet_usage)
                ):
                    self._add_idle_usage(queue, step)
                while point < len(points) and points[point][0] < now:
                    at, number = points[point]
                    point += 1
                    self._run_iteration(at, step - 1, number)
                for session in activated:
                    self._activate_at_step(session, step)
                if self._active or self._has_beginning(now) or self._queue is not None:
                    self._run_iteration(now, step)
                    iterations += 1
                self._remove_idle_usage(step)
                if (
                    self._last_activation_step
                    and step - self._last_activation_step >= QUIET_STEPS
                    and step + QUIET_STEPS < window.steps
                    and not self._has_pool_state()
                ):
                    self._record_idle_peaks(step)
                    self._suspend_quiet(step)
                    return window.remainder_after(step)
        if iterations < window.steps:
            self._record_idle_peaks(window.steps)
        if self._allows_idle:
            self._suspend_quiet(window.steps)
        return None

    def _plan_activations(self) -> tuple[dict[int, list[SimulatedClient]], IdleClients | None]:
        """Return which clients become active at which step, and the queue of idle clients.

        Clients that become active immediately are activated here. The queue is None unless a pool may
        exceed the quiet limits of its rules.
        """
        window = self._window
        resumed, gap_usages = self._gaps.advance_window(window.moments, window.active)
        for number in resumed:
            self._idle[number] = self._gaps.remove(number, window.before)
        activations: dict[int, list[SimulatedClient]] = {}
        usages: list[IdleUsage] = []
        max_usage: Ints = np.zeros((2, len(self._pools)), np.int64)
        for session in list(self._list_recorded_idle()):
            trace_window = window.get_trace_window(session.number)
            course = trace_window.course
            if session.is_diverged:
                course, session.projected_bytes = session.project(trace_window, window.moments)
            step = self._activation_step(session, trace_window, course)
            if step == 0:
                self._activate_immediately(session)
                continue
            pool = self._numbers[session.use.pool_name]
            usages.append(IdleUsage(session.number, pool, course.memory, course.disk, step))
            if step <= window.steps:
                activations.setdefault(step, []).append(session)
                max_usage[:, pool] += session.max_usage(trace_window)
        max_usage += self._max_active_usage()
        self._idle_totals = IdleTotals(
            [*gap_usages, stack_usages(usages, window.steps + 1)], len(self._pools), window.steps + 1
        )
        if not self._has_pool_state() and (self._idle_totals.max_used + max_usage <= self._quiet_usage).all():
            return activations, None
        return activations, IdleClients(self._idle_totals)

    def _plan_all_active(self) -> tuple[dict[int, list[SimulatedClient]], None]:
        """Plan a window in which every client is active."""
        self._idle_totals = IdleTotals([], len(self._pools), self._window.steps + 1)
        return {}, None

    def _max_active_usage(self) -> Ints:
        """Return the maximum usage of active and beginning clients in the window, by kind and pool."""
        max_usage: Ints = np.zeros((2, len(self._pools)), np.int64)
        for session in self._active.values():
            pool = self._numbers[session.use.pool_name]
            max_usage[:, pool] += session.max_usage(self._window.get_trace_window(session.number))
        for number in self._window.begins:
            if number >= self._next_trace:
                client = SimulatedClient.create(number, self._traces[number])
                pool = self._numbers[self._backtest_guard.guard.pool_for(client.trace.key.transport).name]
                max_usage[:, pool] += client.max_usage(self._window.get_trace_window(number))
        return max_usage

    def _has_pool_state(self) -> bool:
        """Whether the rules of some pool have state."""
        return any(pool.rule_states for pool in self._pools)

    def _list_recorded_idle(self) -> Iterator[SimulatedClient]:
        """Yield idle clients with anything recorded in the window, in the order of their traces."""
        while self._unsimulated and self._unsimulated[0][0] <= self._window.last:
            self._resume_simulation(heappop(self._unsimulated)[2])
        present = self._backtest_guard.present
        for number in self._window.active:
            session = present.get(number)
            if session is not None and session.is_diverged and number not in self._active:
                self._resume_simulation(session)
        followers = (n for n in self._window.active if n in present and n not in self._active)
        for number in sorted({*followers, *self._idle}):
            yield present[number]

    def _resume_simulation(self, session: SimulatedClient) -> None:
        """Simulate a client that was asleep, unless it is simulated already."""
        simulated = (self._active, self._idle, self._gaps.sessions)
        if session.has_ended or any(session.number in clients for clients in simulated):
            return
        session.moved_at = self._window.before
        session.matched = int(self._window.get_trace_window(session.number).matched[0])
        self._idle[session.number] = session

    def _activation_step(
        self, session: SimulatedClient, trace_window: TraceWindow, course: WindowCourse
    ) -> int:
        """Return the step from which the guard must check a client.

        0: immediately; more steps than the window has: never.
        """
        limits, use = session.quiet_limits, session.use
        if trace_window.has_events or (
            not session.is_diverged
            and trace_window.offlined
            and not (use.is_offlined and trace_window.all_offlined)
        ):
            return 0
        if use.is_offlined and course.memory.any():  # memory of an offlined client raises its pool's ceiling
            return 0
        if limits.uses_rates:
            return 0 if any(course.max_levels) else self._window.steps + 1
        step, first_level = self._window.steps + 1, OUTBOX_LEVELS if use.is_offlined else 0
        if any(map(gt, course.max_levels[first_level:], limits.levels[first_level:])):
            exceeds = course.levels[first_level:] > np.array(limits.levels[first_level:])[:, None]
            step = int(np.argmax(exceeds.any(axis=0)))
        if use.is_offlined:
            if self._window.last + STEP_MS - use.offlined_at // _MS > limits.spool_age:
                return 0
            if session.is_diverged and not min(
                session.projected_bytes
            ):  # its spool is empty, so it becomes live
                step = min(step, max(session.projected_bytes.index(0), 1))
        return step

    # Active and idle clients.

    def _activate_immediately(self, session: SimulatedClient) -> None:
        self._backtest_guard.catch_up(int(self._window.moments[1]))
        self._activate(session, 0)

    def _activate_at_step(self, session: SimulatedClient, step: int) -> None:
        """Activate a client at a step, because its rules may react from there on."""
        if session.has_ended or session.number in self._active:
            return
        if self._queue is not None:
            self._activate_from_queue(self._queue.index_of(session.number))
        else:
            self._backtest_guard.catch_up(int(self._window.moments[step]))
            self._activate(session, step - 1)

    def _activate(self, session: SimulatedClient, index: int) -> None:
        """Activate a client as of a position in the window's moments. Afterwards it moves with the others."""
        number, window = session.number, self._window
        trace_window = window.get_trace_window(number)
        if number in self._gaps.sessions:
            self._gaps.remove(number, int(window.moments[index]))
        elif session.is_diverged:
            session.waiting = session.projected_bytes[index]
            session.moved_at, session.matched = int(window.moments[index]), int(trace_window.matched[index])
        self._idle.pop(number, None)
        self._active[number] = session
        self._backtest_guard.activate_client(session, trace_window, index)

    def _suspend_quiet(self, step: int) -> None:
        """Make clients without rule state idle, and move simulated idle clients to `step`."""
        window, guard = self._window, self._backtest_guard.guard
        for session in list(self._idle.values()):
            session.waiting = session.projected_bytes[step]
            session.moved_at = int(window.moments[step])
            session.matched = int(window.get_trace_window(session.number).matched[step])
            self._stop_simulation(session)
        if guard.has_pending_decisions:
            return
        for session in list(self._active.values()):
            use = session.use
            if (
                session.quiet_steps < QUIET_STEPS
                or use.is_closing
                or use.rule_states
                or (session.quiet_limits.uses_rates and use.history)
            ):
                continue
            guard.suspend_ticks(use)
            del self._active[session.number]
            if session.is_diverged:
                self._idle[session.number] = session
                self._stop_simulation(session)

    def _stop_simulation(self, session: SimulatedClient) -> None:
        """Stop simulating an idle client window by window, if its course is known.

        It is known in a recording gap, or if the client's capacity suffices for all arrivals.
        """
        if session.waiting or session.use.is_offlined:
            if self._gaps.add(session):
                del self._idle[session.number]
        elif known_until := session.trace.sustainable_until(session.moved_at, session.step_capacity):
            del self._idle[session.number]
            heappush(self._unsimulated, (known_until, next(self._serial), session))

    def _remove_client(self, session: SimulatedClient) -> None:
        """Remove a client that ended."""
        for clients in (self._active, self._idle, self._gaps.sessions):
            clients.pop(session.number, None)

    # Pools near their limits.

    def _add_idle_usage(self, queue: IdleClients, step: int) -> None:
        """Add the idle clients' total usage at the step before to the guard's pools.

        They are about to move to `step`.
        """
        self._backtest_guard.catch_up(int(self._window.moments[step]))
        queue.start_step(step)
        self._queue = queue
        self._adjust_pools(self._idle_totals.used[:, :, step - 1].T.tolist())

    def _remove_idle_usage(self, step: int) -> None:
        if self._queue is not None:
            self._queue = None
            self._adjust_pools((-self._idle_totals.used[:, :, step].T).tolist())

    def _adjust_pools(self, changes: Iterable[tuple[int, int]]) -> None:
        for pool, (memory, disk) in zip(self._pools, changes, strict=False):
            pool.adjust_suspended_usage(memory, disk)

    def _activate_largest(self, pool: Pool, signal: Signal, usage: int) -> None:
        """Activate the idle clients that use most of a pool.

        The guard is about to choose among the pool's clients. Usage is that after the moves so far.
        """
        queue, number = self._queue, self._numbers[pool.name]
        if queue is not None:
            self._last_activation_step = queue.step
            kind = DISK if signal is Signal.POOL_DISK else MEMORY
            for index in (
                queue.find_holders(number) if usage == UNLIMITED else queue.find_largest(number, kind, usage)
            ):
                self._activate_from_queue(index)

    def _activate_from_queue(self, index: int) -> None:
        """Remove a client from the queue, and activate it."""
        queue = self._queue
        if queue is None:
            return
        step, number = queue.get_step(index), queue.numbers[index]
        pool, memory, disk = queue.remove(index)
        self._pools[pool].adjust_suspended_usage(-memory, -disk)
        self._activate(self._backtest_guard.present[number], step)
        if step < queue.step:
            heappush(self._pending_moves, number)

    # Moments.

    def _has_beginning(self, now: int) -> bool:
        return self._next_trace < len(self._traces) and self._traces[self._next_trace].started_at <= now

    def _run_iteration(self, now: int, step: int, trace: int | None = None) -> None:
        """Run one iteration of the broker: at a step for all clients, between steps for that of `trace`."""
        guard = self._backtest_guard
        guard.catch_up(now)
        guard.now = max(now, guard.now)
        while self._has_beginning(now):
            number, self._next_trace = self._next_trace, self._next_trace + 1
            self._active[number] = guard.begin(number, self._traces[number])
        if trace is not None:
            self._move_client(trace, None)
        elif self._queue is None:
            for number in sorted(self._active):
                self._move_client(number, step)
        else:
            self._move_clients(self._queue, step)
        guard.tick()
        if trace is not None:
            guard.judge_client(self._traces[trace])
        for pool, (memory, disk) in zip(
            self._pools, self._idle_totals.used[:, :, step].T.tolist(), strict=True
        ):
            if self._queue is not None:
                memory = disk = 0  # the pool's usage includes them
            guard.record_peak(pool.name, pool.memory_used + memory, pool.disk_used + disk)

    def _move_clients(self, queue: IdleClients, step: int) -> None:
        """Move all clients to the step in trace order.

        The guard moves only those idle ones that take a pool over its limit.
        """
        self._pending_moves = sorted(self._active)
        while True:
            stop = queue.index_of(self._pending_moves[0]) if self._pending_moves else len(queue.numbers)
            first_over = queue.find_first_exceeding(
                stop,
                [
                    (pool.memory_ceiling - pool.memory_used, pool.disk_ceiling - pool.disk_used)
                    for pool in self._pools
                ],
            )
            self._adjust_pools(queue.move(first_over))
            if first_over < stop:
                self._activate_from_queue(first_over)
            elif self._pending_moves:
                self._move_client(heappop(self._pending_moves), step)
            else:
                return

    def _move_client(self, number: int, step: int | None) -> None:
        session = self._active.get(number)
        if session is None:
            return
        if self._backtest_guard.now > session.known_until:
            self._backtest_guard.end(session)
        else:
            self._backtest_guard.update_client(session, self._window.get_trace_window(number), step)

    def _record_idle_peaks(self, stop: int) -> None:
        """Record the pools' peaks at the steps up to `stop`, at which no client was checked."""
        for pool, (memory, disk) in zip(
            self._pools, self._idle_totals.used[:, :, 1 : stop + 1].max(axis=2).T.tolist(), strict=True
        ):
            self._backtest_guard.record_peak(pool.name, memory, disk)
