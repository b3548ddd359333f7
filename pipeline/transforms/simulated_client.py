"""A client under a tested policy: its backlog as the guard reads it, and its simulation after it diverged.

Pure.

Times are ms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from broker_core.config.rule_terms import Shape, Signal
from broker_core.slow_clients.accounts.client_usage import ClientUsage
from broker_core.slow_clients.evaluate.rule_state import quiet_limit
from broker_core.slow_clients.evaluate.signals import BacklogCounts
from broker_core.slow_clients.rules.rule import UNLIMITED
from pipeline.transforms.recording import LEVELS, TraceWindow, WindowCourse, course_of, levels_of
from pipeline.transforms.traces import STEP_MS, ClientTrace, Ints, TraceSample

UNRECORDED_SIGNALS: Final = frozenset(
    {
        Signal.WINDOW_FULL,
        Signal.UNACKED_MESSAGES,
        Signal.UNACKED_AGE,
        Signal.ACK_SILENCE,
        Signal.ACKNOWLEDGED_RATE,
        Signal.CONFLATION_BYTES,
        Signal.WAITING_MESSAGES,
        Signal.PINNED_BYTES,
        Signal.USER_PINNED_BYTES,
    }
)
"""Signals without recorded figures (windows of subscriptions, conflation, messages in the log, pins).

Rules on them aren't judged.
"""
_BACKLOG_FIGURES: Final = attrgetter(
    "messages",
    "owed_messages",
    "owed_bytes",
    "taken_bytes",
    "unjournaled",
    "lump_bytes",
    "oldest_at",
    "unacked_at",
    "blocked_since",
)
_MS: Final = 1_000_000
_MAX_CAPACITY_BYTES: Final = 1 << 50


class SimulatedBacklog:
    """Backlog of a client at one time.

    The guard reads it as a session's; it is also the client's only subscription.
    """

    def __init__(self, trace: ClientTrace) -> None:
        self.id = "only"
        self.topic = trace.key.topic
        self.name = ""
        self.durable = self.journaled = self.shared = self.paused = self.rate_limited = False
        self.prefetch = self.conflation_bytes = self.waiting_messages = self.pinned_bytes = 0
        self.unacked_messages = self.unacked_since = self.acked_at = self.acked_messages = 0
        self.window_full_since = self.window_full_count = 0
        self.oldest_at = self.unacked_at = self.blocked_since = 0
        self.messages = self.owed_messages = self.owed_bytes = self.acked_bytes = self.window_step_bytes = 0
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

    def acked_before(self, until_ns: int) -> None:
        """Return None: acknowledgements aren't recorded."""

    def update_progress(self) -> None:
        """Do nothing: the figures are set before the guard reads them."""

    def follow_recording(self, sample: TraceSample) -> None:
        """Set the recorded figures."""
        (
            self.messages,
            self.owed_messages,
            self.owed_bytes,
            self.acked_bytes,
            self.unjournaled,
            self.window_step_bytes,
            self.oldest_at,
            self.unacked_at,
            self.blocked_since,
        ) = _BACKLOG_FIGURES(sample)

    def count_messages(self) -> BacklogCounts:
        return BacklogCounts(self.messages, max(self.owed_messages - self.messages, 0), self.unjournaled, "")


class QuietLimits(NamedTuple):
    """Values of a client up to which none of its rules reacts, while the rules have no state."""

    levels: tuple[int, ...]
    """A limit for each row of LEVELS."""
    spool_age: int
    uses_rates: bool
    """Whether a rule uses a rate, and so earlier figures too. Such a rule can't react while nothing waits."""


def quiet_limits(use: ClientUsage) -> QuietLimits:
    """Return the quiet limits by the rules of a client and its subscriptions, in any mode."""
    levels, spool_age, uses_rates = [UNLIMITED] * len(LEVELS), UNLIMITED, False
    for rule in chain(use.rules, *(subscription.rules for subscription in use.ruled_subscriptions.values())):
        level = LEVELS.get(rule.signal)
        if level is not None and rule.shape is not Shape.RATE_BELOW:
            levels[level] = min(levels[level], quiet_limit(rule))
        elif rule.signal is Signal.SPOOL_AGE:
            spool_age = min(spool_age, quiet_limit(rule))
        elif rule.signal not in UNRECORDED_SIGNALS:
            uses_rates = True
    return QuietLimits(tuple(levels), spool_age, uses_rates)


