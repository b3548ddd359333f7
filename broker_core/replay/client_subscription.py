"""Subscription of a connected client: its request, its account, its cursor and the replay that serves it.

The module also has `SentHistory`, the newest records sent to a managed replay. The broker knows which bytes
it wrote to the socket, not which bytes the client read: the buffers of two kernels lie between. A client that
neither acknowledges nor reports `received` therefore gets the last BUFFER_BYTES again when it returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from broker_core.batch import Batch, Rows
from broker_core.bookmark import Bookmark
from broker_core.delivery.account import DeliveryAccount, DiscardCause
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.conflation import SubscriptionConflator
from broker_core.delivery.discards import UndeliveredSummary
from broker_core.delivery.entries import SharedDelivery
from broker_core.delivery.ports import BacklogOwner
from broker_core.journal.open_segments import Pin
from broker_core.protocols import commands, replies
from broker_core.replay.cursor import Cursor, CursorState
from broker_core.replay.positions.file import DurableSubscriptionRecord, ManagedReplayRecord
from broker_core.replay.rate_limit import ReplayRate
from broker_core.subscriptions.journaled_topics import Extent, JournaledTopics
from broker_core.subscriptions.subscription import TopicSubscription

BUFFER_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are sent again to a client that doesn't acknowledge.

More than all buffers of one connection: 6 MiB at the receiver (Linux's tcp_rmem), 64 KiB not yet sent, and
one chunk of a replay.
"""
GRAIN_BYTES: Final = 64 * 1024
"""Step size of a SentHistory: batches are grouped up to this size, so it has about a hundred steps."""


class SentHistory:
    """Newest batches sent to one subscription, at least BUFFER_BYTES of them. Pure."""

    __slots__ = ("_nbytes", "_steps")

    def __init__(self) -> None:
        self._steps: deque[list[int]] = deque()
        """Pairs [sequence of the first record, bytes], oldest first."""
        self._nbytes = 0

    @property
    def first(self) -> int:
        """First record that the client may not have read; 0 when nothing was sent."""
        return self._steps[0][0] if self._steps else 0

    def record_sent(self, first_sequence: int, nbytes: int) -> None:
        """Add a sent batch, and drop the oldest ones that are not among the last BUFFER_BYTES."""
        self._nbytes += nbytes
        if self._steps and self._steps[-1][1] + nbytes <= GRAIN_BYTES:
            self._steps[-1][1] += nbytes
        else:
            self._steps.append([first_sequence, nbytes])
        while self._nbytes - self._steps[0][1] >= BUFFER_BYTES:
            self._nbytes -= self._steps.popleft()[1]


DAMAGED: Final = "These records of the log are damaged or lost; `manage.py journal verify` has the details."
"""Reason in gap notices for records that can't be read."""
UNKNOWN: Final = (
    "It isn't known whether these sequences ever had records: the file that said so is "
    "damaged; `manage.py journal verify` has the details."
)
"""Reason in gap notices for sequences that were skipped, or whose records are lost."""
CONSUMER_ENDED: Final = "consumer_ended"
"""Cause of a failed delivery: the consumer disconnected or unsubscribed by itself."""
LEASE_EXPIRED: Final = "lease_expired"
"""Cause of a failed delivery: the consumer did not renew its lease."""
REMOVED: Final = "These records were removed from the log."
"""Reason in gap notices for records that were removed from the log."""


class SubscriptionOwner(BacklogOwner, Protocol):
    """Client that owns a subscription: a connection, or a shared subscription."""

    backlog: Backlog

    @property
    def is_closed(self) -> bool: ...
    def durable_owner(self, durable: str) -> str:
        """Return the client name under which a durable subscription of this name is stored."""

    @property
    def subscriptions(self) -> Mapping[str, ClientSubscription]: ...
    def reply(self, reply: replies.Reply) -> None:
        """Send a reply now; it overtakes queued records."""

    def end(
        self, target: ClientSubscription, cause: DiscardCause | None, rule: str = ""
    ) -> UndeliveredSummary:
        """End a subscription and return a summary of its undelivered records.

        `cause` is None when the subscription got every record that it asked for. A second call has no effect.
        """


class ServingReplay(Protocol):
    """Replay as its subscriptions see it; `Replay` implements it."""

    @property
    def is_due(self) -> bool:
        """Whether the replay should make progress now."""

    @property
    def pinned_from(self) -> int | None:
        """First sequence that the replay pins in the log; None when it has no pin yet."""

    def remove_subscription(self, target: ClientSubscription) -> None:
        """Remove a subscription. Records read for it and not queued are read again when it continues."""


