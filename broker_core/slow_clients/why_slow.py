"""Why a client is slow: one verdict with its evidence. Pure.

Causes that aren't the client's come first: a client that the broker holds back must not be called slow. Then what is
wrong with the client itself, from the surest evidence to the weakest. No cause yields just "slow".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

BUSY_LOOP_MS: Final = 250
"""The broker is busy when its loop runs this late."""
BUSY_DISK_MS: Final = 200
"""The disk is busy when a write to it takes this long."""
BLOCKED_MS: Final = 1_000
SLOW_ACK_MS: Final = 1_000


class Cause(StrEnum):
    """What holds a client up."""

    KEEPS_UP = "keeps_up"
    PAUSED = "paused"
    THROTTLED = "throttled"
    REPLAYING = "replaying"
    DISK_BUSY = "disk_busy"
    BROKER_BUSY = "broker_busy"
    NOT_READING = "not_reading"
    SLOW_ACKS = "slow_acks"
    READING_SLOWLY = "reading_slowly"


class Why(NamedTuple):
    """The verdict, the sentence for people, and the figures it rests on by name (units in the names)."""

    cause: Cause
    sentence: str
    evidence: dict[str, int]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a client and of the broker at one moment."""

    waiting_messages: int = 0
    write_blocked_ms: int = 0
    window_full_ms: int = 0
    """The longest of its subscriptions' full windows."""
    unacked_messages: int = 0
    ack_silence_ms: int = 0
    paused: bool = False
    """All that waits is of paused subscriptions."""
    rate_limited: bool = False
    """All that waits is of subscriptions with a rate of their own."""
    replaying: bool = False
    offlined: bool = False
    drain_rate: int = 0
    """Bytes a second it takes."""
    arrival_rate: int = 0
    """Bytes a second that arrive for it."""
    loop_late_ms: int = 0
    """How late the broker's loop runs."""
    disk_ms: int = 0
    """How long the last write or read of the disk that it waits for took."""


def why_slow(seen: Evidence) -> Why:
    """The one verdict."""
    for applies, cause, sentence, figures in _table(seen):
        if applies:
            return Why(cause, sentence, {name: int(getattr(seen, name)) for name in figures})
    raise AssertionError("the table's last row always applies")


def _table(seen: Evidence) -> tuple[tuple[bool, Cause, str, tuple[str, ...]], ...]:
    """Read from the top; the first that applies is the verdict."""
    blocked = seen.write_blocked_ms >= BLOCKED_MS
    window_full = seen.window_full_ms > 0
    return (
        (not seen.waiting_messages and not seen.unacked_messages, Cause.KEEPS_UP, "Nothing waits for it.", ("waiting_messages",)),
        (seen.paused, Cause.PAUSED, "It is paused: what waits for it is held back here, and it isn't behind by itself.",
         ("waiting_messages",)),
        (seen.rate_limited and not blocked, Cause.THROTTLED,
         "It gets messages at the rate it asked for, which is lower than the rate at which they come.",
         ("waiting_messages", "drain_rate", "arrival_rate")),
        (seen.loop_late_ms >= BUSY_LOOP_MS and not blocked, Cause.BROKER_BUSY,
         f"The broker is busy: its loop runs {seen.loop_late_ms} ms late, for all clients.", ("loop_late_ms", "waiting_messages")),
        (seen.disk_ms >= BUSY_DISK_MS and (seen.offlined or seen.replaying) and not blocked, Cause.DISK_BUSY,
         f"The disk is busy: what it waits for is read from there, and that takes {seen.disk_ms} ms.",
         ("disk_ms", "waiting_messages")),
        (blocked, Cause.NOT_READING,
         f"It doesn't read: its connection has taken nothing for {seen.write_blocked_ms} ms.",
         ("write_blocked_ms", "waiting_messages", "drain_rate")),
        (window_full or (seen.ack_silence_ms >= SLOW_ACK_MS and seen.unacked_messages > 0), Cause.SLOW_ACKS,
         f"It reads, but acknowledges slowly: {seen.unacked_messages} messages are unacknowledged.",
         ("unacked_messages", "ack_silence_ms", "window_full_ms")),
        (seen.replaying, Cause.REPLAYING,
         "It reads an older part of the journal, at its own speed, and isn't at the newest messages yet.",
         ("waiting_messages", "drain_rate")),
        (seen.waiting_messages > 0 and (seen.offlined or seen.drain_rate < seen.arrival_rate), Cause.READING_SLOWLY,
         f"It reads {seen.drain_rate} bytes/s, and {seen.arrival_rate} bytes/s come for it.",
         ("drain_rate", "arrival_rate", "waiting_messages")),
        (True, Cause.KEEPS_UP, "It takes messages as fast as they come.", ("drain_rate", "arrival_rate", "waiting_messages")),
    )  # fmt: skip
