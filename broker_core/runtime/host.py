"""The hallway of the engine: publish → journal → match → queue → judge → socket, on one event loop.

Decisions are made elsewhere (`subscriptions`, `slow_clients`, `delivery`), pure; here they are carried out. All
methods run on the loop unless they say otherwise. Nothing is done per record here: the unit is the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import structlog

from broker_core import batch as batches
from broker_core.batch import Batch
from broker_core.config import PolicyDocument
from broker_core.delivery import Ledger, OutboxEntry
from broker_core.errors import ClientError, JournalError
from broker_core.journal.acks import Publishers
from broker_core.journal.held import Pin
from broker_core.journal.journal import Journal
from broker_core.journal.segment import Position
from broker_core.protocols import replies
from broker_core.protocols.names import check_client_name, check_topic
from broker_core.runtime import clock
from broker_core.runtime.client_subscription import ClientSubscription
from broker_core.runtime.connection import Connection
from broker_core.runtime.durables import Durables
from broker_core.runtime.events import ClientEvents
from broker_core.runtime.group_commit import GroupCommit, Pending
from broker_core.runtime.handoff import Held, Tokens, key_at
from broker_core.runtime.journaled import JournaledTopics
from broker_core.runtime.judging import Judging
from broker_core.runtime.leases import Leases
from broker_core.runtime.logons import Logons
from broker_core.runtime.managed import ManagedReplays
from broker_core.runtime.refused import RefusedNames
from broker_core.runtime.sink import Sink
from broker_core.runtime.steering import Steering
from broker_core.runtime.subscribing import Subscribing
from broker_core.runtime.turns import Turns
from broker_core.slow_clients.guard import SlowClientGuard
from broker_core.slow_clients.staging import Stage
from broker_core.subscriptions.registry import Registry

log = structlog.get_logger("sluice.host")
T = TypeVar("T")
MAX_CONNECTIONS = 20_000
LOGON_WITHIN_MS = 10_000
"""A connection that hasn't logged on by then is closed."""
BROKER_NAME = "$SLUICE"
"""The publisher of the broker's own events."""


