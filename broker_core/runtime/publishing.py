"""The way of a published batch: repeats left out, to the journal or past it, matched, queued, acknowledged.

A batch of journaled topics waits for its group to be durable; what no journal keeps is delivered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from broker_core import batch as batches
from broker_core.batch import Batch
from broker_core.delivery import OutboxEntry
from broker_core.errors import ClientError, JournalError
from broker_core.journal.acks import Publishers
from broker_core.journal.segment import Position
from broker_core.protocols import replies
from broker_core.protocols.names import check_topic
from broker_core.runtime.connection import Connection
from broker_core.runtime.group_commit import GroupCommit, Pending
from broker_core.subscriptions.registry import Registry

if TYPE_CHECKING:
    from broker_core.runtime.host import Host

BROKER_NAME = "$SLUICE"
"""The publisher of the broker's own events."""


class Publishing:
    """What an instance's publishers send, on its way to the subscribers."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._publishers = Publishers(host.journal.publishers)
        self._commit = GroupCommit(host.journal, self._committed, self._failed, self._stamped)
        self.messages_in = self.bytes_in = 0

    @property
    def congested(self) -> bool:
        """Whether more waits for the disk than should."""
        return self._commit.full

    def wait_for_room(self, connection: Connection) -> None:
        """Let a publisher be read again when the disk has caught up."""
        self._host.spawn(self._resume(connection))

    async def _resume(self, connection: Connection) -> None:
        await self._commit.room()
        connection.publishing.may_read()

    async def idle(self) -> None:
        """Wait until nothing is on its way to the disk."""
        await self._commit.idle()

    async def close(self) -> None:
        """Finish what was published."""
        await self._commit.close()

    def publisher_sequence(self, name: str) -> int:
        """The last of a publisher's own numbers that this instance has taken."""
        return self._publishers.get(name, 0)

    # Publish.

    def publish(self, connection: Connection, batch: Batch, answers: Sequence[replies.Ack]) -> None:
        """Take a batch from a client. Raises ClientError bad_batch or bad_topic, and nothing of it is stored."""
        if batch.publisher_name != connection.name:
            raise ClientError("bad_batch", f"The batch says it is from {batch.publisher_name[:64]!r}.",
                              "Build batches with the name that logged on.")
        topics = batch.topics
        for topic in topics:
            check_topic(topic)
        self.messages_in += batch.count
        self.bytes_in += batch.nbytes
        fresh = self._without_repeats(connection, batch, answers)
        if fresh is None:
            return
        # From here on, and not only when it is delivered: the first of many shouldn't wait for replays at full speed.
        self._host.turns.live()
        passed, kept = self._host.journaled.parts(fresh)
        if passed is not None:
            self._pass_on(passed)
        if kept is not None:
            # Of a batch of both kinds the publisher hears when the whole of it is done.
            self._to_journal(connection, kept, answers, fresh.last_publisher_sequence)
            return
        for answer in answers:
            connection.reply(answer)
        if fresh.first_publisher_sequence:
            connection.reply(replies.processed(fresh.first_publisher_sequence, fresh.last_publisher_sequence))

    def _without_repeats(
        self, connection: Connection, batch: Batch, answers: Sequence[replies.Ack]
    ) -> Batch | None:
        """The part of a batch that wasn't published before, by publisher sequence; None when there is none."""
        first = batch.first_publisher_sequence
        if first == 0:
            return batch
        known, last = self._publishers.get(connection.name, 0), batch.last_publisher_sequence
        if last <= known:
            # On disk already, or on its way there: then the commit acknowledges it.
            if connection.publishing.uncommitted == 0 and self._host.journal.publishers.get(connection.name, 0) >= last:
                connection.reply(replies.persisted(last))
            for answer in answers:
                connection.reply(answer)
            return None
        self._publishers.note(connection.name, last)
        if first > known:
            return batch
        rows = np.nonzero(batch.publisher_sequences() > known)[0]
        return batch.select(rows, explicit=False)

    def _to_journal(self, connection: Connection, batch: Batch, answers: Sequence[replies.Ack], last: int) -> None:
        """`last` is the publisher's number that is acknowledged with the batch."""
        for answer in answers:
            if answer.ack == "processed":
                connection.reply(answer)
        waiting = [answer for answer in answers if answer.ack == "persisted"]
        self._commit.submit(Pending(batch, connection, last, waiting))
        connection.publishing.submitted()

    def _pass_on(self, batch: Batch) -> None:
        """A batch that no journal keeps: deliver it now."""
        batch.stamp(origin=self._host.journal.origin, epoch=self._host.journal.epoch, first_sequence=0, accepted_at=self._host.now_ns())
        touched: dict[Connection, None] = {}
        self._deliver(batch, None, touched)
        self._flush(touched)

    def publish_own(self, topic: str, bodies: list[bytes]) -> None:
        """Publish the broker's own records on a `$SLUICE.` topic, or an operator's on any."""
        for start in range(0, len(bodies), batches.MAX_RECORDS):
            built = batches.build_one_topic(BROKER_NAME, topic, bodies[start : start + batches.MAX_RECORDS])
            batch = Batch.parse(built, verify=False)
            passed, kept = self._host.journaled.parts(batch)
            if passed is not None:
                self._pass_on(passed)
            if kept is not None:
                self._commit.submit(Pending(kept, None, 0, []))

    # After the disk.

    def _stamped(self, group: list[Pending]) -> None:
        """A group has its sequences and goes to the disk: subscriptions that don't wait for that get it now."""
        self._host.newest_sequence = group[-1].batch.last_sequence
        early = self._host.subscribing.early()
        if early is not None:
            touched: dict[Connection, None] = {}
            for pending in group:
                self._deliver(pending.batch, None, touched, early)
            self._flush(touched)

    def _committed(self, group: list[Pending], positions: list[Position]) -> None:
        """A group is durable: deliver it and acknowledge it, once per publisher."""
        touched: dict[Connection, None] = {}
        acks: dict[str, int] = {}
        done: dict[Connection, int] = {}
        for pending, position in zip(group, positions, strict=True):
            self._deliver(pending.batch, position, touched)
            owner = pending.owner
            if owner is not None:
                done[owner] = done.get(owner, 0) + 1
                if pending.last_publisher_sequence:
                    acks[owner.name] = pending.last_publisher_sequence
                for answer in pending.answers:
                    owner.reply(answer)
        self._host.dispatched_sequence = group[-1].batch.header.first_sequence + group[-1].batch.count - 1
        self._flush(touched)
        self._host.subscribing.dispatched()
        if done:
            self._host.turns.live()
        for name, sequence in acks.items():
            client = self._host.clients.get(name)
            if client is not None:
                client.reply(replies.persisted(sequence))
        for owner, number in done.items():
            owner.publishing.committed(number)

    def _failed(self, group: list[Pending], error: JournalError) -> None:
        """Nothing of the group is stored: its publishers are told and closed, so that they republish in order."""
        self._host.subscribing.not_stored(self._host.dispatched_sequence + 1, self._host.newest_sequence)
        self._host.newest_sequence = self._host.dispatched_sequence
        failed: dict[Connection, list[int]] = {}
        for pending in group:
            if pending.owner is not None:
                numbers = failed.setdefault(pending.owner, [])
                if pending.last_publisher_sequence:
                    numbers += (pending.batch.first_publisher_sequence, pending.last_publisher_sequence)
        for owner, numbers in failed.items():
            # What was taken but not stored is no longer known: its republishing must not look like a repeat.
            self._publishers.note(owner.name, self._host.journal.publishers.get(owner.name, 0))
            owner.reply(replies.error_reply(
                error, of="publish", first=min(numbers, default=None), sequence=max(numbers, default=None)
            ))
            owner.close(error.code, error.sentence, error.fix)

    def _deliver(
        self, batch: Batch, position: Position | None, touched: dict[Connection, None], registry: Registry | None = None
    ) -> None:
        parts: dict[int, Batch] = {}
        made: dict[tuple[int, int], OutboxEntry] = {}
        journaled, nbytes, at = batch.header.first_sequence > 0, batch.nbytes, batch.accepted_at
        for subscription, rows in (self._host.subscribing.registry if registry is None else registry).match(batch):
            target: Any = subscription.client
            if target.journaled_only and not journaled:
                continue
            connection = target.connection
            touched[connection] = None
            if target.conflating is not None:
                target.conflating.live(batch, rows)
                continue
            # Clients whose subscriptions ask the same share one entry: most are stream 1 of their connection.
            key = (subscription.stream, id(rows))
            entry = made.get(key)
            if entry is None:
                part = parts.get(id(rows))
                if part is None:
                    part = parts[id(rows)] = batch if rows is None else batch.select(rows)
                entry = made[key] = OutboxEntry(
                    subscription.stream, part, rows, position, nbytes, part.count, part.nbytes, at
                )
            target.delivered_messages += entry.count
            connection.backlog.offer(entry)

    def _flush(self, touched: dict[Connection, None]) -> None:
        for connection in touched:
            if not connection.closed:
                connection.backlog.flush()
