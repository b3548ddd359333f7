"""The words rules are written in. A rule says WHEN a signal crosses a shape, CHOOSE whom, DO a ladder, in a mode.

They stand below the engine because a policy document is made of them.
"""

from __future__ import annotations

from enum import StrEnum


class Signal(StrEnum):
    """What is measured. A rule whose scope names a topic or a subscription measures each subscription alone."""

    POOL_MEMORY = "pool_memory"
    """Memory of the pool's clients that aren't offlined: what offlining can still relieve. Bytes."""
    POOL_DISK = "pool_disk"
    """Bytes of the spool files of the pool's clients."""
    OUTBOUND_BYTES = "outbound_bytes"
    """Bytes in a client's outbox, what conflation holds included, while the client isn't offlined."""
    OUTBOUND_MESSAGES = "outbound_messages"
    """Messages in a client's outbox, while it isn't offlined."""
    SPOOL_BYTES = "spool_bytes"
    """Bytes of a client's spool file."""
    SPOOL_AGE = "spool_age"
    """Milliseconds since the client was offlined; 0 while it is live."""
    CONFLATION_BYTES = "conflation_bytes"
    """Bytes that conflation holds back."""
    BACKLOG_BYTES = "backlog_bytes"
    """Bytes that wait, in memory and on disk (by their size as messages, not as files)."""
    BACKLOG_MESSAGES = "backlog_messages"
    """Messages that wait, in memory and on disk."""
    OLDEST_AGE = "oldest_age"
    """Milliseconds the oldest waiting message has been waiting, in memory or on disk, since it was accepted."""
    DRAIN_RATE = "drain_rate"
    """Bytes a second the client has taken over the rule's window."""
    WRITE_BLOCKED = "write_blocked"
    """Milliseconds the client's socket has taken nothing."""
    WINDOW_FULL = "window_full"
    """Milliseconds a subscription's prefetch window has been full with something to dispatch. Subscriptions only."""
    UNACKED_MESSAGES = "unacked_messages"
    """Messages delivered and not acknowledged. Subscriptions only."""
    UNACKED_AGE = "unacked_age"
    """Milliseconds since the oldest unacknowledged message was sent. Subscriptions only."""
    ACK_SILENCE = "ack_silence"
    """Milliseconds without an acknowledgement while some are owed. Subscriptions only."""


class Unit(StrEnum):
    """What a signal is counted in."""

    BYTES = "bytes"
    MESSAGES = "messages"
    MILLISECONDS = "ms"
    BYTES_PER_SECOND = "bytes/s"
    TIMES = "times"


class Shape(StrEnum):
    """How a signal is compared with the limit."""

    HARD = "hard"
    """Greater than the limit."""
    SOFT_FOR = "soft_for"
    """Greater than the limit for `hold_ms` without a dip."""
    COUNT_IN_WINDOW = "count_in_window"
    """Became greater than the limit `count` times within `window_ms` (0: ever)."""
    RATE_BELOW = "rate_below"
    """Less than the limit over `window_ms`, for `hold_ms` and at each of `count` checks, while there is a backlog."""
    PERCENT_OF = "percent_of"
    """Greater than `percent` of the pool's memory or disk limit."""
    LARGEST_WHEN_POOL_OVER = "largest_when_pool_over"
    """The pool is over the limit: its largest user, then the next, until it is within."""
    SET_CLEAR = "set_clear"
    """Greater than the limit, and until it is no greater than `clear`."""
    DURATION_WITHOUT = "duration_without"
    """Nothing has happened for longer than the limit, while something should have."""


class Choice(StrEnum):
    """Who is acted on."""

    SELF = "self"
    LARGEST_IN_POOL = "largest_in_pool"


class Action(StrEnum):
    """What is done, the narrowest first: that is the order of a ladder's rungs."""

    NOTIFY = "notify"
    """Tell the operators."""
    WARN = "warn"
    """Tell the client, with the figures."""
    CONFLATE = "conflate"
    """Keep the latest message per key of what waits."""
    DISCARD_OLDEST = "discard_oldest"
    """Drop the oldest waiting messages of the subscription until it is within the limit."""
    OFFLINE = "offline"
    """Move what waits to the spool."""
    CONTINUE_FROM_JOURNAL = "continue_from_journal"
    """Forget what waits of a journaled subscription and read it from the journal. Others are offlined."""
    PAUSE = "pause"
    """Send nothing of the subscription for `for_ms`, 0: until it is resumed."""
    CANCEL_SUBSCRIPTION = "cancel_subscription"
    """End the subscription and say so; the client's others go on."""
    ASK_TO_CLOSE = "ask_to_close"
    """Ask the client to close."""
    DISCONNECT = "disconnect"
    """Close the connection."""
    REFUSE = "refuse"
    """Close the connection and refuse its name for `for_ms`."""
    DELETE_DURABLE = "delete_durable"
    """Close the connection and delete its durable subscription."""


class Mode(StrEnum):
    """Whether a rule's decisions are carried out."""

    OFF = "off"
    SHADOW = "shadow"
    ENFORCE = "enforce"


UNIT_OF = {
    Signal.POOL_MEMORY: Unit.BYTES,
    Signal.POOL_DISK: Unit.BYTES,
    Signal.OUTBOUND_BYTES: Unit.BYTES,
    Signal.OUTBOUND_MESSAGES: Unit.MESSAGES,
    Signal.SPOOL_BYTES: Unit.BYTES,
    Signal.SPOOL_AGE: Unit.MILLISECONDS,
    Signal.CONFLATION_BYTES: Unit.BYTES,
    Signal.BACKLOG_BYTES: Unit.BYTES,
    Signal.BACKLOG_MESSAGES: Unit.MESSAGES,
    Signal.OLDEST_AGE: Unit.MILLISECONDS,
    Signal.DRAIN_RATE: Unit.BYTES_PER_SECOND,
    Signal.WRITE_BLOCKED: Unit.MILLISECONDS,
    Signal.WINDOW_FULL: Unit.MILLISECONDS,
    Signal.UNACKED_MESSAGES: Unit.MESSAGES,
    Signal.UNACKED_AGE: Unit.MILLISECONDS,
    Signal.ACK_SILENCE: Unit.MILLISECONDS,
}
POOL_SIGNALS = frozenset({Signal.POOL_MEMORY, Signal.POOL_DISK})
SUBSCRIPTION_SIGNALS = frozenset({
    Signal.WINDOW_FULL, Signal.UNACKED_MESSAGES, Signal.UNACKED_AGE, Signal.ACK_SILENCE,
})
"""Measured of single subscriptions only."""
CLIENT_SIGNALS = frozenset({Signal.SPOOL_BYTES, Signal.SPOOL_AGE, Signal.DRAIN_RATE, Signal.WRITE_BLOCKED})
"""Measured of whole clients only: a socket and a spool have no subscriptions."""
SUBSCRIPTION_ACTIONS = frozenset({Action.DISCARD_OLDEST, Action.DELETE_DURABLE})
"""Need a subscription to act on. Pausing, conflating and cancelling act on all of a client's when none is named."""
FINAL_ACTIONS = frozenset({Action.DISCONNECT, Action.REFUSE, Action.DELETE_DURABLE})
"""Close the connection."""
