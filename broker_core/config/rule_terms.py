"""Vocabulary of rules: signals, shapes, actions, modes and reasons.

A rule says WHEN a signal crosses a shape, CHOOSE which client, DO a ladder of actions, in a mode. The terms
are defined in `config`, below the rule engine, because policy documents consist of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

Row = TypeVar("Row")


class Signal(StrEnum):
    """Measured quantity that a rule compares with a limit.

    A rule whose scope names a topic or a subscription measures each subscription separately.
    """

    POOL_MEMORY = "pool_memory"
    """Memory in bytes of the pool's clients that are not offlined, which offlining can still free."""
    POOL_DISK = "pool_disk"
    """Bytes of the spool files of the pool's clients."""
    OUTBOUND_BYTES = "outbound_bytes"
    """Bytes in a client's outbox, including records held back by conflation.

    0 while the client is offlined.
    """
    OUTBOUND_MESSAGES = "outbound_messages"
    """Messages in a client's outbox. 0 while the client is offlined."""
    SPOOL_BYTES = "spool_bytes"
    """Bytes of a client's spool file."""
    SPOOL_AGE = "spool_age"
    """Milliseconds since the client was offlined; 0 while it is live."""
    CONFLATION_BYTES = "conflation_bytes"
    """Bytes that conflation holds back."""
    BACKLOG_BYTES = "backlog_bytes"
    """Bytes of the bodies of waiting messages and of delivered, unacknowledged messages."""
    BACKLOG_MESSAGES = "backlog_messages"
    """Number of waiting messages and of delivered, unacknowledged messages."""
    WAITING_MESSAGES = "waiting_messages"
    """Number of messages not sent yet, in memory, in the spool or only in the log."""
    OLDEST_AGE = "oldest_age"
    """Milliseconds since the broker accepted the oldest waiting message, in memory or on disk."""
    DRAIN_RATE = "drain_rate"
    """Bytes per second that the peer read, over the rule's window or one step of its receive window."""
    WRITE_BLOCKED = "write_blocked"
    """Milliseconds for which the socket has accepted no bytes, of the client or of one subscription."""
    WINDOW_FULL = "window_full"
    """Milliseconds for which the prefetch window has been full while messages wait. Subscriptions only."""
    UNACKED_MESSAGES = "unacked_messages"
    """Number of delivered, unacknowledged messages. Subscriptions only."""
    UNACKED_AGE = "unacked_age"
    """Milliseconds since the oldest unacknowledged message was sent. Subscriptions only."""
    ACK_SILENCE = "ack_silence"
    """Milliseconds without an acknowledgement while messages are unacknowledged. Subscriptions only."""
    ACKNOWLEDGED_RATE = "acknowledged_rate"
    """Messages per second that the client acknowledged over the rule's window. Subscriptions only.

    Measured only while the subscription had unacknowledged messages during the whole window.
    """
    PINNED_BYTES = "pinned_bytes"
    """Bytes of the log that a client's pauses, durable positions and replays keep from being removed.

    Whole segments are counted, because retention removes whole segments. Each pin keeps the log from its
    oldest record on, so a client's value is the maximum over its subscriptions, not their sum.
    """
    USER_PINNED_BYTES = "user_pinned_bytes"
    """Bytes of the log that all names of a client's user keep from being removed, also while disconnected.

    Whole clients only. All clients of a user have the same value.
    """


class Unit(StrEnum):
    """Unit of a signal and of its limit, or of a setting."""

    BYTES = "bytes"
    MESSAGES = "messages"
    MILLISECONDS = "ms"
    BYTES_PER_SECOND = "bytes/s"
    MESSAGES_PER_SECOND = "messages/s"
    TIMES = "times"


class Shape(StrEnum):
    """Way in which a signal is compared with the limit."""

    HARD = "hard"
    """The signal is greater than the limit."""
    SOFT_FOR = "soft_for"
    """The signal is greater than the limit for `hold_ms` without interruption."""
    COUNT_IN_WINDOW = "count_in_window"
    """The signal became greater than the limit `count` times within `window_ms` (0: no time limit)."""
    RATE_BELOW = "rate_below"
    """The rate over `window_ms` is below the limit for `hold_ms` and at `count` checks, with a backlog."""
    PERCENT_OF = "percent_of"
    """The signal is greater than `percent` of the pool's memory or disk limit."""
    LARGEST_WHEN_POOL_OVER = "largest_when_pool_over"
    """The pool is over the limit.

    The largest client is chosen, then the next, until the pool is within the limit.
    """
    SET_CLEAR = "set_clear"
    """Triggers when the signal is greater than the limit, and clears when it is no greater than `clear`."""
    DURATION_WITHOUT = "duration_without"
    """The expected event has not happened for longer than the limit."""


