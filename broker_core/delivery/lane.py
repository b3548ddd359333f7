"""A lane: the waiting place of one subscription that can't share its client's outbox.

A subscription gets a lane when it has an acknowledgement window or credit, when a policy pauses it, or when a
policy discards or conflates what waits for it. Its deliveries wait here, in order, and move to the outbox as far as
window, credit and socket take them, so that a subscription whose application takes nothing doesn't hold up its neighbours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from operator import is_not

import numpy as np

from broker_core.batch import CONFLATION_OVER
from broker_core.delivery.entry import OutboxEntry
from broker_core.delivery.window import Window
from broker_core.delivery.would_be import WouldBe


class Total:
    """What waits in all lanes of a client."""

    __slots__ = ("messages", "nbytes")

    def __init__(self) -> None:
        self.messages = self.nbytes = 0


class Lane:
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

    def __init__(self, stream: int, window: Window | None = None) -> None:
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
        self.total = Total()
        """Of its client's lanes, once it is one of them."""
        self.came = 0
        """How many messages were ever queued here."""
        self.would_be: dict[str, WouldBe] = {}
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
    def full(self) -> bool:
        """The window lets nothing more through."""
        return self.window is not None and self.window.room <= 0

    @property
    def spent(self) -> bool:
        """Its client has room for nothing more."""
        return self.credit is not None and self.sent_bytes >= self.credit

    @property
    def shut(self) -> bool:
        """Nothing may leave, whatever waits."""
        return self.paused or self.busy or self.full or self.spent

    def grant(self, upto: int, now_ns: int) -> None:
        """Its client has room for so many bytes in all. Less than before is ignored: what was promised may be on its way."""
        self.credit = max(self.credit or 0, upto)
        self._note_spent(now_ns)

    def _note_spent(self, now_ns: int) -> None:
        self.spent_since = (self.spent_since or now_ns) if self.spent else 0

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

    def passes(self, entry: OutboxEntry, now_ns: int) -> bool:
        """Whether a delivery needn't wait here: nothing does, nobody asks, and there is credit. It counts as taken then."""
        if self.looked_at or self._entries or self._conflated or self.shut:
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

    def take(self, max_bytes: int, now_ns: int) -> list[OutboxEntry]:
        """What may go to the outbox now, the last batch cut where the window ends; [] when nothing may."""
        if self.paused or self.busy or not self._entries:
            return []
        taken: list[OutboxEntry] = []
        size = 0
        while self._entries and size < max_bytes and not self.spent:
            room = self.window.room if self.window is not None else self.messages
            if room <= 0:
                break
            entry = self._pop(room)
            if self._conflated and not entry.conflated:
                entry = entry.marked(CONFLATION_OVER)
            self._conflated = entry.conflated
            if self.window is not None:
                self.window.sent(entry.batch, now_ns, entry.accepted_at)
            taken.append(entry)
            size += entry.nbytes
            self.sent_bytes += entry.nbytes
        self._note_spent(now_ns)
        self._note_full(bool(taken), now_ns)
        return taken

    def look(self, now_ns: int, more: bool = False) -> bool:
        """Note whether the window is full with something waiting; whether it has become full since the last look. `more`:
        something waits for it on disk."""
        self._note_full(False, now_ns, more)
        became, self._seen_full = self.times_full > self._seen_full, self.times_full
        return became

    def _note_full(self, moving: bool, now_ns: int, more: bool = False) -> None:
        full = (more or bool(self._entries)) and self.full
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
            entry = part(entry, at, self._cut_at or entry.count)
        self._count(-entry.count, -left)
        return entry

    def take_all(self) -> list[OutboxEntry]:
        """Everything that waits, in order: for the spool, or because it is given up."""
        taken = list(self._entries)
        if self._cut_at:
            taken[0] = part(taken[0], self._cut_at, taken[0].count)
        self._entries.clear()
        self._count(-self.messages, -self.nbytes)
        self._cut_at = 0
        return taken

    def put_back(self, entries: Sequence[OutboxEntry]) -> None:
        """Put entries that `take` gave before everything that waits; they didn't leave after all."""
        if self.window is not None:
            self.window.take_back([entry.batch for entry in reversed(entries)])
        self.sent_bytes -= sum(entry.nbytes for entry in entries)
        if not self.spent:
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


def part(entry: OutboxEntry, start: int, stop: int) -> OutboxEntry:
    """The records `start` to `stop` - 1 of an entry, as an entry."""
    places = np.arange(start, stop)
    rows = places if entry.rows is None else entry.rows[start:stop]
    batch = entry.batch.select(places)
    return replace(entry, batch=batch, rows=rows, count=stop - start, nbytes=batch.nbytes)
