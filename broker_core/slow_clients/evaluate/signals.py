"""Signals: the figures that rules look at.

The broker hands in views, which are read through at the moment of judging; the pipeline's back-test, previews and tests
hand in plain values. `evaluate` can't tell which. What a view says of messages is what its subscription's account says
(matched = acknowledged by the peer + in flight + waiting + gone), and nothing else: "acknowledged by the peer" is the
application's word where the subscription has a window, otherwise that of the peer's kernel.

All moments are nanoseconds UTC, all sizes bytes; 0 as a moment means "none".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from broker_core.slow_clients.evaluate.holds import Hold

Holds = Mapping[tuple[str, str], Hold]
"""What rules remember of a client: by the rule's name and the subscription's id ("" for the client itself)."""


class Sample(NamedTuple):
    """One look at a client, taken each tick; the last 60 go into a decision."""

    at: int
    """ns"""
    outbox_bytes: int
    spool_bytes: int
    age_ms: int
    """Age of the oldest message that waits."""
    taken_bytes: int = 0
    """Acknowledged by the peer since the logon."""


class Mark(NamedTuple):
    """What the peer had taken by a moment."""

    at: int
    """ns"""
    taken_bytes: int


class Waiting(NamedTuple):
    """What waits for a client, asked for only when a decision about it is being made."""

    outbox_messages: int
    """What isn't in the spool: in memory, or in flight."""
    spool_messages: int
    unjournaled_messages: int
    """How many of both a bookmark can't bring back."""
    resume_bookmark: str
    """Where a new subscription would go on without a gap; "" when nothing of it is journaled."""
    write_blocked_since: int = 0


class Backlog(Protocol):
    """What the guard asks of a client's session. Read at any moment; every answer is of that moment."""

    @property
    def oldest_at(self) -> int:
        """From when the oldest waiting message's age counts, over outbox and spool; 0 when nothing waits."""
        ...

    @property
    def unacked_at(self) -> int:
        """From when the age of the oldest message counts that is delivered and not acknowledged by the peer; 0: none is."""
        ...

    @property
    def messages(self) -> int:
        """Messages in memory: they wait, as do the bytes that the guard is told of."""
        ...

    @property
    def taken_bytes(self) -> int:
        """Acknowledged by the peer since the logon. It only grows."""
        ...

    @property
    def lump_bytes(self) -> int:
        """The largest step in which the peer's own window moves; 0: not known, or it moves smoothly."""
        ...

    @property
    def owed_messages(self) -> int:
        """Waiting, or in flight: handed over and not acknowledged by the peer."""
        ...

    @property
    def owed_bytes(self) -> int:
        """The bytes of their bodies."""
        ...

    @property
    def blocked_since(self) -> int:
        """From when the peer has taken nothing of what is on its way to it, ns; 0 while it takes."""
        ...

    def look(self) -> None:
        """Note what the peer has acknowledged by now: the figures are those of the last look."""
        ...

    def waiting(self) -> Waiting:
        """The counts for a decision."""
        ...


class SubscriptionView(Protocol):
    """One subscription of a client as `evaluate` reads it: live, or `SubscriptionSignals`."""

    @property
    def id(self) -> str:
        """As the client gave it: what a decision names. It never changes."""
        ...

    @property
    def topic(self) -> str:
        """The topic or pattern subscribed to. It never changes, nor do `name`, `durable` and `prefetch`."""
        ...

    @property
    def name(self) -> str:
        """Of a durable subscription; "" of others."""
        ...

    @property
    def durable(self) -> bool: ...
    @property
    def journaled(self) -> bool:
        """A subscription with a bookmark: it can go on from the journal."""
        ...

    @property
    def prefetch(self) -> int:
        """Messages that may be unacknowledged; 0: it has no window."""
        ...

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the bodies of what waits, and of what is delivered and not acknowledged by the peer."""
        ...

    @property
    def backlog_messages(self) -> int:
        """Messages that wait, or are delivered and not acknowledged by the peer."""
        ...

    @property
    def outbox_bytes(self) -> int:
        """What of it waits in memory, by the memory it takes."""
        ...

    @property
    def outbox_messages(self) -> int:
        """What of it waits in memory: not dispatched, and so what can still be discarded."""
        ...

    @property
    def conflation_bytes(self) -> int:
        """What conflation holds back, besides. It is in its client's memory."""
        ...

    @property
    def oldest_at(self) -> int:
        """ns, of the oldest message that waits, or is delivered and not acknowledged by the peer; 0: there is none."""
        ...

    @property
    def unacked_messages(self) -> int:
        """Sent within its window and not acknowledged by the application; 0 without a window."""
        ...

    @property
    def unacked_since(self) -> int:
        """ns, when the oldest of them was sent; 0: none is owed."""
        ...

    @property
    def acked_at(self) -> int:
        """ns of the last acknowledgement, or of the first message owed after a time when none was."""
        ...

    @property
    def window_full_since(self) -> int:
        """ns, since when there has been something to dispatch and the window was full; 0 while dispatch goes on."""
        ...

    @property
    def window_full_count(self) -> int:
        """How many times it became full, ever."""
        ...

    @property
    def blocked_since(self) -> int:
        """ns, since when the peer has taken nothing while something for it waited or was on its way; 0 while it takes."""
        ...

    @property
    def paused(self) -> bool: ...
    @property
    def rate_limited(self) -> bool:
        """Delivered at a rate of its own (a paced replay): waiting isn't the client's fault."""
        ...

    @property
    def replaying(self) -> bool: ...


