"""What waits for one client, and its way to the socket: outbox and lanes in memory, spool on disk, live again.

    LIVE      offer → lane or outbox → send → socket
    OFFLINED  offer → spool; nothing is sent
    DRAINING  offer → spool; `offline` sends from the spool's front as fast as the socket takes it

The order of a subscription's deliveries never changes: what waits goes to the spool whole and first, everything new
goes behind it, and the client is live again only when the spool is empty.

What becomes of each subscription's messages stands in its account, which is written here: matched when they are offered,
handed over when the socket takes them, acknowledged when the peer has them, and gone when they are given up (`gone`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from broker_core.bookmark import Bookmark
from broker_core.delivery.account import (
    NOTHING,
    DeliveryAccount,
    DiscardCause,
    MessageVolume,
    OutstandingTotals,
    sum_accounts,
    sum_volumes,
    total_delivered,
)
from broker_core.delivery.discards import NOTHING_OWED, DiscardRecorder, UndeliveredSummary
from broker_core.delivery.entries import OutboxEntry, rereadable_entries
from broker_core.delivery.lifecycle import ClientState, ClientStateEvent, next_state
from broker_core.delivery.loss_ledger import DiscardTally
from broker_core.delivery.offline import SpooledBacklog
from broker_core.delivery.outbox import MANY, InFlight, Outbox
from broker_core.delivery.ports import BacklogOwner, DeliveryTarget, InstanceResources
from broker_core.delivery.sink import PULL_BYTES, ReadDetector, Sink
from broker_core.delivery.spool.spool import Spool
from broker_core.delivery.subscription_queues import SubscriptionQueue, SubscriptionQueues
from broker_core.delivery.window import AckMode
from broker_core.slow_clients.evaluate.signals import BacklogCounts

LANE_BYTES = PULL_BYTES // 8
"""What each of many lanes may move to the outbox before its neighbours have their turn."""
LUMP_BYTES = PULL_BYTES // 4
"""What waits for a client that reads nothing before it is handed over at once."""
RESTS_NS = 50_000_000
"""So does a client whose socket has taken nothing for so long."""
DUE_NS = 500_000_000
"""Who has been looked at within so long needn't be because a second has passed."""


