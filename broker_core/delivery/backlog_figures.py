"""Figures of one client's backlog, as rules, decisions and reports of status read them.

`backlog.Backlog` changes what this module reads.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_core.bookmark import Bookmark
from broker_core.delivery.account import (
    NOTHING,
    DeliveryAccount,
    MessageVolume,
    OutstandingTotals,
    sum_accounts,
    sum_volumes,
    total_delivered,
)
from broker_core.delivery.discards import DiscardRecorder
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.outbox import InFlight, Outbox
from broker_core.delivery.ports import BacklogOwner, DeliveryTarget, InstanceResources
from broker_core.delivery.sink import ReadDetector, Sink
from broker_core.delivery.spool.spool import Spool
from broker_core.delivery.spooled_backlog import SpooledBacklog
from broker_core.delivery.subscription_queues import SubscriptionQueues
from broker_core.slow_clients.evaluate.signals import BacklogCounts


class BacklogFigures:
    """Deliveries of one client, and figures about them.

    Satisfies `slow_clients.evaluate.signals.BacklogView`.
    """

    def __init__(self, owner: BacklogOwner, sink: Sink, facilities: InstanceResources) -> None:
        self._owner = owner
        self._sink = sink
        self._facilities = facilities
        self.recipients: dict[int, DeliveryTarget] = {}
        """Subscriptions of the client, by stream."""
        self._log_streams: set[int] = set()
        """Streams of subscriptions that can fall back to the log and have no acknowledgement window.

        They never make their client slow: records that it doesn't read in time are read from the log again
        later.
        """
        self._outstanding = OutstandingTotals()
        """Unacknowledged messages of the other subscriptions, without those that are in the log only."""
        self._log_only = OutstandingTotals()
        """Messages in the log only, of subscriptions with an acknowledgement window."""
        self._ended_account = DeliveryAccount()
        """Sum of the accounts of subscriptions that have ended."""
        self._discards = DiscardRecorder(owner, facilities)
        self._completed: dict[int, DeliveryTarget] = {}
        """Completed subscriptions whose last deliveries are still in flight, by stream."""
        self.outbox = Outbox()
        self.queues = SubscriptionQueues()
        """Queues of the subscriptions that have one, by stream."""
        self.in_flight = InFlight()
        self.conflated_bytes = 0
        """Bytes that conflated subscriptions hold back; `conflation` updates it."""
        self.offline: SpooledBacklog | None = None
        self.state = ClientState.CONNECTED
        self.offlined_at = 0
        self.unwritable_since = 0
        """Time since which the transport has accepted nothing more, ns; 0 while it is writable.

        The transport still passes on the bytes that it holds.
        """
        self.silent_since = 0
        """Time since which the peer's kernel has acknowledged no bytes in flight, ns, as of the last check.

        0: everything is acknowledged. A transport that isn't writable says less: the peer may be reading
        steadily what the transport holds.
        """
        self.acked_bytes = 0
        """Bytes of the connection that the peer's kernel had acknowledged at the last check.

        A check costs 9 µs.
        """
        self._checked_at = 0
        self.changed_streams: set[int] = set()
        """Streams whose queue got deliveries or acknowledgements since the policy loop checked last."""
        self._read_detector = ReadDetector()
        self._coalesce_below_bytes = 0
        """Outbox bytes below which the policy loop need not visit this client; 0 while the client reads.

        The client isn't reading then, and new deliveries are coalesced.
        """
        self._waiters: list[tuple[Callable[[], bool], Callable[[], None]]] = []

    @property
    def account(self) -> DeliveryAccount:
        """Sum of the accounts of all subscriptions of the client, ended ones included.

        Computed at each call.
        """
        return sum_accounts((self.ended_account, *(one.account for one in self.recipients.values())))

    @property
    def ended_account(self) -> DeliveryAccount:
        """Sum of the accounts of ended subscriptions."""
        if not self._completed:
            return self._ended_account
        return sum_accounts((self._ended_account, *(one.account for one in self._completed.values())))

    def add_ended_account(self, account: DeliveryAccount) -> None:
        """Add the account of an ended subscription, or a part of it that was counted later."""
        self._ended_account.merge(account)

    @property
    def delivered(self) -> MessageVolume:
        """Messages that were handed over, of all subscriptions."""
        return total_delivered((self.ended_account, *[one.account for one in self.recipients.values()]))

    @property
    def spool(self) -> Spool | None:
        """Spool with the backlog on disk; None while the client is live."""
        return self.offline.spool if self.offline is not None else None

    @property
    def nbytes(self) -> int:
        """Bytes in memory.

        They are in the outbox, in queues, held back for conflation, or being loaded from the spool.
        """
        nbytes = self.outbox.nbytes + self.conflated_bytes
        if self.queues.nonempty:
            nbytes += self.queues.nbytes
        return nbytes if self.offline is None else nbytes + self.offline.memory_bytes

    @property
    def messages(self) -> int:
        """Messages in memory, without those held back for conflation."""
        chunk = self.offline.chunk_messages if self.offline is not None else 0
        return self.outbox.messages + self.queues.messages + chunk

    @property
    def spool_bytes(self) -> int:
        """Bytes of the spool's files and of its unwritten entries."""
        return self.offline.spool.disk_bytes if self.offline is not None else 0

    @property
    def window_step_bytes(self) -> int:
        """Step in which the peer's receive window moves, bytes; 0 while it is unknown."""
        return self._sink.window_step_bytes

    @property
    def outstanding(self) -> MessageVolume:
        """Unacknowledged messages of all subscriptions, as rules count them: the sum of `get_outstanding`."""
        volume = MessageVolume(self._outstanding.messages, self._outstanding.nbytes)
        if not self._log_only.messages:  # almost always
            return volume
        read = (
            one
            for one in self.recipients.values()
            if one.account.client_log_only is not None and not one.is_paused
        )
        return volume.plus(sum_volumes(one.account.in_log for one in read))

    def get_outstanding(self, recipient: DeliveryTarget) -> MessageVolume:
        """Return the unacknowledged messages of one subscription, as rules count them.

        Messages in the log only don't make a client slow. Neither do deliveries of a subscription that can
        fall back to the log. With an acknowledgement window all of them count, because the application itself
        reports its progress; a pause excludes those in the log only.
        """
        has_ack_window, account = self.has_ack_window(recipient.stream), recipient.account
        if recipient.can_fall_back and not has_ack_window:
            return NOTHING
        return (
            account.outstanding
            if has_ack_window and not recipient.is_paused
            else account.outstanding.minus(account.in_log)
        )

    @property
    def owed_messages(self) -> int:
        return self.outstanding.messages

    @property
    def owed_bytes(self) -> int:
        return self.outstanding.nbytes

    @property
    def oldest_at(self) -> int:
        """Time from which the age of the oldest queued delivery counts, ns; 0 when none is queued."""
        oldest = self.outbox.oldest_at
        if self.queues.nonempty or self.offline is not None:
            moments = [oldest, self.queues.oldest_at]
            if self.offline is not None:
                moments += (self.offline.chunk_oldest_at, self.offline.spool.oldest_at)
            oldest = min((moment for moment in moments if moment), default=0)
        return oldest

    @property
    def unacked_at(self) -> int:
        """Time from which the age of the oldest unacknowledged delivery counts, ns; 0: there is none.

        Deliveries of subscriptions that can fall back to the log are excluded.
        """
        oldest, in_windows = self.in_flight.oldest_excluding(self._log_streams), self.queues.unacked_at
        return min(oldest, in_windows) or oldest or in_windows

    @property
    def blocked_since(self) -> int:
        """Time since which the peer has read nothing, ns, as rules see it; 0 while it reads.

        0 also if all of its backlog in memory belongs to subscriptions that can fall back to the log.
        """
        if not self.silent_since or not self.in_flight or not (of_the_log := self._log_streams):
            return self.silent_since
        waits = (
            self.offline is not None
            or not self.queues.nonempty.keys() <= of_the_log
            or any(one.stream not in of_the_log for one in self.outbox)
        )
        return self.silent_since if waits or self.unacked_at else 0

    def get_queued(self, stream: int) -> tuple[int, int, int]:
        """Return one subscription's messages in memory, their bytes, and oldest age start (ns, 0: none)."""
        queue = self.queues.get(stream)
        return (
            self.outbox.get_queued(stream)
            if queue is None
            else (queue.messages, queue.nbytes, queue.oldest_at)
        )

    def get_blocked_since(self, stream: int) -> int:
        """Return the time since which one subscription can't be sent, ns; 0: it can.

        Either the connection's peer reads nothing, or the subscription's credit is used up.
        """
        queue = self.queues.get(stream)
        spent_since = queue.spent_since if queue is not None else 0
        return min(filter(None, (self.silent_since, spent_since)), default=0)

    def is_spooled(self, stream: int) -> bool:
        """Whether deliveries of one subscription are in the spool or are being loaded from it."""
        return self.offline is not None and self.offline.has_pending(stream)

    def count_messages(self) -> BacklogCounts:
        """Return the counts for a decision: messages that wait in memory or spool, or are in flight."""
        account, spooled = (
            sum_accounts(one.account for one in self.recipients.values()),
            self._spooled_messages,
        )
        outstanding = account.outstanding.messages - account.in_log.messages
        first = min((first for first in self.first_pending_sequences().values() if first), default=0)
        return BacklogCounts(
            max(outstanding - spooled, 0),
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
        """Return the sequence of the first waiting or unacknowledged journaled record by stream.

        Streams without one are missing.
        """
        found = self.in_flight.first_sequences()

        def note(stream: int, first: int) -> None:
            if first:
                found[stream] = min(found.get(stream, first), first)

        for entry in self.outbox:
            note(entry.stream, entry.batch.first_sequence)
        for stream, queue in self.queues.items():
            note(stream, queue.first_sequence)
            if queue.window is not None:
                note(stream, queue.window.first_unacked)
        if self.offline is not None:
            for stream, tally in self.offline.tallies().items():
                note(stream, tally.first)
        return found

    def first_pending_sequence(self, stream: int) -> int:
        """Return the sequence of a subscription's first waiting or unacknowledged record; 0: none."""
        queue = self.queues.get(stream)
        window = queue.window if queue is not None else None
        firsts = [
            window.first_unacked if window is not None else self.in_flight.get_first_sequence(stream),
            queue.first_sequence if queue is not None else 0,
            self.outbox.get_first_sequence(stream),
        ]
        if self.offline is not None:
            firsts.append(self.offline.get_first_sequence(stream))
        return min((first for first in firsts if first), default=0)

    def has_ack_window(self, stream: int) -> bool:
        """Whether a subscription has an acknowledgement window."""
        queue = self.queues.get(stream)
        return queue is not None and queue.window is not None

    def get_last_sent(self, stream: int) -> int:
        """Return the last sequence that the application may have received and not acknowledged; 0: none."""
        queue = self.queues.get(stream)
        return queue.window.last_sent if queue is not None and queue.window is not None else 0
