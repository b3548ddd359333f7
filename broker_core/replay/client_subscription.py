"""What was sent last, by sequence: how far back a client must be served again that died without a word. Pure.

A broker knows what it gave to its kernel, and not what a client has read: two kernels' buffers lie between. A client that
doesn't say what it has (by acknowledging, or by `received`) gets the last HELD_BYTES once more.

A subscription of a connected client: what it asked for, its account, its cursor, and what serves it.
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
from broker_core.subscriptions.subscription import Subscription

BUFFER_BYTES: Final = 8 * 1024 * 1024
"""More than two kernels hold of one connection: 6 MiB at the receiver (Linux's tcp_rmem), 64 KiB that aren't sent yet, and
one chunk of a replay."""
GRAIN_BYTES: Final = 64 * 1024
"""Batches are remembered together up to so many bytes, so that a trail has a hundred steps whatever their size."""


class SentHistory:
    """The last batches given to one subscription."""

    __slots__ = ("_nbytes", "_steps")

    def __init__(self) -> None:
        self._steps: deque[list[int]] = deque()
        """[sequence of its first record, bytes], the oldest first."""
        self._nbytes = 0

    @property
    def first(self) -> int:
        """The first record that may not have been read; 0 when nothing was sent."""
        return self._steps[0][0] if self._steps else 0

    def record_sent(self, first_sequence: int, nbytes: int) -> None:
        self._nbytes += nbytes
        if self._steps and self._steps[-1][1] + nbytes <= GRAIN_BYTES:
            self._steps[-1][1] += nbytes
        else:
            self._steps.append([first_sequence, nbytes])
        while self._nbytes - self._steps[0][1] >= BUFFER_BYTES:
            self._nbytes -= self._steps.popleft()[1]


DAMAGED: Final = "These records of the log are damaged or lost; `manage.py journal verify` says more."
REMOVED: Final = "These records were removed from the log."


class SubscriptionOwner(BacklogOwner, Protocol):
    """The client of a subscription."""

    backlog: Backlog

    @property
    def is_closed(self) -> bool: ...
    def durable_owner(self, durable: str) -> str:
        """As whom a durable subscription of this client is kept."""

    @property
    def subscriptions(self) -> Mapping[str, ClientSubscription]: ...
    def reply(self, reply: replies.Reply) -> None:
        """Send an answer; it doesn't wait behind deliveries."""

    def end(
        self, target: ClientSubscription, cause: DiscardCause | None, rule: str = ""
    ) -> UndeliveredSummary:
        """End a subscription; what was owed to it. `cause` None: it was given all it asked for. Twice is harmless."""


class ServingReplay(Protocol):
    """What serves a subscription from the log: `Replay`."""

    @property
    def is_due(self) -> bool:
        """Whether it should be moving."""

    @property
    def pinned_from(self) -> int | None:
        """From where it holds the log; None: it doesn't yet."""

    def remove_subscription(self, target: ClientSubscription) -> None:
        """The subscription goes; what was read for it is read again when it goes on."""


class SharedSubscriptionPort(Protocol):
    """What a consumer has its records of, and others theirs: `sharing.SharedSubscription`."""

    kept: DurableSubscriptionRecord

    @property
    def consumers(self) -> int:
        """How many there are."""

    def close(self) -> None:
        """Nobody consumes it any more."""

    def remove_consumer(self, target: ClientSubscription) -> None:
        """It goes. While its backlog still knows what it has."""

    def on_acknowledged(self, target: ClientSubscription, sequences: Sequence[int]) -> None:
        """It is done with these."""

    def on_returned(self, target: ClientSubscription, sequences: Sequence[int], *, for_good: bool) -> None:
        """It couldn't do anything with these; `for_good`: nobody can."""

    def redelivered_flags(self, batch: Batch) -> npt.NDArray[np.bool_] | None:
        """For each record whether somebody may have had it before; None: none of them."""


@dataclass(slots=True, eq=False)
class ClientSubscription:
    """Satisfies `delivery.ports.DeliveryTarget`, and the registry's receiver."""

    peer: SubscriptionOwner
    topic: str
    filter_text: str | None
    bookmark: str | None
    cursor: Cursor
    subscription: Subscription[ClientSubscription] = field(init=False)
    """Set when it is made: the two know each other."""
    timestamp: bool = False
    durability: commands.Durability = "persisted"
    account: DeliveryAccount = field(default_factory=DeliveryAccount)
    told_upto: int = 0
    """Up to which sequence the client was told that it may resume (`persisted`)."""
    durable: str = ""
    """Name of the durable subscription it is; "" for others."""
    kept: DurableSubscriptionRecord | None = None
    """What is kept of it while it is durable and its client's alone."""
    shared: SharedSubscriptionPort | None = None
    """Of whom it has its records, where it shares them with others."""
    snapshot_key: str | None = None
    """The key expression by which its state is made, and what waits for it conflated."""
    lease_ms: int = 0
    unrecorded: Extent = ""
    """What of its topics the policy in force no longer journals, of one that reads the log."""
    journaled_as: JournaledTopics | None = None
    """The journaled topics that `unrecorded` is held against; None while nothing is missing."""
    completed: bool = False
    """Whether the client was told that everything up to `caught_up_at`, the log's end when it asked, was delivered."""
    caught_up_at: int = 0
    rate: ReplayRate | None = None
    serving: ServingReplay | None = None
    """What serves it from the log now, perhaps with others."""
    pin: Pin | None = None
    """Keeps its place in the log while it is paused."""
    conflating: SubscriptionConflator | None = None
    managed: ManagedReplayRecord | None = None
    trail: SentHistory | None = None
    """Of a managed replay: what was sent last."""
    noted_messages: int = 0
    """How many delivered messages its managed replay has counted."""
    recorded_at: int = 0
    """The moment on the recorded timeline that its replay has come to, ns."""

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
        """Whether it is of the log: one with a bookmark."""
        return self.cursor.span is not None

    @property
    def takes_both(self) -> bool:
        """Whether it is of what comes, journaled or not."""
        return self.cursor.span is None

    @property
    def is_paused(self) -> bool:
        """Whether its client has it wait where it is in the log."""
        return self.cursor.is_paused

    @property
    def can_fall_back(self) -> bool:
        """Whether it goes back to reading the log when its client takes less than comes, so that it makes nobody slow
        (seed 002: only `live` ones count). Who names the key of its state wants the newest, not all."""
        return (
            self.is_bookmark_subscription
            and self.durability != "live"
            and self.conflating is None
            and self.snapshot_key is None
        )

    def receive(self, shared: SharedDelivery, rows: Rows | None) -> None:
        """A batch has come of which these rows (None: all) are for it."""
        cursor, conflating = self.cursor, self.conflating
        state = cursor.state
        if cursor.span is not None and not shared.journaled:
            return
        if state is CursorState.LIVE and conflating is None:  # almost always
            self.peer.backlog.offer(shared.entry(self.subscription.stream, rows))
        elif state is CursorState.ENDED:
            return  # its client was closed while this batch was given to another subscription of it
        elif conflating is not None:
            conflating.add_live(shared.batch, rows)
        else:
            self.account.match_in_log(shared.slice(rows))

    def on_gap(self) -> None:
        """It has a gap: its client is closed, and can go on with what it has."""
        self.peer.close("internal_error", "A batch couldn't be queued for this client.")

    # What its client is told besides records.

    def send_gap(self, instance: str, first: int, last: int, why: str) -> None:
        """It will not get these records."""
        begin, end = str(Bookmark(instance, first)), str(Bookmark(instance, last))
        self.peer.reply(replies.GapNotice(id=self.id, first=begin, last=end, why=why))

    def send_completed(self, ended: bool = False) -> None:
        """Its replay has caught up or, when it has `ended`, is over."""
        self.completed = True
        self.peer.reply(replies.Ack(ack="completed", of="subscribe", id=self.id, ended=ended or None))

    # Where it stands.

    @property
    def pinned_from(self) -> int | None:
        """From where the log can't be removed because of it: a pause, a durable or managed position, a replay that runs. None:
        it holds nothing; what others consume too isn't held by one of them."""
        firsts = [
            self.pin.sequence if self.pin is not None else None,
            self.kept.pinned_from if self.kept is not None else None,
            self.managed.pinned_from if self.managed is not None else None,
            self.serving.pinned_from if self.serving is not None else None,
        ]
        return min((first for first in firsts if first is not None), default=None)

    def first_needed(self, waiting: int) -> int:
        """Sequence of the first record it needs again; `waiting` is the first that waits or isn't acknowledged, 0: none."""
        firsts = [waiting, self.conflating.first_sequence if self.conflating is not None else 0]
        if self.cursor.is_behind:
            firsts.append(self.cursor.next_sequence)
        return min((first for first in firsts if first), default=0)

    def position(self, durable: int) -> int:
        """The same, with what is dispatched taken for what it has; where a new subscription would go on."""
        backlog = self.peer.backlog
        backlog.update_progress()
        needed = self.first_needed(
            backlog.first_pending_sequence(self.stream)
        ) or self.cursor.next_to_deliver(durable)
        lane = backlog.lanes.get(self.stream)
        window = lane.window if lane is not None else None
        return max(needed, window.last_acked + 1 if window is not None else 0)

    def unpin(self) -> None:
        """Something else keeps its place now, or nothing need."""
        if self.pin is not None:
            self.pin.release()
            self.pin = None


def resume_points(
    subscriptions: Iterable[ClientSubscription], durable: int
) -> Iterator[tuple[ClientSubscription, int]]:
    """(subscription, the last sequence it is done with) of those whose beginning was met: a recent point even for a
    filter that rarely matches.

    It stands before the first record that it still has to get: in the log, held back, in the outbox, in the spool, or
    on its way without the peer's acknowledgement. So whatever comes before it and matches, the peer has.
    """
    firsts: dict[SubscriptionOwner, dict[int, int]] = {}
    for target in subscriptions:
        peer = target.peer
        if peer not in firsts:
            peer.backlog.update_progress()
            firsts[peer] = peer.backlog.first_pending_sequences()
        if target.cursor.begun:
            needed = target.first_needed(firsts[peer].get(target.stream, 0))
            yield target, (needed or target.cursor.next_to_deliver(durable)) - 1
