"""Subscription of one client: an inbox of received batches, read as batches or as messages (`client.reader`).

Batches wait in the inbox as they arrived. Message objects are created only when a reader asks for messages.
The subscription's credit bounds the waiting bytes: the broker holds back the rest.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

import msgspec
import numpy as np

from broker_core.batch import Batch
from broker_core.bookmark import EPOCH_TEXT, NOW_TEXT, AfterBookmarks, BookmarkRange, parse_bookmark
from broker_core.client.acknowledgements import (
    MAX_UNPROCESSED_BATCHES,
    Acknowledger,
    CompletionTracker,
    CreditWindow,
)
from broker_core.client.bookmark_store import BookmarkStore, format_positions
from broker_core.client.flow_commands import SubscriptionControl
from broker_core.client.messages import Message, ReceivedBatch
from broker_core.client.reader import SubscriptionReader
from broker_core.errors import OperatorError, SluiceError
from broker_core.names import publisher_origin
from broker_core.protocols import commands
from broker_core.protocols.names import MAX_SUBSCRIPTION_ID
from broker_core.protocols.replies import GapNotice, ResumedNotice


class Subscription(SubscriptionReader):
    """Subscription that `AsyncClient.subscribe()` returns.

    Iterate it for messages, or `batches()` for record batches. The iteration ends when the subscription is
    closed, and raises the error when it cannot continue.

    Attributes:
        id: Id of the subscription, also in the bookmark store.
        topic: Topic or pattern.
        filter: Filter expression; None: all messages.
        bookmark: Bookmark at which it started; None: live only.
        instance: Instance that delivers it.
        completed: Set when the replay has caught up.
        gaps: Intervals that the log no longer had.
        received_messages: Number of messages received.
        resumed: After a policy dropped this client: how the subscription continues, and how many messages it
            missed.
        timestamp: Whether messages carry the time at which the broker accepted them.
    """

    def __init__(
        self,
        command: commands.Subscribe,
        store: BookmarkStore | None,
        credit: CreditWindow,
        on_close: Callable[[Subscription], None],
        control: SubscriptionControl,
        acknowledger: Acknowledger | None,
    ) -> None:
        super().__init__()
        self.id = command.id
        self.topic = command.topic
        self.filter = command.filter
        self.bookmark = command.bookmark
        self.completed = asyncio.Event()
        self.timestamp = command.timestamp
        self._command = command
        self.gaps: list[GapNotice] = []
        self.instance = ""
        self.received_messages = 0
        self._store = store if self.bookmark is not None else None
        self._progress: dict[str, CompletionTracker] = {}
        self._last_received = _positions(command.received or self.bookmark)
        self._last_read = dict(self._last_received)
        self._start_positions: dict[str, int] = {}
        """Positions at which it starts on this connection, as the broker reported."""
        self._instances: dict[int, str] = {}
        self._forwarded: dict[str, int] = {}
        """Newest record of each other site that links have forwarded."""
        self._inbox: deque[ReceivedBatch] = deque()
        self._waiters: set[asyncio.Future[None]] = set()
        self._credit = credit
        self._on_close = on_close
        self._control = control
        self._error: SluiceError | None = None
        self._closed = False
        self._batches_received = 0
        self._batches_returned = 0
        self._completed_at: int | None = None
        self.lease_ms = command.lease_ms or 0
        self.resubscribes = bool(command.lease_ms or command.snapshot_key)
        """Whether the client subscribes again automatically after the broker cancelled the subscription."""
        self._out_of_order = command.conflation is not None or command.snapshot_key is not None
        self.delete = False
        self.resumed: ResumedNotice | None = None
        self._acknowledger = acknowledger
        self._current_numbers = (0, 0)
        """First and last number of the batch that the application received last."""

    # Called by the client.

    def receive(self, batch: Batch) -> None:
        """Put a delivered batch into the inbox, without records that were received or processed before.

        Raises:
            OperatorError: `damaged_delivery`, when the broker exceeded its credit.
        """
        if not self._credit.on_delivery(batch.nbytes):
            raise OperatorError(
                "damaged_delivery",
                f"The broker sent more of {self.id} than it was given credit for.",
                "Report it with the versions of both sides.",
            )
        last = batch.last_sequence
        if last:
            self._last_received[self.instance] = last
            self._instances[batch.origin] = self.instance
            origin = publisher_origin(batch.publisher_name)
            if origin and not (self._out_of_order or self._acknowledger):
                new_records = self._drop_received(batch, origin)
                remaining_bytes = new_records.nbytes if new_records is not None else 0
                if remaining_bytes < batch.nbytes:
                    self._credit.on_consumed(batch.nbytes - remaining_bytes)
                if new_records is None:
                    return
                batch = new_records
            if self._store is not None:
                new_records = self._drop_processed(batch, self._store)
                remaining_bytes = new_records.nbytes if new_records is not None else 0
                if remaining_bytes < batch.nbytes:
                    # No reader takes the records that were processed before: return their credit.
                    self._credit.on_consumed(batch.nbytes - remaining_bytes)
                if new_records is None:
                    return  # the application processed all of it before its restart
                batch = new_records
        number = self._acknowledger.on_delivery(batch.header.count) if self._acknowledger is not None else 0
        self._inbox.append(ReceivedBatch(batch, self.instance, number))
        self._batches_received += 1
        self.received_messages += batch.header.count
        self._wake_waiters()

    def _drop_received(self, batch: Batch, origin: str) -> Batch | None:
        """Return the records of a forwarded batch that were not received before, or None.

        A record may have arrived here, or directly from the site `origin` that accepted it.
        """
        numbers = batch.publisher_sequences()
        newest = max(self._forwarded.get(origin, 0), self._last_received.get(origin, 0))
        self._forwarded[origin] = max(newest, int(numbers[-1]))
        if origin not in self._instances.values():
            # Without a direct subscription to that site's log, the forwarded position counts. A position in a
            # log that was read directly is not changed: it would claim records of that site that were not
            # received.
            self._last_received[origin] = self._forwarded[origin]
        rows = np.flatnonzero(numbers > newest)
        return batch if len(rows) == batch.count else batch.select(rows) if len(rows) else None

    def _drop_processed(self, batch: Batch, store: BookmarkStore) -> Batch | None:
        """Return the records of a batch that the application did not process before its restart, or None."""
        progress = self._progress.setdefault(self.instance, CompletionTracker())
        progress.add(batch)
        self._check_unprocessed(progress)
        processed = store.processed_ranges(self.id, self.instance)
        # With acknowledgements, all records are delivered, because the broker counts deliveries.
        if processed is None or batch.first_sequence > processed.last or self._acknowledger is not None:
            return batch
        is_processed = processed.contains(batch.sequences())
        moved = [progress.mark_record_done(int(sequence)) for sequence in batch.sequences()[is_processed]]
        if any(moved):
            store.record(self.id, self.instance, progress.most_recent)
        rows = np.flatnonzero(~is_processed)
        return batch if len(rows) == batch.count else batch.select(rows) if len(rows) else None

    def _check_unprocessed(self, progress: CompletionTracker) -> None:
        """Fail the subscription if too many delivered batches are unprocessed."""
        if progress.pending_batches > MAX_UNPROCESSED_BATCHES and not self._closed:
            self.fail(
                OperatorError(
                    "too_many_undone",
                    f"{self.id}: {MAX_UNPROCESSED_BATCHES} batches were delivered without being marked as "
                    "done.",
                    "Call done() with every message or batch, or give the client no bookmark store.",
                )
            )
            self._closed = True
            self._on_close(self)

    def on_accepted(self, bookmark: str | None) -> None:
        """Handle the broker's acceptance.

        With NOW, its bookmark fixes the start, so that a reconnect misses nothing.
        """
        self._start_positions = _positions(bookmark)
        if bookmark is not None and self.bookmark == NOW_TEXT and not self._last_received:
            self._last_received = _positions(bookmark)
            self._last_read = dict(self._last_received)
        if self._acknowledger is not None:
            self._acknowledger.on_connected()
        self._credit.on_subscribed()

    def on_restart(self, unknown: Sequence[str]) -> None:
        """Restart after bookmarks that the log never had, as after a restore from an older backup.

        The log gives the sequences of these bookmarks to other records. Stored positions would skip those, so
        they are reset.
        """
        instance = self.instance
        start = self._start_positions.get(instance)
        if start is None or not any(_positions(one).get(instance, 0) > start for one in unknown):
            return
        self._last_received[instance] = self._last_read[instance] = start
        self._progress.pop(instance, None)
        if self._store is not None:
            positions = _positions(self._store.most_recent(self.id))
            self._store.forget(self.id)
            for name, sequence in (positions | {instance: start}).items():
                self._store.record(self.id, name, sequence)

    def on_completed(self, *, ended: bool = False) -> None:
        """Record that the replay has caught up or ended: all its batches are in the inbox."""
        if self._completed_at is None:
            self._completed_at = self._batches_received
        self._closed = self._closed or ended
        self.completed.set()
        self._wake_waiters()

    def on_persisted(self, bookmark: str) -> None:
        """Record that all matching records up to this bookmark were received.

        Resuming after it misses nothing.

        Normally the last received record is a better position, because the broker only reports what it knows
        to have arrived. Only with conflation or a snapshot, where records arrive out of order, the last
        received record cannot be used.
        """
        for instance, sequence in _positions(bookmark).items():
            known = 0 if self._out_of_order else self._last_received.get(instance, 0)
            self._last_received[instance] = max(sequence, known)
            if self._store is not None:
                progress = self._progress.setdefault(instance, CompletionTracker())
                if progress.advance_to(sequence):
                    self._store.record(self.id, instance, progress.most_recent)

    def fail(self, error: SluiceError) -> None:
        """Fail the subscription. Batches in the inbox can still be read."""
        self._error = self._error or error
        self._wake_waiters()

    def detach(self) -> None:
        """Stop granting credit, because no more deliveries follow. Batches in the inbox can still be read."""
        self._credit.on_unsubscribed()

    def subscribe_command(self) -> commands.Subscribe:
        """Return the command that subscribes now, with credit for the free space of the inbox."""
        return msgspec.structs.replace(self.resume_command(), credit=self._credit.initial_credit())

    def resume_command(self) -> commands.Subscribe:
        """Return the command that starts the subscription, or resumes it after the last received record."""
        managed = self._command.managed is not None
        if self.bookmark is None or not self._last_received:
            return self._command
        if managed and not (self._batches_received or self._command.received):
            return self._command
        bookmark = format_positions(self._last_received)
        if managed:
            # The broker knows the start and end of a managed replay, but not which records arrived.
            return msgspec.structs.replace(self._command, received=bookmark)
        if self.bookmark[:1] in ("[", "("):
            bookmark = f"({bookmark}:{self.bookmark.partition(':')[2]}"
        return msgspec.structs.replace(self._command, bookmark=bookmark)

    def apply_options(self, **options: str | bool | None) -> dict[str, str | bool | None]:
        """Store delivery options for future subscribe commands.

        Returns the previous ones, by field name of the command.
        """
        before = {name: getattr(self._command, name) for name in options}
        self._command = msgspec.structs.replace(self._command, **options)
        return before

    # Called by the application.

    @property
    def paused(self) -> bool:
        """Whether the subscription was paused and not resumed."""
        return self._command.paused

    @property
    def rate(self) -> str | None:
        """Current rate limit, such as "500KB"; None: no limit."""
        return self._command.rate

    async def pause(self) -> None:
        """Pause delivery until `resume()`. Messages in flight still arrive.

        Raises:
            ClientError: `not_steerable`.
            TimeoutError: No answer within the client's `request_timeout`.
        """
        await self._control.pause([self])

    async def resume(self) -> None:
        """Resume delivery after `pause()`.

        Raises:
            ClientError: `not_steerable`.
            TimeoutError: No answer within the client's `request_timeout`.
        """
        await self._control.resume([self])

    async def set_rate(self, rate: str | None, max_gap: str | None = None) -> None:
        """Change the rate limit; None removes it.

        Args:
            rate: Messages per second ("1000"), bytes per second ("500KB"), or a multiple of the recorded pace
                ("2X").
            max_gap: With a multiple: longest pause between two records, such as "10s".

        Raises:
            ClientError: `bad_rate` or `not_steerable`.
            TimeoutError: No answer within the client's `request_timeout`.
        """
        await self._control.set_rate([self], rate, max_gap)

    # Implementation of SubscriptionReader.

    def poll(self, until_completed: bool = False) -> ReceivedBatch | None:
        if not self._inbox or (until_completed and self.replay_batches_remaining() <= 0):
            return None
        arrived = self._inbox.popleft()
        self._batches_returned += 1
        self._credit.on_consumed(arrived.batch.nbytes)
        return arrived

    def is_finished(self, until_completed: bool = False) -> bool:
        if until_completed and self.replay_batches_remaining() <= 0:
            return True
        if self._error is not None:
            raise self._error
        return self._closed

    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        self._waiters.add(waiter)

    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        self._waiters.discard(waiter)

    def on_next_requested(self) -> None:
        if self._acknowledger is not None and self._acknowledger.mode == "auto":
            self.ack()

    def on_delivered(self, arrived: ReceivedBatch) -> None:
        batch, instance, number = arrived
        if last := batch.last_sequence:
            self._last_read |= self._positions_after(
                instance, last, publisher_origin(batch.publisher_name), batch.last_publisher_sequence
            )
        if number:
            self._current_numbers = (number, number + batch.header.count - 1)

    def replay_batches_remaining(self) -> float:
        return math.inf if self._completed_at is None else self._completed_at - self._batches_returned

    # Called by the application.

    def done(self, item: Message | Batch) -> None:
        """Mark a message or a whole batch as processed, so that `MOST_RECENT` may move past it.

        Has no effect without a bookmark store, or on a subscription without a bookmark. Calls may be in any
        order.
        """
        if self._store is None:
            return
        instance = self._instance_of(item)
        progress = self._progress.get(instance)
        if progress is None:
            return
        moved = (
            progress.mark_record_done(item.sequence)
            if isinstance(item, Message)
            else progress.mark_batch_done(item)
        )
        if moved:
            self._store.record(self.id, instance, progress.most_recent)
            return
        first, last = (
            (item.sequence, item.sequence)
            if isinstance(item, Message)
            else (item.first_sequence, item.last_sequence)
        )
        if last > progress.most_recent:
            self._store.record_done(self.id, instance, first, last)

    def bookmark_after(self, item: Message | Batch) -> str | None:
        """Return the bookmark that resumes after a message or batch and everything read before it.

        Store it with the result in one transaction, and subscribe with it next time: then each record counts
        once. Returns None if the topic is not journaled.
        """
        if isinstance(item, Message):
            last, origin, origin_sequence = item.sequence, item.origin, item.publisher_sequence
        else:
            last, origin_sequence = item.last_sequence, item.last_publisher_sequence
            origin = publisher_origin(item.publisher_name)
        at = self._last_read | self._positions_after(self._instance_of(item), last, origin, origin_sequence)
        return format_positions({instance: last for instance, last in at.items() if last}) or None

    @property
    def processed_positions(self) -> dict[str, int]:
        """Positions of the last records read, for resuming behind them. {}: not known yet."""
        if not self._last_read and self.bookmark == EPOCH_TEXT:
            return {self.instance: 0}
        return dict(self._last_read)

    def has_received(self, batch: Batch) -> bool:
        """Return whether this subscription delivered a batch of that log."""
        return batch.origin in self._instances

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """This subscription alone. A subscription of several groups returns one subscription per group."""
        return (self,)

    def _positions_after(self, instance: str, last: int, origin: str, origin_sequence: int) -> dict[str, int]:
        """Return the position of record `last`, and of record `origin_sequence` at its original site."""
        if origin and last and origin not in self._instances.values():
            return {instance: last, origin: origin_sequence}
        return {instance: last}

    def _instance_of(self, item: Message | Batch) -> str:
        if isinstance(item, Message):
            return item.instance
        return self._instances.get(item.origin, self.instance)

    def ack(self, item: Message | None = None) -> None:
        """Acknowledge a message, or all messages of the batch that was read last.

        With `ack="client"` a message includes everything before it; with "client-individual" only itself.
        Acknowledgements allow the broker to send more messages. "auto" needs no call: asking for the next
        batch acknowledges the previous one.

        Raises:
            OperatorError: `no_acks`, for a subscription without `ack`.
        """
        self.prepare_ack(item)()

    def prepare_ack(self, item: Message | None) -> Callable[[], None]:
        """Return a function that acknowledges `item`. Call it in the event loop.

        The messages to acknowledge are determined now, not when the function is called.

        Raises:
            OperatorError: `no_acks`.
        """
        if self._acknowledger is None:
            raise OperatorError(
                "no_acks", f"{self.id} has no acknowledgements.", 'Subscribe with ack="client".'
            )
        first, last = (item.number, item.number) if item is not None else self._current_numbers
        return partial(self._acknowledger.acknowledge, first, last) if last else _acknowledge_nothing

    async def close(self, *, delete: bool = False) -> None:
        """Unsubscribe. Iterations end after the batches in the inbox.

        `delete` also deletes a durable subscription at the broker.
        """
        if not self._closed:
            self._closed = True
            self.delete = delete
            if self._acknowledger is not None:
                self._acknowledger.flush()  # before unsubscribing: later the broker would ignore them
            self._on_close(self)
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


def _acknowledge_nothing() -> None:
    """Do nothing: no message was read yet that could be acknowledged."""


def _positions(text: str | None) -> dict[str, int]:
    """Return the last record of each instance after which a bookmark resumes."""
    if text is None:
        return {}
    parsed = parse_bookmark(text)
    start, before = (
        (parsed.begin, int(parsed.begin_included)) if isinstance(parsed, BookmarkRange) else (parsed, 0)
    )
    positions: dict[str, int] = {}
    for origin, sequence in start.bookmarks if isinstance(start, AfterBookmarks) else ():
        positions[origin] = min(sequence - before, positions.get(origin, sequence))
    return {origin: max(sequence, 0) for origin, sequence in positions.items()}


def default_id(topic: str, filter: str | None) -> str:
    """Return the default id of a subscription.

    A topic and filter always give the same id, so that the next process finds its position in the bookmark
    store.
    """
    plain = topic if filter is None else f"{topic} {filter}"
    if len(plain) <= MAX_SUBSCRIPTION_ID and plain.isprintable():
        return plain
    return blake2b(plain.encode("utf-8", "replace"), digest_size=16).hexdigest()
