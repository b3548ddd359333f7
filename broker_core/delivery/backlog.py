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
from broker_core.delivery.discards import NOTHING_OWED, UndeliveredSummary
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

LANE_BYTES = PULL_BYTES // 8
"""Minimum bytes that each of many subscription queues may move to the outbox per pass."""
LUMP_BYTES = PULL_BYTES // 4
"""Queued bytes at which a client that isn't reading is sent its deliveries immediately.

Below it they are coalesced.
"""
RESTS_NS = 50_000_000
"""How long a socket must have accepted nothing before its client counts as not reading, ns."""
DUE_NS = 500_000_000
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
            self._of_the_log.add(stream)
        else:
            recipient.account.together = self._owed
            if self.has_ack_window(stream):
                recipient.account.behind = self._behind

    def _forget(self, recipient: DeliveryTarget) -> None:
        """Remove a subscription from the client and its unacknowledged messages from the client's totals."""
        account = recipient.account
        if account.together is not None:
            account.together.remove(account.owed.minus(account.in_log))
            account.together = None
        if account.behind is not None:
            account.behind.remove(account.in_log)
            account.behind = None
        self._of_the_log.discard(recipient.stream)
        del self.recipients[recipient.stream]

    def offer(self, entry: OutboxEntry) -> None:
        """Count a delivery as matched and queue it behind all others of its subscription."""
        self.recipients[entry.stream].account.match(entry.batch)
        self.offer_counted(entry)

    def offer_counted(self, entry: OutboxEntry) -> None:
        """Queue a delivery that has been counted as matched before."""
        if self.offline is None and not self.lanes:  # almost always
            self.outbox.offer(entry)
            if self.outbox.nbytes < self._rests_below:
                return
        else:
            lane = self.lanes.get(entry.stream)
            if lane is not None and lane.looked_at:
                self.touched.add(entry.stream)
            if self.offline is None:
                self.queue_in_memory(entry)
            elif not self.offline.extend_last(entry):
                self.offline.append(entry)
            elif not self.touched:
                return  # nothing can be sent, and no limit counts anything of it
        self._owner.mark_changed()

    def queue_in_memory(self, entry: OutboxEntry) -> None:
        """Queue one delivery in memory: in its subscription's queue, or in the outbox if it has none."""
        lane = self.lanes.get(entry.stream)
        if lane is None or lane.can_bypass(entry, self._facilities.clock.now_ns()):
            self.outbox.offer(entry)
        else:
            self.lanes.offer(lane, entry)

    def adjust_held_bytes(self, nbytes: int) -> None:
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
            if self.lanes.filled:
                most = max(PULL_BYTES // len(self.lanes.filled), LANE_BYTES)
                for entry in self.lanes.pull(most, self._facilities.clock.now_ns()):
                    outbox.offer(entry)
            waited, messages = outbox.nbytes, outbox.messages
            if not waited:
                break
            entries, facilities = outbox.pull(PULL_BYTES), self._facilities
            facilities.delays.record_handover(
                entries[0], messages - outbox.messages, facilities.clock.now_ns()
            )
            self._send(entries, waited - outbox.nbytes)
        if self._rests_below:
            self._rests_below = outbox.nbytes + LUMP_BYTES
        if sink.is_writable:
            self.unwritable_since = 0
            if self._paced:
                self._wake_paced()
        elif self.unwritable_since == 0:
            self.unwritable_since = self._facilities.clock.now_ns()

    def _send(self, entries: list[OutboxEntry], nbytes: int) -> None:
        """Hand entries to the socket and count them; note where each ends in the connection."""
        sink, recipients, lanes, in_flight = self._sink, self.recipients, self.lanes, self.in_flight
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
            if not lanes or (lane := lanes.get(entry.stream)) is None or lane.window is None:
                in_flight.hand_over(ends_at, account, entry)
        if len(in_flight) >= MANY:
            self.update_progress()

    def is_coalescing(self) -> bool:
        """Check and return whether the client is live and isn't reading from its socket.

        If so, new deliveries are coalesced from now on: the policy loop need not visit the client before
        LUMP_BYTES are queued. The caller must come back soon, send the queued deliveries and ask again.
        """
        now, blocked = self._facilities.clock, self.unwritable_since
        rests = self._unread.update(self._sink.receive_window, now.monotonic_ns())
        if blocked and not self._sink.is_writable:
            rests = rests or now.now_ns() - blocked >= RESTS_NS
        rests = rests and self.offline is None  # an offlined client's deliveries go to the spool
        if not rests:
            self._rests_below = 0
        elif not self._rests_below:
            self._rests_below = self.outbox.nbytes + LUMP_BYTES
        return rests

    def update_progress_if_due(self) -> None:
        """Call `update_progress` unless the last check is less than DUE_NS ago."""
        if self._facilities.clock.monotonic_ns() - self._looked_at >= DUE_NS:
            self.update_progress()

    def update_progress(self) -> None:
        """Record the bytes that the peer has acknowledged. Cheap while nothing is in flight."""
        handed = self._sink.written_bytes
        if self.acked_bytes < handed:
            taken = self._sink.acked_bytes()
            self._looked_at = self._facilities.clock.monotonic_ns()
            if taken >= handed:
                self.silent_since = 0
            elif taken > self.acked_bytes or not self.silent_since:
                self.silent_since = self._facilities.clock.now_ns()
            self.acked_bytes = taken
            self.in_flight.acknowledge_bytes(taken)
        for stream, one in list(self._finished.items()) if self._finished else ():
            if not one.account.in_flight.messages:
                self._ended.merge(one.account)
                del self._finished[stream]

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
        ready = partial(self.can_send if more else self.has_room_for, streams)
        while self.state is not ClientState.CLOSED and not ready():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.call_when(ready, partial(_done, waiter))
            await waiter

    def call_when(self, ready: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call `then` once, when `ready` returns true or the client is closed.

        `ready` is evaluated whenever the socket, a window or a pause allows more deliveries.
        """
        self._paced.append((ready, then))

    @property
    def has_waiters(self) -> bool:
        """Whether deliveries are queued in the outbox, or a caller waits until more can be sent."""
        return bool(self.outbox.nbytes or self._paced)

    @property
    def has_room(self) -> bool:
        """Whether the client is live, its outbox is empty and its socket is writable.

        Subscription queues don't count.
        """
        return self.offline is None and not self.outbox.nbytes and self._sink.is_writable

    def has_room_for(self, streams: Sequence[int]) -> bool:
        """Whether `has_room` is true and the queues of these subscriptions are empty."""
        return self.has_room and self.lanes.filled.keys().isdisjoint(streams)

    def can_send(self, streams: Sequence[int]) -> bool:
        """Whether `has_room_for` is true and each of these subscriptions has credit."""
        lanes = self.lanes
        return self.has_room_for(streams) and not (
            lanes
            and any((lane := lanes.get(stream)) is not None and lane.is_credit_spent for stream in streams)
        )

    def can_send_with(self, stream: int) -> bool:
        """Whether a delivery of a subscription would be sent at the end of this event-loop iteration.

        Other subscriptions may have deliveries in the outbox, as long as they fit into one call to the
        transport.
        """
        lane = self.lanes.get(stream)
        return (
            self.offline is None
            and self._sink.is_writable
            and self.outbox.nbytes < PULL_BYTES
            and (lane is None or not (lane.is_credit_spent or stream in self.lanes.filled))
        )

    def sendable_bytes(self, streams: Sequence[int]) -> int:
        """Return how many bytes of these subscriptions can be sent immediately.

        The caller has checked `can_send` or `can_send_with`.

        One entry is always sent, however large.
        """
        lanes = self.lanes
        if not lanes:
            return PULL_BYTES - self.outbox.nbytes
        credits = [
            lane.credit - lane.sent_bytes
            for stream in streams
            if (lane := lanes.get(stream)) is not None and lane.credit is not None
        ]
        return min([LANE_BYTES, *credits])

    def sendable_messages(self, stream: int) -> int | None:
        """Return how many messages of a subscription can be sent immediately; None: unlimited.

        At least 1, even if a full window or a pause blocks the subscription: only a queued message lets rules
        see that.
        """
        lane = self.lanes.get(stream)
        if lane is None or (lane.window is None and not lane.is_blocked):
            return None
        return max(lane.window.free_slots, 1) if lane.window is not None and not lane.is_blocked else 1

    def return_to_log(self, stream: int) -> list[OutboxEntry]:
        """Remove a subscription's unsent deliveries of the log, and return them.

        It resumes reading the log at the first of them.

        Deliveries before one that the log doesn't bring back stay queued and are sent first.
        """
        if self.offline is not None:
            return []
        lane = self.lanes.get(stream)
        taken = self.outbox.take_journaled(stream) if lane is None else self._take_from(lane)
        account = self.recipients[stream].account
        for entry in taken:
            account.return_to_log(entry.batch)
        self._owner.mark_changed()
        return taken

    def _take_from(self, lane: SubscriptionQueue) -> list[OutboxEntry]:
        """Remove and return the deliveries of a queue that reading the log brings back."""
        self._back_to_lane(lane)
        waits = lane.take_all()
        taken = rereadable_entries(waits)
        for entry in waits[: len(waits) - len(taken)]:
            self.lanes.offer(lane, entry)
        self.lanes.update_after_take(lane.stream)
        return taken

    def _back_to_lane(self, lane: SubscriptionQueue) -> None:
        """Put unsent deliveries of a queue from the outbox back to the front of the queue."""
        unsent = self.outbox.take_stream(lane.stream)
        if unsent:
            self.lanes.requeue(lane.stream, unsent)

    def take_pending(self) -> list[OutboxEntry]:
        """Remove and return all deliveries in memory for the spool, each subscription's in order."""
        return self.lanes.take_all(self.outbox.take_all())

    def _wake_paced(self) -> None:
        """Call the callbacks of `call_when` that are ready, or all of them once the client is closed."""
        waiters, self._paced = self._paced, []
        for ready, then in waiters:
            if self.state is not ClientState.CLOSED and not ready():
                self._paced.append((ready, then))
            else:
                then()

    # Queues and windows.

    def acknowledge(self, stream: int, first: int, last: int) -> None:
        """Acknowledge messages of a subscription with a window by number.

        The caller then sends what the window allows.

        Raises:
            ClientError: bad_ack.
        """
        lane, account = self.lanes[stream], self.recipients[stream].account
        assert lane.window is not None
        # The window counts messages that the socket hasn't accepted yet; the client can't have received
        # those.
        lane.window.check(first, last, account.delivered.messages)
        done = lane.window.acknowledge(first, last)
        account.acknowledge(*done.journaled, journaled=True)
        account.acknowledge(*done.unjournaled, journaled=False)
        self.touched.add(stream)

    def reject(self, stream: int, number: int) -> None:
        """Record a message as rejected by the application, and with a cumulative window all before it.

        The caller then sends.

        Raises:
            ClientError: bad_ack.
        """
        lane, recipient = self.lanes[stream], self.recipients[stream]
        assert lane.window is not None
        lane.window.check(number, number, recipient.account.delivered.messages)
        last = lane.window.sequence_of(number)
        first = last if lane.window.mode is AckMode.INDIVIDUAL else lane.window.first_unacked
        done = lane.window.acknowledge(number, number)
        cause = DiscardCause.RETURNED if recipient.is_shared else DiscardCause.REFUSED
        self._gone.discard_rejected(recipient, done, cause, first or last, last)
        self.touched.add(stream)

    def ensure_queue(self, stream: int) -> SubscriptionQueue:
        """Return the queue of a subscription; create it if missing.

        Its deliveries in the outbox move to the queue, and `touched` reports its changes from now on.
        """
        lane = self.lanes.get(stream)
        if lane is None:
            lane = self.lanes[stream] = SubscriptionQueue(stream)
            lane.looked_at = True
            for entry in self.outbox.take_stream(stream):
                self.queue_in_memory(entry)
        elif not lane.looked_at:
            lane.looked_at = True
            self._back_to_lane(lane)
        return lane

    # Discards and ends.

    def discard_oldest(self, stream: int, messages: int, nbytes: int, rule: str) -> int:
        """Discard the oldest messages of a subscription in memory. Return the number.

        At least `messages` messages and `nbytes` bytes of bodies are discarded, as far as they are in memory.
        """
        lane, tally = self.ensure_queue(stream), DiscardTally()
        self._back_to_lane(lane)
        for entry in lane.discard_oldest(messages, nbytes):
            tally.add_entry(entry)
        self.discard(stream, tally, DiscardCause.DISCARDED, rule)
        self.lanes.update_after_take(stream)
        return tally.messages

    def discard(self, stream: int, what: DiscardTally, cause: DiscardCause, rule: str) -> None:
        """Record waiting messages of a subscription as discarded, in its account and in the loss ledger."""
        recipient = self.recipients.get(stream)
        if recipient is not None:
            self._gone.discard_waiting(recipient, what, cause, rule)

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
        holds = account.owed.messages > account.in_log.messages
        ending = self._end(recipient, self.first_pending_sequence(stream) if holds else 0, cause, rule)
        if holds:
            self.outbox.take_stream(stream)
            self.in_flight.remove_stream(stream)
        self.lanes.remove(stream)
        self._forget(recipient)
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
        self.lanes.remove(recipient.stream)
        self._forget(recipient)
        self._finished[recipient.stream] = recipient
        return NOTHING_OWED

    def _end(
        self, recipient: DeliveryTarget, waiting: int, cause: DiscardCause, rule: str
    ) -> UndeliveredSummary:
        """Discard a subscription's outstanding messages, and keep its account with the ended ones."""
        ending = self._gone.discard_outstanding(recipient, waiting, cause, rule)
        if not recipient.account.is_empty:
            self._ended.merge(recipient.account)
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
        self._end_offline()
        self.offlined_at = 0
        self._owner.on_live()
        self.send_waiting()
        self._owner.mark_changed()

    def _end_offline(self) -> None:
        offline, self.offline = self.offline, None
        if offline is not None:
            offline.close()

    def close(self) -> UndeliveredSummary:
        """Discard all unacknowledged messages and remove the spool. Return the sum over all subscriptions."""
        together = NOTHING_OWED
        if self.state is ClientState.CLOSED:
            return together
        self.state = next_state(self.state, ClientStateEvent.CLOSE)
        self.update_progress()
        waiting = self.first_pending_sequences()
        for stream, recipient in (self.recipients | self._finished).items():
            together = together.plus(
                self._end(recipient, waiting.get(stream, 0), DiscardCause.DISCONNECTED, "")
            )
        for recipient in list(self.recipients.values()):
            self._forget(recipient)
        self._finished.clear()
        self.outbox.take_all()
        self._end_offline()
        self.lanes.clear()
        self._wake_paced()
        return together


def _done(waiter: asyncio.Future[None]) -> None:
    """Wake a waiter, unless its task was cancelled."""
    if not waiter.done():
        waiter.set_result(None)
