"""Signals: the figures that rules look at, as plain immutable values.

The broker makes them of live clients, the pipeline's back-test of recorded ones; `evaluate` can't tell which.
All moments are nanoseconds UTC, all sizes bytes; 0 as a moment means "none".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from broker_core.slow_clients.rules import UNLIMITED


class Sample(NamedTuple):
    """One look at a client, taken each tick; the last 60 go into a decision."""

    at: int
    """ns"""
    outbox_bytes: int
    spool_bytes: int
    age_ms: int
    """Age of the oldest message that waits."""


class Waiting(NamedTuple):
    """What waits for a client, asked for only when a decision about it is being made."""

    outbox_messages: int
    spool_messages: int
    unjournaled_messages: int
    """How many of both a bookmark can't bring back."""
    resume_bookmark: str
    """Where a new subscription would go on without a gap; "" when nothing of it is journaled."""
    write_blocked_since: int = 0


class Backlog(Protocol):
    """What the guard asks of a client's session."""

    @property
    def oldest_at(self) -> int:
        """From when the oldest waiting message's age counts, over outbox and spool; 0 when nothing waits."""
        ...

    def waiting(self) -> Waiting:
        """The counts for a decision."""
        ...


@dataclass(slots=True)
class SubscriptionSignals:
    """One subscription of a client. The broker keeps one object for each and changes its figures in place;
    `evaluate` only reads. Traces and tests make them as they need them."""

    id: str
    """As the client gave it: what a decision names."""
    topic: str
    """The topic or pattern subscribed to."""
    name: str = ""
    """Of a durable subscription."""
    durable: bool = False
    journaled: bool = False
    """A subscription with a bookmark: it can go on from the journal."""
    prefetch: int = 0
    """Messages that may be unacknowledged; 0: no acknowledgements."""
    backlog_bytes: int = 0
    """Waiting, in memory and on disk, not yet dispatched. By their size as messages."""
    backlog_messages: int = 0
    outbox_bytes: int = 0
    """The part of it in memory."""
    outbox_messages: int = 0
    conflation_bytes: int = 0
    """The part of it that conflation holds."""
    oldest_at: int = 0
    """ns, of the oldest waiting message; 0: none waits."""
    unacked_messages: int = 0
    unacked_since: int = 0
    """ns, when the oldest unacknowledged message was sent; 0: none is owed."""
    acked_at: int = 0
    """ns of the last acknowledgement, or of the first message owed after a time when none was."""
    window_full_since: int = 0
    """ns, since when there has been something to dispatch and the window was full; 0 while dispatch goes on."""
    window_full_count: int = 0
    """How many times it became full, ever."""
    paused: bool = False
    rate_limited: bool = False
    """Delivered at a rate of its own (a paced replay): waiting isn't the client's fault."""
    replaying: bool = False
    alarm_bytes: int = UNLIMITED
    """The guard's: `SlowClientGuard.waiting` judges when more than this waits."""
    alarm_messages: int = UNLIMITED


@dataclass(frozen=True, slots=True)
class ClientSignals:
    """One client at one moment."""

    name: str
    transport: str
    pool: str
    outbox_bytes: int = 0
    outbox_messages: int = 0
    spool_bytes: int = 0
    spool_messages: int = 0
    oldest_at: int = 0
    offlined: bool = False
    """True from the decision to offline until it is live again, hence also while it drains."""
    write_blocked_since: int = 0
    unjournaled_messages: int = 0
    resume_bookmark: str = ""
    samples: tuple[Sample, ...] = ()
    user: str = ""
    offlined_at: int = 0
    backlog_bytes: int = 0
    """Waiting in memory and on disk, by size as messages."""
    conflation_bytes: int = 0
    sent_bytes: int = 0
    """Handed to the socket since the logon."""
    subscriptions: tuple[SubscriptionSignals, ...] = ()

    def age_ms(self, now_ns: int) -> int:
        """How long the oldest message has been waiting."""
        return max(0, now_ns - self.oldest_at) // 1_000_000 if self.oldest_at else 0


@dataclass(frozen=True, slots=True)
class PoolSignals:
    """One pool at one moment."""

    name: str
    memory_used: int
    memory_leaving: int
    """The part of memory_used that belongs to offlined clients: on its way to disk, or being drained."""
    disk_used: int
