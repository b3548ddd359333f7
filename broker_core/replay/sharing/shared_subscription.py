"""Shared subscription with consumers: reads records like a client, and assigns each to one consumer.

Towards the log it is a client whose socket is its consumers: a `Replay` reads older records, then it is live,
and it falls back to the log when the consumers are slower than new records. Its delivered records wait in
`_ready`, about as much as a socket would take. A consumer gets records when its socket has taken everything,
and its window and credit allow it. So no record waits for a slow consumer while another one could have it. A
consumer is slow only by its own assigned records, which are in its own account. The account of the shared
subscription itself belongs to no client.

Records that a consumer releases or leaves unacknowledged are read from the log again, and are assigned before
others.
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
from broker_core.delivery.scheduling import FIRST_CHUNK_BYTES
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
from broker_core.replay.sharing.assignments import MAX_OUTSTANDING, RecordAssignments
from broker_core.replay.span import ReplaySpan
from broker_core.subscriptions.subscription import TopicSubscription
from broker_core.subscriptions.topics import TopicPattern

log = structlog.get_logger("sluice.sharing")
LIVE_BYTES: Final = 256 * 1024
"""Maximum bytes queued after `_ready` while live; beyond that it reads from the log again."""
REJECTED: Final = "rejected"
"""Cause of a failed delivery: a NACK."""
REJECTED_FOR_GOOD: Final = "rejected_for_good"
"""Cause of a failed delivery: a NACK after which no consumer gets the record."""
AT_ONCE: Final = 1_000
"""Maximum records assigned at once to a consumer without a window."""
PROGRESS_CHECK_THRESHOLD: Final = 1_024
"""Unacknowledged records from which a consumer's progress is read at each assignment; below, once a
second."""


class DeadLetterWriter(Protocol):
    """Function that publishes records as dead letters; `engine.dispatch` implements it."""

    async def __call__(self, batch: Batch, name: str, failures: Mapping[int, Sequence[str]]) -> bool:
        """Return whether the records are on disk as dead letters of the shared subscription `name`.

        `failures`: causes of failed deliveries by sequence.

        False: they can't become dead letters.
        """


class _ConsumerState:
    """Consumer of a shared subscription, and its number of acknowledged records at the last check."""

    __slots__ = ("acknowledged", "target")

    def __init__(self, target: ClientSubscription) -> None:
        self.target = target
        self.acknowledged = 0
        """Acknowledged records of its account at the last check; for a consumer without a window."""

    @property
    def has_ack_window(self) -> bool:
        """Whether the consumer's application acknowledges each record."""
        return self.target.peer.backlog.has_ack_window(self.target.stream)

    def can_receive(self) -> bool:
        """Whether the consumer may get a record now."""
        return self.free_slots > 0

    @property
    def free_slots(self) -> int:
        """Number of records that the consumer may get now."""
        backlog, stream = self.target.peer.backlog, self.target.stream
        if self.target.peer.is_closed or not backlog.can_send_with(stream):
            return 0
        queue = backlog.queues.get(stream)
        if queue is None:
            return AT_ONCE
        if queue.is_blocked:
            return 0
        return queue.window.free_slots if queue.window is not None else AT_ONCE


_GRAVE: Final = "dead letters"
"""Holder of records that are being published as dead letters."""


