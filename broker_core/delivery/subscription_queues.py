"""Which of many moments is the earliest, where each changes often and the answer is wanted seldom: a heap of what they were.

What would wait in a lane if the conflations that a rule decided in shadow had been done. Pure: nothing of the lane changes.

Kept as the hashes of the messages' keys, eight bytes each, so that what is counted in shadow holds on to no message.

A lane: the waiting place of one subscription that can't share its client's outbox.

A subscription gets a lane when it has an acknowledgement window or credit, when a policy pauses it, or when a
policy discards or conflates what waits for it. Its deliveries wait here, in order, and move to the outbox as far as
window, credit and socket take them, so that a subscription whose application takes nothing doesn't hold up its neighbours.

One client's lanes by stream number, and what waits in all of them together.
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

_SPARE = 64


class EarliestHeap:
    """Of streams of which each has one moment or none. A moment that becomes later, or goes, needn't be told: that is found
    when it comes to the top."""

    __slots__ = ("_heap", "_listed", "_read")

    def __init__(self, read: Callable[[int], int]) -> None:
        """`read` gives a stream's moment now; 0: it has none."""
        self._read = read
        self._heap: list[tuple[int, int]] = []
        self._listed: set[int] = set()

    def add(self, stream: int, *, earlier: bool = False) -> None:
        """It may have a moment where it had none; or, if that is said, an earlier one."""
        if earlier or stream not in self._listed:
            self._listed.add(stream)
            heappush(self._heap, (self._read(stream), stream))

    def earliest_ns(self) -> int:
        """The earliest; 0: none of them has any."""
        heap, read = self._heap, self._read
        if len(heap) > 2 * len(self._listed) + _SPARE:
            heap[:] = [(read(stream), stream) for stream in self._listed]
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
                self._listed.discard(stream)
        return 0


class ShadowConflation(NamedTuple):
    """After the last of them."""

    keys: array[int] = array("q")
    """Of what was left, in order."""
    came: int = 0
    """How many messages the lane had ever had then: what came later is behind these."""
    cut: int = 0
    """How many more wait in the lane."""

    def conflated(self, newer: array[int], came: int, waits: int, cut: int) -> ShadowConflation:
        """After the next one, of what would wait now: of `waits` messages all but `cut`. `newer` are the keys of those of them
        that came since."""
        cut = min(cut, self.cut, waits)
        # What has left since would have left here too, of what is oldest here.
        keys = (self.keys + newer)[-(waits - cut) :] if waits > cut else array("q")
        left = array("q", reversed(dict.fromkeys(reversed(keys))))
        return ShadowConflation(left, came, cut + len(keys) - len(left))


class QueueTotals:
    """What waits in all lanes of a client."""

    __slots__ = ("messages", "nbytes")

    def __init__(self) -> None:
        self.messages = self.nbytes = 0


