"""Why a client is slow: one verdict with its evidence. Pure.

Causes outside the client are tested first: a client that the broker holds back must not be called slow. Then
follow the client's own causes, from the strongest evidence to the weakest. Without a specific cause the
verdict is that the client reads slowly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from broker_core.documents.clients import VerdictEntry

BUSY_LOOP_MS: Final = 250
"""The broker is busy when its event loop runs at least this late."""
BUSY_DISK_MS: Final = 200
"""The disk is busy when a read or write takes at least this long."""
BLOCKED_MS: Final = 1_000
"""Minimum time without a read before a client may count as not reading."""
FLOOR: Final = 5_000
"""Bytes per second. A slower client counts as not reading.

This applies even while the duration of one step of its window is unknown.
"""
STEPS: Final = 2
"""Silence for fewer window steps than this is normal.

A reader that slows down a little, or whose window moves in a larger step than seen before, is silent for
less.
"""
SLOW_ACK_MS: Final = 1_000
"""Minimum time without acknowledgement, or without credit, before the application counts as slow."""
HANGS_MS: Final = 5_000
"""Time without acknowledgement after which the application counts as hanging.

It must owe acknowledgements and have free slots in its window.
"""
BURST: Final = 3
"""Factor by which the arrival rate must exceed the usual rate to count as a burst."""
AS_BEFORE_PERCENT: Final = 70
"""Percentage of its usual rate that a client must still read, for a burst alone to be the cause."""


class SlowCause(StrEnum):
    """Cause of a client's delay."""

    KEEPS_UP = "keeps_up"
    PAUSED = "paused"
    THROTTLED = "throttled"
    REPLAYING = "replaying"
    DISK_BUSY = "disk_busy"
    BROKER_BUSY = "broker_busy"
    NOT_READING = "not_reading"
    APPLICATION_HANGS = "application_hangs"
    APPLICATION_SLOW = "application_slow"
    SLOW_ACKS = "slow_acks"
    SLOW_NETWORK = "slow_network"
    BURST = "burst"
    READING_SLOWLY = "reading_slowly"


@dataclass(frozen=True, slots=True)
class SlowEvidence:
    """Figures of a client and of the broker at one moment. Rates come from `samples.ClientRates`."""

    unread_messages: int = 0
    """Messages that wait in the broker, or are in flight and not acknowledged by the peer's kernel."""
    write_blocked_ms: int = 0
    """Time since the peer last read anything that is in flight to it."""
    window_full_ms: int = 0
    """Longest time that one of its subscriptions' windows has been full."""
    no_credit_ms: int = 0
    """Longest time that one of its subscriptions with waiting messages has had no credit."""
    unacked_messages: int = 0
    ack_silence_ms: int = 0
    paused: bool = False
    """Whether all waiting messages belong to paused subscriptions."""
    rate_limited: bool = False
    """Whether all waiting messages belong to subscriptions with a delivery rate of their own."""
    replaying: bool = False
    offlined: bool = False
    taken_rate: int = 0
    """Bytes per second that the peer reads, over the last minute."""
    arrival_rate: int = 0
    """Bytes per second that arrive for it, over the last seconds."""
    loop_late_ms: int = 0
    """How late the broker's event loop runs."""
    disk_ms: int = 0
    """Duration of the last disk read or write that the client waits for."""
    sure_rate: int = 0
    """Part of `taken_rate` that the client has certainly read, bytes per second.

    The last acknowledged step of its window may still be in its receive buffer.
    """
    lump_bytes: int = 0
    """Largest step in which the peer's window moves; 0 if unknown, or if it moves smoothly."""
    network_limited: bool = False
    """Whether the kernel's buffers are full while the peer has an open window.

    The peer then acknowledges steadily, but little.
    """
    usual_taken_rate: int = 0
    """Bytes per second that the peer usually reads: `taken_rate` without the last seconds; 0 if unknown."""
    usual_arrival_rate: int = 0
    """Bytes per second that usually arrive for it; 0 if unknown."""

    @property
    def is_stopped(self) -> bool:
        """Whether the client has stopped reading.

        True when it has read nothing for at least `BLOCKED_MS` and for longer than its window steps explain.
        That time is `STEPS` steps at `sure_rate`, or one step at the rate `FLOOR`, whichever is shorter.
        While `sure_rate` is 0, it is one step at `FLOOR`.
        """
        at_floor = self.lump_bytes * 1_000 // FLOOR
        at_rate = STEPS * self.lump_bytes * 1_000 // self.sure_rate if self.sure_rate else at_floor
        return self.write_blocked_ms >= BLOCKED_MS and self.write_blocked_ms > min(at_floor, at_rate)

    @property
    def is_burst(self) -> bool:
        """Whether far more arrives than usual and than the client reads, while it reads at its usual rate."""
        return (
            self.usual_arrival_rate > 0
            and self.arrival_rate >= BURST * self.usual_arrival_rate
            and self.arrival_rate >= 2 * self.taken_rate > 0
            and 100 * self.taken_rate >= AS_BEFORE_PERCENT * self.usual_taken_rate
        )


def find_slow_cause(evidence: SlowEvidence) -> VerdictEntry:
    """Return the verdict with the figures that it is based on, by name (names include units)."""
    for applies, cause, sentence, figures in _table(evidence):
        if applies:
            found = {name: int(getattr(evidence, name)) for name in figures}
            return VerdictEntry(cause=cause.value, sentence=sentence, evidence=found)
    raise AssertionError("the table's last row always applies")


