"""The words rules are written in. A rule says WHEN a signal crosses a shape, CHOOSE whom, DO a ladder, in a mode.

They stand below the engine because a policy document is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

Row = TypeVar("Row")


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
    """Bytes of the bodies of messages that wait, or are delivered and not acknowledged by the peer."""
    BACKLOG_MESSAGES = "backlog_messages"
    """Messages that wait, or are delivered and not acknowledged by the peer."""
    OLDEST_AGE = "oldest_age"
    """Milliseconds the oldest waiting message has been waiting, in memory or on disk, since it was accepted."""
    DRAIN_RATE = "drain_rate"
    """Bytes a second the peer has taken over the rule's window, or over the time of one step of the peer's own window."""
    WRITE_BLOCKED = "write_blocked"
    """Milliseconds the socket has taken nothing, of the client or for a subscription."""
    WINDOW_FULL = "window_full"
    """Milliseconds a subscription's prefetch window has been full with something to dispatch. Subscriptions only."""
    UNACKED_MESSAGES = "unacked_messages"
    """Messages delivered and not acknowledged. Subscriptions only."""
    UNACKED_AGE = "unacked_age"
    """Milliseconds since the oldest unacknowledged message was sent. Subscriptions only."""
    ACK_SILENCE = "ack_silence"
    """Milliseconds without an acknowledgement while some are owed. Subscriptions only."""
    PINNED_BYTES = "pinned_bytes"
    """Bytes of the log that can't be removed because of a client's pauses, durable positions and replays: whole segments, as
    removal takes them. They pin one log from the oldest on, so a client's is the most of its subscriptions', not their sum."""
    USER_PINNED_BYTES = "user_pinned_bytes"
    """The same of all that is kept and read under the names of a client's user, also while they are away. Whole clients only; each
    of the user's has the same figure."""


class Unit(StrEnum):
    """What a signal is counted in."""

    BYTES = "bytes"
    MESSAGES = "messages"
    MILLISECONDS = "ms"
    BYTES_PER_SECOND = "bytes/s"
    MESSAGES_PER_SECOND = "messages/s"
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


class TargetSelection(StrEnum):
    """Who is acted on."""

    SELF = "self"
    LARGEST_IN_POOL = "largest_in_pool"


class PolicyAction(StrEnum):
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


REPEATED_ACTIONS: Final = frozenset({PolicyAction.DISCARD_OLDEST, PolicyAction.CONFLATE})
"""Actions that may be carried out many times a second; they are recorded once a second."""


class EnforcementMode(StrEnum):
    """Whether a rule's decisions are carried out."""

    OFF = "off"
    SHADOW = "shadow"
    ENFORCE = "enforce"


class DecisionReason(StrEnum):
    """Reason codes: one list for every protocol, the console and Spark."""

    POOL_MEMORY = "slow_client_pool_memory"
    MEMORY_CAPACITY = "slow_client_memory_capacity"
    DISK = "slow_client_disk"
    CAPACITY = "slow_client_capacity"
    AGE = "slow_client_age"
    BACKLOG = "slow_client_backlog"
    CONFLATION = "slow_client_conflation"
    DRAIN_RATE = "slow_client_drain_rate"
    WRITE_BLOCKED = "slow_client_write_blocked"
    WINDOW_FULL = "slow_client_window_full"
    UNACKED = "slow_client_unacked"
    ACK_SILENCE = "slow_client_ack_silence"
    PINNED = "slow_client_pinned"
    RESOURCE_ERROR = "slow_client_resource_error"
    """Seed 004's 506."""
    SPOOL_FAILED = "spool_failed"
    """No rule's: what waits for a client must go to its spool, and the disk doesn't take it."""


class SignalSubject(StrEnum):
    """What a signal is measured of."""

    POOL = "pool"
    CLIENT = "client"
    SUBSCRIPTION = "subscription"


@dataclass(frozen=True, slots=True)
class SignalDefinition:
    """What is to be known of a signal before anybody reads it. How it is read and said is its row in
    `slow_clients.evaluate.signal_table`.

    unit         what limits and figures are counted in
    measured     of what; a rule whose scope speaks of subscriptions measures these where it can
    reason       the reason code of a rule that names none
    at_enqueue   of what it is judged in the same turn of the loop in which something was queued or spooled
    """

    unit: Unit
    measured: frozenset[SignalSubject]
    reason: DecisionReason
    at_enqueue: frozenset[SignalSubject]


def check_complete(rows: Mapping[Signal, Row]) -> Mapping[Signal, Row]:
    """The table, which must have a row for every signal. Raises LookupError for one without."""
    if missing := [signal.name for signal in Signal if signal not in rows]:
        raise LookupError(f"signals without a row: {', '.join(missing)}")
    return MappingProxyType(rows)


