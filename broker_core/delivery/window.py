"""The acknowledgement window of one subscription: how many messages may be on their way without an acknowledgement.

Messages of a subscription are numbered from 1 in the order they are sent on a connection; both sides count, so that
a message needs no field for it, and messages that no journal keeps can be acknowledged too. A bookmark is accepted
in place of a number for records of the journal.

The unit is the batch: the window holds one span for each batch that was sent, and single messages are remembered
only where they were acknowledged out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from broker_core.batch import EXPLICIT_SEQUENCES, Batch
from broker_core.delivery.account import NOTHING, MessageVolume
from broker_core.errors import ClientError

DEFAULT_PREFETCH: Final = 1_000


class AckMode(StrEnum):
    """How a subscriber acknowledges; the words are those of seed 003's broker."""

    AUTO = "auto"
    """The client's library does, when the application has taken the message. Counts as `client` here."""
    CLIENT = "client"
    """The application does; a message stands for everything before it."""
    INDIVIDUAL = "client-individual"
    """The application does; a message stands for itself."""


@dataclass(slots=True)
class _SentBatch:
    """One batch that was sent: its numbers, its records' sequences, and when it was sent (ns)."""

    first: int
    last: int
    first_sequence: int
    listed: npt.NDArray[np.uint64] | None
    sizes: npt.NDArray[np.uint32]
    """Bytes of each body."""
    at: int
    accepted_at: int
    """From when its age counts, ns."""

    def sequence(self, number: int) -> int:
        if self.first_sequence == 0:
            return 0
        place = number - self.first
        return int(self.listed[place]) if self.listed is not None else self.first_sequence + place


class AckResult(NamedTuple):
    """What one acknowledgement was for: records that the log keeps, and others."""

    journaled: MessageVolume = NOTHING
    unjournaled: MessageVolume = NOTHING

    @property
    def messages(self) -> int:
        """How many that were; 0 when all had been acknowledged."""
        return self.journaled.messages + self.unjournaled.messages


