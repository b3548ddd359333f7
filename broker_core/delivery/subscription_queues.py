"""Queues of subscriptions that can't share their client's outbox.

A subscription gets a queue when it has an acknowledgement window or credit, when a policy pauses it, or when
a policy discards or conflates its backlog. Its deliveries wait here, in order. They move to the outbox as far
as window, credit and socket allow. So a subscription whose application reads nothing doesn't block the other
subscriptions of its client.

`SubscriptionQueues` has the queues of one client by stream number. `EarliestHeap` finds the earliest of many
times. `ShadowConflation` simulates conflations that a rule decides in shadow mode; it never changes the
queue. It stores only hashes of message keys, eight bytes each, so that it keeps no message in memory.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace
from operator import is_not
from typing import NamedTuple

import numpy as np

from broker_core.batch import CONFLATION_OVER
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.window import AckWindow

_MAX_OUTDATED = 64
"""Number of outdated entries that the heap may always have."""


class EarliestHeap:
    """Earliest time over many streams, for times that change often and are read seldom.

    Each stream has one time or none.

    The heap stores old times. A time that becomes later or is removed needs no call: it is corrected when it
    reaches the top.
    """

    __slots__ = ("_heap", "_read", "_streams")

    def __init__(self, read: Callable[[int], int]) -> None:
        """Create an empty heap.

        `read` returns a stream's current time, ns; 0: none.
        """
        self._read = read
        self._heap: list[tuple[int, int]] = []
        self._streams: set[int] = set()

    def add(self, stream: int, *, earlier: bool = False) -> None:
        """Add a stream that may have a time now. `earlier`: its time may have become earlier."""
        if earlier or stream not in self._streams:
            self._streams.add(stream)
            heappush(self._heap, (self._read(stream), stream))

    def earliest_ns(self) -> int:
        """Return the earliest time, ns; 0: no stream has one."""
        heap, read = self._heap, self._read
        if len(heap) > 2 * len(self._streams) + _MAX_OUTDATED:
            heap[:] = [(read(stream), stream) for stream in self._streams]
            heapify(heap)
        while heap:
            at, stream = heap[0]
            now = read(stream)
            if now and now == at:
                return now
            if now:
                heapreplace(heap, (now, stream))
            else:
                heappop(heap)
                self._streams.discard(stream)
        return 0


class ShadowConflation(NamedTuple):
    """Simulated content of a queue after the shadow conflations of one rule."""

    keys: array[int] = array("q")
    """Hashes of the keys of the remaining messages, in order."""
    queued_in_total: int = 0
    """Number of messages ever queued when this was computed. Later messages are behind these."""
    removed: int = 0
    """Number of messages that are in the real queue and not in this one."""

    def conflate(self, newer: array[int], queued_in_total: int, waits: int, cut: int) -> ShadowConflation:
        """Return the simulation after one more conflation.

        Args:
            newer: key hashes of the messages that were queued since.
            queued_in_total: number of messages ever queued.
            waits: number of messages in the real queue.
            removed: at most this many messages count as removed by earlier conflations.
        """
        cut = min(cut, self.removed, waits)
        # Messages sent since would have been sent here too; they are the oldest here.
        keys = (self.keys + newer)[-(waits - cut) :] if waits > cut else array("q")
        latest_keys = array("q", reversed(dict.fromkeys(reversed(keys))))
        return ShadowConflation(latest_keys, queued_in_total, cut + len(keys) - len(latest_keys))


class QueueTotals:
    """Messages and bytes in all queues of a client."""

    __slots__ = ("messages", "nbytes")

    def __init__(self) -> None:
        self.messages = self.nbytes = 0


class SubscriptionQueue:
    """Queued deliveries of one subscription, with its window, credit and pause.

    `window` None: no acknowledgements.
    """

    __slots__ = (
        "_entries",
        "_removed_records",
        "_reported_full",
        "_was_conflated",
        "client_totals",
        "credit",
        "full_since",
        "is_conflating",
        "is_watched",
        "messages",
        "nbytes",
        "paused",
        "pauses",
        "queued_in_total",
        "sent_bytes",
        "shadow_conflations",
        "spent_since",
        "stream",
        "times_full",
        "window",
    )

    def __init__(self, stream: int, window: AckWindow | None = None) -> None:
        self.stream = stream
        self.window = window
        self.is_watched = window is not None
        """Whether a window or a rule needs to know about each delivery."""
        self.paused = False
        self.pauses = 0
        """Number of pauses so far. The end of a pause compares it to detect a newer pause."""
        self.is_conflating = False
        """Whether the reader thread is conflating the entries. Nothing may be sent meanwhile."""
        self.credit: int | None = None
        """Total bytes that may be sent; None: the client grants no credit.

        The last delivery may exceed it.
        """
        self.sent_bytes = 0
        self.spent_since = 0
        """Time since which the credit is used up, ns; 0 while there is some."""
        self.messages = 0
        self.nbytes = 0
        self.client_totals = QueueTotals()
        """Totals over all queues of the client, once this queue is one of them."""
        self.queued_in_total = 0
        """Number of messages ever queued here."""
        self.shadow_conflations: dict[str, ShadowConflation] = {}
        """Simulated content of this queue for each rule in shadow mode, by rule name."""
        self.full_since = 0
        """Time since which the window is full although deliveries wait, ns; 0 while it isn't (seed 003).

        The deliveries may be here or on disk.
        """
        self.times_full = self._reported_full = 0
        self._entries: deque[OutboxEntry] = deque()
        self._removed_records = 0
        """Number of records of the first entry that were already removed."""
        self._was_conflated = False
        """Whether the delivery removed last was the result of a conflated backlog."""

    @property
    def is_window_full(self) -> bool:
        """Whether the window allows no more messages."""
        return self.window is not None and self.window.free_slots <= 0

    @property
    def is_credit_spent(self) -> bool:
        """Whether the client's credit allows no more bytes."""
        return self.credit is not None and self.sent_bytes >= self.credit

    @property
    def is_blocked(self) -> bool:
        """Whether nothing may be sent, whatever is queued."""
        return self.paused or self.is_conflating or self.is_window_full or self.is_credit_spent

    def set_credit(self, total_bytes: int, now_ns: int) -> None:
        """Raise the total bytes that may be sent to `total_bytes`.

        A lower value is ignored: bytes promised earlier may be in flight.
        """
        self.credit = max(self.credit or 0, total_bytes)
        self._update_spent_since(now_ns)

    def _update_spent_since(self, now_ns: int) -> None:
        """Update `spent_since` after a change of credit or sent bytes."""
        self.spent_since = (self.spent_since or now_ns) if self.is_credit_spent else 0

    @property
    def oldest_at(self) -> int:
        """Time from which the age of the first entry counts, ns; 0 when the queue is empty."""
        return self._entries[0].accepted_at if self._entries else 0

    @property
    def first_sequence(self) -> int:
        """Sequence of the first queued journaled record; 0 when there is none."""
        for entry in self._entries:
            if entry.batch.first_sequence:
                return int(entry.batch.sequences()[self._removed_records if entry is self._entries[0] else 0])
        return 0

    def can_bypass(self, entry: OutboxEntry, now_ns: int) -> bool:
        """Return whether a delivery can skip the queue; if so, charge it to the credit.

        It can if the queue is empty and not blocked, and no window or rule watches it.
        """
        if self.is_watched or self._entries or self._was_conflated or self.is_blocked:
            return False
        self._was_conflated = entry.conflated
        self.sent_bytes += entry.nbytes
        if self.credit is not None and self.sent_bytes >= self.credit:
            self.spent_since = now_ns
        return True

    def offer(self, entry: OutboxEntry) -> None:
        """Queue one delivery behind the others."""
        self.queued_in_total += entry.count
        self._queue(entry)

    def _queue(self, entry: OutboxEntry) -> None:
        self._entries.append(entry)
        self._add_counts(entry.count, entry.nbytes)

    def _add_counts(self, messages: int, nbytes: int) -> None:
        """Add to the queued messages and bytes; negative to subtract."""
        total = self.client_totals
        self.messages += messages
        self.nbytes += nbytes
        total.messages += messages
        total.nbytes += nbytes

    def take_sendable(self, max_bytes: int, now_ns: int) -> list[OutboxEntry]:
        """Remove and return the deliveries that may move to the outbox now; [] if there are none.

        The last batch is cut where the window ends. At most about `max_bytes` are returned, but always one
        entry.
        """
        if self.paused or self.is_conflating or not self._entries:
            return []
        sendable: list[OutboxEntry] = []
        size = 0
        while self._entries and size < max_bytes and not self.is_credit_spent:
            free_slots = self.window.free_slots if self.window is not None else self.messages
            if free_slots <= 0:
                break
            entry = self._pop(free_slots)
            if self._was_conflated and not entry.conflated:
                entry = entry.with_conflation_mark(CONFLATION_OVER)
            self._was_conflated = entry.conflated
            if self.window is not None:
                self.window.record_sent(entry.batch, now_ns, entry.accepted_at)
            sendable.append(entry)
            size += entry.nbytes
            self.sent_bytes += entry.nbytes
        self._update_spent_since(now_ns)
        self._update_full_since(bool(sendable), now_ns)
        return sendable

    def update_window_full(self, now_ns: int, more: bool = False) -> bool:
        """Update `full_since` and return whether the window has become full since the last call.

        `more`: deliveries of this subscription wait on disk.
        """
        self._update_full_since(False, now_ns, more)
        became, self._reported_full = self.times_full > self._reported_full, self.times_full
        return became

    def _update_full_since(self, moving: bool, now_ns: int, more: bool = False) -> None:
        """Update `full_since` and `times_full`. `moving`: messages were just sent."""
        full = (more or bool(self._entries)) and self.is_window_full
        if moving or not full:
            self.full_since = 0
        if full and self.full_since == 0:
            self.full_since = now_ns
            self.times_full += 1

    def _pop(self, max_records: int) -> OutboxEntry:
        """Remove and return the first entry, or the next `max_records` records of a longer one.

        The remaining records aren't made into a batch of their own each time. With a window of 1 that would
        copy a batch of a thousand records a thousand times. Its bytes count until its last record is removed.
        """
        entry, at = self._entries[0], self._removed_records
        self._removed_records = at + max_records if entry.count - at > max_records else 0
        removed_bytes = 0
        if self._removed_records == 0:
            self._entries.popleft()
            removed_bytes = entry.nbytes
        if at or self._removed_records:
            entry = slice_entry(entry, at, self._removed_records or entry.count)
        self._add_counts(-entry.count, -removed_bytes)
        return entry

    def take_all(self) -> list[OutboxEntry]:
        """Remove and return all entries in order, for the spool or to discard them."""
        entries = list(self._entries)
        if self._removed_records:
            entries[0] = slice_entry(entries[0], self._removed_records, entries[0].count)
        self._entries.clear()
        self._add_counts(-self.messages, -self.nbytes)
        self._removed_records = 0
        return entries

    def requeue(self, entries: Sequence[OutboxEntry]) -> None:
        """Put entries of `take_sendable` that were not sent back to the front."""
        if self.window is not None:
            self.window.undo_sent([entry.batch for entry in reversed(entries)])
        self.sent_bytes -= sum(entry.nbytes for entry in entries)
        if not self.is_credit_spent:
            self.spent_since = 0
        for entry in (*entries, *self.take_all()):
            self._queue(entry)

    def peek(self) -> list[OutboxEntry]:
        """Return the queued entries in order, without removing them."""
        if self._removed_records:
            for entry in self.take_all():
                self._queue(entry)
        return list(self._entries)

    def replace_first(self, before: Sequence[OutboxEntry], after: Sequence[OutboxEntry]) -> bool:
        """Replace the entries `before`, which `peek` returned, by `after`.

        Return False if they are no longer at the front.
        """
        if (
            self._removed_records
            or len(self._entries) < len(before)
            or any(map(is_not, self._entries, before))
        ):
            return False
        for entry in (*after, *self.take_all()[len(before) :]):
            self._queue(entry)
        return True

    def discard_oldest(self, messages: int, nbytes: int) -> list[OutboxEntry]:
        """Remove and return the oldest entries: at least `messages` messages and `nbytes` bytes of bodies."""
        discarded: list[OutboxEntry] = []
        while self._entries and (messages > 0 or nbytes > 0):
            # By bytes only whole batches are removed. By messages the last batch is cut, so that exactly the
            # required number goes.
            entry = self._pop(messages if nbytes <= 0 else self._entries[0].count)
            messages -= entry.count
            nbytes -= entry.batch.header.bodies_length
            discarded.append(entry)
        return discarded