_POOL, _CLIENT, _SUBSCRIPTION = (frozenset({one}) for one in SignalSubject)
_BOTH: Final = _CLIENT | _SUBSCRIPTION
_LATER: Final[frozenset[SignalSubject]] = frozenset()
SIGNALS: Final = check_complete({
    Signal.POOL_MEMORY: SignalDefinition(Unit.BYTES, _POOL, DecisionReason.POOL_MEMORY, _POOL),
    Signal.POOL_DISK: SignalDefinition(Unit.BYTES, _POOL, DecisionReason.DISK, _POOL),
    Signal.OUTBOUND_BYTES: SignalDefinition(Unit.BYTES, _BOTH, DecisionReason.MEMORY_CAPACITY, _CLIENT),
    Signal.OUTBOUND_MESSAGES: SignalDefinition(Unit.MESSAGES, _BOTH, DecisionReason.BACKLOG, _SUBSCRIPTION),
    Signal.SPOOL_BYTES: SignalDefinition(Unit.BYTES, _CLIENT, DecisionReason.CAPACITY, _CLIENT),
    Signal.SPOOL_AGE: SignalDefinition(Unit.MILLISECONDS, _CLIENT, DecisionReason.AGE, _LATER),
    Signal.CONFLATION_BYTES: SignalDefinition(Unit.BYTES, _BOTH, DecisionReason.CONFLATION, _LATER),
    Signal.BACKLOG_BYTES: SignalDefinition(Unit.BYTES, _BOTH, DecisionReason.BACKLOG, _SUBSCRIPTION),
    Signal.BACKLOG_MESSAGES: SignalDefinition(Unit.MESSAGES, _BOTH, DecisionReason.BACKLOG, _SUBSCRIPTION),
    Signal.OLDEST_AGE: SignalDefinition(Unit.MILLISECONDS, _BOTH, DecisionReason.AGE, _LATER),
    Signal.DRAIN_RATE: SignalDefinition(Unit.BYTES_PER_SECOND, _CLIENT, DecisionReason.DRAIN_RATE, _LATER),
    Signal.WRITE_BLOCKED: SignalDefinition(Unit.MILLISECONDS, _BOTH, DecisionReason.WRITE_BLOCKED, _LATER),
    Signal.WINDOW_FULL: SignalDefinition(Unit.MILLISECONDS, _SUBSCRIPTION, DecisionReason.WINDOW_FULL, _LATER),
    Signal.UNACKED_MESSAGES: SignalDefinition(Unit.MESSAGES, _SUBSCRIPTION, DecisionReason.UNACKED, _LATER),
    Signal.UNACKED_AGE: SignalDefinition(Unit.MILLISECONDS, _SUBSCRIPTION, DecisionReason.UNACKED, _LATER),
    Signal.ACK_SILENCE: SignalDefinition(Unit.MILLISECONDS, _SUBSCRIPTION, DecisionReason.ACK_SILENCE, _LATER),
    Signal.PINNED_BYTES: SignalDefinition(Unit.BYTES, _BOTH, DecisionReason.PINNED, _LATER),
    Signal.USER_PINNED_BYTES: SignalDefinition(Unit.BYTES, _CLIENT, DecisionReason.PINNED, _LATER),
})  # fmt: skip


def signals_measured_on(measured: frozenset[SignalSubject]) -> frozenset[Signal]:
    """The signals that are measured of these things and no others."""
    return frozenset(signal for signal, row in SIGNALS.items() if row.measured == measured)


POOL_SIGNALS: Final = signals_measured_on(_POOL)
SUBSCRIPTION_SIGNALS: Final = signals_measured_on(_SUBSCRIPTION)
"""Measured of single subscriptions only."""
CLIENT_SIGNALS: Final = signals_measured_on(_CLIENT)
"""Measured of whole clients only: a spool has no subscriptions."""
WAITING_SIGNALS = frozenset(
    {Signal.BACKLOG_BYTES, Signal.BACKLOG_MESSAGES, Signal.OUTBOUND_BYTES, Signal.OUTBOUND_MESSAGES}
)
"""Giving up some of what waits in memory makes these less."""
SUBSCRIPTION_ACTIONS = frozenset({PolicyAction.DISCARD_OLDEST, PolicyAction.DELETE_DURABLE})
"""Need a subscription to act on. Pausing, conflating and cancelling act on all of a client's when none is named."""
FINAL_ACTIONS = frozenset({PolicyAction.DISCONNECT, PolicyAction.REFUSE, PolicyAction.DELETE_DURABLE})
"""Close the connection."""