def _table(evidence: SlowEvidence) -> tuple[tuple[bool, SlowCause, str, tuple[str, ...]], ...]:
    """Return rows in order of priority; the first row that applies is the verdict.

    Each row has: whether it applies, the cause, a sentence, the names of the figures of the evidence.
    """
    stopped, unacked, silence_ms = evidence.is_stopped, evidence.unacked_messages, evidence.ack_silence_ms
    rate = f"{evidence.taken_rate:,} bytes/s"
    blocked = f"its socket has accepted no bytes for {evidence.write_blocked_ms} ms"
    return (
        (
            not evidence.unread_messages and not unacked,
            SlowCause.KEEPS_UP,
            "No messages are waiting for it.",
            ("unread_messages",),
        ),
        # Causes outside the client.
        (
            evidence.paused,
            SlowCause.PAUSED,
            "The client is paused, so the broker retains its messages. The client isn't slow.",
            ("unread_messages",),
        ),
        (
            evidence.rate_limited and not stopped,
            SlowCause.THROTTLED,
            "The client requested a rate that is lower than the rate at which its messages arrive.",
            ("unread_messages", "taken_rate", "arrival_rate"),
        ),
        (
            evidence.loop_late_ms >= BUSY_LOOP_MS and not stopped,
            SlowCause.BROKER_BUSY,
            f"The broker is busy: its event loop runs {evidence.loop_late_ms} ms late, for all clients.",
            ("loop_late_ms", "unread_messages"),
        ),
        (
            evidence.disk_ms >= BUSY_DISK_MS and (evidence.offlined or evidence.replaying) and not stopped,
            SlowCause.DISK_BUSY,
            f"The disk is busy: a read of the client's backlog lasts {evidence.disk_ms} ms.",
            ("disk_ms", "unread_messages"),
        ),
        # Causes of the client or its network, the strongest evidence first.
        (
            stopped,
            SlowCause.NOT_READING,
            f"The client doesn't read: {blocked}.",
            ("write_blocked_ms", "unread_messages", "taken_rate", "sure_rate", "lump_bytes"),
        ),
        (
            evidence.network_limited,
            SlowCause.SLOW_NETWORK,
            f"The network to the client is slow: it carries {rate}, while the client's buffer has "
            "free space.",
            ("taken_rate", "arrival_rate", "network_limited", "unread_messages"),
        ),
        (
            evidence.no_credit_ms >= SLOW_ACK_MS,
            SlowCause.APPLICATION_SLOW,
            (
                "The client's connection reads, but its application has read no message of a "
                f"subscription for {evidence.no_credit_ms} ms."
            ),
            ("no_credit_ms", "unread_messages", "taken_rate"),
        ),
        (
            unacked > 0 and silence_ms >= HANGS_MS and not evidence.window_full_ms,
            SlowCause.APPLICATION_HANGS,
            (
                f"The application hangs: its window isn't full, {unacked} messages are unacknowledged, "
                f"and it has sent no acknowledgement for {silence_ms} ms."
            ),
            ("unacked_messages", "ack_silence_ms", "window_full_ms"),
        ),
        (
            evidence.window_full_ms > 0 or (unacked > 0 and silence_ms >= SLOW_ACK_MS),
            SlowCause.SLOW_ACKS,
            f"The client reads, but acknowledges slowly: {unacked} messages are unacknowledged."
            if silence_ms < HANGS_MS
            else (
                f"The client reads, but has acknowledged nothing for {silence_ms} ms: {unacked} "
                "messages are unacknowledged."
            ),
            ("unacked_messages", "ack_silence_ms", "window_full_ms"),
        ),
        (
            evidence.replaying,
            SlowCause.REPLAYING,
            "The client is still replaying an older part of the journal, at its own speed.",
            ("unread_messages", "taken_rate"),
        ),
        (
            evidence.unread_messages > 0 and evidence.is_burst,
            SlowCause.BURST,
            f"Publishers send more than usual: {evidence.arrival_rate:,} bytes/s instead of "
            f"{evidence.usual_arrival_rate:,} bytes/s. The client reads {rate}, as before.",
            ("arrival_rate", "usual_arrival_rate", "taken_rate", "usual_taken_rate", "unread_messages"),
        ),
        (
            evidence.unread_messages > 0
            and (evidence.offlined or evidence.taken_rate < evidence.arrival_rate),
            SlowCause.READING_SLOWLY,
            (
                f"The network or the client is slow: the client reads {rate}, and "
                f"{evidence.arrival_rate:,} bytes/s arrive."
            )
            if evidence.taken_rate or evidence.write_blocked_ms < BLOCKED_MS
            else (
                f"The network is slow, or the client reads slowly or not at all: {blocked}, and "
                f"{evidence.arrival_rate:,} bytes/s arrive."
            ),
            ("taken_rate", "arrival_rate", "unread_messages", "write_blocked_ms"),
        ),
        (
            True,
            SlowCause.KEEPS_UP,
            f"No cause of slowness is known; {blocked}, which is too short for a verdict."
            if evidence.write_blocked_ms
            else "The client reads messages as fast as they arrive.",
            ("taken_rate", "arrival_rate", "unread_messages"),
        ),
    )
