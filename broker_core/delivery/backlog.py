"""Backlog of one client: outbox and subscription queues in memory, spool on disk, and deliveries in flight.

    LIVE      offer → subscription queue or outbox → send → socket
    OFFLINED  offer → spool; nothing is sent
    DRAINING  offer → spool; `offline` sends from the spool's front as fast as the socket accepts bytes

The order of a subscription's deliveries never changes. The queued deliveries go to the spool completely and
first, and new ones go behind them. The client is live again only when the spool is empty.

This module writes each subscription's account. Messages are matched when they are offered, handed over when
the socket accepts them, acknowledged when the peer has them, and discarded through `DiscardRecorder`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from broker_core.delivery.account import DiscardCause
from broker_core.delivery.backlog_figures import BacklogFigures
from broker_core.delivery.discards import NOTHING_UNDELIVERED, UndeliveredSummary
from broker_core.delivery.entries import OutboxEntry, rereadable_entries
from broker_core.delivery.lifecycle import ClientState, ClientStateEvent, next_state
from broker_core.delivery.loss_ledger import DiscardTally
from broker_core.delivery.offline import SpooledBacklog
from broker_core.delivery.outbox import MANY
from broker_core.delivery.ports import DeliveryTarget
from broker_core.delivery.sink import PULL_BYTES
from broker_core.delivery.spool.spool import Spool
from broker_core.delivery.subscription_queues import SubscriptionQueue
from broker_core.delivery.window import AckMode

QUEUE_STEP_BYTES = PULL_BYTES // 8
"""Minimum bytes that each of many subscription queues may move to the outbox per pass."""
COALESCE_BYTES = PULL_BYTES // 4
"""Queued bytes at which a client that isn't reading is sent its deliveries immediately.

