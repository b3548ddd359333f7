"""Serves a bookmark subscription from the journal, then hands it over to live delivery.

The law: replay(b) then live equals everything after b, once, in order. It holds because the hand-over is one turn of
the loop without an await: the cursor has passed everything that was dispatched to live subscribers, and the
subscription enters the registry before the next group is dispatched.

A replay goes only as fast as its client's socket: it queues a chunk when everything before has been taken, so it
can't make its own client slow. Reading and checking happen in the reader thread, a chunk at a time, so that many
replays take turns.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from broker_core.batch import Batch, Rows
from broker_core.bookmark import Bookmark
from broker_core.delivery import OutboxEntry
from broker_core.errors import JournalError
from broker_core.journal.segment import Position
from broker_core.protocols import replies
from broker_core.subscriptions.replay import select_for

if TYPE_CHECKING:
    from broker_core.runtime.connection import ClientSubscription
    from broker_core.runtime.host import Host

CHUNK_BYTES = 512 * 1024
"""Journal bytes of one turn of a replay."""


class _Chosen(NamedTuple):
    """What a replay delivers of one batch: where the batch stands, the rows of it (None: all), and these as a batch."""

    source: Position
    length: int
    rows: Rows | None
    batch: Batch


class _Chunk(NamedTuple):
    """The first and the last sequence that were readable, and what the subscription wants of these batches.

    A first sequence above the one asked for means that the records between are damaged or lost.
    """

    first: int
    last: int
    chosen: list[_Chosen]


async def replay(host: Host, subscription: ClientSubscription) -> None:
    """Deliver everything from subscription.next_sequence on, then make the subscription live."""
    pin = host.pin(subscription.next_sequence, f"replay of {subscription.connection.name}")
    connection, target = subscription.connection, host.dispatched_sequence
    completed = False
    reading: asyncio.Future[_Chunk] | None = None
    try:
        while not connection.closed:
            if not completed and subscription.next_sequence > target:
                # Answers overtake what waits in the outbox; this one must come after the records it speaks of.
                await connection.backlog.room()
                completed = True
                _say_completed(subscription)
            if subscription.next_sequence > host.dispatched_sequence:
                host.subscribing.make_live(subscription)
                return
            # The next chunk is read and checked while the socket takes the one before.
            reading = _start_reading(host, subscription)
            await connection.backlog.room()
            _deliver(host, subscription, await reading)
            pin.move(subscription.next_sequence)
    except JournalError as error:
        # The client must not take silence for "nothing there": it is told, and can subscribe again.
        connection.fail(error)
    finally:
        if reading is not None:
            reading.cancel()
        pin.release()


def _start_reading(host: Host, subscription: ClientSubscription) -> asyncio.Future[_Chunk]:
    start, upto = subscription.next_sequence, host.dispatched_sequence
    return asyncio.ensure_future(host.in_reader_thread(_read, host, subscription, start, upto))


def _deliver(host: Host, subscription: ClientSubscription, chunk: _Chunk) -> None:
    connection = subscription.connection
    if connection.closed or not connection.has_stream(subscription.subscription.stream):
        raise asyncio.CancelledError
    if chunk.first > subscription.next_sequence:
        connection.reply(_gap(host, subscription, subscription.next_sequence, chunk.first - 1))
    now = host.now_ns()
    stream = subscription.subscription.stream
    for source, length, rows, batch in chunk.chosen:
        subscription.delivered_messages += batch.count
        connection.backlog.offer(OutboxEntry(stream, batch, rows, source, length, batch.count, batch.nbytes, now))
    subscription.next_sequence = chunk.last + 1
    connection.backlog.flush()


def _read(host: Host, subscription: ClientSubscription, start: int, upto: int) -> _Chunk:
    """The next chunk of the log. Runs in the reader thread."""
    read = host.journal.read_located(start, CHUNK_BYTES, upto)
    if not read:
        following = host.journal.next_readable(start)
        return _Chunk(following, following - 1, [])
    chosen = []
    for position, batch in read:
        rows = select_for(subscription.subscription, batch, start)
        if rows is None:
            chosen.append(_Chosen(position, batch.nbytes, None, batch))
        elif len(rows):
            chosen.append(_Chosen(position, batch.nbytes, rows, batch.select(rows)))
    return _Chunk(max(start, read[0][1].first_sequence), read[-1][1].last_sequence, chosen)


def _gap(host: Host, subscription: ClientSubscription, first: int, last: int) -> replies.Gap:
    return replies.Gap(
        id=subscription.subscription.id, first=str(Bookmark(host.instance, first)), last=str(Bookmark(host.instance, last)),
        why="These records of the log are damaged or lost; `manage.py journal verify` says more.",
    )


def _say_completed(subscription: ClientSubscription) -> None:
    subscription.connection.reply(
        replies.Ack(ack="completed", of="subscribe", id=subscription.subscription.id)
    )
