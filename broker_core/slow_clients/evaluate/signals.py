"""Signals: the measured values that rules compare with their limits.

The broker passes views, whose properties are read at the moment of judging. Previews and back-tests may pass
plain values instead; the judge treats both alike. Message figures of a view come from the delivery account of
its subscription: matched = acknowledged by the peer + in flight + waiting + discarded. "Acknowledged by the
peer" means an acknowledgement of the application where the subscription has an ack window, and of the peer's
kernel otherwise.

All times are nanoseconds UTC and all sizes are bytes. A time of 0 means "none".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from broker_core.slow_clients.evaluate.rule_state import RuleState

RuleStates = Mapping[tuple[str, str], RuleState]
"""State of all rules about one client, by rule name and subscription id ("" for the client itself)."""


class ClientSample(NamedTuple):
    """Sample of a client, taken at each tick. A decision includes the newest 60."""

    at: int
    outbox_bytes: int
    spool_bytes: int
    age_ms: int
    """Age of the oldest waiting message."""
    acked_bytes: int = 0
    """Bytes that the peer has acknowledged since logon."""


class AckedMark(NamedTuple):
    """Total bytes that the peer had acknowledged at a given time."""

    at: int
    acked_bytes: int


class AckedMessagesMark(NamedTuple):
    """Total messages that the application had acknowledged at a given time."""

    at: int
    messages: int


class BacklogCounts(NamedTuple):
    """Message counts of a client's backlog, read only while a decision about the client is being made."""

    outbox_messages: int
    """Messages that are not in the spool: in memory, or in flight."""
    spool_messages: int
    unjournaled_messages: int
    """Messages of outbox and spool that cannot be replayed from a bookmark."""
    resume_bookmark: str
    """Bookmark from which a new subscription continues without a gap; "" if nothing waiting is journaled."""


class BacklogView(Protocol):
    """A client's backlog as the guard reads it. Each property returns the current value, at any time."""

    @property
    def oldest_at(self) -> int:
        """Time from which the age of the oldest waiting message counts, in outbox and spool; 0 if none.

        A subscription's `oldest_at` also covers delivered, unacknowledged messages; here, `unacked_at` does.
        """

    @property
    def unacked_at(self) -> int:
        """Time from which the age of the oldest delivered, unacknowledged message counts; 0 if none."""

    @property
    def messages(self) -> int:
        """Messages waiting in memory. Their bytes reach the guard through `on_queued` and `on_released`."""

    @property
    def acked_bytes(self) -> int:
        """Bytes that the peer had acknowledged since logon at the last `update_progress`. Never decreases."""

    @property
    def window_step_bytes(self) -> int:
        """Largest step in which the peer's receive window moves; 0 if unknown, or if it moves smoothly."""

    @property
    def owed_messages(self) -> int:
        """Messages that wait, or are in flight (handed to the transport and not acknowledged by the peer)."""

    @property
    def owed_bytes(self) -> int:
        """Bytes of the bodies of the messages that `owed_messages` counts."""

    @property
    def blocked_since(self) -> int:
        """Time since which the peer has read none of the bytes in flight to it; 0 while it reads."""

    def update_progress(self) -> None:
        """Record the bytes that the peer has acknowledged until now.

        Other properties use the recorded figures.
        """

    def count_messages(self) -> BacklogCounts:
        """Return the message counts that a decision needs: messages that wait or are in flight."""


class SubscriptionView(Protocol):
    """Subscription of a client, as rules see it.

    `id`, `topic`, `name`, `durable` and `prefetch` never change.

    Attributes:
        id: Subscription id that the client chose; decisions name it.
        topic: Topic or pattern of the subscription.
        name: Name of a durable subscription; "" otherwise.
        journaled: Whether it has a bookmark and can continue from the journal.
        prefetch: Maximum unacknowledged messages (ack window); 0 without a window.
        backlog_bytes, backlog_messages: Messages that wait or that the peer has not acknowledged; bytes of
            bodies. 0 for a subscription that reads the log and has no window.
        waiting_messages: Messages not sent yet: in memory, in the spool or only in the log. A replay that
            has never caught up counts only records that it has read.
        outbox_bytes, outbox_messages: Part of the backlog that waits in memory and is not dispatched. Only
            this part can still be discarded. Bytes of memory.
        conflation_bytes: Additional bytes of client memory that conflation holds back.
        oldest_at: Time from which the age of the oldest message of the backlog counts; 0 if none.
        unacked_messages: Messages sent in its window and not acknowledged by the application; 0 without a
            window.
        unacked_since: Time at which the oldest of these was sent.
        acked_at: Time of the last acknowledgement, or of the first message owed after a time with none owed.
        acked_messages: Messages acknowledged since the start.
        window_full_since: Time since which messages wait and the window is full; 0 while dispatch continues.
        window_full_count: Number of times the window has become full, since the start.
        blocked_since: Time since which the peer has read nothing while a message waited or was in flight.
        shared: Whether it is a consumer of a shared subscription, such as a queue.
        rate_limited: Whether it has a delivery rate of its own (a paced replay). Waiting is then not the
            client's fault.
        pinned_bytes: Bytes of the log that it prevents from removal because it is paused, durable, or reads
            there.
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
    def waiting_messages(self) -> int: ...
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
    def acked_messages(self) -> int: ...
    def acked_before(self, until_ns: int) -> AckedMessagesMark | None:
        """Return the newest recorded number of acknowledged messages at or before a time; None if unknown."""

    @property
    def window_full_since(self) -> int: ...
    @property
    def window_full_count(self) -> int: ...
    @property
    def blocked_since(self) -> int: ...
    @property
    def paused(self) -> bool: ...
    @property
    def shared(self) -> bool: ...
    @property
    def rate_limited(self) -> bool: ...
    @property
    def pinned_bytes(self) -> int: ...


class ClientView(Protocol):
    """A client, as rules see it.

    Attributes:
        memory: Bytes in its outbox, including bytes that conflation holds back.
        disk: Bytes of its spool file.
        is_offlined: True from the decision to offline until the client is live again, so also while it
            drains.
        connection_number: Position in the order of connecting. Breaks ties when a client is chosen.
        waiting_messages: Messages that its subscriptions have not been sent, those only in the log included.
        behind_since: Time since which a message has waited for a second or longer at each sample.
        pinned_bytes: Maximum over its subscriptions. All pin one log, each from its own position.
        user_pinned_bytes: Bytes of the log pinned by all durable positions and replays of its user's client
            names.
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
    def waiting_messages(self) -> int: ...
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
    def rule_states(self) -> RuleStates: ...

    def acked_at(self, until_ns: int) -> AckedMark | None:
        """Return the newest recorded `AckedMark` at or before `until_ns`; None if there is none."""

    def recent_samples(self, now_ns: int) -> Sequence[ClientSample]:
        """Return at most 60 samples, oldest first; the last one is taken now."""


@dataclass(slots=True)
class PoolSignals:
    """Memory and disk in use of one pool."""

    name: str
    memory_used: int = 0
    offlined_memory: int = 0
    """Part of `memory_used` that belongs to offlined clients: on its way to disk, or being drained."""
    disk_used: int = 0
    rule_states: Mapping[str, RuleState] = field(default_factory=dict)
    """State of the pool's rules, by rule name."""


def age_ms(since_ns: int, now_ns: int) -> int:
    """Return the milliseconds from `since_ns` to `now_ns`.

    Returns 0 when `since_ns` is 0 (none) or in the future, which happens after the clock was set back.
    """
    return (now_ns - since_ns) // 1_000_000 if 0 < since_ns < now_ns else 0
