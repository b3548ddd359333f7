"""One shared subscription while it has consumers: brought from the log as to any client, dealt to them as they take it.

To the log it is a client whose socket are its consumers: a `Replay` brings it what they missed, then it is live, and falls
back to the log when they take less than comes. What it was given waits `ready`, a socket's worth of it. A consumer is
given something when its socket has taken everything, and its window and its credit let it: so nothing waits for one consumer that another
could have, and a slow one is slow by what it holds. Its messages stand in its own account; the shared one's own is nobody's.

What a consumer gives back, or leaves behind, is read from the log again, and goes out before anything else.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import structlog

from broker_core.batch import Batch
from broker_core.delivery.account import DiscardCause
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.entries import BatchSlice, OutboxEntry
from broker_core.delivery.latency import LatencyTracker
from broker_core.delivery.lifecycle import ClientState, ClientStateEvent, next_state
from broker_core.delivery.loss_ledger import LossLedger
from broker_core.delivery.ports import InstanceResources
from broker_core.delivery.scheduling import FIRST_CHUNK
from broker_core.delivery.sink import UNKNOWN
from broker_core.delivery.subscription_queues import slice_entry
from broker_core.errors import JournalError, SluiceError
from broker_core.filters import DecoderOf, compile_filter
from broker_core.protocols import replies
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.control import ReplayControl
from broker_core.replay.cursor import Cursor, DurableFrontier
from broker_core.replay.positions.file import DurableSubscriptionRecord, SharedProgress
from broker_core.replay.read_ahead import ReplayTarget, read_chunk
from broker_core.replay.sharing.assignments import MAX_OWED, RecordAssignments
from broker_core.replay.span import ReplaySpan
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern

log = structlog.get_logger("sluice.sharing")
LIVE_BYTES: Final = 256 * 1024
"""What may wait behind `ready` while it is live; beyond that it goes back to reading the log."""
AT_ONCE: Final = 1_000
"""Records that a consumer without a window is given at once."""
LOOK_FROM: Final = 1_024
"""Unacknowledged records, from which on it is looked up at each part what the kernels have taken; else once a second."""


class DeadLetterWriter(Protocol):
    """Puts records that everybody gives back where they bother nobody: `engine.burying`."""

    async def __call__(self, batch: Batch, name: str) -> bool:
        """Whether they are on disk as dead letters of the shared subscription of that name; False: they can't be."""


class _ConsumerState:
    """One of them."""

    __slots__ = ("acknowledged", "target")

    def __init__(self, target: ClientSubscription) -> None:
        self.target = target
        self.acknowledged = 0
        """How many its account had acknowledged when that was last looked at; of one without a window."""

    @property
    def has_ack_window(self) -> bool:
        return self.target.peer.backlog.has_ack_window(self.target.stream)

    def can_receive(self) -> bool:
        """Whether it may be given something now."""
        return self.room > 0

    @property
    def room(self) -> int:
        """How many records it may be given now."""
        backlog, stream = self.target.peer.backlog, self.target.stream
        if self.target.peer.is_closed or not backlog.can_send_with(stream):
            return 0
        lane = backlog.lanes.get(stream)
        if lane is None:
            return AT_ONCE
        if lane.is_blocked:
            return 0
        return lane.window.free_slots if lane.window is not None else AT_ONCE


_GRAVE: Final = "dead letters"
"""Who holds what is being buried."""