class SharedSubscription:
    """Client of the log and source of its consumers' records; close it when the last consumer was removed.

    Implements `replay.client_subscription.SubscriptionOwner` and `SharedSubscriptionPort`, and
    `delivery.sink.Sink`.
    """

    protocol, remote = "shared", ""
    text_mode = is_network_limited = False
    is_flushed = True
    window_step_bytes = 0
    receive_window = UNKNOWN
    peer_names: frozenset[str] = frozenset()

    def __init__(
        self,
        record: DurableSubscriptionRecord,
        facilities: InstanceResources,
        frontier: DurableFrontier,
        control: ReplayControl,
        decoder_of: DecoderOf,
        write_dead_letters: DeadLetterWriter,
    ) -> None:
        assert record.sharing is not None
        self.record = record
        self._facilities, self._frontier, self._control, self._write_dead_letters = (
            facilities,
            frontier,
            control,
            write_dead_letters,
        )
        sharing = record.sharing
        self._assignments = RecordAssignments[_ConsumerState | str](
            record.position,
            sharing.upto,
            sharing.done,
            sharing.tries,
            sharing.max_deliveries,
            sharing.failures,
        )
        self._consumers: dict[ClientSubscription, _ConsumerState] = {}
        self._taking: OrderedDict[_ConsumerState, None] = OrderedDict()
        """Consumers that may accept records, the one served longest ago first.

        The others call back when they accept again, so a pass costs only what it assigns, however many
        consumers there are.
        """
        self._ready: deque[OutboxEntry] = deque()
        """Records that can be assigned, lowest sequence first."""
        self._scheduled = self._rereading = False
        self.written_bytes = 0
        # A private ledger and latency tracker: losses and latencies belong to the consumers' accounts.
        self.backlog = Backlog(self, self, replace(facilities, ledger=LossLedger(), delays=LatencyTracker()))
        self.backlog.state = next_state(self.backlog.state, ClientStateEvent.LOGGED_ON)
        target = ClientSubscription(
            self, record.topic, record.filter, None, Cursor(ReplaySpan(self._assignments.upto + 1))
        )
        target.subscription = TopicSubscription(
            target,
            record.name,
            1,
            TopicPattern.parse(record.topic),
            compile_filter(record.filter) if record.filter else None,
            decoder_of,
        )
        self._target = target
        self.backlog.add_subscription(target)
        control.start([target])

    # Consumers.

    @property
    def consumers(self) -> int:
        return len(self._consumers)

    @property
    def unacknowledged(self) -> int:
        """Number of records that consumers have and have not acknowledged."""
        self._update_progress()
        return self._assignments.unacknowledged

    def add_consumer(self, target: ClientSubscription) -> None:
        """Add a consumer."""
        consumer = self._consumers[target] = _ConsumerState(target)
        self._taking[consumer] = None
        self._soon()

    def remove_consumer(self, target: ClientSubscription) -> None:
        """Remove a consumer, and assign its unacknowledged records to others.

        Call it while the consumer's backlog still knows its records. Its oldest record counts as failed if
        the client had received it and ended by itself (`target.failure`): it was probably processing it.
        """
        consumer = self._consumers.pop(target, None)
        if consumer is None:
            return
        self._taking.pop(consumer, None)
        self._update_consumer(consumer)
        busy = consumer.has_ack_window and target.account.in_flight.messages > 0
        sequences = list(self._assignments.records_of(consumer))
        failed = sequences[:1] if busy and target.failure else ()
        self._assignments.remove_holder(consumer, failed, target.failure)
        self._soon()

    def on_acknowledged(self, target: ClientSubscription, sequences: Sequence[int]) -> None:
        """Mark records as done that a consumer with a window has acknowledged."""
        if (consumer := self._consumers.get(target)) is not None:
            self._assignments.acknowledge(consumer, sequences)
            self._soon()

    def on_returned(
        self, target: ClientSubscription, sequences: Sequence[int], *, is_permanent: bool
    ) -> None:
        """Take back records that a consumer could not process.

        `is_permanent`: no consumer will be able to.
        """
        if (consumer := self._consumers.get(target)) is not None:
            cause = REJECTED_FOR_GOOD if is_permanent else REJECTED
            self._assignments.release(consumer, sequences, sequences, cause=cause, is_permanent=is_permanent)
            self._soon()

    def redelivered_flags(self, batch: Batch) -> npt.NDArray[np.bool_] | None:
        """Return for each record whether a consumer may have received it before; None: no record."""
        possible_repeats = self._assignments.possible_repeats
        if not possible_repeats:
            return None
        had = np.fromiter(
            (sequence in possible_repeats for sequence in batch.sequences().tolist()), np.bool_, batch.count
        )
        return had if had.any() else None

    def _update_progress(self) -> None:
        """Update the acknowledgements of all consumers without a window."""
        for consumer in self._consumers.values():
            self._update_consumer(consumer)

    def _update_consumer(self, consumer: _ConsumerState) -> None:
        """Acknowledge the oldest records of a consumer without a window that its kernel has taken."""
        if consumer.has_ack_window:
            return
        consumer.target.peer.backlog.update_progress()
        done = consumer.target.account.journaled.acknowledged
        fresh, consumer.acknowledged = done - consumer.acknowledged, done
        if fresh:
            sequences = [
                one for one, _ in zip(self._assignments.records_of(consumer), range(fresh), strict=False)
            ]
            self._assignments.acknowledge(consumer, sequences)

    # Assignment.

    def _soon(self) -> None:
        """Schedule a pass of `_run_pass` in a later event-loop iteration, if none is scheduled."""
        if not self._scheduled:
            self._scheduled = True
            self._facilities.scheduler.call_in_later_iteration(self._run_pass)

    def _run_pass(self) -> None:
        """Assign ready records, fetch queued ones, and fall back to the log if too many are queued."""
        self._scheduled = False
        if self.is_closed:
            return
        try:
            self._deal()
            # Skipped without waiters, because `send` asks consumers, of which a thousand may be idle.
            if self.backlog.has_waiters:
                self.backlog.send()
                self._deal()
            if self.backlog.nbytes > LIVE_BYTES:
                self._control.fall_back(self._target)
        except Exception:
            log.exception("sharing_failed", name=self.record.name)
            self.close(
                "internal_error", "The broker couldn't distribute the records of this shared subscription."
            )

    def _deal(self) -> None:
        """Assign the ready records in equal shares to the consumers that accept some.

        Then start reading released records, if a consumer accepts some. They come first: assignment
        stops at the first ready record after them.
        """
        assignments, ready = self._assignments, self._ready
        remaining = sum(entry.count for entry in ready)
        while ready and not 0 < assignments.released.first < ready[0].batch.first_sequence:
            consumer = self._next()
            if consumer is None:
                break
            if assignments.unacknowledged >= PROGRESS_CHECK_THRESHOLD:
                self._update_consumer(consumer)
            free_slots = MAX_OUTSTANDING - assignments.unacknowledged  # a batch may have exceeded the limit
            if free_slots <= 0:
                break
            remaining -= self._give(
                consumer, min(consumer.free_slots, -(-remaining // len(self._taking)), free_slots)
            )
            self._taking.move_to_end(consumer)
            if not consumer.can_receive():
                self._wait_for(consumer)
        if len(assignments.released) and not self._rereading and self._next() is not None:
            self._rereading = True
            self._facilities.spawn(self._reread_released())

    def _next(self) -> _ConsumerState | None:
        """Return the consumer that accepts records and was served longest ago; None if none accepts."""
        while self._taking:
            consumer = next(iter(self._taking))
            if consumer.can_receive():
                return consumer
            self._wait_for(consumer)
        return None

    def _wait_for(self, consumer: _ConsumerState) -> None:
        """Remove a consumer from those that accept records, until its backlog calls back."""
        del self._taking[consumer]
        consumer.target.peer.backlog.call_when(consumer.can_receive, partial(self._on_accepting, consumer))

    def _on_accepting(self, consumer: _ConsumerState) -> None:
        """Add a consumer to those that accept records, and schedule a pass if records wait."""
        if not self.is_closed and self._consumers.get(consumer.target) is consumer:
            self._taking[consumer] = None
            if self._ready or len(self._assignments.released) or self.backlog.has_waiters:
                self._soon()

    def _give(self, consumer: _ConsumerState, number: int) -> int:
        """Assign up to `number` ready records to a consumer, limited by its socket; return the number."""
        assignments, ready, target, assigned = self._assignments, self._ready, consumer.target, 0
        remaining = target.peer.backlog.sendable_bytes((target.stream,))
        while (
            assigned < number and ready and not 0 < assignments.released.first < ready[0].batch.first_sequence
        ):
            entry, free_slots = ready[0], number - assigned
            if assigned and entry.nbytes > remaining:
                break
            remaining -= entry.nbytes
            if entry.count > free_slots:
                ready[0] = slice_entry(entry, free_slots, entry.count)
                entry = slice_entry(entry, 0, free_slots)
            else:
                ready.popleft()
            assigned += entry.count
            assignments.assign(consumer, entry.batch.sequences().tolist())
            target.account.match_shared(entry.batch)
            target.peer.backlog.offer_counted(replace(entry, stream=target.stream))
        return assigned

    async def _reread_released(self) -> None:
        """Read the oldest released records from the log again, and make them the first ready records."""
        released = self._assignments.released
        first, last = released.first, released.last
        try:
            reader = ReplayTarget(self._target.subscription, first)
            chunk = await self._facilities.reader.run(
                read_chunk,
                self._facilities.journal,
                [reader],
                ReplaySpan(first, last=last),
                self._frontier.durable,
                FIRST_CHUNK_BYTES,
                True,
            )
        except JournalError as error:
            if not self.is_closed:
                self.fail(error)
            return
        finally:
            self._rereading = False
        if self.is_closed:
            return
        reread = [
            entry for batch_slice in chunk.slices if (entry := self._released_entry(batch_slice)) is not None
        ]
        # The range up to there was read completely. Remove it even if records in it are damaged, or it would
        # be read forever.
        released.remove(first, max(min(chunk.following - 1, last), first))
        self._ready = deque(sorted((*reread, *self._ready), key=lambda entry: entry.batch.first_sequence))
        self._soon()

    def _released_entry(self, batch_slice: BatchSlice) -> OutboxEntry | None:
        """Return the released records of a slice as an outbox entry, without those given up, or None.

        The latter are published as dead letters in a task.
        """
        batch, dead_letters = batch_slice.batch, self._assignments.dead_letters
        rows = np.flatnonzero(self._assignments.add_reread(batch.sequences()))
        if dead_letters:
            is_dead = np.array(
                [number in dead_letters for number in batch.sequences()[rows].tolist()], np.bool_
            )
            if is_dead.any():
                self._facilities.spawn(self._publish_dead_letters(batch.select(rows[is_dead])))
                rows = rows[~is_dead]
        if not len(rows):
            return None
        if len(rows) < batch.count:
            batch = batch.select(rows)
        return OutboxEntry(
            1,
            batch,
            rows if batch_slice.rows is None else batch_slice.rows[rows],
            batch_slice.source,
            batch_slice.length,
            batch.count,
            batch.nbytes,
            self._facilities.clock.now_ns(),
        )

    async def _publish_dead_letters(self, batch: Batch) -> None:
        """Publish given-up records as dead letters.

        If that is impossible, they are assigned to consumers again.
        """
        sequences = batch.sequences().tolist()
        self._assignments.assign(_GRAVE, sequences)
        failures = self._assignments.failures
        causes = {sequence: tuple(failures.get(sequence, ())) for sequence in sequences}
        if await self._write_dead_letters(batch, self.record.name, causes):
            self._assignments.acknowledge(_GRAVE, sequences)
        else:
            self._assignments.retry(_GRAVE, sequences)
        self._soon()

    # Stored progress.

    def record_position(self) -> bool:
        """Update the stored progress; return whether it changed."""
        self._update_progress()
        if self._ready:  # the check may have freed capacity
            self._soon()
        record, assignments = self.record, self._assignments
        position = assignments.position(self._target.position(self._frontier.durable))
        sharing = SharedProgress(
            upto=max(assignments.upto, position - 1),
            done=assignments.completed_intervals(),
            tries=dict(assignments.tries),
            failures={sequence: list(causes) for sequence, causes in assignments.failures.items()},
            max_deliveries=assignments.max_tries,
        )
        moved = (position, sharing) != (record.position, record.sharing)
        record.position, record.sharing = position, sharing
        return moved

    def set_max_deliveries(self, max_deliveries: int) -> None:
        """Set the number of failures at which a record becomes a dead letter; 0: never."""
        self._assignments.max_tries = max_deliveries

    # Sink of its own backlog.

    @property
    def is_writable(self) -> bool:
        """Whether to read more of the log: no record is ready or released, and a consumer accepts records."""
        assignments = self._assignments
        return (
            not (self._ready or len(assignments.released) or assignments.is_full) and self._next() is not None
        )

    def send_entries(self, entries: Sequence[OutboxEntry]) -> list[int]:
        """Add entries to the ready records."""
        for entry in entries:
            self._assignments.add_new(entry.batch.sequences().tolist())
            self._ready.append(entry)
            self.written_bytes += entry.nbytes
        self._soon()
        return [entry.nbytes for entry in entries]

    def acked_bytes(self) -> int:
        """Return all bytes added: the shared subscription's own account counts them as delivered."""
        return self.written_bytes

    def send_reply(self, reply: replies.Reply) -> bool:
        """Discard the reply: no client reads it."""
        return False

    def on_logged_on(self) -> None:
        """Do nothing: the protocol is fixed."""

    def pause_reading(self) -> None:
        """Do nothing: no socket is read."""

    def resume_reading(self) -> None:
        """Do nothing: no socket is read."""

    # Owner of its own subscription of the log.

    @property
    def name(self) -> str:
        return f"shared subscription {self.record.name}"

    @property
    def is_closed(self) -> bool:
        return self.backlog.state is ClientState.CLOSED

    @property
    def subscriptions(self) -> Mapping[str, ClientSubscription]:
        return {self._target.id: self._target}

    def durable_owner(self, durable: str) -> str:
        """Return the owner of its stored record."""
        return self.record.client

    def mark_changed(self) -> None:
        """Schedule a pass: its backlog has changed."""
        self._soon()

    def reply(self, reply: replies.Reply) -> None:
        """Forward gap notices to all consumers, and discard other replies."""
        if isinstance(reply, replies.GapNotice):
            for target in self._consumers:
                target.peer.reply(msgspec.structs.replace(reply, id=target.id))

    def fail(self, error: SluiceError) -> None:
        """Send the error to all consumers and close them: the log can't be read."""
        for target in list(self._consumers):
            target.peer.fail(error)

    def close(self, code: str = "", message: str = "") -> None:
        """End the subscription of the log, and close the consumers that remain."""
        if self.is_closed:
            return
        self.backlog.state = next_state(self.backlog.state, ClientStateEvent.CLOSE)
        for target in list(self._consumers):
            target.peer.close(code, message)
        self._control.end(self._target)
        self._ready.clear()

    def on_live(self) -> None:
        """Do nothing: a shared subscription has no spool."""

    def on_spool_failed(self, error: SluiceError) -> None:
        """Do nothing: a shared subscription has no spool."""

    def end(self, target: ClientSubscription, cause: DiscardCause | None, rule: str = "") -> NoReturn:
        """Raise AssertionError: its subscription of the log has no end point."""
        raise AssertionError("a shared subscription follows the log without an end")
