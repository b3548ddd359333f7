"""Acknowledgement window of one subscription: how many messages may be in flight without an acknowledgement.

Messages of a subscription are numbered from 1 in the order in which they are sent on a connection. Both sides
count, so a message needs no field for its number, and unjournaled messages can be acknowledged too. For
records of the journal a bookmark is accepted in place of a number.

The unit is the batch. The window holds one span for each batch in flight, and remembers single messages only
where they were acknowledged out of order.
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
"""Default maximum number of unacknowledged messages."""


class AckMode(StrEnum):
    """Acknowledgement mode of a subscriber. The values are the terms of seed 003's broker."""

    AUTO = "auto"
    """The client library acknowledges when the application has consumed the message.

    The broker treats it like `client`.
    """
    CLIENT = "client"
    """The application acknowledges; one message stands for everything before it."""
    INDIVIDUAL = "client-individual"
    """The application acknowledges each message separately."""


@dataclass(slots=True)
class _SentBatch:
    """Batch in flight: its message numbers, its records' sequences, and when it was sent (ns)."""

    first: int
    last: int
    first_sequence: int
    listed: npt.NDArray[np.uint64] | None
    sizes: npt.NDArray[np.uint32]
    """Bytes of each body."""
    at: int
    accepted_at: int
    """Time from which its age counts, ns."""

    def sequence(self, number: int) -> int:
        """Return the sequence of a message number of this batch; 0 when the batch is unjournaled."""
        if self.first_sequence == 0:
            return 0
        index = number - self.first
        return int(self.listed[index]) if self.listed is not None else self.first_sequence + index


class AckResult(NamedTuple):
    """Messages that one acknowledgement newly acknowledged, split into journaled and unjournaled ones."""

    journaled: MessageVolume = NOTHING
    unjournaled: MessageVolume = NOTHING

    @property
    def messages(self) -> int:
        """Number of newly acknowledged messages; 0 when all had been acknowledged before."""
        return self.journaled.messages + self.unjournaled.messages