class SharedSubscriptionPort(Protocol):
    """Shared subscription as its consumers see it; `sharing.SharedSubscription` implements it."""

    record: DurableSubscriptionRecord

    @property
    def consumers(self) -> int:
        """Number of consumers."""

    def close(self) -> None:
        """Close the shared subscription; it has no consumer any more."""

    def remove_consumer(self, target: ClientSubscription) -> None:
        """Remove a consumer. Call it while the consumer's backlog still has its unacknowledged records."""

    def on_acknowledged(self, target: ClientSubscription, sequences: Sequence[int]) -> None:
        """Record that a consumer has acknowledged these records."""

    def on_returned(
        self, target: ClientSubscription, sequences: Sequence[int], *, is_permanent: bool
    ) -> None:
        """Take back records that a consumer could not process.

        `is_permanent`: no consumer will be able to.
        """

    def redelivered_flags(self, batch: Batch) -> npt.NDArray[np.bool_] | None:
        """Return for each record whether a consumer may have received it before; None: no record."""


@dataclass(slots=True, eq=False)
class ClientSubscription:
    """Subscription of a connected client, with its position in the log and its delivery account.

    Implements `delivery.ports.DeliveryTarget` and the registry's receiver.
    """

    peer: SubscriptionOwner
    topic: str
    filter_text: str | None
    bookmark: str | None
    cursor: Cursor
    subscription: TopicSubscription[ClientSubscription] = field(init=False)
    """Entry in the registry. Set right after creation, because the two objects refer to each other."""
    timestamp: bool = False
    """Whether the client wants each message with its acceptance time."""
    durability: commands.Durability = "persisted"
    account: DeliveryAccount = field(default_factory=DeliveryAccount)
    reported_upto: int = 0
    """Newest sequence that the broker reported to the client as a resume point (`persisted`)."""
    durable: str = ""
    """Name of the durable subscription; "" for other subscriptions."""
    durable_record: DurableSubscriptionRecord | None = None
    """Stored position of a durable subscription that is not shared; None for others."""
    owed_upto: int = 0
    """Newest sequence of the log when its durable subscription was deleted; 0: it was not deleted."""
    shared: SharedSubscriptionPort | None = None
    """Shared subscription that assigns records to this consumer; None for others."""
    snapshot_key: str | None = None
    """Key expression for its initial snapshot of the state, and for conflating its waiting records."""
    lease_ms: int = 0
    """Time in ms after which the subscription ends unless the client renews it; 0: no lease."""
    failure: str = ""
    """Cause with which the end of a consumer counts as a failed delivery; "": it doesn't count."""
    unrecorded: Extent = ""
    """Extent of its topics that the policy no longer journals; for subscriptions that read the log."""
    journaled_as: JournaledTopics | None = None
    """Journaled topics that `unrecorded` was computed from; None while all of its topics are journaled."""
    completed: bool = False
    """Whether `completed` was sent: every record up to `caught_up_at`, the end of the log, was delivered."""
    caught_up_at: int = 0
    """Newest confirmed end of the log; `completed` is sent when everything up to it was delivered."""
    rate: ReplayRate | None = None
    """Rate that limits its replay; None: no limit."""
    serving_replay: ServingReplay | None = None
    """Replay that serves it from the log now, perhaps together with others."""
    pin: Pin | None = None
    """Pin at its position in the log while it is paused."""
    conflating: SubscriptionConflator | None = None
    """Conflator that the subscriber asked for, which buffers the newest record of each key; None: none."""
    managed: ManagedReplayRecord | None = None
    """Managed replay that the subscription reads; None for others."""
    trail: SentHistory | None = None
    """Newest sent records of a managed replay; None for others."""
    counted_messages: int = 0
    """Delivered messages that are already counted in its managed replay."""
    recorded_at: int = 0
    """Acceptance time of the newest record that its replay queued, ns UTC."""

    @property
    def id(self) -> str:
        return self.subscription.id

    @property
    def stream(self) -> int:
        return self.subscription.stream

    @property
    def is_shared(self) -> bool:
        return self.shared is not None

    @property
    def is_bookmark_subscription(self) -> bool:
        """Whether the subscription has a bookmark, and so reads the log."""
        return self.cursor.span is not None

    @property
    def gets_unjournaled(self) -> bool:
        """Whether the subscription gets unjournaled records as well as journaled ones: it has no bookmark."""
        return self.cursor.span is None

    @property
    def is_paused(self) -> bool:
        """Whether the client paused the subscription at its position in the log."""
        return self.cursor.is_paused

    @property
    def can_fall_back(self) -> bool:
        """Whether the subscription reads from the log again when its client is too slow for live delivery.

        Such a subscription does not make its client slow (seed 002), unless it has an acknowledgement window:
        then its waiting and unacknowledged messages count. A subscription with durability `live` cannot fall
        back. Nor can a conflated one or one with a state key: it wants the newest record of each key and not
        all records.
        """
        return (
            self.is_bookmark_subscription
            and self.durability != "live"
            and self.conflating is None
            and self.snapshot_key is None
        )

    def receive(self, shared: SharedDelivery, rows: Rows | None) -> None:
        """Receive a dispatched batch: queue, conflate or only count the rows that match (None: all rows)."""
        cursor, conflating = self.cursor, self.conflating
        state = cursor.state
        if cursor.span is not None and not shared.journaled:
            return
        if state is CursorState.LIVE and conflating is None:  # the common case
            self.peer.backlog.offer(shared.entry(self.subscription.stream, rows))
        elif state is CursorState.ENDED:
            return  # the client was closed while this batch was delivered to another of its subscriptions
        elif conflating is not None:
            conflating.add_live(shared.batch, rows)
        else:
            self.account.match_in_log(shared.slice(rows))

    def on_gap(self) -> None:
        """Close the client, because it missed a batch. It can reconnect and resume after its last record."""
        self.peer.close("internal_error", "A batch couldn't be queued for this client.")

    # Notices to the client.

    def send_gap(self, instance: str, first: int, last: int, reason: str) -> None:
        """Send a gap notice: the subscription will not get records `first` to `last`, for `reason`."""
        begin, end = str(Bookmark(instance, first)), str(Bookmark(instance, last))
        self.peer.reply(replies.GapNotice(id=self.id, first=begin, last=end, why=reason))

    def send_completed(self, is_end: bool = False) -> None:
        """Send `completed`: the replay caught up or, with `is_end`, reached its end point."""
        self.completed = True
        self.peer.reply(replies.Ack(ack="completed", of="subscribe", id=self.id, ended=is_end or None))

    # Positions.

    @property
    def pinned_from(self) -> int | None:
        """First sequence that the subscription pins in the log; None if it pins nothing.

        Reasons for a pin: a pause, a durable or managed position, a running replay. A shared subscription has
        a pin of its own, which does not count for any consumer.
        """
        firsts = [
            self.pin.sequence if self.pin is not None else None,
            self.durable_record.pinned_from if self.durable_record is not None else None,
            self.managed.pinned_from if self.managed is not None else None,
            self.serving_replay.pinned_from if self.serving_replay is not None else None,
        ]
        return min((first for first in firsts if first is not None), default=None)

    def first_needed(self, waiting: int) -> int:
        """Return the first sequence that the subscription still needs from the log, 0 for none.

        `waiting` is its first record that is queued or unacknowledged, 0 for none.
        """
        firsts = [waiting, self.conflating.first_sequence if self.conflating is not None else 0]
        if self.cursor.is_behind:
            firsts.append(self.cursor.next_sequence)
        return min((first for first in firsts if first), default=0)

    def position(self, durable: int) -> int:
        """Return the first sequence that the client has not taken; a new subscription would continue there.

        Records up to `durable` that left the queue count as taken.
        """
        backlog = self.peer.backlog
        backlog.update_progress()
        needed = self.first_needed(
            backlog.first_pending_sequence(self.stream)
        ) or self.cursor.next_to_deliver(durable)
        queue = backlog.queues.get(self.stream)
        window = queue.window if queue is not None else None
        return max(needed, window.last_acked + 1 if window is not None else 0)

    def unpin(self) -> None:
        """Release the pin of a pause, because another pin replaces it or no pin is needed."""
        if self.pin is not None:
            self.pin.release()
            self.pin = None


def resume_points(
    subscriptions: Iterable[ClientSubscription], durable: int
) -> Iterator[tuple[ClientSubscription, int]]:
    """Yield (subscription, newest finished sequence) for the subscriptions whose start was reached.

    The sequence is just before the first record that the client still has to get: in the log, conflated, in
    the outbox, in the spool, or sent without the peer's acknowledgement. The client has every matching record
    up to it. A filter that rarely matches still yields a recent resume point.
    """
    firsts: dict[SubscriptionOwner, dict[int, int]] = {}
    for target in subscriptions:
        peer = target.peer
        if peer not in firsts:
            peer.backlog.update_progress()
            firsts[peer] = peer.backlog.first_pending_sequences()
        if target.cursor.has_reached_start:
            needed = target.first_needed(firsts[peer].get(target.stream, 0))
            yield target, (needed or target.cursor.next_to_deliver(durable)) - 1
