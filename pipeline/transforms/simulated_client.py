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
"""Signals without recorded figures (windows of subscriptions, conflation, pins).

Rules on them aren't judged.
"""
_OF_BACKLOG: Final = attrgetter(
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
_BOUNDLESS: Final = 1 << 50


class SimulatedBacklog:
    """Backlog of a client at one time.

    The guard reads it as a session's; it is also the client's only subscription.
    """

    def __init__(self, trace: ClientTrace) -> None:
        self.id = "only"
        self.topic = trace.who.topic
        self.name = ""
        self.durable = self.journaled = self.paused = self.rate_limited = False
        self.prefetch = self.conflation_bytes = self.pinned_bytes = 0
        self.unacked_messages = self.unacked_since = self.acked_at = 0
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

    def update_progress(self) -> None:
        """Do nothing: the figures are set before the guard reads them."""

    def follow_recording(self, seen: TraceSample) -> None:
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
        ) = _OF_BACKLOG(seen)

    def waiting(self) -> BacklogCounts:
        return BacklogCounts(self.messages, max(self.owed_messages - self.messages, 0), self.unjournaled, "")


class QuietLimits(NamedTuple):
    """Values of a client up to which none of its rules reacts, while the rules have no state."""

    levels: tuple[int, ...]
    """A limit for each row of LEVELS."""
    spool_age: int
    rated: bool
    """Whether a rule uses a rate, and so earlier figures too. Such a rule can't react while nothing waits."""


def quiet_limits(use: ClientUsage) -> QuietLimits:
    """Return the quiet limits by the rules of a client and its subscriptions, in any mode."""
    levels, spool_age, rated = [UNLIMITED] * len(LEVELS), UNLIMITED, False
    for rule in chain(use.rules, *(one.rules for one in use.ruled_subscriptions.values())):
        place = LEVELS.get(rule.signal)
        if place is not None and rule.shape is not Shape.RATE_BELOW:
            levels[place] = min(levels[place], quiet_limit(rule))
        elif rule.signal is Signal.SPOOL_AGE:
            spool_age = min(spool_age, quiet_limit(rule))
        elif rule.signal not in UNSEEN:
            rated = True
    return QuietLimits(tuple(levels), spool_age, rated)


