"""Signals: the figures that rules look at.

The broker hands in views, which are read through at the moment of judging; whoever else wants judgement may hand in plain
values. The judge can't tell which. What a view says of messages is what its subscription's account says
(matched = acknowledged by the peer + in flight + waiting + gone), and nothing else: "acknowledged by the peer" is the
application's word where the subscription has a window, otherwise that of the peer's kernel.

All moments are nanoseconds UTC, all sizes bytes; 0 as a moment means "none".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from broker_core.slow_clients.evaluate.rule_state import RuleState

Holds = Mapping[tuple[str, str], RuleState]
"""What rules remember of a client: by the rule's name and the subscription's id ("" for the client itself)."""


class ClientSample(NamedTuple):
    """One look at a client, taken each tick; the last 60 go into a decision."""

    at: int
    outbox_bytes: int
    spool_bytes: int
    age_ms: int
    """Age of the oldest message that waits."""
    taken_bytes: int = 0
    """Acknowledged by the peer since the logon."""


class AckedMark(NamedTuple):
    """What the peer had taken by a moment."""

    at: int
    taken_bytes: int


class BacklogCounts(NamedTuple):
    """What waits for a client, asked for only when a decision about it is being made."""

    outbox_messages: int
    """What isn't in the spool: in memory, or in flight."""
    spool_messages: int
    unjournaled_messages: int
    """How many of both a bookmark can't bring back."""
    resume_bookmark: str
    """Where a new subscription would go on without a gap; "" when nothing of it is journaled."""


class BacklogView(Protocol):
    """What the guard asks of a client's session. Read at any moment; every answer is of that moment."""

    @property
    def oldest_at(self) -> int:
        """From when the oldest waiting message's age counts, over outbox and spool; 0 when nothing waits."""

    @property
    def unacked_at(self) -> int:
        """From when the age of the oldest message counts that is delivered and not acknowledged by the peer; 0: none is."""

    @property
    def messages(self) -> int:
        """Messages in memory: they wait, as do the bytes that the guard is told of."""

    @property
    def acked_bytes(self) -> int:
        """Acknowledged by the peer since the logon, as of the last look. It only grows."""

    @property
    def window_step_bytes(self) -> int:
        """The largest step in which the peer's own window moves; 0: not known, or it moves smoothly."""

    @property
    def owed_messages(self) -> int:
        """Waiting, or in flight: handed over and not acknowledged by the peer."""

    @property
    def owed_bytes(self) -> int:
        """The bytes of their bodies."""

    @property
    def blocked_since(self) -> int:
        """From when the peer has taken nothing of what is on its way to it; 0 while it takes."""

    def update_progress(self) -> None:
        """Note what the peer has acknowledged by now: the figures are those of the last look."""

    def waiting(self) -> BacklogCounts:
        """The counts for a decision."""


class SubscriptionView(Protocol):
    """One subscription of a client, as rules see it. `id`, `topic`, `name`, `durable` and `prefetch` never change.

    id                  as the client gave it: what a decision names
    topic               the topic or pattern subscribed to
    name                of a durable subscription; "" of others
    journaled           it has a bookmark: it can go on from the journal
    prefetch            messages that may be unacknowledged; 0: it has no window
    backlog_*           what waits, and what is delivered and not acknowledged by the peer; bytes are those of bodies
    outbox_*            what of it waits in memory: not dispatched, and so what can still be discarded; bytes of memory
    conflation_bytes    what conflation holds back, besides, in its client's memory
    oldest_at           of the oldest message of the backlog
    unacked_messages    sent within its window and not acknowledged by the application; 0 without a window
    unacked_since       when the oldest of them was sent
    acked_at            the last acknowledgement, or the first message owed after a time when none was
    window_full_since   since when there has been something to dispatch and the window was full; 0 while dispatch goes on
    window_full_count   how many times it became full, ever
    blocked_since       since when the peer has taken nothing while something for it waited or was on its way
    rate_limited        delivered at a rate of its own (a paced replay): waiting isn't the client's fault
    pinned_bytes        of the log that can't be removed because it is paused, durable, or read from there
    """

    @property
    def id(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def durable(self) -> bool: ...
    @property
    def journaled(self) -> bool: ...
    @property
    def prefetch(self) -> int: ...
    @property
    def backlog_bytes(self) -> int: ...
    @property
    def backlog_messages(self) -> int: ...
    @property
    def outbox_bytes(self) -> int: ...
    @property
    def outbox_messages(self) -> int: ...
    @property
    def conflation_bytes(self) -> int: ...
    @property
    def oldest_at(self) -> int: ...
    @property
    def unacked_messages(self) -> int: ...
    @property
    def unacked_since(self) -> int: ...
    @property
    def acked_at(self) -> int: ...
    @property
    def window_full_since(self) -> int: ...
    @property
    def window_full_count(self) -> int: ...
    @property
    def blocked_since(self) -> int: ...
    @property
    def paused(self) -> bool: ...
    @property
    def rate_limited(self) -> bool: ...
    @property
    def pinned_bytes(self) -> int: ...


class ClientView(Protocol):
    """A client, as rules see it.

    memory, disk        bytes of its outbox, what conflation holds included, and of its spool file
    offlined            from the decision to offline until it is live again, hence also while it drains
    connected           its place in the order of connecting: who is chosen of those that are equal in everything else
    behind_since        since when something has waited for a second or longer at each look
    pinned_bytes        the most of its subscriptions': they hold one log, each from its place on
    user_pinned_bytes   the same of everything that is kept and read under its user's names
    """

    @property
    def name(self) -> str: ...
    @property
    def transport(self) -> str: ...
    @property
    def pool_name(self) -> str: ...
    @property
    def connection_number(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def disk(self) -> int: ...
    @property
    def conflation_bytes(self) -> int: ...
    @property
    def pinned_bytes(self) -> int: ...
    @property
    def user_pinned_bytes(self) -> int: ...
    @property
    def is_offlined(self) -> bool: ...
    @property
    def offlined_at(self) -> int: ...
    @property
    def behind_since(self) -> int: ...
    @property
    def backlog(self) -> BacklogView: ...
    @property
    def subscriptions(self) -> Collection[SubscriptionView]: ...
    @property
    def rule_states(self) -> Holds: ...

    def acked_at(self, until_ns: int) -> AckedMark | None:
        """The newest that is remembered of what the peer had taken, not newer than that."""

    def recent_samples(self, now_ns: int) -> Sequence[ClientSample]:
        """The last 60 samples, the newest of now."""


@dataclass(slots=True)
class PoolSignals:
    """What is used of a pool."""

    name: str
    memory_used: int = 0
    memory_leaving: int = 0
    """The part of memory_used that belongs to offlined clients: on its way to disk, or being drained."""
    disk_used: int = 0
    holds: Mapping[str, RuleState] = field(default_factory=dict)
    """What pool rules remember, by their name."""


def age_ms(since_ns: int, now_ns: int) -> int:
    """Milliseconds since a moment; 0 for none, and for one in the future, as after the clock went back."""
    return (now_ns - since_ns) // 1_000_000 if 0 < since_ns < now_ns else 0
