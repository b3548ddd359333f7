"""Serves a bookmark subscription from the journal: to its end point, or until it is handed over to live delivery.

    where to read next     Span, decided in subscriptions/span.py, and the subscription's next_sequence
    what to select         replay_reader.read_chunk, in the reader thread
    when to deliver        the gate (pace, pause), then the client's socket: Backlog.room

The law: replay(b) then live equals everything after b, once, in order. It holds because the hand-over is one turn of
the loop without an await: the position has passed everything that was dispatched to live subscribers, and the
subscription enters the registry before the next group is dispatched.

A replay goes only as fast as its client's socket: it queues a chunk when everything before has been taken, so it
can't make its own client slow. A chunk starts small and grows while the socket takes everything at once. When the
client has stopped reading, what it wasn't sent is given back and read again later, so that a thousand waiting replays
hold next to nothing. All replays read through one thread, a chunk each in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from broker_core.bookmark import Bookmark
from broker_core.delivery import OutboxEntry
from broker_core.errors import JournalError
from broker_core.journal.held import Pin
from broker_core.protocols import replies
from broker_core.runtime.replay_reader import Chunk, Piece, read_chunk
from broker_core.subscriptions.span import NEVER, Span

if TYPE_CHECKING:
    from broker_core.runtime.connection import ClientSubscription
    from broker_core.runtime.host import Host

FIRST_CHUNK = 32 * 1024
"""Journal bytes of a replay's first turn, and after its client stopped reading."""
LARGEST_CHUNK = 1024 * 1024
STALLED_AFTER_S = 0.05
"""A client that takes nothing for so long has stopped reading, as far as its replays are concerned."""
LONGEST_SLEEP_S = 60.0
"""How long a wait for a moment goes on without a look at the clock, which may be set meanwhile."""


class Gate(Protocol):
    """What may hold a replay back, besides its socket: a rate, a pause."""

    follows: bool
    """Whether it also holds back what is new: then the subscription is never handed over to live delivery."""

    async def admit(self, waiting: Sequence[Piece]) -> int:
        """Wait until some of these may be delivered, and say how many from the front; 1 at least."""
        ...