class TargetSelection(StrEnum):
    """Choice of the client that a rule acts on."""

    SELF = "self"
    LARGEST_IN_POOL = "largest_in_pool"


class PolicyAction(StrEnum):
    """Action of a rule. The members are ordered from narrow to wide, as the rungs of a ladder must be."""

    NOTIFY = "notify"
    """Notify the operators."""
    WARN = "warn"
    """Warn the client and send it the measured values."""
    CONFLATE = "conflate"
    """Keep only the latest waiting message per key."""
    DISCARD_OLDEST = "discard_oldest"
    """Discard the oldest waiting messages of the subscription until it is within the limit."""
    OFFLINE = "offline"
    """Move the waiting messages to the spool."""
    CONTINUE_FROM_JOURNAL = "continue_from_journal"
    """Drop the waiting messages of a journaled subscription and read them from the journal later.

    Unjournaled subscriptions are offlined instead.
    """
    PAUSE = "pause"
    """Send no messages of the subscription for `for_ms`; 0: until it is resumed."""
    CANCEL_SUBSCRIPTION = "cancel_subscription"
    """Cancel the subscription and notify the client. Its other subscriptions continue."""
    ASK_TO_CLOSE = "ask_to_close"
    """Ask the client to close its connection."""
    DISCONNECT = "disconnect"
    """Close the connection."""
    REFUSE = "refuse"
    """Close the connection and reject the client's name for `for_ms`."""
    DELETE_DURABLE = "delete_durable"
    """Close the connection and delete the client's durable subscription."""


REPEATED_ACTIONS: Final = frozenset({PolicyAction.DISCARD_OLDEST, PolicyAction.CONFLATE})
"""Actions that may run many times a second. They are recorded at most once a second."""


class EnforcementMode(StrEnum):
    """Whether a rule's decisions are ignored, only recorded, or carried out."""

    OFF = "off"
    SHADOW = "shadow"
    ENFORCE = "enforce"


class DecisionReason(StrEnum):
    """Reason code of a decision. All protocols, the console and Spark use this list."""

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
    ACKNOWLEDGED_RATE = "slow_client_acknowledged_rate"
    PINNED = "slow_client_pinned"
    RESOURCE_ERROR = "slow_client_resource_error"
    """The code for the reason 506 of seed 004."""
    SPOOL_FAILED = "spool_failed"
    """The disk rejected a write to the spool, so waiting messages could not be moved there.

    No rule uses it.
    """


class SignalSubject(StrEnum):
    """Kind of object on which a signal is measured."""

    POOL = "pool"
    CLIENT = "client"
    SUBSCRIPTION = "subscription"


@dataclass(frozen=True, slots=True)
class SignalDefinition:
    """Static properties of a signal. `slow_clients.evaluate.signal_table` has its reading and its wording.

    Attributes:
        unit: Unit of limits and values.
        measured: Objects on which the signal is measured. A rule whose scope names subscriptions measures
            subscriptions where possible.
        reason: Reason code of a rule that names none.
        at_enqueue: Objects on which the signal is judged in the event-loop iteration in which a record was
            queued or spooled. Others are judged at the periodic check.
    """

    unit: Unit
    measured: frozenset[SignalSubject]
    reason: DecisionReason
    at_enqueue: frozenset[SignalSubject]


def check_complete(rows: Mapping[Signal, Row]) -> Mapping[Signal, Row]:
    """Return the table as a read-only mapping.

    Raises:
        LookupError: A signal has no row.
    """
    if missing := [signal.name for signal in Signal if signal not in rows]:
        raise LookupError(f"signals without a row: {', '.join(missing)}")
    return MappingProxyType(rows)


