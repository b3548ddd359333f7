"""Path of a published batch: remove repeats, journal, match, queue, acknowledge.

A batch of journaled topics waits until its group is durable. Records that no journal stores are delivered
immediately, but never before earlier journaled records of the same publisher. So a subscriber sees a
publisher's order, whether or not topics are journaled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Protocol

import numpy as np
import structlog

from broker_core import batch as batches
from broker_core.activity import LAST
from broker_core.batch import Batch, hash64
from broker_core.connections.connection_view import ConnectionView
from broker_core.connections.ports import PublisherPosition, ReplicatedLogStatus
from broker_core.connections.roster import ConnectionTable
from broker_core.delivery.entries import SharedDelivery
from broker_core.delivery.ports import InstanceResources, MatchReceiver
from broker_core.engine.publisher_numbers import (
    FinishedBatches,
    InFlightPublishes,
    PendingAck,
    PublisherNumbers,
    UnconfirmedAck,
    UnjournaledPart,
    assign_session,
)
from broker_core.errors import ClientError, JournalError
from broker_core.journal.commit_log import PENDING_HIGH_BYTES, CommitLog, CommitLogFactory, PendingBatch
from broker_core.journal.publishers import newest_number
from broker_core.journal.segment import BatchPosition
from broker_core.names import BROKER_NAME, publisher_origin
from broker_core.protocols import replies
from broker_core.protocols.names import check_topic
from broker_core.protocols.stomp.destinations import QUEUES
from broker_core.replay.cursor import DurableFrontier
from broker_core.replay.sharing.assignments import to_dead_letters
from broker_core.subscriptions.destinations import SyncDestinationFilter
from broker_core.subscriptions.journaled_topics import JournaledTopics
from broker_core.subscriptions.partition import NO_ROWS, BatchPartition, Interleaving
from broker_core.subscriptions.registry import SubscriptionMatch, SubscriptionRegistry
from broker_core.sync_replication.sync_replication import SyncReplication

log = structlog.get_logger("sluice.dispatch")


class LiveSubscriptionsPort(Protocol):
    """Live subscriptions of the instance: `engine.subscriptions.SubscriptionManager`."""

    registry: SubscriptionRegistry[MatchReceiver]

    early_registry: SubscriptionRegistry[MatchReceiver]
    """Subscriptions that receive a group as soon as it is stamped, before it is on disk."""

    @property
    def has_early_subscriptions(self) -> bool:
        """Whether any subscription receives records before they are on disk, or is about to."""

    def pending_live_switch(self) -> SubscriptionRegistry[MatchReceiver] | None:
        """Return the subscriptions that join `early_registry` from the next group on; None if there are none.

        The caller must first deliver to them the batches that are in flight to the disk.
        """

    def on_write_failed(self, first: int, last: int) -> None:
        """Notify the subscriptions that received these records early that the write failed."""


class Dispatcher:
    """Path of batches from publishers to the log, and from the log to subscribers.

    The log calls its `on_…` methods and `show`.
    """

    def __init__(
        self,
        facilities: InstanceResources,
        frontier: DurableFrontier,
        everywhere: DurableFrontier,
        roster: ConnectionTable,
        subscribed: LiveSubscriptionsPort,
        process_changed_clients: Callable[[], None],
        topics: JournaledTopics,
        carried: SyncDestinationFilter,
        confirmations: SyncReplication,
        make_log: CommitLogFactory,
    ) -> None:
        self._journal, self._clock, self._share = facilities.journal, facilities.clock, facilities.share
        self._spawn = facilities.spawn
        self._frontier, self._everywhere = frontier, everywhere
        self._roster = roster
        self._subscribed = subscribed
        self._process_changed_clients = process_changed_clients
        self.topics = topics
        """Topics that are journaled under the policy in force."""
        self.carried = carried
        """Records that sync destinations receive under the policy in force."""
        self._confirmations = confirmations
        confirmations.on_confirmed = self.on_confirmed
        self.numbers = PublisherNumbers(self._journal.publishers, roster)
        self.report_log_failure: Callable[[JournalError], None] | None = None
        """Called when the log accepts no more records, so that the process must end. Set by the engine."""
        self.following: ReplicatedLogStatus | None = None
        """Status of the group's log, where other brokers append to it, too; None outside a group."""
        self._log: CommitLog[PendingAck] = make_log(self._journal, self, self._clock)
        self._trailing_bytes = 0
        """Bytes of unjournaled records that wait behind journaled ones."""
        self._unconfirmed: deque[UnconfirmedAck] = deque()
        """Durable batches that wait for sync members or destinations, in the order of the log.

        A publisher with one entry waits with all its later batches, because acknowledgements are in order.
        """
        self._unconfirmed_counts: dict[str, int] = {}
        """Number of entries in `_unconfirmed` of each publisher."""
        self.messages_in = self.bytes_in = 0

    @property
    def is_congested(self) -> bool:
        """Whether more bytes wait for the disk than allowed, so that publishers must not be read."""
        return self._log.is_full or self._trailing_bytes > PENDING_HIGH_BYTES

    def wait_for_room(self, connection: ConnectionView) -> None:
        """Resume reading from a publisher as soon as the disk has caught up."""
        self._spawn(self._resume(connection))

    async def _resume(self, connection: ConnectionView) -> None:
        await self._log.wait_for_room()
        if self.is_congested:
            await self._log.barrier()
        connection.publishing.may_read()

    async def barrier(self) -> None:
        """Wait until everything published so far is durable, and delivered or refused."""
        await self._log.barrier()

    async def close(self) -> None:
        """Finish the batches that were published."""
        await self._log.close()

    def publisher_sequence(self, name: str) -> int:
        """Return the newest finished number of a publisher: durable, or not to be journaled."""
        return newest_number(self.numbers.finished.get(name, ()))

    def publisher_position(self, name: str, session: int, *, proven: bool) -> PublisherPosition:
        """Return the numbers that the logon reply reports.

        `session` is the client's own; 0 if it named none.
        """
        return self.numbers.position(name, session, proven=proven)

    def accepted_number(self, name: str, session: int) -> int:
        """Return the newest accepted publisher sequence of a session: finished or in flight; 0 if none."""
        return self.numbers.accepted_number(name, session)

    def is_publisher_sequence_known(self, name: str) -> bool:
        """Return whether the logon reply may report the publisher's newest number.

        The number may cover records of an earlier process of this broker, or records that other members have
        acknowledged. Such a number is known only when every required member and destination has these
        records.
        """
        if self.following is not None and name in self._unconfirmed_counts:
            return False
        # Records that a link brought go to no destination. Otherwise two sites that wait for each other's
        # links would wait until one is downgraded.
        carried = not publisher_origin(name) or self.topics.has_sync
        return not (carried and self._confirmations.is_start_unconfirmed and self.publisher_sequence(name))

    async def wait_publisher_sequence_known(self, name: str) -> bool:
        """Wait until the logon reply may report the publisher's newest number.

        Returns False when a required peer is unreachable, so that the waiting time is unknown.
        """
        upto = self._frontier.durable
        while not self.is_publisher_sequence_known(name) and self._confirmations.confirmed_sequence < upto:
            if self._confirmations.has_unreachable_peer:
                return False
            with suppress(TimeoutError):
                await asyncio.wait_for(self._everywhere.wait_advanced(), 1.0)
        return True

    # Publish.

    def publish(self, connection: ConnectionView, batch: Batch, answers: Sequence[replies.Ack]) -> None:
        """Accept a batch from a client.

        When an error is raised, no record of the batch is stored.

        Raises:
            ClientError: bad_batch, bad_topic, not_journaled or refused_before.
        """
        if batch.publisher_name != connection.name:
            raise ClientError(
                "bad_batch",
                f"The batch says it is from {batch.publisher_name[:64]!r}.",
                "Build batches with the name that logged on.",
            )
        if batch.flags:
            raise ClientError(
                "bad_batch",
                f"A published batch can't have flags; this one has {batch.flags:#x}.",
                "Build batches with the client library.",
                position=6,
            )
        if batch.header.publisher != hash64(connection.name) or batch.header.log_position:
            raise ClientError(
                "bad_batch",
                "The header's `publisher` isn't the hash of the name, or its last field isn't zero.",
                "Build batches with the client library.",
                position=64,
            )
        assign_session(connection, batch)
        topics = batch.topics
        for topic in topics:
            check_topic(topic)
        self.messages_in += batch.count
        self.bytes_in += batch.nbytes
        fresh = self.numbers.drop_repeats(connection, batch, answers, self.topics)
        if fresh is None:
            return
        # Slow down replays now and not only at delivery, so that the first of many batches does not wait
        # for them.
        self._share.on_live_traffic()
        partition = self.topics.split_batch(fresh)
        if partition.unjournaled is not None:
            self._check_queues(partition.unjournaled)
        if connection.publishing.refused_upto and fresh.first_publisher_sequence:
            raise connection.publishing.make_refused_before(
                fresh.first_publisher_sequence, fresh.last_publisher_sequence
            )
        if partition.journaled is None:
            self._publish_unjournaled(UnjournaledPart(connection, fresh, answers))
        else:
            # A batch with journaled and unjournaled records is acknowledged when all of it is done.
            self._append_to_journal(connection, partition, answers, fresh.last_publisher_sequence)

    def check_queue(self, topic: str) -> None:
        """Refuse a message for a queue whose topic is not journaled. Raises ClientError not_journaled."""
        if topic.startswith(QUEUES) and not self.topics.is_journaled(topic):
            raise _not_journaled_error(topic, "No journal keeps it")

    @staticmethod
    def _check_queues(passed: Batch) -> None:
        """Refuse records for queues that no journal stores, because no consumer would get them.

        Raises:
            ClientError: not_journaled.
        """
        queues = [number for number, topic in enumerate(passed.topics, 1) if topic.startswith(QUEUES)]
        lost = np.flatnonzero(np.isin(passed.topic_indexes, queues)) if queues else NO_ROWS
        if len(lost):
            topic = passed.topics[int(passed.topic_indexes[lost[0]]) - 1]
            raise _not_journaled_error(topic, "No journal keeps this record of it")

    def _append_to_journal(
        self, connection: ConnectionView, partition: BatchPartition, answers: Sequence[replies.Ack], last: int
    ) -> None:
        """Append the journaled part of a batch.

        `last` is the publisher sequence that is acknowledged with it.
        """
        assert partition.journaled is not None
        for answer in answers:
            if answer.ack == "processed":
                connection.reply(answer)
        waiting = PendingAck(connection, last, [answer for answer in answers if answer.ack == "persisted"])
        if partition.unjournaled is not None:
            waiting.partition = partition
            self._trailing_bytes += partition.unjournaled.nbytes
        in_flight = self.numbers.in_flight.get(connection.name)
        if in_flight is None:
            in_flight = self.numbers.in_flight[connection.name] = InFlightPublishes(waiting)
        in_flight.newest = waiting
        in_flight.batches += 1
        claims = False
        if last:
            session = partition.journaled.session
            # No claim of its own behind batches of the session's former connection: without these it must not
            # enter the log either.
            claims = not connection.publishing.claimed_in_log and in_flight.claimant != session
            in_flight.session, in_flight.accepted, in_flight.claimant = session, last, session
            connection.publishing.claimed = connection.publishing.claimed_in_log = True
        self._log.append(PendingBatch(partition.journaled, waiting, claims=claims))
        connection.publishing.on_submitted()

    def _publish_unjournaled(self, passed: UnjournaledPart) -> None:
        """Deliver a batch that no journal stores.

        Immediately, or right behind journaled batches of its publisher that are in flight to the disk.
        """
        connection, batch = passed.connection, passed.batch
        in_flight = self.numbers.in_flight.get(connection.name)
        session, last = batch.session, batch.last_publisher_sequence
        if last:
            connection.publishing.claimed = True
        if in_flight is not None:
            if last:
                in_flight.session, in_flight.accepted = session, last
            if not in_flight.newest.delivered:
                in_flight.newest.trailing += (passed,)
                self._trailing_bytes += batch.nbytes
                connection.publishing.on_submitted()
                return
        elif last:
            self.numbers.finished.note(connection.name, session, last)
        self._deliver_unjournaled(batch)
        self._process_changed_clients()
        self._acknowledge_unjournaled(passed)

    @staticmethod
    def _acknowledge_unjournaled(passed: UnjournaledPart) -> None:
        """Acknowledge a delivered batch that no journal stores."""
        first, last = passed.batch.first_publisher_sequence, passed.batch.last_publisher_sequence
        passed.connection.publishing.on_forwarded(passed.answers)
        if first:
            passed.connection.reply(replies.processed_ack(first, last))

    def _deliver_unjournaled(self, batch: Batch) -> None:
        """Deliver a batch that no journal stores."""
        self._stamp_unjournaled(batch)
        self._deliver(batch, None, self._subscribed.registry)

    def _stamp_unjournaled(self, batch: Batch) -> None:
        """Stamp a batch that no journal stores: sequence 0, present time."""
        batch.stamp(
            origin=self._journal.origin,
            epoch=self._journal.epoch,
            first_sequence=0,
            accepted_at=self._clock.now_ns(),
        )

    def publish_system_record(self, topic: str, bodies: list[bytes]) -> Sequence[PendingBatch[PendingAck]]:
        """Publish the broker's own records on a `$SLUICE.` topic, or an operator's on any topic.

        Returns the batches that are in flight to the journal.

        Raises:
            ClientError: not_journaled.
        """
        in_flight = list[PendingBatch[PendingAck]]()
        for start in range(0, len(bodies), batches.MAX_RECORDS):
            built = batches.build_single_topic_batch(
                BROKER_NAME, topic, bodies[start : start + batches.MAX_RECORDS]
            )
            batch = Batch.parse(built, verify=False)
            partition = self.topics.split_batch(batch)
            if partition.unjournaled is not None:
                self._check_queues(partition.unjournaled)
                self._deliver_unjournaled(partition.unjournaled)
                self._process_changed_clients()
            if partition.journaled is not None:
                in_flight.append(PendingBatch(partition.journaled))
                self._log.append(in_flight[-1])
        return in_flight

    async def publish_dead_letters(
        self, batch: Batch, name: str, failures: Mapping[int, Sequence[str]]
    ) -> bool:
        """Store records of a shared subscription as dead letters and wait until they are durable.

        `failures`: causes of failed deliveries by sequence.

        Returns False when their topic is not journaled or the disk refuses them.
        """
        letters = to_dead_letters(batch, name, self._journal.instance, failures)
        journaled = self.topics.split_batch(letters).journaled if letters is not None else None
        if journaled is None or journaled.count < batch.count:
            return False
        pending = PendingBatch[PendingAck](journaled)
        self._log.append(pending)
        await self._log.barrier()
        return not pending.failed

    # Callbacks of the log.

    @property
    def shows_early(self) -> bool:
        """Whether the log must call `show` for groups that are not on disk yet."""
        return self._subscribed.has_early_subscriptions

    def on_stamped(self, group: Sequence[PendingBatch[PendingAck]]) -> None:
        """Record the newest sequence that was assigned."""
        self._frontier.stamped = self._everywhere.stamped = group[-1].batch.last_sequence

    def show(
        self, group: Sequence[PendingBatch[PendingAck]], before: Iterable[PendingBatch[PendingAck]]
    ) -> None:
        """Deliver a stamped group to subscriptions that do not wait for the disk.

        Records that the disk of a group's member refused come again with the same sequences. Subscriptions
        have them already, so they are skipped.

        Args:
            group: Batches that were just stamped.
            before: Earlier batches in flight to the disk. Subscriptions that have just switched to early
                delivery need them.
        """
        shown, newest = self._frontier.newest_shown, group[-1].batch.last_sequence
        if newest < shown:
            return
        first_new = next((at for at, one in enumerate(group) if one.batch.first_sequence > shown), len(group))
        new = self._subscribed.pending_live_switch()
        if new is not None:
            for pending in chain(before, group[:first_new]):
                self._deliver(pending.batch, None, new)
        self._frontier.newest_shown = self._frontier.ever_shown = newest
        early = self._subscribed.early_registry
        if len(early):
            for pending in group[first_new:]:
                self._deliver(pending.batch, None, early)
            self._process_changed_clients()

    def on_durable(
        self, group: Sequence[PendingBatch[PendingAck]], positions: Sequence[BatchPosition]
    ) -> None:
        """Deliver a durable group, and acknowledge it once per publisher."""
        finished = FinishedBatches()
        registry = self._subscribed.registry
        newest = group[-1].batch.last_sequence
        LAST.latest, LAST.first, LAST.last = "batch", group[0].batch.header.first_sequence, newest
        self._confirmations.on_local_durable(newest)
        for pending, position in zip(group, positions, strict=True):
            waiting = pending.owner
            if waiting is None or (waiting.partition is None and not waiting.trailing):  # almost always
                self._deliver(pending.batch, position, registry)
            else:
                self._deliver_with_unjournaled(waiting, pending.batch, position)
            if waiting is not None:
                waiting.delivered = True
                waiting.connection.publishing.has_stored_numbers |= waiting.last_publisher_sequence > 0
            if self._needs_confirmation(pending.batch, pending.batch.last_sequence):
                self._queue_for_confirmation(pending.batch, pending.batch.last_sequence, waiting)
            elif waiting is None:
                batch = pending.batch
                self.numbers.record_foreign_batch(
                    batch.publisher_name, batch.session, batch.last_publisher_sequence
                )
            else:
                self._finish_batch(waiting, finished)
        self._frontier.durable = newest
        for waiting in finished.trailing:
            self._acknowledge_trailing(waiting)
        self._process_changed_clients()
        self._frontier.notify_waiters()
        if finished.batches:
            self._share.on_live_traffic()
        self._acknowledge(finished)
        self._confirmations.poll_links()

    def on_duplicate(self, pending: PendingBatch[PendingAck]) -> None:
        """Acknowledge a batch that another broker had stored first, as if it were stored now."""
        waiting = pending.owner
        if waiting is None:
            return
        self._deliver_with_unjournaled(waiting, None, None)
        waiting.delivered = True
        self._process_changed_clients()
        if self._needs_confirmation(pending.batch, self._frontier.durable):
            self._queue_for_confirmation(pending.batch, self._frontier.durable, waiting)
        else:
            finished = FinishedBatches()
            self._finish_batch(waiting, finished)
            self._acknowledge_finished(finished)

    def superseded(self, pending: PendingBatch[PendingAck]) -> None:
        """Close the client whose batch is not stored because another session holds its publisher's name."""
        waiting = pending.owner
        if waiting is None:
            return
        owner = waiting.connection
        self.numbers.close_superseded(owner, claims=not owner.publishing.has_stored_numbers)
        for later in {passed.connection for passed in waiting.trailing} - {owner}:
            self.numbers.close_superseded(later, claims=True)
        dropped = [passed.batch for passed in waiting.trailing]
        if waiting.partition is not None and waiting.partition.unjournaled is not None:
            dropped.append(waiting.partition.unjournaled)
        self._trailing_bytes -= sum(batch.nbytes for batch in dropped)
        in_flight = self.numbers.in_flight[owner.name]
        in_flight.batches -= 1
        if in_flight.session == owner.publishing.session:
            in_flight.accepted = 0
        if in_flight.claimant == owner.publishing.session:
            in_flight.claimant = 0
        self.numbers.record_finished(owner.name)
        owner.publishing.on_committed(1)
        for passed in waiting.trailing:
            passed.connection.publishing.on_committed(1)

    def on_confirmed(self, upto: int) -> None:
        """Acknowledge batches up to sequence `upto`: every required sync member and destination has them."""
        self._everywhere.advance(upto)
        if not self._unconfirmed or self._unconfirmed[0].sequence > upto:
            return
        finished = FinishedBatches()
        while self._unconfirmed and self._unconfirmed[0].sequence <= upto:
            acknowledgement = self._unconfirmed.popleft()
            remaining = self._unconfirmed_counts.pop(acknowledgement.publisher) - 1
            if remaining:
                self._unconfirmed_counts[acknowledgement.publisher] = remaining
            if acknowledgement.waiting is None:
                self.numbers.record_foreign_batch(
                    acknowledgement.publisher, acknowledgement.session, acknowledgement.number
                )
            else:
                self._finish_batch(acknowledgement.waiting, finished)
        self._acknowledge_finished(finished)

    def _needs_confirmation(self, batch: Batch, last: int) -> bool:
        """Return whether sync members or destinations must confirm a batch before it is acknowledged."""
        if last <= self._confirmations.confirmed_sequence:
            return False
        return (
            batch.publisher_name in self._unconfirmed_counts
            or self.topics.any_sync(batch.topics)
            or self.carried.has_sync_destination(batch)
        )

    def _queue_for_confirmation(self, batch: Batch, last: int, waiting: PendingAck | None) -> None:
        """Queue a batch for confirmation."""
        if waiting is None and not batch.last_publisher_sequence:
            return  # no acknowledgement is due
        name = batch.publisher_name
        self._unconfirmed_counts[name] = self._unconfirmed_counts.get(name, 0) + 1
        self._unconfirmed.append(
            UnconfirmedAck(last, name, batch.session, batch.last_publisher_sequence, waiting)
        )

    def _acknowledge_finished(self, finished: FinishedBatches) -> None:
        """Acknowledge finished batches and the unjournaled batches behind them."""
        for waiting in finished.trailing:
            self._acknowledge_trailing(waiting)
        self._acknowledge(finished)

    def _finish_batch(self, waiting: PendingAck, finished: FinishedBatches) -> None:
        """Record that a batch is finished, reply to its commands, and add its number to `finished`."""
        owner = waiting.connection
        finished.batches[owner] = finished.batches.get(owner, 0) + 1
        publisher = owner.name, owner.publishing.session
        finished.numbers[publisher] = waiting.last_publisher_sequence or finished.numbers.get(publisher, 0)
        self.numbers.in_flight[owner.name].batches -= 1
        self.numbers.record_finished(*publisher, waiting.last_publisher_sequence)
        if waiting.trailing:
            finished.trailing.append(waiting)
        for answer in waiting.answers:
            owner.reply(answer)

    def _acknowledge(self, finished: FinishedBatches) -> None:
        """Send one acknowledgement for each publisher and session."""
        for (name, session), sequence in finished.numbers.items():
            client = self._roster.clients.get(name) if sequence else None
            if client is not None and client.publishing.session == session:
                client.reply(replies.persisted_ack(sequence))
        for owner, number in finished.batches.items():
            owner.publishing.on_committed(number)
        if self.numbers.repeats:
            self.numbers.answer_repeats()
        if self.numbers.superseded:
            self.numbers.close_superseded_clients()

    def _acknowledge_trailing(self, waiting: PendingAck) -> None:
        """Acknowledge the unjournaled batches behind a finished batch."""
        for passed in waiting.trailing:
            self._acknowledge_unjournaled(passed)
            passed.connection.publishing.on_committed(1)

    def _deliver_with_unjournaled(
        self, waiting: PendingAck, journaled: Batch | None, position: BatchPosition | None
    ) -> None:
        """Deliver a batch with its unjournaled records and the unjournaled batches behind it.

        `journaled` is None when the journaled part was delivered before.
        """
        partition = waiting.partition
        if partition is not None and partition.unjournaled is not None:
            self._trailing_bytes -= partition.unjournaled.nbytes
            self._stamp_unjournaled(partition.unjournaled)
            if journaled is None:
                self._deliver(partition.unjournaled, None, self._subscribed.registry)
            else:
                self._deliver_interleaved(journaled, position, partition)
        elif journaled is not None:
            self._deliver(journaled, position, self._subscribed.registry)
        for passed in waiting.trailing:
            self._trailing_bytes -= passed.batch.nbytes
            self._deliver_unjournaled(passed.batch)

    def _deliver_interleaved(
        self, journaled: Batch, position: BatchPosition | None, partition: BatchPartition
    ) -> None:
        """Deliver a batch with journaled and unjournaled records.

        Subscriptions that want both receive them in the order in which they were published.
        """
        unjournaled, registry, now = partition.unjournaled, self._subscribed.registry, self._clock.now_ns()
        assert unjournaled is not None and partition.is_journaled is not None
        shared = (SharedDelivery(journaled, position, now), SharedDelivery(unjournaled, None, now))
        journaled_rows, unjournaled_rows = dict(registry.match(journaled)), dict(registry.match(unjournaled))
        order = Interleaving(partition.is_journaled, journaled.count)
        for subscription in journaled_rows | unjournaled_rows:
            part_rows = journaled_rows.get(subscription, NO_ROWS), unjournaled_rows.get(subscription, NO_ROWS)
            for part, rows in (
                order.runs(*part_rows) if subscription.client.gets_unjournaled else enumerate(part_rows)
            ):
                if rows is None or len(rows):
                    self._deliver_matches([SubscriptionMatch(subscription, rows)], shared[part])

    def on_failed(self, group: Sequence[PendingBatch[PendingAck]], error: JournalError) -> None:
        """Report a failed write: notify and close the group's publishers, so that they republish in order.

        No record of the group is stored.
        """
        if self.following is None and self._frontier.newest_shown > self._frontier.durable:
            # In a group the log service has these records, with these sequences, and they are applied again.
            self._subscribed.on_write_failed(self._frontier.durable + 1, self._frontier.newest_shown)
            self._frontier.newest_shown = self._frontier.durable
        self._frontier.stamped = self._everywhere.stamped = self._frontier.durable
        numbers_by_client: dict[ConnectionView, list[int]] = {owner: [] for owner in self.numbers.repeats}
        for pending in group:
            waiting = pending.owner
            if waiting is None:
                continue
            numbers = numbers_by_client.setdefault(waiting.connection, [])
            if waiting.last_publisher_sequence:
                numbers += (pending.batch.first_publisher_sequence, waiting.last_publisher_sequence)
            for passed in waiting.trailing:  # accepted, and delivered only behind the refused batch
                numbers = numbers_by_client.setdefault(passed.connection, [])
                if passed.batch.first_publisher_sequence:
                    numbers += (passed.batch.first_publisher_sequence, passed.batch.last_publisher_sequence)
        # Accepted but unstored numbers are dropped: republished batches must not look like repeats. Numbers
        # of stored, unconfirmed batches become known when confirmed. Their publishers are closed too, and
        # the logon reply reports the numbers when they return.
        for one in self._unconfirmed:
            if one.waiting is not None:
                # The unjournaled batches behind it are delivered, perhaps on a later connection.
                self._acknowledge_trailing(one.waiting)
                numbers_by_client.setdefault(one.waiting.connection, [])
        self._unconfirmed = deque(one._replace(waiting=None) for one in self._unconfirmed)
        self.numbers.in_flight.clear()
        self.numbers.repeats.clear()
        self._trailing_bytes = 0
        for owner, numbers in numbers_by_client.items():
            owner.reply(
                replies.error_reply(
                    error, of="publish", first=min(numbers, default=None), sequence=max(numbers, default=None)
                )
            )
            owner.close(error.code, error.sentence, error.fix)

    def on_log_failed(self, error: JournalError) -> None:
        """Report that the log accepts no more records, so that the process must end."""
        if self.report_log_failure is not None:
            self.report_log_failure(error)

    def _deliver(
        self, batch: Batch, position: BatchPosition | None, registry: SubscriptionRegistry[MatchReceiver]
    ) -> None:
        """Match a batch and deliver it to the matching subscriptions of a registry."""
        found = registry.match(batch)
        if found:
            self._deliver_matches(found, SharedDelivery(batch, position, self._clock.now_ns()))

    @staticmethod
    def _deliver_matches(found: Sequence[SubscriptionMatch[MatchReceiver]], shared: SharedDelivery) -> None:
        """Pass a delivery to each matching subscription; a failing subscription gets a gap."""
        for subscription, rows in found:
            try:
                subscription.client.receive(shared, rows)
            except Exception:
                # A failure must not affect other subscribers, or publishers that wait for acknowledgements.
                log.exception("delivery_failed", subscription=subscription.id, topic=shared.batch.topics[0])
                subscription.client.on_gap()


def _not_journaled_error(topic: str, reason: str) -> ClientError:
    """Return the error for a queue's message that no journal stores."""
    return ClientError(
        "not_journaled",
        f"{topic} is a queue's topic. {reason}, so no consumer of the queue would get the message.",
        "Have the topic journaled (`journaled_topics` of the policy), or publish to another kind of topic.",
        topic=topic,
    )
