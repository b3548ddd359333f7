"""Why a client is slow: one verdict with its evidence. Pure.

Causes that aren't the client's come first: a client that the broker holds back must not be called slow. Then what is
wrong with the client itself, from the surest evidence to the weakest. No cause yields just "slow".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from broker_core.documents.clients import VerdictEntry

BUSY_LOOP_MS: Final = 250
"""The broker is busy when its loop runs this late."""
BUSY_DISK_MS: Final = 200
"""The disk is busy when a write to it takes this long."""
BLOCKED_MS: Final = 1_000
FLOOR: Final = 5_000
"""Bytes a second. Who takes less may as well not read: it needn't be known how long a step of its window lasts."""
STEPS: Final = 2
"""A reader that slows down a little, or whose window moves in a larger step than seen before, is silent for less than so many."""
SLOW_ACK_MS: Final = 1_000
HANGS_MS: Final = 5_000
"""An application that owes acknowledgements, has room in its window and has given none for so long hangs."""
BURST: Final = 3
"""So many times as much as usual comes."""
AS_BEFORE_PERCENT: Final = 70
"""Of what it usually takes: with less it isn't the publisher alone."""


class SlowCause(StrEnum):
    """What holds a client up."""

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
    """What is known of a client and of the broker at one moment. Rates are `Pace`'s."""

    unread_messages: int = 0
    """Waiting here, or on their way and not acknowledged by its kernel."""
    write_blocked_ms: int = 0
    window_full_ms: int = 0
    """The longest of its subscriptions' full windows."""
    no_credit_ms: int = 0
    """For how long it has given no room for more, of its subscriptions for which something waits the longest."""
    unacked_messages: int = 0
    ack_silence_ms: int = 0
    paused: bool = False
    """All that waits is of paused subscriptions."""
    rate_limited: bool = False
    """All that waits is of subscriptions with a rate of their own."""
    replaying: bool = False
    offlined: bool = False
    taken_rate: int = 0
    """Bytes a second that its peer takes, over the last minute."""
    arrival_rate: int = 0
    """Bytes a second that arrive for it, over the last seconds."""
    loop_late_ms: int = 0
    """How late the broker's loop runs."""
    disk_ms: int = 0
    """How long the last write or read of the disk that it waits for took."""
    sure_rate: int = 0
    """The part of `taken_rate` that it has surely read: of what it took a step of its window may only lie in its buffer."""
    lump_bytes: int = 0
    """The largest step in which its peer's window moves; 0: not known, or it moves smoothly."""
    network_limited: bool = False
    """The kernel's buffers are full, and the peer acknowledges steadily and little while its window is open."""
    usual_taken_rate: int = 0
    """The same as `taken_rate`, the last seconds left out; 0: not known."""
    usual_arrival_rate: int = 0
    """Bytes a second that arrive for it usually; 0: not known."""

    @property
    def is_stopped(self) -> bool:
        """It has taken nothing for a second, and for longer than the steps of its window last at the rate at which it surely
        reads; below the floor, or while that isn't known, than one of them lasts at the floor."""
        at_floor = self.lump_bytes * 1_000 // FLOOR
        at_rate = STEPS * self.lump_bytes * 1_000 // self.sure_rate if self.sure_rate else at_floor
        return self.write_blocked_ms >= BLOCKED_MS and self.write_blocked_ms > min(at_floor, at_rate)

    @property
    def is_burst(self) -> bool:
        """Far more comes than usual and than it takes, and it takes what it usually does."""
        return (
            self.usual_arrival_rate > 0
            and self.arrival_rate >= BURST * self.usual_arrival_rate
            and self.arrival_rate >= 2 * self.taken_rate > 0
            and 100 * self.taken_rate >= AS_BEFORE_PERCENT * self.usual_taken_rate
        )


def find_slow_cause(seen: SlowEvidence) -> VerdictEntry:
    """The one verdict, with the figures it rests on by name (units in the names)."""
    for applies, cause, sentence, figures in _table(seen):
        if applies:
            evidence = {name: int(getattr(seen, name)) for name in figures}
            return VerdictEntry(cause=cause.value, sentence=sentence, evidence=evidence)
    raise AssertionError("the table's last row always applies")


