"""Signals: the figures that rules look at, as plain values.

The broker makes them of live clients, the pipeline's back-test of recorded ones; `evaluate` can't tell which.
All moments are nanoseconds UTC, all sizes bytes; 0 as a moment means "none".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from broker_core.slow_clients.holds import Hold
from broker_core.slow_clients.rules import UNLIMITED

Holds = Mapping[tuple[str, str], Hold]
"""What rules remember of a client: by the rule's name and the subscription's id ("" for the client itself)."""
NO_HOLDS: Holds = {}


class Sample(NamedTuple):
    """One look at a client, taken each tick; the last 60 go into a decision."""

    at: int
    """ns"""
    outbox_bytes: int
    spool_bytes: int
    age_ms: int
    """Age of the oldest message that waits."""
    sent_bytes: int = 0
    """Handed to the socket since the logon."""


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

    @property
    def sent_bytes(self) -> int:
        """Handed to the socket since the logon."""
        ...

    @property
    def blocked_since(self) -> int:
        """From when the socket has taken nothing, ns; 0 while it takes."""
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
    """What conflation holds back, besides. It is in its client's memory."""
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
    judged: bool = False
    """The guard's: whether any rule looks at it."""
    alarm_bytes: int = UNLIMITED
    """The guard's: `SlowClientGuard.waiting` judges when more than this waits."""
    alarm_messages: int = UNLIMITED


class ClientView(Protocol):
    """A client as `evaluate` reads it: a live account, or `ClientSignals`."""

    @property
    def name(self) -> str: ...
    @property
    def transport(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def pool_name(self) -> str: ...
    @property
    def outbox_bytes(self) -> int: ...
    @property
    def outbox_messages(self) -> int: ...
    @property
    def spool_bytes(self) -> int: ...
    @property
    def spool_messages(self) -> int: ...
    @property
    def conflation_bytes(self) -> int: ...
    @property
    def oldest_at(self) -> int: ...
    @property
    def offlined(self) -> bool: ...
    @property
    def offlined_at(self) -> int: ...
    @property
    def write_blocked_since(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def subscriptions(self) -> Sequence[SubscriptionSignals]: ...
    @property
    def holds(self) -> Holds: ...
    @property
    def connected(self) -> int: ...

    def waiting(self) -> Waiting:
        """The counts for a decision."""
        ...

    def past(self, until_ns: int) -> Sample | None:
        """The newest sample that isn't newer than that."""
        ...

    def recent(self, now_ns: int) -> Sequence[Sample]:
        """The last 60 samples, the newest of now."""
        ...


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
    conflation_bytes: int = 0
    sent_bytes: int = 0
    """Handed to the socket since the logon."""
    subscriptions: tuple[SubscriptionSignals, ...] = ()
    holds: Holds = field(default_factory=dict)
    connected: int = 0
    """Its place in the order of connecting: who is chosen of those that are equal in everything else."""

    @property
    def pool_name(self) -> str:
        """The pool it draws on."""
        return self.pool

    def waiting(self) -> Waiting:
        """The counts for a decision."""
        return Waiting(
            self.outbox_messages, self.spool_messages, self.unjournaled_messages, self.resume_bookmark,
            self.write_blocked_since,
        )  # fmt: skip

    def past(self, until_ns: int) -> Sample | None:
        """The newest sample that isn't newer than that."""
        return next((sample for sample in reversed(self.samples) if sample.at <= until_ns), None)

    def recent(self, now_ns: int) -> tuple[Sample, ...]:
        """The last samples."""
        return self.samples


@dataclass(frozen=True, slots=True)
class PoolSignals:
    """One pool at one moment."""

    name: str
    memory_used: int
    memory_leaving: int
    """The part of memory_used that belongs to offlined clients: on its way to disk, or being drained."""
    disk_used: int
    holds: Mapping[str, Hold] = field(default_factory=dict)
    """What pool rules remember, by their name."""


def age_ms(since_ns: int, now_ns: int) -> int:
    """Milliseconds since a moment; 0 for none, and for one in the future, as after the clock went back."""
    return max(0, now_ns - since_ns) // 1_000_000 if since_ns else 0