@dataclass(slots=True, eq=False)
class SimulatedClient:
    """A trace under the policy."""

    number: int
    trace: ClientTrace
    backlog: SimulatedBacklog
    known_until: int
    """Time after which nothing is known of it."""
    use: ClientUsage = field(init=False)
    quiet_limits: QuietLimits = field(init=False)
    is_diverged: bool = False
    """Whether it has diverged from its recording."""
    waiting: int = 0
    """Backlog in bytes of bodies, since it diverged."""
    acked_base: int = 0
    """Acknowledged bytes at the divergence, less bytes that had arrived and weren't waiting."""
    moved_at: int = 0
    """Time of the last move; `matched`: bytes that had arrived by then."""
    matched: int = 0
    offlined_since: int = 0
    offlined_ms: int = 0
    reads_from_log: bool = False
    quiet_steps: int = 0
    """Steps since rules had state or decided anything."""
    projected_bytes: list[int] = field(default_factory=list)
    """Backlog at each step of the window in which it is idle, since it diverged."""
    has_ended: bool = False

    @classmethod
    def create(cls, number: int, trace: ClientTrace) -> SimulatedClient:
        """Return a client that the guard doesn't know yet."""
        return cls(number, trace, SimulatedBacklog(trace), max(trace.ended_at, trace.final))

    def diverge(self, now: int) -> None:
        """Leave the recording: from `now` on, simulate the client with the capacity seen."""
        if self.is_diverged:
            return
        self.is_diverged, self.moved_at = True, now
        self.matched = self.trace.value_at("matched_bytes", now)
        self.waiting = self.trace.value_at("owed_bytes", now)
        self.acked_base = self.trace.value_at("taken_bytes", now) + self.waiting - self.matched

    def limit_backlog(self, max_bytes: int) -> int:
        """Drop waiting bytes above `max_bytes`; return how many."""
        dropped = max(self.waiting - max_bytes, 0)
        self.waiting -= dropped
        self.acked_base -= dropped
        return dropped

    def advance(self, now: int, matched: int) -> None:
        """Simulate to a time by which `matched` bytes have arrived in all."""
        capacity = capacity_bytes(self.trace, now - self.moved_at) if now > self.moved_at else 0
        self.waiting = remaining_bytes(self.waiting, matched - self.matched, capacity)
        self.moved_at, self.matched = now, matched

    def follow_recording(self, sample: TraceSample) -> tuple[int, int]:
        """Set the recorded figures; return bytes of memory and disk."""
        self.backlog.follow_recording(sample)
        return sample.memory, sample.disk

    def update_backlog(self) -> tuple[int, int]:
        """Set the simulated figures; return bytes of memory and disk."""
        backlog, trace, waiting = self.backlog, self.trace, self.waiting
        backlog.owed_bytes, backlog.owed_messages = waiting, int(waiting / trace.size)
        backlog.acked_bytes = self.acked_base + self.matched - waiting
        backlog.oldest_at = trace.matched_at(self.matched - waiting) * _MS if waiting else 0
        backlog.unacked_at = 0
        blocked = trace.columns["blocked_since"]
        backlog.blocked_since = (
            int(blocked[max(trace.sample_index(self.moved_at), 0)]) * _MS if waiting else 0
        )
        backlog.unjournaled = backlog.owed_messages if trace.unjournaled else 0
        backlog.messages = 0 if self.use.is_offlined else backlog.owed_messages
        memory, disk = self.factors
        return int(waiting * memory), int(waiting * disk)

    @property
    def factors(self) -> tuple[float, float]:
        """Bytes of memory and of disk for each waiting byte."""
        if self.use.is_offlined:
            return 0.0, self.trace.disk_factor or self.trace.factor
        return 0.0 if self.reads_from_log else self.trace.factor, 0.0

    @property
    def step_capacity(self) -> int:
        """Bytes that it can take in a step."""
        return capacity_bytes(self.trace, STEP_MS)

    def project(self, window: TraceWindow, moments: Ints) -> tuple[WindowCourse, list[int]]:
        """Return its course through a window if nothing is decided, and its backlog at each step.

        The result equals that of `advance` and `update_backlog` at each step.
        """
        trace = self.trace
        projected = self.projected_backlog(window)
        backlog = np.array(projected, np.int64)
        memory, disk = ((backlog * factor).astype(np.int64) for factor in self.factors)
        messages = (backlog / trace.size).astype(np.int64)
        arrived_at = np.interp(window.matched - backlog, trace.columns["matched_bytes"], trace.columns["at"])
        is_waiting = backlog > 0
        amounts = (memory, messages, disk, backlog, messages)
        levels = levels_of(
            moments, amounts, arrived_at.astype(np.int64) * is_waiting, window.blocked * is_waiting
        )
        return course_of(memory, disk, levels), projected

    def projected_backlog(self, window: TraceWindow) -> list[int]:
        """Return the backlog at the step before a window and at each step, if nothing is decided."""
        capacity, backlog = self.step_capacity, [self.waiting]
        for received in window.bytes_received:
            backlog.append(remaining_bytes(backlog[-1], received, capacity))
        return backlog

    def max_usage(self, window: TraceWindow) -> tuple[int, int]:
        """Return the maximum memory and disk in a window, whatever is decided.

        The backlog of a diverged client doesn't depend on decisions, unless some of it is dropped.
        """
        trace = self.trace
        memory, disk = (0, 0) if self.is_diverged else window.max_bytes
        backlog = (
            max(self.projected_backlog(window))
            if self.is_diverged
            else window.max_backlog(self.step_capacity)
        )
        if window.points:  # decisions between steps
            backlog += sum(window.bytes_received)
        disk_factor = trace.disk_factor or trace.factor
        return max(memory, int(backlog * trace.factor) + 1), max(disk, int(backlog * disk_factor) + 1)


def capacity_bytes(trace: ClientTrace, ms: int) -> int:
    """Return the bytes that a client takes in `ms`.

    Rounded to whole bytes, so that sums don't depend on order.
    """
    capacity = trace.capacity * ms / 1_000
    return round(capacity) if capacity < _MAX_CAPACITY_BYTES else _MAX_CAPACITY_BYTES


def remaining_bytes(waiting: int, received: int, capacity: int) -> int:
    """Return the backlog after `received` bytes arrived, and `capacity` bytes could be taken."""
    return max(waiting + received - capacity, 0)