Below it they are coalesced.
"""
NOT_READING_AFTER_NS = 50_000_000
"""How long a socket must have accepted nothing before its client counts as not reading, ns."""
PROGRESS_CHECK_INTERVAL_NS = 500_000_000
"""Age of the last progress check below which `update_progress_if_due` skips the next one, ns."""


class Backlog(BacklogFigures):
    """Deliveries of one client, and their way to its socket."""

    # Subscriptions, queueing and sending.

    def add_subscription(self, recipient: DeliveryTarget) -> None:
        """Add a subscription.

        If it has an acknowledgement window, the caller has created its queue before.
        """
        stream = recipient.stream
        self.recipients[stream] = recipient
        if recipient.can_fall_back and not self.has_ack_window(stream):
            self._log_streams.add(stream)
        else:
            recipient.account.client_outstanding = self._outstanding
            if self.has_ack_window(stream):
                recipient.account.client_log_only = self._log_only

    def _detach(self, recipient: DeliveryTarget) -> None:
        """Remove a subscription from the client and its unacknowledged messages from the client's totals."""
        account = recipient.account
        if account.client_outstanding is not None:
            account.client_outstanding.remove(account.outstanding.minus(account.in_log))
            account.client_outstanding = None
        if account.client_log_only is not None:
            account.client_log_only.remove(account.in_log)
            account.client_log_only = None
        self._log_streams.discard(recipient.stream)
        del self.recipients[recipient.stream]

    def offer(self, entry: OutboxEntry) -> None:
        """Count a delivery as matched and queue it behind all others of its subscription."""
        self.recipients[entry.stream].account.match(entry.batch)
        self.offer_counted(entry)

    def offer_counted(self, entry: OutboxEntry) -> None:
        """Queue a delivery that has been counted as matched before."""
        if self.offline is None and not self.queues:  # almost always
            self.outbox.offer(entry)
            if self.outbox.nbytes < self._coalesce_below_bytes:
                return
        else:
            queue = self.queues.get(entry.stream)
            if queue is not None and queue.is_watched:
                self.changed_streams.add(entry.stream)
            if self.offline is None:
                self.queue_in_memory(entry)
            elif not self.offline.extend_last(entry):
                self.offline.append(entry)
            elif not self.changed_streams:
                return  # nothing can be sent, and no limit counts anything of it
        self._owner.mark_changed()

    def queue_in_memory(self, entry: OutboxEntry) -> None:
        """Queue one delivery in memory: in its subscription's queue, or in the outbox if it has none."""
        queue = self.queues.get(entry.stream)
        if queue is None or queue.can_bypass(entry, self._facilities.clock.now_ns()):
            self.outbox.offer(entry)
        else:
            self.queues.offer(queue, entry)

    def adjust_conflated_bytes(self, nbytes: int) -> None:
        """Add to the bytes that conflated subscriptions hold back; negative to subtract."""
        self.conflated_bytes += nbytes
        self._owner.mark_changed()

    def send(self) -> None:
        """Hand queued deliveries of a live client to the socket, as far as it accepts them."""
        if self.offline is None and self.state is not ClientState.CLOSED:
            self.send_waiting()

    def send_waiting(self) -> None:
        """Hand deliveries in memory to the socket, as far as it accepts them.

        If the socket is full afterwards, `unwritable_since` has the time since when.
        """
        sink, outbox = self._sink, self.outbox
        while sink.is_writable:
            if self.queues.nonempty:
                max_bytes = max(PULL_BYTES // len(self.queues.nonempty), QUEUE_STEP_BYTES)
                for entry in self.queues.pull(max_bytes, self._facilities.clock.now_ns()):
                    outbox.offer(entry)
            waited, messages = outbox.nbytes, outbox.messages
            if not waited:
                break
            entries, facilities = outbox.pull(PULL_BYTES), self._facilities
            facilities.delays.record_handover(
                entries[0], messages - outbox.messages, facilities.clock.now_ns()
            )
            self._send(entries, waited - outbox.nbytes)
        if self._coalesce_below_bytes:
            self._coalesce_below_bytes = outbox.nbytes + COALESCE_BYTES
        if sink.is_writable:
            self.unwritable_since = 0
            if self._waiters:
                self._call_waiters()
        elif self.unwritable_since == 0:
            self.unwritable_since = self._facilities.clock.now_ns()

    def _send(self, entries: list[OutboxEntry], nbytes: int) -> None:
        """Hand entries to the socket and count them; note where each ends in the connection."""
        sink, recipients, queues, in_flight = self._sink, self.recipients, self.queues, self.in_flight
        ends_at = sink.written_bytes
        sizes = sink.send_entries(entries)
        framing = (sink.written_bytes - ends_at - nbytes) // len(entries)
        for number, entry in enumerate(entries):
            ends_at += entry.nbytes + framing if sizes is None else sizes[number]
            recipient = recipients.get(entry.stream)
            if recipient is None:
                continue
            account = recipient.account
            account.hand_over(entry.batch)
            if not queues or (queue := queues.get(entry.stream)) is None or queue.window is None:
                in_flight.hand_over(ends_at, account, entry)
        if len(in_flight) >= MANY:
            self.update_progress()

    def is_coalescing(self) -> bool:
        """Check and return whether the client is live and isn't reading from its socket.

        If so, new deliveries are coalesced from now on: the policy loop need not visit the client before
        COALESCE_BYTES are queued. The caller must come back soon, send the queued deliveries and ask again.
        """
        now, blocked = self._facilities.clock, self.unwritable_since
        is_not_reading = self._read_detector.update(self._sink.receive_window, now.monotonic_ns())
        if blocked and not self._sink.is_writable:
            is_not_reading = is_not_reading or now.now_ns() - blocked >= NOT_READING_AFTER_NS
        is_not_reading = (
            is_not_reading and self.offline is None
        )  # an offlined client's deliveries go to the spool
        if not is_not_reading:
            self._coalesce_below_bytes = 0
        elif not self._coalesce_below_bytes:
            self._coalesce_below_bytes = self.outbox.nbytes + COALESCE_BYTES
        return is_not_reading

    def update_progress_if_due(self) -> None:
        """Call `update_progress` unless the last check is less than PROGRESS_CHECK_INTERVAL_NS ago."""
        if self._facilities.clock.monotonic_ns() - self._checked_at >= PROGRESS_CHECK_INTERVAL_NS:
            self.update_progress()

    def update_progress(self) -> None:
        """Record the bytes that the peer has acknowledged. Cheap while nothing is in flight."""
        handed = self._sink.written_bytes
        if self.acked_bytes < handed:
            acked_bytes = self._sink.acked_bytes()
            self._checked_at = self._facilities.clock.monotonic_ns()
            if acked_bytes >= handed:
                self.silent_since = 0
            elif acked_bytes > self.acked_bytes or not self.silent_since:
                self.silent_since = self._facilities.clock.now_ns()
            self.acked_bytes = acked_bytes
            self.in_flight.acknowledge_bytes(acked_bytes)
        for stream, one in list(self._completed.items()) if self._completed else ():
            if not one.account.in_flight.messages:
                self._ended_account.merge(one.account)
                del self._completed[stream]

    def on_writable(self) -> None:
        """Resume sending, because the socket accepts bytes again."""
        self.unwritable_since = 0
        self.resume_sending()

    def resume_sending(self) -> None:
        """Resume sending, because a socket, a window or a pause that blocked deliveries has changed."""
        if self.state is ClientState.LIVE:
            self.send_waiting()
        elif self.offline is not None:
            self.send_waiting()
            self.offline.resume_drain()
        self._owner.mark_changed()

    async def wait_drained(self, streams: Sequence[int] = (), *, more: bool = False) -> None:
        """Wait until the client is live and has read everything. Replays are paced by the socket this way.

        Args:
            streams: the queues of these subscriptions must be empty, too.
            more: these subscriptions must also have credit.
        """
        ready = partial(self.can_send if more else self.is_drained_for, streams)
        while self.state is not ClientState.CLOSED and not ready():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.call_when(ready, partial(_wake_waiter, waiter))
            await waiter

    def call_when(self, ready: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call `then` once, when `ready` returns true or the client is closed.

        `ready` is evaluated whenever the socket, a window or a pause allows more deliveries.
        """
        self._waiters.append((ready, then))

    @property
    def has_waiters(self) -> bool:
        """Whether deliveries are queued in the outbox, or a caller waits until more can be sent."""
        return bool(self.outbox.nbytes or self._waiters)

    @property
    def is_drained(self) -> bool:
        """Whether the client is live, its outbox is empty and its socket is writable.

        Subscription queues don't count.
        """
        return self.offline is None and not self.outbox.nbytes and self._sink.is_writable

    def is_drained_for(self, streams: Sequence[int]) -> bool:
        """Whether `is_drained` is true and the queues of these subscriptions are empty."""
        return self.is_drained and self.queues.nonempty.keys().isdisjoint(streams)

    def can_send(self, streams: Sequence[int]) -> bool:
        """Whether `is_drained_for` is true and each of these subscriptions has credit."""
        queues = self.queues
        return self.is_drained_for(streams) and not (
            queues
            and any((queue := queues.get(stream)) is not None and queue.is_credit_spent for stream in streams)
        )

    def can_send_with(self, stream: int) -> bool:
        """Whether a delivery of a subscription would be sent at the end of this event-loop iteration.

        Other subscriptions may have deliveries in the outbox, as long as they fit into one call to the
        transport.
        """
        queue = self.queues.get(stream)
        return (
            self.offline is None
            and self._sink.is_writable
            and self.outbox.nbytes < PULL_BYTES
            and (queue is None or not (queue.is_credit_spent or stream in self.queues.nonempty))
        )

    def sendable_bytes(self, streams: Sequence[int]) -> int:
        """Return how many bytes of these subscriptions can be sent immediately.

        The caller has checked `can_send` or `can_send_with`.

        One entry is always sent, however large.
        """
        queues = self.queues
        if not queues:
            return PULL_BYTES - self.outbox.nbytes
        credits = [
            queue.credit - queue.sent_bytes
            for stream in streams
            if (queue := queues.get(stream)) is not None and queue.credit is not None
        ]
        return min([QUEUE_STEP_BYTES, *credits])

    def sendable_messages(self, stream: int) -> int | None:
        """Return how many messages of a subscription can be sent immediately; None: unlimited.

        At least 1, even if a full window or a pause blocks the subscription: only a queued message lets rules
        see that.
        """
        queue = self.queues.get(stream)
        if queue is None or (queue.window is None and not queue.is_blocked):
            return None
        return max(queue.window.free_slots, 1) if queue.window is not None and not queue.is_blocked else 1

    def return_to_log(self, stream: int) -> list[OutboxEntry]:
        """Remove a subscription's unsent deliveries of the log, and return them.

        It resumes reading the log at the first of them.

        Deliveries before one that the log doesn't bring back stay queued and are sent first.
        """
        if self.offline is not None:
            return []
        queue = self.queues.get(stream)
        entries = self.outbox.take_journaled(stream) if queue is None else self._take_rereadable(queue)
        account = self.recipients[stream].account
        for entry in entries:
            account.return_to_log(entry.batch)
        self._owner.mark_changed()
        return entries

    def _take_rereadable(self, queue: SubscriptionQueue) -> list[OutboxEntry]:
        """Remove and return the deliveries of a queue that reading the log brings back."""
        self._requeue_unsent(queue)
        waits = queue.take_all()
        rereadable = rereadable_entries(waits)
        for entry in waits[: len(waits) - len(rereadable)]:
            self.queues.offer(queue, entry)
        self.queues.update_after_take(queue.stream)
        return rereadable

    def _requeue_unsent(self, queue: SubscriptionQueue) -> None:
        """Put unsent deliveries of a queue from the outbox back to the front of the queue."""
        unsent = self.outbox.take_stream(queue.stream)
        if unsent:
            self.queues.requeue(queue.stream, unsent)

    def take_pending(self) -> list[OutboxEntry]:
        """Remove and return all deliveries in memory for the spool, each subscription's in order."""
        return self.queues.take_all(self.outbox.take_all())

    def _call_waiters(self) -> None:
        """Call the callbacks of `call_when` that are ready, or all of them once the client is closed."""
        waiters, self._waiters = self._waiters, []
        for ready, then in waiters:
            if self.state is not ClientState.CLOSED and not ready():
                self._waiters.append((ready, then))
            else:
                then()

    # Queues and windows.

    def acknowledge(self, stream: int, first: int, last: int) -> None:
        """Acknowledge messages of a subscription with a window by number.

        The caller then sends what the window allows.

        Raises:
            ClientError: bad_ack.
        """
        queue, account = self.queues[stream], self.recipients[stream].account
        assert queue.window is not None
        # The window counts messages that the socket hasn't accepted yet; the client can't have received
        # those.
        queue.window.check(first, last, account.delivered.messages)
        done = queue.window.acknowledge(first, last)
        account.acknowledge(*done.journaled, journaled=True)
        account.acknowledge(*done.unjournaled, journaled=False)
        self.changed_streams.add(stream)

    def reject(self, stream: int, number: int) -> None:
        """Record a message as rejected by the application, and with a cumulative window all before it.

        The caller then sends.

        Raises:
            ClientError: bad_ack.
        """
        queue, recipient = self.queues[stream], self.recipients[stream]
        assert queue.window is not None
        queue.window.check(number, number, recipient.account.delivered.messages)
        last = queue.window.sequence_of(number)
        first = last if queue.window.mode is AckMode.INDIVIDUAL else queue.window.first_unacked
        done = queue.window.acknowledge(number, number)
        cause = DiscardCause.RETURNED if recipient.is_shared else DiscardCause.REFUSED
        self._discards.discard_rejected(recipient, done, cause, first or last, last)
        self.changed_streams.add(stream)

    def ensure_queue(self, stream: int) -> SubscriptionQueue:
        """Return the queue of a subscription; create it if missing.

        Its deliveries in the outbox move to the queue, and `touched` reports its changes from now on.
        """
        queue = self.queues.get(stream)
        if queue is None:
            queue = self.queues[stream] = SubscriptionQueue(stream)
            queue.is_watched = True
            for entry in self.outbox.take_stream(stream):
                self.queue_in_memory(entry)
        elif not queue.is_watched:
            queue.is_watched = True
            self._requeue_unsent(queue)
        return queue

    # Discards and ends.

    def discard_oldest(self, stream: int, messages: int, nbytes: int, rule: str) -> int:
        """Discard the oldest messages of a subscription in memory. Return the number.

        At least `messages` messages and `nbytes` bytes of bodies are discarded, as far as they are in memory.
        """
        queue, tally = self.ensure_queue(stream), DiscardTally()
        self._requeue_unsent(queue)
        for entry in queue.discard_oldest(messages, nbytes):
            tally.add_entry(entry)
        self.discard(stream, tally, DiscardCause.DISCARDED, rule)
        self.queues.update_after_take(stream)
        return tally.messages

    def discard(self, stream: int, tally: DiscardTally, cause: DiscardCause, rule: str) -> None:
        """Record waiting messages of a subscription as discarded, in its account and in the loss ledger."""
        recipient = self.recipients.get(stream)
        if recipient is not None:
            self._discards.discard_waiting(recipient, tally, cause, rule)

    def remove_subscription(
        self, recipient: DeliveryTarget, cause: DiscardCause, rule: str
    ) -> UndeliveredSummary:
        """End a subscription: discard its waiting and unacknowledged messages.

        Return them with the sequence to resume with.
        """
        # First, so that deliveries that the peer has acknowledged meanwhile don't count as discarded.
        self.update_progress()
        stream, account = recipient.stream, recipient.account
        # A subscription with nothing in memory isn't searched for in the lists of all: many may end in one
        # iteration.
        has_pending = account.outstanding.messages > account.in_log.messages
        ending = self._end_account(
            recipient, self.first_pending_sequence(stream) if has_pending else 0, cause, rule
        )
        if has_pending:
            self.outbox.take_stream(stream)
            self.in_flight.remove_stream(stream)
        self.queues.remove(stream)
        self._detach(recipient)
        if self.offline is not None:
            self.offline.resume_drain()  # the entries behind its own may be loaded now
        return ending

    def complete_subscription(self, recipient: DeliveryTarget) -> UndeliveredSummary:
        """End a subscription whose replay is complete.

        Deliveries in flight stay in flight and are not discarded.

        With a window they are discarded, because no acknowledgement will come any more.
        """
        if recipient.account.waiting.messages or self.has_ack_window(recipient.stream):
            return self.remove_subscription(recipient, DiscardCause.UNSUBSCRIBED, "")
        self.queues.remove(recipient.stream)
        self._detach(recipient)
        self._completed[recipient.stream] = recipient
        return NOTHING_UNDELIVERED

    def _end_account(
        self, recipient: DeliveryTarget, waiting: int, cause: DiscardCause, rule: str
    ) -> UndeliveredSummary:
        """Discard a subscription's outstanding messages, and keep its account with the ended ones."""
        ending = self._discards.discard_outstanding(recipient, waiting, cause, rule)
        if not recipient.account.is_empty:
            self._ended_account.merge(recipient.account)
        return ending

    # Offline, drain, live again.

    def go_offline(self, spool: Spool) -> None:
        """Move all deliveries in memory to the spool, in order.

        From now on the spool is drained whenever the client reads.
        """
        self.state = next_state(self.state, ClientStateEvent.OFFLINE)
        self.offlined_at = self._facilities.clock.now_ns()
        self.offline = SpooledBacklog(self, self._owner, self._sink, self._facilities, spool)
        self.offline.start(self.take_pending())
        self._owner.mark_changed()

    def on_spool_empty(self) -> None:
        """Return to live delivery, because the spool is empty."""
        self.state = next_state(self.state, ClientStateEvent.DRAINED)
        self._close_offline()
        self.offlined_at = 0
        self._owner.on_live()
        self.send_waiting()
        self._owner.mark_changed()

    def _close_offline(self) -> None:
        offline, self.offline = self.offline, None
        if offline is not None:
            offline.close()

    def close(self) -> UndeliveredSummary:
        """Discard all unacknowledged messages and remove the spool. Return the sum over all subscriptions."""
        together = NOTHING_UNDELIVERED
        if self.state is ClientState.CLOSED:
            return together
        self.state = next_state(self.state, ClientStateEvent.CLOSE)
        self.update_progress()
        waiting = self.first_pending_sequences()
        for stream, recipient in (self.recipients | self._completed).items():
            together = together.plus(
                self._end_account(recipient, waiting.get(stream, 0), DiscardCause.DISCONNECTED, "")
            )
        for recipient in list(self.recipients.values()):
            self._detach(recipient)
        self._completed.clear()
        self.outbox.take_all()
        self._close_offline()
        self.queues.clear()
        self._call_waiters()
        return together


def _wake_waiter(waiter: asyncio.Future[None]) -> None:
    """Wake a waiter, unless its task was cancelled."""
    if not waiter.done():
        waiter.set_result(None)
