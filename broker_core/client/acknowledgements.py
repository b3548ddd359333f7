"""Acknowledgements, credit and processed records of one subscription.

`Acknowledger` numbers the received messages and sends acknowledgements, at most once per event-loop
iteration. The broker numbers a subscription's messages from 1 on each connection. Here the numbers continue
over connections, so that an acknowledgement for a message of an earlier connection is recognised and not
sent: the broker no longer knows that it sent the message, and delivers it again if it is unacknowledged.

`CreditWindow` limits the bytes that the broker may send for one subscription. Both sides count the bytes of
its deliveries, from 0 on each connection, and the client grants credit up to a count. So an application that
is slow with one subscription delays that subscription only: the client always reads the connection.

`CompletionTracker` determines the most recent bookmark of an application that processes records out of order.
That is the last record up to which all records are processed. A restart from it misses nothing, and delivers
again only the records that were processed out of order.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from broker_core.batch import EXPLICIT_SEQUENCES, Batch
from broker_core.protocols import commands


class Acknowledger:
    """Acknowledgements of one subscription."""

    def __init__(
        self, id: str, mode: commands.AckWord, send: Callable[[commands.Acknowledge], object]
    ) -> None:
        """Create the acknowledger of one subscription.

        Args:
            id: Id of the subscription.
            mode: `auto`, `client` or `client-individual`.
            send: Sends a command, or drops it while there is no connection.
        """
        self.mode = mode
        self._id = id
        self._send = send
        self._received = 0
        self._received_before = 0
        """Number of messages that were counted before this connection."""
        self._acknowledged = 0
        self._numbers: list[int] = []
        self._is_flush_due = False

    def on_delivery(self, count: int) -> int:
        """Count received messages. Returns the number of the first one."""
        first = self._received + 1
        self._received += count
        return first

    def on_connected(self) -> None:
        """Start a new connection, on which the broker numbers messages from 1 again."""
        self._received_before, self._acknowledged = self._received, 0
        self._numbers.clear()

    def acknowledge(self, first: int, last: int) -> None:
        """Acknowledge the messages numbered `first` to `last`.

        They are sent at the end of the event-loop iteration.

        Unless the mode is `client-individual`, all earlier messages are acknowledged too. Messages of an
        earlier connection are ignored.
        """
        first, last = max(first - self._received_before, 1), last - self._received_before
        if last < 1:
            return
        if self.mode == "client-individual":
            self._numbers += range(first, last + 1)
        self._acknowledged = max(self._acknowledged, last)
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send pending acknowledgements now.

        Called at the end of the event-loop iteration, and before the subscription ends.
        """
        if not self._is_flush_due:
            return
        self._is_flush_due = False
        if self.mode != "client-individual":
            if self._acknowledged:
                self._send(commands.Acknowledge(id=self._id, upto=self._acknowledged))
            return
        ranges = _to_ranges(sorted(set(self._numbers)))
        self._numbers.clear()
        for at in range(0, len(ranges), commands.MAX_ACK_RANGES):
            numbers = ranges[at : at + commands.MAX_ACK_RANGES]
            self._send(commands.Acknowledge(id=self._id, numbers=numbers))


def _to_ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers, as pairs of first and last."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


GRANT_STEPS: Final = 4
"""Number of steps in which the credit of a window is granted.

A grant per batch would cost more than the batch.
"""
STARVED_BYTES: Final = 32 * 1024
"""Bytes of free buffer after which credit is granted while the broker has none left."""