class SubscriptionQueue:
    """What waits for one subscription. `window` None: no acknowledgements, only an order of its own."""

    __slots__ = (
        "_conflated",
        "_cut_at",
        "_entries",
        "_seen_full",
        "busy",
        "came",
        "credit",
        "full_since",
        "looked_at",
        "messages",
        "nbytes",
        "paused",
        "pauses",
        "sent_bytes",
        "spent_since",
        "stream",
        "times_full",
        "total",
        "window",
        "would_be",
    )

    def __init__(self, stream: int, window: AckWindow | None = None) -> None:
        self.stream = stream
        self.window = window
        self.looked_at = window is not None
        """Whether somebody wants to know of what comes and waits: its window, or a rule."""
        self.paused = False
        self.pauses = 0
        """How often it was paused: a pause's end tells by it whether there was another since."""
        self.busy = False
        """Its entries are being conflated elsewhere; nothing may leave meanwhile."""
        self.credit: int | None = None
        """How many bytes may be sent in all; None: its client doesn't say. What is sent last may pass it."""
        self.sent_bytes = 0
        self.spent_since = 0
        """From when there is no credit left, ns; 0 while there is."""
        self.messages = 0
        self.nbytes = 0
        self.total = QueueTotals()
        """Of its client's lanes, once it is one of them."""
        self.came = 0
        """How many messages were ever queued here."""
        self.would_be: dict[str, ShadowConflation] = {}
        """What would wait here if what rules decided in shadow had been done, by their names."""
        self.full_since = 0
        """From when there was something to send, here or on disk, and the window was full, ns; 0 while there is room (seed 003)."""
        self.times_full = self._seen_full = 0
        self._entries: deque[OutboxEntry] = deque()
        self._cut_at = 0
        """How many records of the first entry have left."""
        self._conflated = False
        """What left last was of a conflated backlog."""

    @property
    def is_window_full(self) -> bool:
        """The window lets nothing more through."""
        return self.window is not None and self.window.free_slots <= 0

    @property
    def is_credit_spent(self) -> bool:
        """Its client has room for nothing more."""
        return self.credit is not None and self.sent_bytes >= self.credit

    @property
    def is_blocked(self) -> bool:
        """Nothing may leave, whatever waits."""
        return self.paused or self.busy or self.is_window_full or self.is_credit_spent

    def set_credit(self, upto: int, now_ns: int) -> None:
        """Its client has room for so many bytes in all. Less than before is ignored: what was promised may be on its way."""
        self.credit = max(self.credit or 0, upto)
        self._note_spent(now_ns)

    def _note_spent(self, now_ns: int) -> None:
        self.spent_since = (self.spent_since or now_ns) if self.is_credit_spent else 0

    @property
    def oldest_at(self) -> int:
        """From when the first entry's age counts, ns; 0 when nothing waits."""
        return self._entries[0].accepted_at if self._entries else 0

    @property
    def first_sequence(self) -> int:
        """Sequence of the first journaled record that waits; 0 when there is none."""
        for entry in self._entries:
            if entry.batch.first_sequence:
                return int(entry.batch.sequences()[self._cut_at if entry is self._entries[0] else 0])
        return 0

    def can_bypass(self, entry: OutboxEntry, now_ns: int) -> bool:
        """Whether a delivery needn't wait here: nothing does, nobody asks, and there is credit. It counts as taken then."""
        if self.looked_at or self._entries or self._conflated or self.is_blocked:
            return False
        self._conflated = entry.conflated
        self.sent_bytes += entry.nbytes
        if self.credit is not None and self.sent_bytes >= self.credit:
            self.spent_since = now_ns
        return True

    def offer(self, entry: OutboxEntry) -> None:
        """Queue one delivery behind the others."""
        self.came += entry.count
        self._queue(entry)

    def _queue(self, entry: OutboxEntry) -> None:
        self._entries.append(entry)
        self._count(entry.count, entry.nbytes)

    def _count(self, messages: int, nbytes: int) -> None:
        """So much more waits, or less."""
        total = self.total
        self.messages += messages
        self.nbytes += nbytes
        total.messages += messages
        total.nbytes += nbytes

    def take_sendable(self, max_bytes: int, now_ns: int) -> list[OutboxEntry]:
        """What may go to the outbox now, the last batch cut where the window ends; [] when nothing may."""
        if self.paused or self.busy or not self._entries:
            return []
        taken: list[OutboxEntry] = []
        size = 0
        while self._entries and size < max_bytes and not self.is_credit_spent:
            room = self.window.free_slots if self.window is not None else self.messages
            if room <= 0:
                break
            entry = self._pop(room)
            if self._conflated and not entry.conflated:
                entry = entry.with_conflation_mark(CONFLATION_OVER)
            self._conflated = entry.conflated
            if self.window is not None:
                self.window.record_sent(entry.batch, now_ns, entry.accepted_at)
            taken.append(entry)
            size += entry.nbytes
            self.sent_bytes += entry.nbytes
        self._note_spent(now_ns)
        self._note_full(bool(taken), now_ns)
        return taken

    def update_window_full(self, now_ns: int, more: bool = False) -> bool:
        """Note whether the window is full with something waiting; whether it has become full since the last look. `more`:
        something waits for it on disk."""
        self._note_full(False, now_ns, more)
        became, self._seen_full = self.times_full > self._seen_full, self.times_full
        return became

    def _note_full(self, moving: bool, now_ns: int, more: bool = False) -> None:
        full = (more or bool(self._entries)) and self.is_window_full
        if moving or not full:
            self.full_since = 0
        if full and self.full_since == 0:
            self.full_since = now_ns
            self.times_full += 1

    def _pop(self, most: int) -> OutboxEntry:
        """The first entry, or of a longer one its next `most` records.

        The rest isn't made into a batch of its own each time: with a window of 1 that would copy a batch of a
        thousand records a thousand times. Its bytes count until its last record leaves.
        """
        entry, at = self._entries[0], self._cut_at
        self._cut_at = at + most if entry.count - at > most else 0
        left = 0
        if self._cut_at == 0:
            self._entries.popleft()
            left = entry.nbytes
        if at or self._cut_at:
            entry = slice_entry(entry, at, self._cut_at or entry.count)
        self._count(-entry.count, -left)
        return entry

    def take_all(self) -> list[OutboxEntry]:
        """Everything that waits, in order: for the spool, or because it is given up."""
        taken = list(self._entries)
        if self._cut_at:
            taken[0] = slice_entry(taken[0], self._cut_at, taken[0].count)
        self._entries.clear()
        self._count(-self.messages, -self.nbytes)
        self._cut_at = 0
        return taken

    def requeue(self, entries: Sequence[OutboxEntry]) -> None:
        """Put entries that `take` gave before everything that waits; they didn't leave after all."""
        if self.window is not None:
            self.window.undo_sent([entry.batch for entry in reversed(entries)])
        self.sent_bytes -= sum(entry.nbytes for entry in entries)
        if not self.is_credit_spent:
            self.spent_since = 0
        for entry in (*entries, *self.take_all()):
            self._queue(entry)

    def peek(self) -> list[OutboxEntry]:
        """What waits, in order, and stays."""
        if self._cut_at:
            for entry in self.take_all():
                self._queue(entry)
        return list(self._entries)

    def replace_first(self, before: Sequence[OutboxEntry], after: Sequence[OutboxEntry]) -> bool:
        """Put `after` in the place of `before`, which `peek` gave. False when those don't wait here any more."""
        if self._cut_at or len(self._entries) < len(before) or any(map(is_not, self._entries, before)):
            return False
        for entry in (*after, *self.take_all()[len(before) :]):
            self._queue(entry)
        return True

    def discard_oldest(self, messages: int, nbytes: int) -> list[OutboxEntry]:
        """Give up the oldest, at least so many messages and so many bytes of bodies; what was given up, in order."""
        given_up: list[OutboxEntry] = []
        while self._entries and (messages > 0 or nbytes > 0):
            # By bytes whole batches go; by messages the last one is cut, so that exactly as many go as must.
            entry = self._pop(messages if nbytes <= 0 else self._entries[0].count)
            messages -= entry.count
            nbytes -= entry.batch.header.bodies_length
            given_up.append(entry)
        return given_up