@dataclass(slots=True, eq=False)
class SimulatedClient:
    """A trace under the policy."""

    number: int
    trace: ClientTrace
    backlog: SimulatedBacklog
    until: int
    """Time after which nothing is known of it."""
    use: ClientUsage = field(init=False)
    calm: QuietLimits = field(init=False)
    free: bool = False
    """Whether it has diverged from its recording."""
    waiting: int = 0
    """Backlog in bytes of bodies, since it diverged."""
    base: int = 0
    """Acknowledged bytes at the divergence, less bytes that had arrived and weren't waiting."""
    moved: int = 0
    """Time of the last move; `matched`: bytes that had arrived by then."""
    matched: int = 0
    offlined_since: int = 0
    offlined_ms: int = 0
    free_from_log: bool = False
    quiet: int = 0
    """Steps since rules had state or decided anything."""
    ahead: list[int] = field(default_factory=list)
    """Backlog at each step of the window in which it is idle, since it diverged."""
    gone: bool = False

    @classmethod
    def create(cls, number: int, trace: ClientTrace) -> SimulatedClient:
        """Return a client that the guard doesn't know yet."""
        return cls(number, trace, SimulatedBacklog(trace), max(trace.ended_at, trace.final))

    def diverge(self, now: int) -> None:
        """Leave the recording: from `now` on, simulate the client with the capacity seen."""
        if self.free:
            return
        self.free, self.moved = True, now
        self.matched = self.trace.value_at("matched_bytes", now)
        self.waiting = self.trace.value_at("owed_bytes", now)
        self.base = self.trace.value_at("taken_bytes", now) + self.waiting - self.matched

    def limit_backlog(self, kept: int) -> int:
        """Drop waiting bytes above `kept`; return how many."""
        dropped = max(self.waiting - kept, 0)
        self.waiting -= dropped
        self.base -= dropped
        return dropped

    def advance(self, now: int, matched: int) -> None:
        """Simulate to a time by which `matched` bytes have arrived in all."""
        room = capacity_bytes(self.trace, now - self.moved) if now > self.moved else 0
        self.waiting = remaining_bytes(self.waiting, matched - self.matched, room)
        self.moved, self.matched = now, matched

    def follow_recording(self, seen: TraceSample) -> tuple[int, int]:
        """Set the recorded figures; return bytes of memory and disk."""
        self.backlog.follow_recording(seen)
        return seen.memory, seen.disk

    def update_backlog(self) -> tuple[int, int]:
        """Set the simulated figures; return bytes of memory and disk."""
        of, trace, waiting = self.backlog, self.trace, self.waiting
        of.owed_bytes, of.owed_messages = waiting, int(waiting / trace.size)
        of.acked_bytes = self.base + self.matched - waiting
        of.oldest_at = trace.matched_at(self.matched - waiting) * _MS if waiting else 0
        of.unacked_at = 0
        blocked = trace.columns["blocked_since"]
        of.blocked_since = int(blocked[max(trace.sample_index(self.moved), 0)]) * _MS if waiting else 0
        of.unjournaled = of.owed_messages if trace.unjournaled else 0
        of.messages = 0 if self.use.is_offlined else of.owed_messages
        memory, disk = self.factors
        return int(waiting * memory), int(waiting * disk)

    @property
    def factors(self) -> tuple[float, float]:
        """Bytes of memory and of disk for each waiting byte."""
        if self.use.is_offlined:
            return 0.0, self.trace.disk_factor or self.trace.factor
        return 0.0 if self.free_from_log else self.trace.factor, 0.0

    @property
    def step_capacity(self) -> int:
        """Bytes that it can take in a step."""
        return capacity_bytes(self.trace, STEP_MS)

    def project(self, stretch: TraceWindow, moments: Ints) -> tuple[WindowCourse, list[int]]:
        """Return its course through a window if nothing is decided, and its backlog at each step.

        The result equals that of `advance` and `update_backlog` at each step.
        """
        trace = self.trace
        waiting = self.projected_backlog(stretch)
        waits = np.array(waiting, np.int64)
        memory, disk = ((waits * factor).astype(np.int64) for factor in self.factors)
        messages = (waits / trace.size).astype(np.int64)
        since = np.interp(stretch.matched - waits, trace.columns["matched_bytes"], trace.columns["at"])
        something = waits > 0
        amounts = (memory, messages, disk, waits, messages)
        levels = levels_of(moments, amounts, since.astype(np.int64) * something, stretch.blocked * something)
        return course_of(memory, disk, levels), waiting

    def projected_backlog(self, stretch: TraceWindow) -> list[int]:
        """Return the backlog at the step before a window and at each step, if nothing is decided."""
        room, waiting = self.step_capacity, [self.waiting]
        for came in stretch.bytes_received:
            waiting.append(remaining_bytes(waiting[-1], came, room))
        return waiting

    def max_usage(self, stretch: TraceWindow) -> tuple[int, int]:
        """Return the maximum memory and disk in a window, whatever is decided.

        The backlog of a diverged client doesn't depend on decisions, unless some of it is dropped.
        """
        trace = self.trace
        memory, disk = (0, 0) if self.free else stretch.max_held
        owed = max(self.projected_backlog(stretch)) if self.free else stretch.max_backlog(self.step_capacity)
        if stretch.points:  # decisions between steps
            owed += sum(stretch.bytes_received)
        spooled = trace.disk_factor or trace.factor
        return max(memory, int(owed * trace.factor) + 1), max(disk, int(owed * spooled) + 1)


def capacity_bytes(trace: ClientTrace, ms: int) -> int:
    """Return the bytes that a client takes in `ms`.

    Rounded to whole bytes, so that sums don't depend on order.
    """
    found = trace.capacity * ms / 1_000
    return round(found) if found < _BOUNDLESS else _BOUNDLESS


def remaining_bytes(waiting: int, came: int, room: int) -> int:
    """Return the backlog after `came` bytes arrived, and `room` bytes could be taken."""
    return max(waiting + came - room, 0)