class Host:
    """One running instance."""

    def __init__(
        self, journal: Journal, policy: PolicyDocument, spool_directory: Path, host_memory: int, ulimit: int | None
    ) -> None:
        self.journal = journal
        self.instance = journal.instance
        self.policy = policy
        self.started_at = clock.now_ns()
        self.clients: dict[str, Connection] = {}
        self.connections: set[Connection] = set()
        self.on_connected: Callable[[Connection], None] | None = None
        self.events = ClientEvents()
        self.dispatched_sequence = journal.next_sequence - 1
        self.messages_in = self.bytes_in = self.messages_out = self.bytes_out = 0
        self.gone_messages = self.gone_bytes = 0
        """What clients that have left were sent; the others keep their own counts."""
        self._surroundings = (host_memory, ulimit, str(spool_directory))
        self.logons = Logons(self, policy)
        self.subscribing = Subscribing(self)
        self.turns = Turns()
        self.steering = Steering(self)
        self._publishers = Publishers(journal.publishers)
        self._commit = GroupCommit(journal, self._committed, self._failed, self._stamped)
        self.newest_sequence = self.dispatched_sequence
        self._readers = ThreadPoolExecutor(1, "reader")
        self._chores: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self.disk_ms = 0
        """How long the last read of the log or a spool took, with its turn in the queue."""
        self._saving_replays = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.journaled = JournaledTopics(policy.instance)
        self.judging = Judging(self, SlowClientGuard(policy, *self._surroundings))
        self.ledger = Ledger()
        self.refused = RefusedNames()
        self.leases = Leases()
        self.parting: set[Connection] = set()
        """Clients that were told why they are closed, and may still answer."""
        state = spool_directory.parent / "state"
        self.durables = Durables(self, state / f"{self.instance}.durables.json")
        self.managed = ManagedReplays(self, journal.directory / f"{self.instance}.replays.json")
        self.tokens = Tokens(self.instance, key_at(state / f"{self.instance}.resume.key"))

    # Time and threads, for those who belong to this host.

    def now_ns(self) -> int:
        return clock.now_ns()

    def monotonic_ms(self) -> int:
        return clock.monotonic_ms()

    async def in_reader_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work that reads the journal where it doesn't stop the loop."""
        begun = clock.monotonic_ms()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)
        finally:
            self.disk_ms = clock.monotonic_ms() - begun

    def pin(self, sequence: int, owner: str) -> Pin:
        """Keep the journal from sequence on while a replay or a spool needs it."""
        return self.journal.pin(sequence, owner)

    def journal_chores(self) -> None:
        """Have spare segments made and full ones closed, in a thread, one round at a time."""
        if self._chores is None or self._chores.done():
            self._chores = self.spawn(self._do_chores())

    async def _do_chores(self) -> None:
        try:
            await asyncio.to_thread(self.journal.preallocate)
        except JournalError as error:
            # The journal goes on without spares, and writing says so itself when the disk is full.
            log.warning("journal_chores_failed", code=error.code, why=error.sentence)

    # Connections.

    def connected(self, transport: str, sink: Sink) -> Connection:
        """A transport has a new connection."""
        connection = Connection(self, transport, sink)
        self.connections.add(connection)
        if self.on_connected is not None:
            self.on_connected(connection)
        if len(self.connections) > MAX_CONNECTIONS:
            connection.close("too_many_connections", f"This instance takes {MAX_CONNECTIONS} connections.")
        return connection

    def admit(self, connection: Connection, name: str) -> None:
        """Let a client log on by that name. A client of the same name that is connected is told, and replaced."""
        check_client_name(name)
        self.refused.check(name, self.monotonic_ms())
        before = self.clients.get(name)
        if before is not None:
            before.close("client_replaced", f"Another client logged on as {name}, from {connection.sink.remote}.")
        self.clients[name] = connection
        connection.account = self.judging.guard.register(
            name, connection.transport, connection.backlog, connection.user
        )
        self.events.add(self.now_ns(), name, "connect", "live")

    def disconnected(self, connection: Connection, why: str = "closed") -> None:
        """A connection is gone: its transport ended, or it is being closed. Calling it twice is harmless."""
        self.connections.discard(connection)
        if connection.closed:
            return
        for subscription in connection.subscriptions.values():
            self.ending(subscription)
        self.gone_messages += connection.backlog.sent_messages
        self.gone_bytes += connection.backlog.sent_bytes
        connection.backlog.close()
        for subscription in connection.subscriptions.values():
            self.subscribing.remove(subscription)
        if connection.account is not None:
            self.judging.guard.unregister(connection.account)
            if self.clients.get(connection.name) is connection:
                del self.clients[connection.name]
            self.events.add(self.now_ns(), connection.name, "disconnect", why)

    def ending(self, target: ClientSubscription) -> None:
        """A subscription is about to end. What waits for it is still there."""
        self.managed.closed(target)
        if target.durable:
            self.durables.closed(target)
        if target.lease_ms:
            self.leases.end(target)

    def hand_off(self, connection: Connection) -> str:
        """A resume token for a client that is about to be dropped; "" when nothing of its subscriptions is journaled."""
        held = [
            Held(target.subscription.id, target.topic, target.filter_text, connection.backlog.position_of(target))
            for target in connection.subscriptions.values()
            if target.subscription.pattern.exact is None or self.journaled.is_journaled(target.topic)
        ]
        return self.tokens.make(connection.name, held, self.now_ns() // 1_000_000)

    def close_transport(self, name: str) -> None:
        """A transport was disabled or moved: its clients are told and closed."""
        for connection in list(self.connections):
            if connection.transport == name:
                connection.close("transport_closed", f"The transport {name} was closed by an operator.")

    def publisher_sequence(self, name: str) -> int:
        """The last of a publisher's own numbers that this instance has taken."""
        return self._publishers.get(name, 0)

    # Publish.

    @property
    def congested(self) -> bool:
        """Whether more waits for the disk than should."""
        return self._commit.full

    def wait_for_room(self, connection: Connection) -> None:
        """Let a publisher be read again when the disk has caught up."""
        self.spawn(self._resume(connection))

    async def _resume(self, connection: Connection) -> None:
        await self._commit.room()
        connection.may_read()

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
        passed, kept = self.journaled.parts(fresh)
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
            if connection.uncommitted == 0 and self.journal.publishers.get(connection.name, 0) >= last:
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
        connection.submitted()

    def _pass_on(self, batch: Batch) -> None:
        """A batch that no journal keeps: deliver it now."""
        batch.stamp(origin=self.journal.origin, epoch=self.journal.epoch, first_sequence=0, accepted_at=self.now_ns())
        touched: dict[Connection, None] = {}
        self._deliver(batch, None, touched)
        self._flush(touched)

    def publish_own(self, topic: str, bodies: list[bytes]) -> None:
        """Publish the broker's own records on a `$SLUICE.` topic, or an operator's on any."""
        for start in range(0, len(bodies), batches.MAX_RECORDS):
            built = batches.build_one_topic(BROKER_NAME, topic, bodies[start : start + batches.MAX_RECORDS])
            batch = Batch.parse(built, verify=False)
            passed, kept = self.journaled.parts(batch)
            if passed is not None:
                self._pass_on(passed)
            if kept is not None:
                self._commit.submit(Pending(kept, None, 0, []))

    # After the disk.

    def _stamped(self, group: list[Pending]) -> None:
        """A group has its sequences and goes to the disk: subscriptions that don't wait for that get it now."""
        self.newest_sequence = group[-1].batch.last_sequence
        early = self.subscribing.early()
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
        self.dispatched_sequence = group[-1].batch.header.first_sequence + group[-1].batch.count - 1
        self._flush(touched)
        self.subscribing.dispatched()
        self.turns.live()
        for name, sequence in acks.items():
            client = self.clients.get(name)
            if client is not None:
                client.reply(replies.persisted(sequence))
        for owner, number in done.items():
            owner.committed(number)

    def _failed(self, group: list[Pending], error: JournalError) -> None:
        """Nothing of the group is stored: its publishers are told and closed, so that they republish in order."""
        self.subscribing.not_stored(self.dispatched_sequence + 1, self.newest_sequence)
        self.newest_sequence = self.dispatched_sequence
        failed: dict[Connection, list[int]] = {}
        for pending in group:
            if pending.owner is not None:
                numbers = failed.setdefault(pending.owner, [])
                if pending.last_publisher_sequence:
                    numbers += (pending.batch.first_publisher_sequence, pending.last_publisher_sequence)
        for owner, numbers in failed.items():
            # What was taken but not stored is no longer known: its republishing must not look like a repeat.
            self._publishers.note(owner.name, self.journal.publishers.get(owner.name, 0))
            owner.reply(replies.error_reply(
                error, of="publish", first=min(numbers, default=None), sequence=max(numbers, default=None)
            ))
            owner.close(error.code, error.sentence, error.fix)

    def _deliver(
        self, batch: Batch, position: Position | None, touched: dict[Connection, None], registry: Registry | None = None
    ) -> None:
        made: dict[int, Batch] = {}
        nbytes, count, at = batch.nbytes, batch.count, batch.accepted_at
        for subscription, rows in (self.subscribing.registry if registry is None else registry).match(batch):
            target: Any = subscription.client
            if target.journaled_only and not batch.header.first_sequence:
                continue
            connection = target.connection
            if target.conflating is not None:
                target.conflating.live(batch, rows)
                touched[connection] = None
                continue
            if rows is None:
                entry = OutboxEntry(subscription.stream, batch, None, position, nbytes, count, nbytes, at)
            else:
                part = made.get(id(rows))
                if part is None:
                    part = made[id(rows)] = batch.select(rows)
                entry = OutboxEntry(subscription.stream, part, rows, position, nbytes, part.count, part.nbytes, at)
            target.delivered_messages += entry.count
            connection.backlog.offer(entry)
            touched[connection] = None

    def _flush(self, touched: dict[Connection, None]) -> None:
        for connection in touched:
            if not connection.closed:
                connection.backlog.flush()

    # Time and control.

    def tick(self) -> None:
        """Once a second: ages, logons that never came, heartbeats."""
        now = clock.monotonic_ms()
        self.subscribing.acknowledge()
        self.leases.expire(now)
        self._save_durables()
        if self.managed.look():
            self.spawn(self.save_replays())
        for connection in list(self.connections):
            if not connection.logged_on:
                if now - connection.heard_at > LOGON_WITHIN_MS:
                    connection.close("logon_timeout", f"No logon came within {LOGON_WITHIN_MS // 1_000} s.")
            elif connection.heartbeat_ms:
                if now - connection.heard_at > 2 * connection.heartbeat_ms + 1_000:
                    connection.close("heartbeat_timeout", f"Nothing was heard for {now - connection.heard_at} ms.")
                elif now - connection.spoke_at >= connection.heartbeat_ms:
                    connection.reply(replies.Heartbeat())
        self._publish_events()

    def _publish_events(self) -> None:
        self.events.lost(self.ledger.close_intervals(), self.instance)
        for topic, bodies in self.events.take().items():
            self.publish_own(topic, bodies)

    async def save_replays(self) -> None:
        """Store the managed replays if they have changed. One at a time: all write the same file."""
        async with self._saving_replays:
            if self.managed.changed:
                try:
                    await asyncio.to_thread(self.managed.write, self.managed.content())
                except OSError as problem:
                    # Tried again at the next tick; until then a crash means that records come again.
                    log.warning("replays_not_saved", why=str(problem))

    def _save_durables(self) -> None:
        if self.durables.look() and (self._saving is None or self._saving.done()):
            self._saving = self.spawn(self._write_durables())

    async def _write_durables(self) -> None:
        try:
            await asyncio.to_thread(self.durables.write, self.durables.content())
        except JournalError as error:
            # Tried again at the next tick; until then a crash means that acknowledged messages come again.
            log.warning("durables_not_saved", code=error.code, why=error.sentence)

    def apply(self, policy: PolicyDocument, stage: Stage | None = None) -> None:
        """Put a revision in force, but for access. Clients over its limits are acted on at the next look."""
        self.journaled = JournaledTopics(policy.instance)
        self.policy = policy
        self.judging.guard.apply_policy(policy, *self._surroundings, stage)
        for connection in self.clients.values():
            connection.backlog.measuring.refresh()
        self.judging.tick()

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Tell the clients, finish what they have published, close the journal."""
        for connection in list(self.connections):
            connection.close("shutting_down", "The broker is being stopped.", retry_after_ms=2_000)
        for connection in list(self.parting):
            connection.tellings.lost()
        self._publish_events()
        for task in list(self._tasks):
            task.cancel()
        self.logons.close()
        await self._commit.close()
        await self._write_durables()
        await self.save_replays()
        self._readers.shutdown(wait=True)
        self.journal.close()