@dataclass(slots=True)
class SubscriptionSignals:
    """One subscription as plain values: for traces, back-tests, previews and tests. See `SubscriptionView`."""

    id: str
    topic: str
    name: str = ""
    durable: bool = False
    journaled: bool = False
    prefetch: int = 0
    backlog_bytes: int = 0
    backlog_messages: int = 0
    outbox_bytes: int = 0
    outbox_messages: int = 0
    conflation_bytes: int = 0
    oldest_at: int = 0
    unacked_messages: int = 0
    unacked_since: int = 0
    acked_at: int = 0
    window_full_since: int = 0
    window_full_count: int = 0
    blocked_since: int = 0
    paused: bool = False
    rate_limited: bool = False
    replaying: bool = False


class ClientView(Protocol):
    """A client as `evaluate` reads it: a live one (`PoolUse`), or `ClientSignals`."""

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
    def conflation_bytes(self) -> int: ...
    @property
    def owed_messages(self) -> int: ...
    @property
    def owed_bytes(self) -> int: ...
    @property
    def oldest_at(self) -> int: ...
    @property
    def unacked_at(self) -> int: ...
    @property
    def offlined(self) -> bool: ...
    @property
    def offlined_at(self) -> int: ...
    @property
    def write_blocked_since(self) -> int: ...
    @property
    def taken_bytes(self) -> int: ...
    @property
    def lump_bytes(self) -> int: ...
    @property
    def behind_since(self) -> int:
        """Since when something has waited for a second or longer at each look; 0: nothing has."""
        ...

    @property
    def subscriptions(self) -> Collection[SubscriptionView]: ...
    @property
    def holds(self) -> Holds: ...
    @property
    def connected(self) -> int: ...

    def waiting(self) -> Waiting:
        """The counts for a decision."""
        ...

    def taken_by(self, until_ns: int) -> Mark | None:
        """The newest that is remembered of what the peer had taken, not newer than that."""
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
    unacked_at: int = 0
    """Of the oldest that is delivered and not acknowledged by the peer."""
    offlined: bool = False
    """True from the decision to offline until it is live again, hence also while it drains."""
    write_blocked_since: int = 0
    unjournaled_messages: int = 0
    resume_bookmark: str = ""
    samples: tuple[Sample, ...] = ()
    user: str = ""
    offlined_at: int = 0
    conflation_bytes: int = 0
    taken_bytes: int = 0
    lump_bytes: int = 0
    owed_messages: int = 0
    owed_bytes: int = 0
    behind_since: int = 0
    marks: tuple[Mark, ...] = ()
    """What is remembered besides the samples, oldest first."""
    subscriptions: tuple[SubscriptionView, ...] = ()
    holds: Holds = field(default_factory=dict)
    connected: int = 0
    """Its place in the order of connecting: who is chosen of those that are equal in everything else."""

    @property
    def pool_name(self) -> str:
        """The pool it draws on."""
        return self.pool

    def waiting(self) -> Waiting:
        """The counts for a decision."""
        unspooled = max(self.outbox_messages, self.owed_messages - self.spool_messages)
        return Waiting(
            unspooled, self.spool_messages, self.unjournaled_messages, self.resume_bookmark,
            self.write_blocked_since,
        )  # fmt: skip

    def taken_by(self, until_ns: int) -> Mark | None:
        """The newest that is remembered of what the peer had taken, not newer than that."""
        known = (*self.marks, *(Mark(sample.at, sample.taken_bytes) for sample in self.samples))
        return max((mark for mark in known if mark.at <= until_ns), default=None)

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