_POOL, _CLIENT, _SUBSCRIPTION = (frozenset({one}) for one in SignalSubject)
_EITHER: Final = _CLIENT | _SUBSCRIPTION
_NEVER: Final[frozenset[SignalSubject]] = frozenset()
SIGNALS: Final = check_complete({
    Signal.POOL_MEMORY: SignalDefinition(Unit.BYTES, _POOL, DecisionReason.POOL_MEMORY, _POOL),
    Signal.POOL_DISK: SignalDefinition(Unit.BYTES, _POOL, DecisionReason.DISK, _POOL),
    Signal.OUTBOUND_BYTES: SignalDefinition(Unit.BYTES, _EITHER, DecisionReason.MEMORY_CAPACITY, _CLIENT),
    Signal.OUTBOUND_MESSAGES: SignalDefinition(Unit.MESSAGES, _EITHER, DecisionReason.BACKLOG, _SUBSCRIPTION),
    Signal.SPOOL_BYTES: SignalDefinition(Unit.BYTES, _CLIENT, DecisionReason.CAPACITY, _CLIENT),
    Signal.SPOOL_AGE: SignalDefinition(Unit.MILLISECONDS, _CLIENT, DecisionReason.AGE, _NEVER),
    Signal.CONFLATION_BYTES: SignalDefinition(Unit.BYTES, _EITHER, DecisionReason.CONFLATION, _NEVER),
    Signal.BACKLOG_BYTES: SignalDefinition(Unit.BYTES, _EITHER, DecisionReason.BACKLOG, _SUBSCRIPTION),
    Signal.BACKLOG_MESSAGES: SignalDefinition(Unit.MESSAGES, _EITHER, DecisionReason.BACKLOG, _SUBSCRIPTION),
    Signal.WAITING_MESSAGES: SignalDefinition(Unit.MESSAGES, _EITHER, DecisionReason.BACKLOG, _NEVER),
    Signal.OLDEST_AGE: SignalDefinition(Unit.MILLISECONDS, _EITHER, DecisionReason.AGE, _NEVER),
    Signal.DRAIN_RATE: SignalDefinition(Unit.BYTES_PER_SECOND, _CLIENT, DecisionReason.DRAIN_RATE, _NEVER),
    Signal.WRITE_BLOCKED: SignalDefinition(Unit.MILLISECONDS, _EITHER, DecisionReason.WRITE_BLOCKED, _NEVER),
    Signal.WINDOW_FULL: SignalDefinition(
        Unit.MILLISECONDS, _SUBSCRIPTION, DecisionReason.WINDOW_FULL, _NEVER
    ),
    Signal.UNACKED_MESSAGES: SignalDefinition(Unit.MESSAGES, _SUBSCRIPTION, DecisionReason.UNACKED, _NEVER),
    Signal.UNACKED_AGE: SignalDefinition(Unit.MILLISECONDS, _SUBSCRIPTION, DecisionReason.UNACKED, _NEVER),
    Signal.ACK_SILENCE: SignalDefinition(
        Unit.MILLISECONDS, _SUBSCRIPTION, DecisionReason.ACK_SILENCE, _NEVER
    ),
    Signal.ACKNOWLEDGED_RATE: SignalDefinition(
        Unit.MESSAGES_PER_SECOND, _SUBSCRIPTION, DecisionReason.ACKNOWLEDGED_RATE, _NEVER
    ),
    Signal.PINNED_BYTES: SignalDefinition(Unit.BYTES, _EITHER, DecisionReason.PINNED, _NEVER),
    Signal.USER_PINNED_BYTES: SignalDefinition(Unit.BYTES, _CLIENT, DecisionReason.PINNED, _NEVER),
})  # fmt: skip


def signals_measured_on(measured: frozenset[SignalSubject]) -> frozenset[Signal]:
    """Return the signals that are measured on exactly these kinds of objects."""
    return frozenset(signal for signal, row in SIGNALS.items() if row.measured == measured)


POOL_SIGNALS: Final = signals_measured_on(_POOL)
SUBSCRIPTION_SIGNALS: Final = signals_measured_on(_SUBSCRIPTION)
"""Signals that are measured on single subscriptions only."""
CLIENT_SIGNALS: Final = signals_measured_on(_CLIENT)
"""Signals that are measured on whole clients only, such as the spool, which all subscriptions share."""
RATE_SIGNALS: Final = frozenset({Signal.DRAIN_RATE, Signal.ACKNOWLEDGED_RATE})
"""Signals that are too low, not too high: only the shape `rate_below` compares them."""
MAX_ACKNOWLEDGED_RATE_WINDOW_MS: Final = 60_000
"""Longest window of ACKNOWLEDGED_RATE: each subscription keeps its acknowledgements of so long."""
SIGNALS_LOWERED_BY_DISCARD = frozenset(
    {Signal.BACKLOG_BYTES, Signal.BACKLOG_MESSAGES, Signal.OUTBOUND_BYTES, Signal.OUTBOUND_MESSAGES}
)
"""Signals that decrease when waiting messages in memory are discarded, as `discard_oldest` requires.

WAITING_MESSAGES is none of them: most of its messages may be in the spool or in the log, which no discard
reaches.
"""
SUBSCRIPTION_ACTIONS = frozenset({PolicyAction.DISCARD_OLDEST, PolicyAction.DELETE_DURABLE})
"""Actions that need a subscription.

Pause, conflate and cancel act on all subscriptions of a client if none is named.
"""
FINAL_ACTIONS = frozenset({PolicyAction.DISCONNECT, PolicyAction.REFUSE, PolicyAction.DELETE_DURABLE})
"""Actions that close the connection."""