def slice_entry(entry: OutboxEntry, start: int, stop: int) -> OutboxEntry:
    """Return the records `start` to `stop` - 1 of an entry as an entry."""
    indexes = np.arange(start, stop)
    rows = indexes if entry.rows is None else entry.rows[start:stop]
    batch = entry.batch.select(indexes)
    return replace(entry, batch=batch, rows=rows, count=stop - start, nbytes=batch.nbytes)


class SubscriptionQueues(dict[int, SubscriptionQueue]):
    """Queues of one client by stream number.

    Totals cost the same however many queues there are; few are non-empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nonempty: dict[int, SubscriptionQueue] = {}
        """Queues that are not empty, by stream."""
        self._total = QueueTotals()
        self._waiting, self._unacked = EarliestHeap(self._get_oldest), EarliestHeap(self._get_unacked)

    def __setitem__(self, stream: int, queue: SubscriptionQueue) -> None:
        super().__setitem__(stream, queue)
        queue.client_totals = self._total

    @property
    def nbytes(self) -> int:
        """Bytes in all queues."""
        return self._total.nbytes

    @property
    def messages(self) -> int:
        """Messages in all queues."""
        return self._total.messages

    @property
    def oldest_at(self) -> int:
        """Time from which the age of the oldest delivery in any queue counts, ns; 0: all are empty."""
        return self._waiting.earliest_ns()

    @property
    def unacked_at(self) -> int:
        """Age start of the oldest unacknowledged message of any window, ns; 0: there is none."""
        return self._unacked.earliest_ns()

    def _get_oldest(self, stream: int) -> int:
        queue = self.nonempty.get(stream)
        return queue.oldest_at if queue is not None else 0

    def _get_unacked(self, stream: int) -> int:
        queue = self.get(stream)
        return queue.window.oldest_accepted_at if queue is not None and queue.window is not None else 0

    def offer(self, queue: SubscriptionQueue, entry: OutboxEntry) -> None:
        """Add one delivery to its queue."""
        queue.offer(entry)
        if queue.stream not in self.nonempty:
            self.nonempty[queue.stream] = queue
            self._waiting.add(queue.stream)

    def requeue(self, stream: int, entries: Sequence[OutboxEntry]) -> None:
        """Put deliveries of a queue that were not sent back to its front."""
        queue = self.nonempty[stream] = self[stream]
        queue.requeue(entries)
        self._waiting.add(stream, earlier=True)

    def pull(self, max_bytes: int, now_ns: int) -> list[OutboxEntry]:
        """Remove and return the deliveries that may be sent now, at most about `max_bytes` of each queue."""
        pulled: list[OutboxEntry] = []
        for stream, queue in list(self.nonempty.items()):
            sendable = queue.take_sendable(max_bytes, now_ns)
            pulled += sendable
            if sendable and queue.window is not None:
                self._unacked.add(stream)
            if not queue.messages:
                del self.nonempty[stream]
        return pulled

    def update_after_take(self, stream: int) -> None:
        """Update `nonempty` after entries were removed from a queue."""
        if not self[stream].messages:
            self.nonempty.pop(stream, None)

    def remove(self, stream: int) -> list[OutboxEntry]:
        """Remove the queue of a stream, if there is one. Return its entries."""
        queue = self.pop(stream, None)
        self.nonempty.pop(stream, None)
        return queue.take_all() if queue is not None else []

    def clear(self) -> None:
        """Remove all queues and their entries."""
        for queue in self.nonempty.values():
            queue.take_all()
        self.nonempty.clear()
        super().clear()

    def take_all(self, unsent: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        """Remove and return all deliveries, each subscription's in order.

        Those of `unsent` without a queue come first.

        Unsent deliveries of a queue are put back to its front first, because its window counts them as sent.
        """
        entries: list[OutboxEntry] = []
        unsent_by_stream: dict[int, list[OutboxEntry]] = {}
        for entry in unsent:
            if entry.stream in self:
                unsent_by_stream.setdefault(entry.stream, []).append(entry)
            else:
                entries.append(entry)
        for stream, returned in unsent_by_stream.items():
            self.requeue(stream, returned)
        for queue in self.nonempty.values():
            entries += queue.take_all()
        self.nonempty.clear()
        return entries