class Replay:
    """One subscription's way through the log. `run` is its task."""

    def __init__(self, host: Host, subscription: ClientSubscription, span: Span, gate: Gate | None = None) -> None:
        self._host = host
        self._subscription = subscription
        self._connection = subscription.connection
        self._span = span
        self._gate = gate
        self._caught_up_at = host.dispatched_sequence
        self._completed = False
        self._chunk_bytes = FIRST_CHUNK
        self._reading: asyncio.Future[Chunk] | None = None
        self._pin: Pin | None = None

    async def run(self) -> None:
        """Deliver the span, then end or make the subscription live."""
        try:
            await self._seek()
            while not self._connection.closed and await self._step():
                pass
        except JournalError as error:
            # The client must not take silence for "nothing there": it is told, and can subscribe again.
            self._connection.fail(error)
        finally:
            self._stop_reading()
            if self._pin is not None:
                self._pin.release()

    # Where to read next.

    async def _seek(self) -> None:
        """Find the first record of a span that begins with a moment; wait for the moment when it is to come."""
        host, subscription, at = self._host, self._subscription, self._span.not_before
        if at > host.now_ns() and not self._span.ends:
            self._say_completed()
        await self._until(at)
        self._pin = host.pin(subscription.next_sequence, f"replay of {self._connection.name}")
        if at:
            found = await host.in_reader_thread(host.journal.sequence_at, at)
            # Records that are written and not dispatched yet may come before the moment: each batch is asked.
            subscription.next_sequence = max(min(found, host.dispatched_sequence + 1), self._span.first)

    async def _until(self, moment: int) -> None:
        while True:
            left = moment - self._host.now_ns()
            if left <= 0:
                return
            await asyncio.sleep(min(left / 1e9, LONGEST_SLEEP_S))

    async def _step(self) -> bool:
        """Do what is next; False when nothing is left to do."""
        host, subscription, span = self._host, self._subscription, self._span
        if span.over(subscription.next_sequence, host.newest_sequence, host.now_ns()):
            await self._end()
            return False
        if not self._completed and not span.ends and subscription.next_sequence > self._caught_up_at:
            # Answers overtake what waits in the outbox; this one must come after the records it speaks of.
            await self._connection.backlog.room()
            self._say_completed()
        if subscription.next_sequence <= host.dispatched_sequence:
            await self._move()
        elif span.ends or span.not_before or (self._gate is not None and self._gate.follows):
            await self._news()
        else:
            host.subscribing.make_live(subscription)
            return False
        return True

    async def _news(self) -> None:
        """Wait until more is dispatched, or the end's moment has passed."""
        left = LONGEST_SLEEP_S
        if self._span.not_after != NEVER:
            left = min(left, max(self._span.not_after - self._host.now_ns(), 0) / 1e9 + 0.001)
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._host.subscribing.news()

    # When to deliver.

    async def _move(self) -> None:
        """Deliver the next chunk."""
        backlog = self._connection.backlog
        ahead = self._chunk_bytes > FIRST_CHUNK
        if ahead:
            # A fast client's next chunk is read and checked while the socket takes the one before.
            self._start_reading()
        if not backlog.has_room and not await self._room():
            return
        assert self._pin is not None
        self._pin.move(self._subscription.next_sequence)
        if not ahead:
            self._start_reading()
        assert self._reading is not None
        try:
            chunk = await self._reading
        except JournalError as error:
            self._removed(error)
            return
        await self._deliver(chunk)
        if backlog.has_room:
            self._chunk_bytes = min(self._chunk_bytes * 2, LARGEST_CHUNK)

    async def _room(self) -> bool:
        """Wait until the socket has taken everything. False when that took long: what was read ahead is given back."""
        backlog = self._connection.backlog
        try:
            async with asyncio.timeout(STALLED_AFTER_S):
                await backlog.room()
            return True
        except TimeoutError:
            self._stop_reading()
            self._chunk_bytes = FIRST_CHUNK
            self._give_back()
            await backlog.room()
            return False

    def _give_back(self) -> None:
        """What waits in the outbox is in the log as well: read it again when the client reads."""
        subscription = self._subscription
        taken = self._connection.backlog.take_back(subscription.subscription.stream)
        if taken:
            subscription.next_sequence = taken[0].batch.first_sequence
            subscription.delivered_messages -= sum(entry.count for entry in taken)

    def _start_reading(self) -> None:
        subscription, span = self._subscription, self._span
        upto = self._host.dispatched_sequence
        self._reading = asyncio.ensure_future(self._host.in_reader_thread(
            read_chunk, self._host.journal, subscription.subscription, span, subscription.next_sequence, upto,
            self._chunk_bytes,
        ))

    def _stop_reading(self) -> None:
        if self._reading is not None:
            if self._reading.done() and not self._reading.cancelled():
                self._reading.exception()  # nobody will ask for it any more
            self._reading.cancel()
            self._reading = None

    async def _deliver(self, chunk: Chunk) -> None:
        subscription = self._subscription
        if chunk.first > subscription.next_sequence:
            self._say_gap(subscription.next_sequence, chunk.first - 1, DAMAGED)
            subscription.next_sequence = chunk.first
        waiting: Sequence[Piece] = chunk.pieces
        while self._gate is not None and waiting:
            number = await self._gate.admit(waiting)
            self._queue(waiting[:number])
            waiting = waiting[number:]
            await self._connection.backlog.room()
        self._queue(waiting)
        subscription.next_sequence = max(subscription.next_sequence, chunk.following)
        if chunk.begun and self._span.not_before:
            self._span = self._span._replace(not_before=0)
            subscription.begun = True
        if chunk.over:
            self._span = self._span._replace(last=chunk.following - 1)

    def _queue(self, pieces: Sequence[Piece]) -> None:
        connection, subscription = self._connection, self._subscription
        stream, now = subscription.subscription.stream, self._host.now_ns()
        if connection.closed or not connection.has_stream(stream):
            raise asyncio.CancelledError
        for source, length, rows, batch in pieces:
            subscription.delivered_messages += batch.count
            connection.backlog.offer(OutboxEntry(stream, batch, rows, source, length, batch.count, batch.nbytes, now))
        if pieces:
            subscription.next_sequence = pieces[-1].batch.last_sequence + 1
            connection.backlog.flush()

    # What the client is told.

    def _removed(self, error: JournalError) -> None:
        """Records were removed while the replay waited: the client is told which, and the replay goes on behind."""
        oldest = self._host.journal.first_sequence
        if error.code != "bookmark_gone" or oldest <= self._subscription.next_sequence:
            raise error
        self._say_gap(self._subscription.next_sequence, oldest - 1, REMOVED)
        self._subscription.next_sequence = oldest

    def _say_gap(self, first: int, last: int, why: str) -> None:
        self._connection.reply(gap_reply(self._host.instance, self._subscription.subscription.id, first, last, why))

    def _say_completed(self, ended: bool = False) -> None:
        self._completed = True
        self._connection.reply(replies.Ack(
            ack="completed", of="subscribe", id=self._subscription.subscription.id, ended=ended or None
        ))

    async def _end(self) -> None:
        """The end point is reached: say so when everything before it was sent, and end the subscription."""
        await self._connection.backlog.room()
        self._say_completed(ended=True)
        self._host.subscribing.ended(self._subscription)


DAMAGED = "These records of the log are damaged or lost; `manage.py journal verify` says more."
REMOVED = "These records were removed from the log."


def gap_reply(instance: str, id: str, first: int, last: int, why: str) -> replies.Gap:
    """Tells a subscription that it will not get these records."""
    return replies.Gap(id=id, first=str(Bookmark(instance, first)), last=str(Bookmark(instance, last)), why=why)