def slice_entry(entry: OutboxEntry, start: int, stop: int) -> OutboxEntry:
    """The records `start` to `stop` - 1 of an entry, as an entry."""
    places = np.arange(start, stop)
    rows = places if entry.rows is None else entry.rows[start:stop]
    batch = entry.batch.select(places)
    return replace(entry, batch=batch, rows=rows, count=stop - start, nbytes=batch.nbytes)


class SubscriptionQueues(dict[int, SubscriptionQueue]):
    """A mapping of streams to lanes. Of those few hold something. What is said of all costs the same however many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.filled: dict[int, SubscriptionQueue] = {}
        """Those in which something waits."""
        self._total = QueueTotals()
        self._waiting, self._unacked = EarliestHeap(self._oldest_of), EarliestHeap(self._unacked_of)

    def __setitem__(self, stream: int, lane: SubscriptionQueue) -> None:
        super().__setitem__(stream, lane)
        lane.total = self._total

    @property
    def nbytes(self) -> int:
        """Bytes that wait in lanes."""
        return self._total.nbytes

    @property
    def messages(self) -> int:
        """Messages that wait in lanes."""
        return self._total.messages

    @property
    def oldest_at(self) -> int:
        """From when the age of the oldest delivery in any of them counts, ns; 0: nothing waits."""
        return self._waiting.earliest_ns()

    @property
    def unacked_at(self) -> int:
        """From when the age of the oldest message counts that a window has let through and that isn't acknowledged, ns; 0:
        there is none."""
        return self._unacked.earliest_ns()

    def _oldest_of(self, stream: int) -> int:
        lane = self.filled.get(stream)
        return lane.oldest_at if lane is not None else 0

    def _unacked_of(self, stream: int) -> int:
        lane = self.get(stream)
        return lane.window.oldest_accepted_at if lane is not None and lane.window is not None else 0

    def offer(self, lane: SubscriptionQueue, entry: OutboxEntry) -> None:
        """Queue one delivery in its lane."""
        lane.offer(entry)
        if lane.stream not in self.filled:
            self.filled[lane.stream] = lane
            self._waiting.add(lane.stream)

    def requeue(self, stream: int, entries: Sequence[OutboxEntry]) -> None:
        """What a lane has given didn't leave after all: it waits there again, before the rest."""
        lane = self.filled[stream] = self[stream]
        lane.requeue(entries)
        self._waiting.add(stream, earlier=True)

    def pull(self, max_bytes: int, now_ns: int) -> list[OutboxEntry]:
        """What may leave each lane now, `max_bytes` of each at most."""
        pulled: list[OutboxEntry] = []
        for stream, lane in list(self.filled.items()):
            taken = lane.take_sendable(max_bytes, now_ns)
            pulled += taken
            if taken and lane.window is not None:
                self._unacked.add(stream)
            if not lane.messages:
                del self.filled[stream]
        return pulled

    def update_after_take(self, stream: int) -> None:
        """Something was taken from a lane: note whether anything still waits there."""
        if not self[stream].messages:
            self.filled.pop(stream, None)

    def remove(self, stream: int) -> list[OutboxEntry]:
        """Remove a lane, if there is one; what waited in it."""
        lane = self.pop(stream, None)
        self.filled.pop(stream, None)
        return lane.take_all() if lane is not None else []

    def clear(self) -> None:
        """Remove all of them, and what waits there."""
        for lane in self.filled.values():
            lane.take_all()
        self.filled.clear()
        super().clear()

    def take_all(self, unsent: Sequence[OutboxEntry]) -> list[OutboxEntry]:
        """Everything that waits, each subscription's in its order, behind what of `unsent` has no lane.

        What a lane has given and wasn't sent goes back before it first: its window counts it as sent.
        """
        entries: list[OutboxEntry] = []
        back: dict[int, list[OutboxEntry]] = {}
        for entry in unsent:
            if entry.stream in self:
                back.setdefault(entry.stream, []).append(entry)
            else:
                entries.append(entry)
        for stream, mine in back.items():
            self.requeue(stream, mine)
        for lane in self.filled.values():
            entries += lane.take_all()
        self.filled.clear()
        return entries