class CreditWindow:
    """Credit of one subscription: limits the bytes that wait for the application.

    The broker may exceed the limit by one delivery, because a delivery of any size may follow while credit is
    left.
    """

    def __init__(self, id: str, max_bytes: int, send: Callable[[commands.GrantCredit], object]) -> None:
        """Create the credit window of one subscription.

        Args:
            id: Id of the subscription.
            max_bytes: Maximum bytes that wait for the application.
            send: Sends a command, or drops it while there is no connection.
        """
        self._id = id
        self._max_bytes = max_bytes
        self._send = send
        self.unread_bytes = 0
        """Bytes that wait for the application."""
        self._received = 0
        """Bytes that were received on this connection."""
        self._granted = 0
        self._is_subscribed = False

    def initial_credit(self) -> int:
        """Reset the window for a new subscribe command. Returns the initial credit in bytes."""
        self._received, self._granted = 0, max(self._max_bytes - self.unread_bytes, 0)
        self._is_subscribed = False
        return self._granted

    def on_subscribed(self) -> None:
        """Record that the broker accepted the subscription, and grant credit."""
        self._is_subscribed = True
        self._grant_credit()

    def on_unsubscribed(self) -> None:
        """Record that no more deliveries are expected."""
        self._is_subscribed = False

    def on_delivery(self, nbytes: int) -> bool:
        """Count a delivery. Returns whether the broker had credit left when it sent the delivery."""
        had_credit = self._received < self._granted
        self._received += nbytes
        self.unread_bytes += nbytes
        return had_credit

    def on_consumed(self, nbytes: int) -> None:
        """Record that the application took `nbytes`, and grant credit."""
        self.unread_bytes -= nbytes
        self._grant_credit()

    def _grant_credit(self) -> None:
        """Send a grant if the credit grew by at least one step."""
        limit = self._received + self._max_bytes - self.unread_bytes
        step = max(self._max_bytes // GRANT_STEPS, 1)
        if self._received >= self._granted:
            step = min(step, STARVED_BYTES)
        if self._is_subscribed and limit - self._granted >= step:
            self._granted = limit
            self._send(commands.GrantCredit(id=self._id, upto=limit))


MAX_UNPROCESSED_BATCHES = 100_000
"""Maximum number of delivered, unprocessed batches of a subscription."""
_MAX_PROCESSED_BATCHES = 1_024


class _DeliveredBatch:
    """Records of one delivered batch, with those that are processed.

    `processed_from_start` is the number of records at the start of the batch that are all processed.
    `processed` marks processed records one by one; it is None while they were processed in order.
    """

    __slots__ = ("processed", "processed_from_start", "sequences")

    def __init__(self, sequences: Sequence[int]) -> None:
        self.sequences = sequences
        self.processed: bytearray | None = None
        self.processed_from_start = 0

    def mark_record_done(self, sequence: int) -> None:
        """Mark one record as processed. Ignores sequences that are not in the batch."""
        at = bisect_left(self.sequences, sequence)
        if at == len(self.sequences) or self.sequences[at] != sequence:
            return
        if at == self.processed_from_start and self.processed is None:
            self.processed_from_start += 1
            return
        if self.processed is None:
            self.processed = bytearray(len(self.sequences))
            self.processed[: self.processed_from_start] = b"\1" * self.processed_from_start
        self.processed[at] = 1
        end = self.processed.find(0, self.processed_from_start)
        self.processed_from_start = len(self.processed) if end < 0 else end


class CompletionTracker:
    """Delivered but unprocessed records of one subscription from one instance.

    `most_recent` is the last sequence up to which all delivered records are processed.
    """

    __slots__ = ("_delivered", "_first_unprocessed", "_firsts", "most_recent")

    def __init__(self) -> None:
        self.most_recent = 0
        self._delivered: list[_DeliveredBatch] = []
        self._firsts: list[int] = []
        self._first_unprocessed = 0

    @property
    def pending_batches(self) -> int:
        """Number of delivered batches that are not completely processed, or follow one that is not."""
        return len(self._delivered) - self._first_unprocessed

    def add(self, batch: Batch) -> None:
        """Add a delivered batch. Costs one small object per batch and none per record."""
        first = batch.first_sequence
        explicit = batch.flags & EXPLICIT_SEQUENCES
        self._delivered.append(
            _DeliveredBatch(batch.sequences().tolist() if explicit else range(first, first + batch.count))
        )
        self._firsts.append(first)

    def advance_to(self, sequence: int) -> bool:
        """Record that no more records up to `sequence` will be delivered.

        Returns True if the most recent bookmark moved there, because all delivered records were processed.
        """
        if self._first_unprocessed == len(self._delivered):
            before, self.most_recent = self.most_recent, max(self.most_recent, sequence)
            return self.most_recent > before
        if sequence > self._delivered[-1].sequences[-1]:
            # Add the sequence as a processed record: the bookmark moves to it after all earlier records are
            # processed.
            marker = _DeliveredBatch(range(sequence, sequence + 1))
            marker.processed_from_start = 1
            if (
                self._delivered[-1].processed_from_start == 1 == len(self._delivered[-1].sequences)
                and self._first_unprocessed < len(self._delivered) - 1
            ):
                self._delivered[-1], self._firsts[-1] = marker, sequence
            else:
                self._delivered.append(marker)
                self._firsts.append(sequence)
        return False

    def mark_record_done(self, sequence: int) -> bool:
        """Mark one record as processed. Returns whether the most recent bookmark moved."""
        if entry := self._find(sequence):
            entry.mark_record_done(sequence)
        return self._advance()

    def mark_batch_done(self, batch: Batch) -> bool:
        """Mark all records of a delivered batch as processed.

        Returns whether the most recent bookmark moved.
        """
        if entry := self._find(batch.first_sequence):
            entry.processed_from_start = len(entry.sequences)
        return self._advance()

    def _find(self, sequence: int) -> _DeliveredBatch | None:
        at = bisect_right(self._firsts, sequence, self._first_unprocessed) - 1
        return self._delivered[at] if at >= self._first_unprocessed else None

    def _advance(self) -> bool:
        before = self.most_recent
        while self._first_unprocessed < len(self._delivered):
            entry = self._delivered[self._first_unprocessed]
            if entry.processed_from_start:
                self.most_recent = max(self.most_recent, entry.sequences[entry.processed_from_start - 1])
            if entry.processed_from_start < len(entry.sequences):
                break
            self._first_unprocessed += 1
        if self._first_unprocessed >= _MAX_PROCESSED_BATCHES:
            del self._delivered[: self._first_unprocessed], self._firsts[: self._first_unprocessed]
            self._first_unprocessed = 0
        return self.most_recent > before