def _table(seen: SlowEvidence) -> tuple[tuple[bool, SlowCause, str, tuple[str, ...]], ...]:
    """Read from the top; the first that applies is the verdict."""
    stopped, unacked, silence_ms = seen.is_stopped, seen.unacked_messages, seen.ack_silence_ms
    taken = f"{seen.taken_rate:,} bytes/s"
    blocked = f"its connection has taken nothing for {seen.write_blocked_ms} ms"
    return (
        (not seen.unread_messages and not unacked, SlowCause.KEEPS_UP, "Nothing waits for it.", ("unread_messages",)),
        (seen.paused, SlowCause.PAUSED, "It is paused: what waits for it is held back here, and it isn't behind by itself.",
         ("unread_messages",)),
        (seen.rate_limited and not stopped, SlowCause.THROTTLED,
         "It gets messages at the rate it asked for, which is lower than the rate at which they come.",
         ("unread_messages", "taken_rate", "arrival_rate")),
        (seen.loop_late_ms >= BUSY_LOOP_MS and not stopped, SlowCause.BROKER_BUSY,
         f"The broker is busy: its loop runs {seen.loop_late_ms} ms late, for all clients.", ("loop_late_ms", "unread_messages")),
        (seen.disk_ms >= BUSY_DISK_MS and (seen.offlined or seen.replaying) and not stopped, SlowCause.DISK_BUSY,
         f"The disk is busy: what it waits for is read from there, and that takes {seen.disk_ms} ms.",
         ("disk_ms", "unread_messages")),
        (stopped, SlowCause.NOT_READING,
         f"It doesn't read: {blocked}.",
         ("write_blocked_ms", "unread_messages", "taken_rate", "sure_rate", "lump_bytes")),
        (seen.network_limited, SlowCause.SLOW_NETWORK,
         f"The network to it is slow: {taken} get through, with room in its own buffer.",
         ("taken_rate", "arrival_rate", "network_limited", "unread_messages")),
        (seen.no_credit_ms >= SLOW_ACK_MS, SlowCause.APPLICATION_SLOW,
         f"Its connection reads, but its application has taken nothing of a subscription for {seen.no_credit_ms} ms.",
         ("no_credit_ms", "unread_messages", "taken_rate")),
        (unacked > 0 and silence_ms >= HANGS_MS and not seen.window_full_ms, SlowCause.APPLICATION_HANGS,
         f"Its application hangs: it has room in its window, owes {unacked} acknowledgements and has given none for {silence_ms} ms.",
         ("unacked_messages", "ack_silence_ms", "window_full_ms")),
        (seen.window_full_ms > 0 or (unacked > 0 and silence_ms >= SLOW_ACK_MS), SlowCause.SLOW_ACKS,
         f"It reads, but acknowledges slowly: {unacked} messages are unacknowledged." if silence_ms < HANGS_MS else
         f"It reads, but has acknowledged nothing for {silence_ms} ms: {unacked} messages are unacknowledged.",
         ("unacked_messages", "ack_silence_ms", "window_full_ms")),
        (seen.replaying, SlowCause.REPLAYING,
         "It reads an older part of the journal, at its own speed, and isn't at the newest messages yet.",
         ("unread_messages", "taken_rate")),
        (seen.unread_messages > 0 and seen.is_burst, SlowCause.BURST,
         f"Its publishers send more than usual: {seen.arrival_rate:,} bytes/s come for it, {seen.usual_arrival_rate:,} bytes/s "
         f"usually do, and it takes {taken}, as before.",
         ("arrival_rate", "usual_arrival_rate", "taken_rate", "usual_taken_rate", "unread_messages")),
        (seen.unread_messages > 0 and (seen.offlined or seen.taken_rate < seen.arrival_rate), SlowCause.READING_SLOWLY,
         f"A slow network, or slow reading: it takes {taken}, and {seen.arrival_rate:,} bytes/s come for it."
         if seen.taken_rate or seen.write_blocked_ms < BLOCKED_MS else
         f"A slow network, slow reading, or none: {blocked}, and {seen.arrival_rate:,} bytes/s come for it.",
         ("taken_rate", "arrival_rate", "unread_messages", "write_blocked_ms")),
        (True, SlowCause.KEEPS_UP,
         f"Nothing says that it is slow; {blocked}, too short a time to tell." if seen.write_blocked_ms else
         "It takes messages as fast as they come.", ("taken_rate", "arrival_rate", "unread_messages")),
    )  # fmt: skip