class AckWindow:
    """What was sent and isn't acknowledged. `sent` never goes over `prefetch`: the caller asks `room` before."""

    __slots__ = ("_early", "_head", "_last_acked", "_sent", "_spans", "mode", "owed_since", "prefetch")

    def __init__(self, mode: AckMode, prefetch: int = DEFAULT_PREFETCH) -> None:
        self.mode = mode
        self.prefetch = prefetch
        self._spans: deque[_SentBatch] = deque()
        self._head = 1
        """Number of the first message that isn't acknowledged."""
        self._sent = 0
        self._early: set[int] = set()
        """Messages behind the head that were acknowledged."""
        self._last_acked = 0
        self.owed_since = 0
        """When something was owed again after nothing was, ns."""

    @property
    def unacked_messages(self) -> int:
        """Messages on their way."""
        return self._sent - self._head + 1 - len(self._early)

    @property
    def free_slots(self) -> int:
        """How many more may be sent."""
        return self.prefetch - self.unacked_messages

    @property
    def oldest_at(self) -> int:
        """When the oldest of them was sent, ns; 0 when there is none."""
        return self._spans[0].at if self._spans else 0

    @property
    def oldest_accepted_at(self) -> int:
        """From when its age counts, ns; 0 when there is none."""
        return self._spans[0].accepted_at if self._spans else 0

    @property
    def first_unacked(self) -> int:
        """Sequence of the first record of the log that isn't acknowledged; 0 when there is none."""
        for span in self._spans:
            if span.first_sequence:
                return span.sequence(max(self._head, span.first))
        return 0

    @property
    def last_acked(self) -> int:
        """Sequence up to which every record sent is acknowledged; 0 when there is none."""
        return self._last_acked

    @property
    def last_sent(self) -> int:
        """Sequence of the last record of the log that was sent and isn't acknowledged, give or take those behind it that are; 0
        when there is none."""
        return next((span.sequence(span.last) for span in reversed(self._spans) if span.first_sequence), 0)

    def record_sent(self, batch: Batch, now_ns: int, accepted_at: int = 0) -> None:
        """A batch is on its way. `accepted_at`: from when its age counts, ns; left out, from now."""
        if not self.unacked_messages:
            self.owed_since = now_ns
        first, self._sent = self._sent + 1, self._sent + batch.count
        explicit = batch.flags & EXPLICIT_SEQUENCES
        # Copied: the array of the batch would keep all its bytes in memory until it is acknowledged.
        listed = batch.sequences().copy() if explicit and batch.first_sequence else None
        sizes = batch.rows["body"].copy()
        self._spans.append(
            _SentBatch(first, self._sent, batch.first_sequence, listed, sizes, now_ns, accepted_at or now_ns)
        )

    def undo_sent(self, batches: Sequence[Batch]) -> None:
        """The last batches didn't leave after all; they will be sent again, with the same numbers."""
        for batch in batches:
            span = self._spans.pop()
            assert span.last - span.first + 1 == batch.count
            self._sent -= batch.count

    def acknowledge(self, first: int, last: int) -> AckResult:
        """Acknowledge messages by number: `client-individual` just those, else everything up to `last`.

        Returns what is acknowledged by this, and wasn't before. ClientError bad_ack for what wasn't sent.
        """
        self.check(first, last, self._sent)
        if self.mode is AckMode.INDIVIDUAL and first > self._head:
            done = self._amount(first, last)
            self._early.update(range(first, last + 1))
        elif last >= self._head:
            done = self._amount(self._head, last)
            self._early.difference_update(range(self._head, last + 1))
            self._move(last + 1)
        else:
            return AckResult()
        self._pass_early()
        return done

    @staticmethod
    def check(first: int, last: int, sent: int) -> None:
        """ClientError bad_ack when messages by these numbers can't have been received."""
        if not 1 <= first <= last <= sent:
            raise ClientError(
                "bad_ack",
                f"Messages {first} to {last} can't be acknowledged: {sent} were sent.",
                "Count the messages of the subscription from 1, or give the bookmark of one.",
                sent=sent,
            )

    def _amount(self, first: int, last: int) -> AckResult:
        """What of these numbers wasn't acknowledged before, by whether the log keeps it."""
        journaled = unjournaled = NOTHING
        early = sorted(number for number in self._early if first <= number <= last)
        for span in self._spans:
            if span.first > last:
                break
            low, high = max(first, span.first), min(last, span.last)
            if low > high:
                continue
            known = [number - span.first for number in early if low <= number <= high]
            sizes = span.sizes[low - span.first : high - span.first + 1]
            nbytes = int(sizes.sum(dtype=np.uint64)) - (
                int(span.sizes[known].sum(dtype=np.uint64)) if known else 0
            )
            amount = MessageVolume(high - low + 1 - len(known), nbytes)
            if span.first_sequence:
                journaled = journaled.plus(amount)
            else:
                unjournaled = unjournaled.plus(amount)
        return AckResult(journaled, unjournaled)

    def sequence_of(self, number: int) -> int:
        """The sequence of the message of that number; 0 when no log keeps it, or it was acknowledged."""
        return next((span.sequence(number) for span in self._spans if span.first <= number <= span.last), 0)

    def sequences(self, first: int, last: int) -> list[int]:
        """The sequences of those messages of the log that `acknowledge` would acknowledge by these numbers."""
        if self.mode is not AckMode.INDIVIDUAL or first <= self._head:
            first = self._head
        return [
            span.sequence(number)
            for span in self._spans
            if span.first_sequence and span.first <= last and span.last >= first
            for number in range(max(first, span.first), min(last, span.last) + 1)
            if number not in self._early
        ]

    def number_of(self, sequence: int) -> int:
        """The number of the message with that sequence; 0 when it was acknowledged before. ClientError bad_ack."""
        if sequence <= self._last_acked:
            return 0
        for span in self._spans:
            for number in _candidates(span, sequence):
                if span.sequence(number) == sequence:
                    return number
        raise ClientError(
            "bad_ack",
            f"Record {sequence} isn't waiting for an acknowledgement.",
            "Acknowledge what the subscription has delivered.",
        )

    def _move(self, head: int) -> None:
        """Everything before `head` is acknowledged."""
        while self._spans and self._spans[0].first < head:
            span = self._spans[0]
            self._last_acked = max(self._last_acked, span.sequence(min(head - 1, span.last)))
            if span.last >= head:
                break
            self._spans.popleft()
        self._head = head

    def _pass_early(self) -> None:
        head = self._head
        while head in self._early:
            self._early.discard(head)
            head += 1
        if head != self._head:
            self._move(head)


def _candidates(span: _SentBatch, sequence: int) -> Sequence[int]:
    """The one number of a span that may have the sequence, if any."""
    if span.first_sequence == 0 or sequence < span.first_sequence:
        return ()
    if span.listed is not None:
        place = int(np.searchsorted(span.listed, np.uint64(sequence)))
    else:
        place = sequence - span.first_sequence
    number = span.first + place
    return (number,) if number <= span.last else ()