class AckWindow:
    """Messages in flight of one subscription.

    They never exceed `prefetch`: the caller checks `free_slots` before it sends.
    """

    __slots__ = (
        "_acked_early",
        "_head",
        "_last_acked",
        "_sent",
        "_spans",
        "mode",
        "prefetch",
        "unacked_since",
    )

    def __init__(self, mode: AckMode, prefetch: int = DEFAULT_PREFETCH) -> None:
        self.mode = mode
        self.prefetch = prefetch
        self._spans: deque[_SentBatch] = deque()
        self._head = 1
        """Number of the first message that isn't acknowledged."""
        self._sent = 0
        self._acked_early: set[int] = set()
        """Numbers behind the head that are acknowledged."""
        self._last_acked = 0
        self.unacked_since = 0
        """Time at which the window last changed from empty to non-empty, ns."""

    @property
    def unacked_messages(self) -> int:
        """Number of messages in flight."""
        return self._sent - self._head + 1 - len(self._acked_early)

    @property
    def free_slots(self) -> int:
        """Number of messages that may be sent now."""
        return self.prefetch - self.unacked_messages

    @property
    def oldest_at(self) -> int:
        """Time at which the oldest message in flight was sent, ns; 0 when there is none."""
        return self._spans[0].at if self._spans else 0

    @property
    def oldest_accepted_at(self) -> int:
        """Time from which the age of the oldest message in flight counts, ns; 0 when there is none."""
        return self._spans[0].accepted_at if self._spans else 0

    @property
    def first_unacked(self) -> int:
        """Sequence of the first journaled record that isn't acknowledged; 0 when there is none."""
        for span in self._spans:
            if span.first_sequence:
                return span.sequence(max(self._head, span.first))
        return 0

    @property
    def last_acked(self) -> int:
        """Sequence up to which every sent record is acknowledged; 0 when there is none."""
        return self._last_acked

    @property
    def last_sent(self) -> int:
        """Sequence of the last record of the newest journaled batch in flight; 0 when there is none.

        Single records at the end of that batch may already be acknowledged.
        """
        return next((span.sequence(span.last) for span in reversed(self._spans) if span.first_sequence), 0)

    def record_sent(self, batch: Batch, now_ns: int, accepted_at: int = 0) -> None:
        """Add a sent batch to the window.

        `accepted_at` (ns): the time from which its age counts; 0: `now_ns`.
        """
        if not self.unacked_messages:
            self.unacked_since = now_ns
        first, self._sent = self._sent + 1, self._sent + batch.count
        explicit = batch.flags & EXPLICIT_SEQUENCES
        # Copied, because a view would keep all bytes of the batch in memory until it is acknowledged.
        listed = batch.sequences().copy() if explicit and batch.first_sequence else None
        sizes = batch.rows["body"].copy()
        self._spans.append(
            _SentBatch(first, self._sent, batch.first_sequence, listed, sizes, now_ns, accepted_at or now_ns)
        )

    def undo_sent(self, batches: Sequence[Batch]) -> None:
        """Remove the batches sent last, because they were not sent after all.

        They will be sent again with the same numbers.
        """
        for batch in batches:
            span = self._spans.pop()
            assert span.last - span.first + 1 == batch.count
            self._sent -= batch.count

    def acknowledge(self, first: int, last: int) -> AckResult:
        """Acknowledge messages; in `client-individual` mode `first` to `last`, else everything up to `last`.

        Return the messages that weren't acknowledged before.

        Raises:
            ClientError: bad_ack, if the messages weren't sent.
        """
        self.check(first, last, self._sent)
        if self.mode is AckMode.INDIVIDUAL and first > self._head:
            done = self._unacked_volume(first, last)
            self._acked_early.update(range(first, last + 1))
        elif last >= self._head:
            done = self._unacked_volume(self._head, last)
            self._acked_early.difference_update(range(self._head, last + 1))
            self._move_head(last + 1)
        else:
            return AckResult()
        self._skip_acked_early()
        return done

    @staticmethod
    def check(first: int, last: int, sent: int) -> None:
        """Check that messages with these numbers were sent.

        Raises:
            ClientError: bad_ack, if they weren't.
        """
        if not 1 <= first <= last <= sent:
            raise ClientError(
                "bad_ack",
                f"Messages {first} to {last} can't be acknowledged: {sent} were sent.",
                "Count the messages of the subscription from 1, or give the bookmark of one.",
                sent=sent,
            )

    def _unacked_volume(self, first: int, last: int) -> AckResult:
        """Return the volume of the unacknowledged messages with these numbers, journaled and unjournaled."""
        journaled = unjournaled = NOTHING
        early = sorted(number for number in self._acked_early if first <= number <= last)
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
        """Return the sequence of the message with a number; 0 when it is unjournaled or was acknowledged."""
        return next((span.sequence(number) for span in self._spans if span.first <= number <= span.last), 0)

    def sequences(self, first: int, last: int) -> list[int]:
        """Return the sequences of the journaled messages that `acknowledge` would newly acknowledge."""
        if self.mode is not AckMode.INDIVIDUAL or first <= self._head:
            first = self._head
        return [
            span.sequence(number)
            for span in self._spans
            if span.first_sequence and span.first <= last and span.last >= first
            for number in range(max(first, span.first), min(last, span.last) + 1)
            if number not in self._acked_early
        ]

    def number_of(self, sequence: int) -> int:
        """Return the number of the message with that sequence; 0 when it was acknowledged before.

        A redelivered record may be in flight behind newer ones, so the window is searched first.

        Raises:
            ClientError: bad_ack, if the record isn't in flight.
        """
        for span in self._spans:
            for number in _candidates(span, sequence):
                if span.sequence(number) == sequence:
                    return number if number >= self._head else 0
        if sequence <= self._last_acked:
            return 0
        raise ClientError(
            "bad_ack",
            f"Record {sequence} isn't waiting for an acknowledgement.",
            "Acknowledge the delivered messages.",
        )

    def _move_head(self, head: int) -> None:
        """Acknowledge everything before `head`."""
        while self._spans and self._spans[0].first < head:
            span = self._spans[0]
            self._last_acked = max(self._last_acked, span.sequence(min(head - 1, span.last)))
            if span.last >= head:
                break
            self._spans.popleft()
        self._head = head

    def _skip_acked_early(self) -> None:
        """Move the head past messages that were acknowledged out of order."""
        head = self._head
        while head in self._acked_early:
            self._acked_early.discard(head)
            head += 1
        if head != self._head:
            self._move_head(head)


def _candidates(span: _SentBatch, sequence: int) -> Sequence[int]:
    """Return the number of a span's message that may have the sequence, as a sequence of at most one item."""
    if span.first_sequence == 0 or sequence < span.first_sequence:
        return ()
    if span.listed is not None:
        index = int(np.searchsorted(span.listed, np.uint64(sequence)))
    else:
        index = sequence - span.first_sequence
    number = span.first + index
    return (number,) if number <= span.last else ()