class Backlog:
    """One client's deliveries. Satisfies `slow_clients.evaluate.signals.BacklogView`."""

    def __init__(self, owner: BacklogOwner, sink: Sink, facilities: InstanceResources) -> None:
        self._owner = owner
        self._sink = sink
        self._facilities = facilities
        self.recipients: dict[int, DeliveryTarget] = {}
        """The client's subscriptions by stream."""
        self._of_the_log: set[int] = set()
        """Streams of those whose client is never slow by them: what it doesn't take is read from the log when it does."""
        self._owed = OutstandingTotals()
        """Of the others, without what waits in the log only."""
        self._behind = OutstandingTotals()
        """What waits there for those who say themselves what they have."""
        self._ended = DeliveryAccount()
        """Of the subscriptions that it had."""
        self._gone = DiscardRecorder(owner, facilities)
        self._finished: dict[int, DeliveryTarget] = {}
        """Those that were given all they asked for, while some of it is on its way."""
        self.outbox = Outbox()
        self.lanes = SubscriptionQueues()
        """Of the subscriptions that have one."""
        self.in_flight = InFlight()
        self.conflated_bytes = 0
        """What conflated subscriptions hold back; kept by `conflating`."""
        self.offline: SpooledBacklog | None = None
        self.state = ClientState.CONNECTED
        self.offlined_at = 0
        self.unwritable_since = 0
        """From when the transport has taken nothing more, ns: it passes on what it was handed; 0 while it takes."""
        self.silent_since = 0
        """From when the peer's kernel has acknowledged nothing while something is on its way to it, ns, as far as looks tell;
        0: it has all. A transport that takes nothing says little: a peer may be taking steadily what that was handed."""
        self.acked_bytes = 0
        """Bytes of the connection that the peer's kernel had acknowledged at the last look: asking it takes nine microseconds."""
        self._looked_at = 0
        self.touched: set[int] = set()
        """Streams with a lane for which something came or was acknowledged, since whoever judges looked last."""
        self._unread = ReadDetector()
        self._rests_below = 0
        """While less waits in the outbox nobody need look at this client: it doesn't read, and what comes is handed over in lumps."""
        self._paced: list[tuple[Callable[[], bool], Callable[[], None]]] = []

    # What is said of it.

    @property
    def account(self) -> DeliveryAccount:
        """All of the client's subscriptions together, those that have ended too. Made when asked for."""
        return sum_accounts((self.ended_account, *(one.account for one in self.recipients.values())))

    @property
    def ended_account(self) -> DeliveryAccount:
        """Of the subscriptions that it had."""
        if not self._finished:
            return self._ended
        return sum_accounts((self._ended, *(one.account for one in self._finished.values())))

    @property
    def delivered(self) -> MessageVolume:
        """What of all of them was handed over."""
        return total_delivered((self.ended_account, *[one.account for one in self.recipients.values()]))

    @property
    def spool(self) -> Spool | None:
        """The backlog on disk; None while the client is live."""
        return self.offline.spool if self.offline is not None else None

    @property
    def nbytes(self) -> int:
        """Bytes in memory: outbox, lanes, what is held back, and what is on its way back from the spool."""
        nbytes = self.outbox.nbytes + self.conflated_bytes
        if self.lanes.filled:
            nbytes += self.lanes.nbytes
        return nbytes if self.offline is None else nbytes + self.offline.memory_bytes

    @property
    def messages(self) -> int:
        """Messages in memory."""
        chunk = self.offline.chunk_messages if self.offline is not None else 0
        return self.outbox.messages + self.lanes.messages + chunk

    @property
    def spool_bytes(self) -> int:
        """Bytes of the spool file."""
        return self.offline.spool.disk_bytes if self.offline is not None else 0

    @property
    def window_step_bytes(self) -> int:
        """The step in which the peer's window moves; 0 while that isn't known."""
        return self._sink.window_step_bytes

    @property
    def outstanding(self) -> MessageVolume:
        """As rules count it, of all subscriptions: the sum of what is owed of each."""
        owed = MessageVolume(self._owed.messages, self._owed.nbytes)
        if not self._behind.messages:  # almost always
            return owed
        read = (
            one for one in self.recipients.values() if one.account.behind is not None and not one.is_paused
        )
        return owed.plus(sum_volumes(one.account.in_log for one in read))

    def outstanding_of(self, one: DeliveryTarget) -> MessageVolume:
        """Waiting or in flight, as rules count it. What waits in the log only makes nobody slow, nor does what is on its way from
        there; but where the application itself says what it has, all counts that it may have."""
        by_its_word, account = self.has_ack_window(one.stream), one.account
        if one.can_fall_back and not by_its_word:
            return NOTHING
        return account.owed if by_its_word and not one.is_paused else account.owed.minus(account.in_log)

    @property
    def owed_messages(self) -> int:
        return self.outstanding.messages

    @property
    def owed_bytes(self) -> int:
        return self.outstanding.nbytes

    @property
    def oldest_at(self) -> int:
        """From when the oldest waiting delivery's age counts, ns; 0 when nothing waits."""
        oldest = self.outbox.oldest_at
        if self.lanes.filled or self.offline is not None:
            moments = [oldest, self.lanes.oldest_at]
            if self.offline is not None:
                moments += (self.offline.chunk_oldest_at, self.offline.spool.oldest_at)
            oldest = min((moment for moment in moments if moment), default=0)
        return oldest

    @property
    def unacked_at(self) -> int:
        """From when the age of the oldest delivery counts that was handed over and isn't acknowledged, ns; 0: there is none.
        Without what is on its way from the log."""
        oldest, by_its_word = self.in_flight.oldest_excluding(self._of_the_log), self.lanes.unacked_at
        return min(oldest, by_its_word) or oldest or by_its_word

    @property
    def blocked_since(self) -> int:
        """From when the peer takes nothing, ns, as rules see it: not where all that it is owed here is of the log; 0 while it
        takes."""
        if not self.silent_since or not self.in_flight or not (of_the_log := self._of_the_log):
            return self.silent_since
        waits = (
            self.offline is not None
            or not self.lanes.filled.keys() <= of_the_log
            or any(one.stream not in of_the_log for one in self.outbox)
        )
        return self.silent_since if waits or self.unacked_at else 0

    def waiting_of(self, stream: int) -> tuple[int, int, int]:
        """What waits in memory for one subscription: messages, bytes, and from when the oldest one's age counts (0: none)."""
        lane = self.lanes.get(stream)
        return self.outbox.of_stream(stream) if lane is None else (lane.messages, lane.nbytes, lane.oldest_at)

    def blocked_since_of(self, stream: int) -> int:
        """From when its peer takes nothing for one subscription, ns: its connection does, or there is no credit; 0: it takes."""
        lane = self.lanes.get(stream)
        spent_since = lane.spent_since if lane is not None else 0
        return min(filter(None, (self.silent_since, spent_since)), default=0)

    def is_spooled(self, stream: int) -> bool:
        """Whether something waits for one subscription in the spool, or is on its way back from there."""
        return self.offline is not None and self.offline.has_pending(stream)

    def waiting(self) -> BacklogCounts:
        """The counts for a decision: of all that isn't acknowledged, as far as it isn't in the log only."""
        account, spooled = (
            sum_accounts(one.account for one in self.recipients.values()),
            self._spooled_messages,
        )
        owed = account.owed.messages - account.in_log.messages
        first = min((first for first in self.first_pending_sequences().values() if first), default=0)
        return BacklogCounts(
            max(owed - spooled, 0),
            spooled,
            account.unjournaled.waiting.messages + account.unjournaled.in_flight.messages,
            str(Bookmark(self._facilities.instance, first - 1)) if first else "",
        )

    @property
    def _spooled_messages(self) -> int:
        spool = self.spool
        if spool is None:
            return 0
        return sum(spool.tallies[stream].messages for stream in spool.tallies.keys() & self.recipients.keys())

    def first_pending_sequences(self) -> dict[int, int]:
        """For each subscription of which a journaled record waits here or isn't acknowledged: the first one's sequence."""
        found = self.in_flight.first_sequences()

        def note(stream: int, first: int) -> None:
            if first:
                found[stream] = min(found.get(stream, first), first)

        for entry in self.outbox:
            note(entry.stream, entry.batch.first_sequence)
        for stream, lane in self.lanes.items():
            note(stream, lane.first_sequence)
            if lane.window is not None:
                note(stream, lane.window.first_unacked)
        if self.offline is not None:
            for stream, tally in self.offline.tallies().items():
                note(stream, tally.first)
        return found

    def first_pending_sequence(self, stream: int) -> int:
        """The same for one subscription; 0 when there is none."""
        lane = self.lanes.get(stream)
        window = lane.window if lane is not None else None
        firsts = [
            window.first_unacked if window is not None else self.in_flight.first_sequence_of(stream),
            lane.first_sequence if lane is not None else 0,
            self.outbox.first_sequence_of(stream),
        ]
        if self.offline is not None:
            firsts.append(self.offline.first_of(stream))
        return min((first for first in firsts if first), default=0)

    # The way in and out.

    def add_subscription(self, recipient: DeliveryTarget) -> None:
        """A subscription begins. If it acknowledges, its lane is there."""
        stream = recipient.stream
        self.recipients[stream] = recipient
        if recipient.can_fall_back and not self.has_ack_window(stream):
            self._of_the_log.add(stream)
        else:
            recipient.account.together = self._owed
            if self.has_ack_window(stream):
                recipient.account.behind = self._behind

    def _forget(self, recipient: DeliveryTarget) -> None:
        """It is no longer one of the client's; what it may still be owed isn't either."""
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
        """What matched a subscription, queued behind everything that waits."""
        self.recipients[entry.stream].account.match(entry.batch)
        self.offer_counted(entry)

    def offer_counted(self, entry: OutboxEntry) -> None:
        """The same for what has been counted as matched before."""
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
                return  # there is nothing to send, and nothing that a limit counts
        self._owner.mark_changed()

    def queue_in_memory(self, entry: OutboxEntry) -> None:
        """Queue one delivery in memory, in its lane if it has one."""
        lane = self.lanes.get(entry.stream)
        if lane is None or lane.can_bypass(entry, self._facilities.clock.now_ns()):
            self.outbox.offer(entry)
        else:
            self.lanes.offer(lane, entry)

    def adjust_held_bytes(self, nbytes: int) -> None:
        """A conflated subscription holds so much more, or less."""
        self.conflated_bytes += nbytes
        self._owner.mark_changed()

    def send(self) -> None:
        """Hand the socket what it takes of what waits for a live client."""
        if self.offline is None and self.state is not ClientState.CLOSED:
            self.send_waiting()

    def send_waiting(self) -> None:
        """Hand the socket what it takes of what waits in memory."""
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
        """Whether its client is live and leaves unread what it has, as the last look tells. From now on what comes for it waits until it is a
        lump, or until somebody settles it: who finds it so comes back for that soon, and asks again."""
        now, blocked = self._facilities.clock, self.unwritable_since
        rests = self._unread.update(self._sink.receive_window, now.monotonic_ns())
        if blocked and not self._sink.is_writable:
            rests = rests or now.now_ns() - blocked >= RESTS_NS
        rests = rests and self.offline is None  # what comes goes to the spool then
        if not rests:
            self._rests_below = 0
        elif not self._rests_below:
            self._rests_below = self.outbox.nbytes + LUMP_BYTES
        return rests

    def update_progress_if_due(self) -> None:
        """Look, unless somebody has in the last half of a second."""
        if self._facilities.clock.monotonic_ns() - self._looked_at >= DUE_NS:
            self.update_progress()

    def update_progress(self) -> None:
        """Note what the peer has acknowledged. Cheap while nothing is on its way."""
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
        """The socket takes bytes again."""
        self.unwritable_since = 0
        self.resume_sending()

    def resume_sending(self) -> None:
        """Something that held deliveries back has changed: the socket, a window, a pause."""
        if self.state is ClientState.LIVE:
            self.send_waiting()
        elif self.offline is not None:
            self.send_waiting()
            self.offline.resume_drain()
        self._owner.mark_changed()

    async def wait_drained(self, streams: Sequence[int] = (), *, more: bool = False) -> None:
        """Wait until the client has taken everything and is live: how replays are paced by the socket.

        Where the subscriptions of these streams have lanes, until nothing waits there either; with `more`, until they also
        have credit.
        """
        ready = partial(self.can_send if more else self.has_room_for, streams)
        while self.state is not ClientState.CLOSED and not ready():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.call_when(ready, partial(_done, waiter))
            await waiter

    def call_when(self, ready: Callable[[], bool], then: Callable[[], None]) -> None:
        """Call `then` once when the socket takes bytes, or something that held deliveries back has changed, and it is `ready`;
        or closed."""
        self._paced.append((ready, then))

    @property
    def has_waiters(self) -> bool:
        """Whether something waits here to be sent, or somebody until more can be."""
        return bool(self.outbox.nbytes or self._paced)

    @property
    def has_room(self) -> bool:
        """Whether the client is live and has taken everything, lanes apart."""
        return self.offline is None and not self.outbox.nbytes and self._sink.is_writable

    def has_room_for(self, streams: Sequence[int]) -> bool:
        """The same, and nothing waits in the lanes of these subscriptions."""
        return self.has_room and self.lanes.filled.keys().isdisjoint(streams)

    def can_send(self, streams: Sequence[int]) -> bool:
        """The same, and each of them may be sent something."""
        lanes = self.lanes
        return self.has_room_for(streams) and not (
            lanes
            and any((lane := lanes.get(stream)) is not None and lane.is_credit_spent for stream in streams)
        )

    def can_send_with(self, stream: int) -> bool:
        """Whether something for a subscription leaves at the end of the turn, beside what others have queued in it."""
        lane = self.lanes.get(stream)
        return (
            self.offline is None
            and self._sink.is_writable
            and self.outbox.nbytes < PULL_BYTES
            and (lane is None or not (lane.is_credit_spent or stream in self.lanes.filled))
        )

    def sendable_bytes(self, streams: Sequence[int]) -> int:
        """How many bytes for these subscriptions leave at once when it `can_send`, or `can_send_with`; an entry always does,
        however large."""
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
        """How many messages of a subscription leave at once then; None: as many as there are. One when nothing does: that it
        waits is how a full window and a pause are seen."""
        lane = self.lanes.get(stream)
        if lane is None or (lane.window is None and not lane.is_blocked):
            return None
        return max(lane.window.free_slots, 1) if lane.window is not None and not lane.is_blocked else 1

    def return_to_log(self, stream: int) -> list[OutboxEntry]:
        """Take a subscription's unsent deliveries of the log out again: it goes on reading there, from the first of them.

        What stands before something that the log doesn't bring back stays, and is sent first.
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
        self._back_to_lane(lane)
        waits = lane.take_all()
        taken = rereadable_entries(waits)
        for entry in waits[: len(waits) - len(taken)]:
            self.lanes.offer(lane, entry)
        self.lanes.update_after_take(lane.stream)
        return taken

    def _back_to_lane(self, lane: SubscriptionQueue) -> None:
        """What the lane has given and the socket hasn't taken waits there again, before the rest."""
        unsent = self.outbox.take_stream(lane.stream)
        if unsent:
            self.lanes.requeue(lane.stream, unsent)

    def take_pending(self) -> list[OutboxEntry]:
        """Take everything that waits in memory, each subscription's in its order: it goes to the spool."""
        return self.lanes.take_all(self.outbox.take_all())

    def _wake_paced(self) -> None:
        waiters, self._paced = self._paced, []
        for ready, then in waiters:
            if self.state is not ClientState.CLOSED and not ready():
                self._paced.append((ready, then))
            else:
                then()

    # Lanes and windows.

    def has_ack_window(self, stream: int) -> bool:
        """Whether a subscription says itself what it has."""
        lane = self.lanes.get(stream)
        return lane is not None and lane.window is not None

    def sent_upto(self, stream: int) -> int:
        """Up to which sequence the application may have records that it hasn't acknowledged; 0: none."""
        lane = self.lanes.get(stream)
        return lane.window.last_sent if lane is not None and lane.window is not None else 0

    def acknowledge(self, stream: int, first: int, last: int) -> None:
        """A subscription with a window acknowledges messages by number. ClientError bad_ack; `go_on` sends what it made
        room for."""
        lane, account = self.lanes[stream], self.recipients[stream].account
        assert lane.window is not None
        # What the window has let through and the socket hasn't taken can't have been received.
        lane.window.check(first, last, account.delivered.messages)
        done = lane.window.acknowledge(first, last)
        account.acknowledge(*done.journaled, journaled=True)
        account.acknowledge(*done.unjournaled, journaled=False)
        self.touched.add(stream)

    def reject(self, stream: int, number: int) -> None:
        """A subscription with a window won't have a message, and, where one stands for all before, those: gone, as its
        client says. ClientError bad_ack; `go_on` sends what it made room for."""
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
        """The lane of a subscription, made when it has none: what waits for it moves there, and is looked at from now on."""
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

    # What is given up.

    def discard_oldest(self, stream: int, messages: int, nbytes: int, rule: str) -> int:
        """Discard the oldest of a subscription's waiting messages, at least so many and of so many bytes of bodies, as far
        as they are in memory; how many that were."""
        lane, tally = self.ensure_queue(stream), DiscardTally()
        self._back_to_lane(lane)
        for entry in lane.discard_oldest(messages, nbytes):
            tally.add_entry(entry)
        self.discard(stream, tally, DiscardCause.DISCARDED, rule)
        self.lanes.update_after_take(stream)
        return tally.messages

    def discard(self, stream: int, what: DiscardTally, cause: DiscardCause, rule: str) -> None:
        """Some of a subscription's waiting messages will not be delivered: into its account, and into the ledger."""
        recipient = self.recipients.get(stream)
        if recipient is not None:
            self._gone.discard_waiting(recipient, what, cause, rule)

    def remove_subscription(
        self, recipient: DeliveryTarget, cause: DiscardCause, rule: str
    ) -> UndeliveredSummary:
        """A subscription ends: what of it waits or isn't acknowledged is gone, and where it would go on is said."""
        self.update_progress()
        stream, account = recipient.stream, recipient.account
        # Whoever is owed nothing needn't be looked for among what is on its way to others: many may end at once.
        holds = account.owed.messages > account.in_log.messages
        ending = self._end(recipient, self.first_pending_sequence(stream) if holds else 0, cause, rule)
        if holds:
            self.outbox.take_stream(stream)
            self.in_flight.remove_stream(stream)
        self.lanes.remove(stream)
        self._forget(recipient)
        if self.offline is not None:
            self.offline.resume_drain()  # what is behind it may come back now
        return ending

    def complete_subscription(self, recipient: DeliveryTarget) -> UndeliveredSummary:
        """A subscription has been given all it asked for: what its peer doesn't have yet is on its way, and not gone. With a
        window nobody acknowledges it any more."""
        if recipient.account.waiting.messages or self.has_ack_window(recipient.stream):
            return self.remove_subscription(recipient, DiscardCause.UNSUBSCRIBED, "")
        self.lanes.remove(recipient.stream)
        self._forget(recipient)
        self._finished[recipient.stream] = recipient
        return NOTHING_OWED

    def _end(
        self, recipient: DeliveryTarget, waiting: int, cause: DiscardCause, rule: str
    ) -> UndeliveredSummary:
        ending = self._gone.discard_outstanding(recipient, waiting, cause, rule)
        if not recipient.account.is_empty:
            self._ended.merge(recipient.account)
        return ending

    # Offline, drain, live again.

    def go_offline(self, spool: Spool) -> None:
        """Move everything that waits to the spool, in order, and drain it from now on when the client reads."""
        self.state = next_state(self.state, ClientStateEvent.OFFLINE)
        self.offlined_at = self._facilities.clock.now_ns()
        self.offline = SpooledBacklog(self, self._owner, self._sink, self._facilities, spool)
        self.offline.start(self.take_pending())
        self._owner.mark_changed()

    def on_spool_empty(self) -> None:
        """The spool is empty."""
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
        """Give up everything that isn't acknowledged, and remove the spool. All that was owed, together."""
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
    if not waiter.done():
        waiter.set_result(None)