class SharedSubscription:
    """Satisfies `replay.client_subscription.SubscriptionOwner` and `SharedSubscriptionPort`, and `delivery.sink.Sink`. `close` when the last consumer has gone."""

    protocol, remote = "shared", ""
    text_mode = is_network_limited = False
    is_flushed = True
    window_step_bytes = 0
    receive_window = UNKNOWN
    peer_names: frozenset[str] = frozenset()

    def __init__(
        self,
        kept: DurableSubscriptionRecord,
        facilities: InstanceResources,
        frontier: DurableFrontier,
        control: ReplayControl,
        decoder_of: DecoderOf,
        bury: DeadLetterWriter,
    ) -> None:
        assert kept.sharing is not None
        self.kept = kept
        self._facilities, self._frontier, self._control, self._bury = facilities, frontier, control, bury
        sharing = kept.sharing
        self._handout = RecordAssignments[_ConsumerState | str](
            kept.position, sharing.upto, sharing.done, sharing.tries, sharing.max_deliveries
        )
        self._consumers: dict[ClientSubscription, _ConsumerState] = {}
        self._taking: OrderedDict[_ConsumerState, None] = OrderedDict()
        """Those that may take something, who was served longest ago first. The others say themselves when they do: so a turn costs
        what it gives out, however many there are."""
        self._ready: deque[OutboxEntry] = deque()
        """What can be dealt, the lowest sequence first."""
        self._scheduled = self._bringing = False
        self.written_bytes = 0
        # Its losses are nobody's: those of its consumers are in their accounts. What it takes to deal hasn't been delivered.
        self.backlog = Backlog(self, self, replace(facilities, ledger=LossLedger(), delays=LatencyTracker()))
        self.backlog.state = next_state(self.backlog.state, ClientStateEvent.LOGGED_ON)
        target = ClientSubscription(
            self, kept.topic, kept.filter, None, Cursor(ReplaySpan(self._handout.upto + 1))
        )
        target.subscription = Subscription(
            target,
            kept.name,
            1,
            TopicPattern.parse(kept.topic),
            compile_filter(kept.filter) if kept.filter else None,
            decoder_of,
        )
        self._target = target
        self.backlog.add_subscription(target)
        control.start([target])

    # Its consumers.

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    @property
    def unacknowledged(self) -> int:
        """Records that consumers have and haven't acknowledged."""
        self._look()
        return self._handout.unacknowledged

    def add_consumer(self, target: ClientSubscription) -> None:
        """One more consumer."""
        consumer = self._consumers[target] = _ConsumerState(target)
        self._taking[consumer] = None
        self._soon()

    def remove_consumer(self, target: ClientSubscription) -> None:
        """A consumer goes, while its backlog still knows what it has. What it hasn't acknowledged goes to others; the oldest of
        it counts as failed, if its client was given it: that is what it was busy with."""
        consumer = self._consumers.pop(target, None)
        if consumer is None:
            return
        self._taking.pop(consumer, None)
        self._look_at(consumer)
        busy = consumer.has_ack_window and target.account.in_flight.messages > 0
        held = list(self._handout.records_of(consumer))
        self._handout.remove_holder(consumer, held[:1] if busy else ())
        self._soon()

    def on_acknowledged(self, target: ClientSubscription, sequences: Sequence[int]) -> None:
        """A consumer with a window is done with these."""
        if (consumer := self._consumers.get(target)) is not None:
            self._handout.acknowledge(consumer, sequences)
            self._soon()

    def on_returned(self, target: ClientSubscription, sequences: Sequence[int], *, for_good: bool) -> None:
        """It couldn't do anything with these; `for_good`: nobody else can either."""
        if (consumer := self._consumers.get(target)) is not None:
            self._handout.release(consumer, sequences, sequences, for_good=for_good)
            self._soon()

    def redelivered_flags(self, batch: Batch) -> npt.NDArray[np.bool_] | None:
        """For each record whether another consumer, or the same, may have had it; None: none of them."""
        again = self._handout.again
        if not again:
            return None
        had = np.fromiter(
            (sequence in again for sequence in batch.sequences().tolist()), np.bool_, batch.count
        )
        return had if had.any() else None

    def _look(self) -> None:
        for consumer in self._consumers.values():
            self._look_at(consumer)

    def _look_at(self, consumer: _ConsumerState) -> None:
        """What the kernel of one without a window has taken is acknowledged, in the order in which it was given."""
        if consumer.has_ack_window:
            return
        consumer.target.peer.backlog.update_progress()
        done = consumer.target.account.journaled.acknowledged
        fresh, consumer.acknowledged = done - consumer.acknowledged, done
        if fresh:
            held = [one for one, _ in zip(self._handout.records_of(consumer), range(fresh), strict=False)]
            self._handout.acknowledge(consumer, held)

    # Dealing.

    def _soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._facilities.turns.call_later_turn(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self.is_closed:
            return
        try:
            self._deal()
            if (
                self.backlog.has_waiters
            ):  # else nobody need be asked whether he takes something: there may be a thousand idle ones
                self.backlog.send()
                self._deal()
            if self.backlog.nbytes > LIVE_BYTES:
                self._control.fall_back(self._target)
        except Exception:
            log.exception("sharing_failed", name=self.kept.name)
            self.close("internal_error", "What this shared subscription has couldn't be dealt.")

    def _deal(self) -> None:
        """Give what is ready to those that take something, in equal parts; and have brought again what is back."""
        handout, ready = self._handout, self._ready
        left = sum(entry.count for entry in ready)
        while ready and not 0 < handout.back.first < ready[0].batch.first_sequence:
            consumer = self._next()
            if consumer is None:
                break
            if handout.unacknowledged >= LOOK_FROM:
                self._look_at(consumer)
            room = MAX_OWED - handout.unacknowledged  # a batch may have brought more than is wanted
            if room <= 0:
                break
            left -= self._give(consumer, min(consumer.room, -(-left // len(self._taking)), room))
            self._taking.move_to_end(consumer)
            if not consumer.can_receive():
                self._wait_for(consumer)
        if len(handout.back) and not self._bringing and self._next() is not None:
            self._bringing = True
            self._facilities.spawn(self._bring_back())

    def _next(self) -> _ConsumerState | None:
        """Of those that take something now, who was served longest ago."""
        while self._taking:
            consumer = next(iter(self._taking))
            if consumer.can_receive():
                return consumer
            self._wait_for(consumer)
        return None

    def _wait_for(self, consumer: _ConsumerState) -> None:
        """It takes nothing now, and is heard of when it does."""
        del self._taking[consumer]
        consumer.target.peer.backlog.call_when(consumer.can_receive, partial(self._takes_again, consumer))

    def _takes_again(self, consumer: _ConsumerState) -> None:
        if not self.is_closed and self._consumers.get(consumer.target) is consumer:
            self._taking[consumer] = None
            if self._ready or len(self._handout.back) or self.backlog.has_waiters:
                self._soon()

    def _give(self, consumer: _ConsumerState, number: int) -> int:
        """The next so many records are the consumer's, or as many as leave at once; how many that were."""
        handout, ready, target, given = self._handout, self._ready, consumer.target, 0
        left = target.peer.backlog.sendable_bytes((target.stream,))
        while given < number and ready and not 0 < handout.back.first < ready[0].batch.first_sequence:
            entry, room = ready[0], number - given
            if given and entry.nbytes > left:
                break
            left -= entry.nbytes
            if entry.count > room:
                ready[0] = slice_entry(entry, room, entry.count)
                entry = slice_entry(entry, 0, room)
            else:
                ready.popleft()
            given += entry.count
            handout.assign(consumer, entry.batch.sequences().tolist())
            target.account.match_shared(entry.batch)
            target.peer.backlog.offer_counted(replace(entry, stream=target.stream))
        return given

    async def _bring_back(self) -> None:
        """Read again what was given back, the oldest of it; then it is ready, before the rest."""
        back = self._handout.back
        first, last = back.first, back.last
        try:
            reader = ReplayTarget(self._target.subscription, first)
            chunk = await self._facilities.reader.run(
                read_chunk,
                self._facilities.journal,
                [reader],
                ReplaySpan(first, last=last),
                self._frontier.durable,
                FIRST_CHUNK,
                True,
            )
        except JournalError as error:
            if not self.is_closed:
                self.fail(error)
            return
        finally:
            self._bringing = False
        if self.is_closed:
            return
        brought = [entry for piece in chunk.pieces if (entry := self._wanted(piece)) is not None]
        # All that is for it up to there has been read. What is damaged can't be brought: else it would be asked for for ever.
        back.remove(first, max(min(chunk.following - 1, last), first))
        self._ready = deque(sorted((*brought, *self._ready), key=lambda entry: entry.batch.first_sequence))
        self._soon()

    def _wanted(self, piece: BatchSlice) -> OutboxEntry | None:
        """What of a piece of the log was given back, without what is given up."""
        batch, given_up = piece.batch, self._handout.given_up
        rows = np.flatnonzero(self._handout.add_reread(batch.sequences()))
        if given_up:
            over = np.array([number in given_up for number in batch.sequences()[rows].tolist()], np.bool_)
            if over.any():
                self._facilities.spawn(self._put_away(batch.select(rows[over])))
                rows = rows[~over]
        if not len(rows):
            return None
        if len(rows) < batch.count:
            batch = batch.select(rows)
        return OutboxEntry(
            1,
            batch,
            rows if piece.rows is None else piece.rows[rows],
            piece.source,
            piece.length,
            batch.count,
            batch.nbytes,
            self._facilities.clock.now_ns(),
        )

    async def _put_away(self, batch: Batch) -> None:
        """Make dead letters of what is given up. What can't be kept as such goes to consumers again."""
        sequences = batch.sequences().tolist()
        self._handout.assign(_GRAVE, sequences)
        if await self._bury(batch, self.kept.name):
            self._handout.acknowledge(_GRAVE, sequences)
        else:
            self._handout.retry(_GRAVE, sequences)
        self._soon()

    # What is kept of it.

    def record_position(self) -> bool:
        """Write down where it stands; whether that is somewhere else than before."""
        self._look()
        if self._ready:  # what was looked up may have made room
            self._soon()
        kept, handout = self.kept, self._handout
        position = handout.position(self._target.position(self._frontier.durable))
        sharing = SharedProgress(
            upto=max(handout.upto, position - 1),
            done=handout.completed_intervals(),
            tries=dict(handout.tries),
            max_deliveries=handout.most_tries,
        )
        moved = (position, sharing) != (kept.position, kept.sharing)
        kept.position, kept.sharing = position, sharing
        return moved

    def set_max_deliveries(self, max_deliveries: int) -> None:
        """From now on a record is given up when consumers have failed with it so often; 0: never."""
        self._handout.most_tries = max_deliveries

    # The way in: a socket, to its backlog.

    @property
    def is_writable(self) -> bool:
        """Whether more of the log is wanted: all that was is dealt, and somebody takes more."""
        handout = self._handout
        return not (self._ready or len(handout.back) or handout.is_full) and self._next() is not None

    def send_entries(self, entries: Sequence[OutboxEntry]) -> list[int]:
        """These are ready."""
        for entry in entries:
            self._handout.add_new(entry.batch.sequences().tolist())
            self._ready.append(entry)
            self.written_bytes += entry.nbytes
        self._soon()
        return [entry.nbytes for entry in entries]

    def acked_bytes(self) -> int:
        return self.written_bytes

    def send_reply(self, reply: replies.Reply) -> None:
        """Nobody reads answers here."""

    def on_logged_on(self) -> None:
        """It is known from the start what this is."""

    def pause_reading(self) -> None:
        """Nothing is read from it."""

    def resume_reading(self) -> None:
        """Nothing is read from it."""

    # A client, to the log.

    @property
    def name(self) -> str:
        return f"shared subscription {self.kept.name}"

    @property
    def is_closed(self) -> bool:
        return self.backlog.state is ClientState.CLOSED

    @property
    def subscriptions(self) -> Mapping[str, ClientSubscription]:
        return {self._target.id: self._target}

    def durable_owner(self, durable: str) -> str:
        return self.kept.client

    def mark_changed(self) -> None:
        self._soon()

    def reply(self, reply: replies.Reply) -> None:
        """Of what is said to it, gaps concern its consumers."""
        if isinstance(reply, replies.GapNotice):
            for target in self._consumers:
                target.peer.reply(msgspec.structs.replace(reply, id=target.id))

    def fail(self, error: SluiceError) -> None:
        """The log can't be read: its consumers are told, and closed."""
        for target in list(self._consumers):
            target.peer.fail(error)

    def close(self, code: str = "", message: str = "") -> None:
        """End it; consumers that it still has are closed."""
        if self.is_closed:
            return
        self.backlog.state = next_state(self.backlog.state, ClientStateEvent.CLOSE)
        for target in list(self._consumers):
            target.peer.close(code, message)
        self._control.end(self._target)
        self._ready.clear()

    def on_live(self) -> None:
        """It has no spool."""

    def on_spool_failed(self, error: SluiceError) -> None:
        """It has no spool."""

    def end(self, target: ClientSubscription, cause: DiscardCause | None, rule: str = "") -> NoReturn:
        raise AssertionError("a shared subscription follows the log without an end")
