"""The hallway of the engine: publish → journal → match → queue → judge → socket, on one event loop.

Decisions are made elsewhere (`subscriptions`, `slow_clients`, `delivery`), pure; here they are carried out. All
methods run on the loop unless they say otherwise. Nothing is done per record here: the unit is the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import structlog

from broker_core.config import PolicyDocument
from broker_core.delivery import Ledger
from broker_core.errors import JournalError
from broker_core.journal.held import Pin
from broker_core.journal.journal import Journal
from broker_core.protocols import replies
from broker_core.protocols.names import check_client_name
from broker_core.runtime import clock
from broker_core.runtime.client_subscription import ClientSubscription
from broker_core.runtime.connection import Connection
from broker_core.runtime.durables import Durables
from broker_core.runtime.events import ClientEvents
from broker_core.runtime.handoff import Held, Tokens, key_at
from broker_core.runtime.journaled import JournaledTopics
from broker_core.runtime.judging import Judging
from broker_core.runtime.leases import Leases
from broker_core.runtime.logons import Logons
from broker_core.runtime.managed import ManagedReplays
from broker_core.runtime.publishing import Publishing
from broker_core.runtime.refused import RefusedNames
from broker_core.runtime.sink import Sink
from broker_core.runtime.steering import Steering
from broker_core.runtime.subscribing import Subscribing
from broker_core.runtime.turns import Turns
from broker_core.slow_clients.guard import SlowClientGuard
from broker_core.slow_clients.staging import Stage

log = structlog.get_logger("sluice.host")
T = TypeVar("T")
MAX_CONNECTIONS = 20_000
LOGON_WITHIN_MS = 10_000
"""A connection that hasn't logged on by then is closed."""


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
        self.messages_out = self.bytes_out = 0
        self.gone_messages = self.gone_bytes = 0
        """What clients that have left were sent; the others keep their own counts."""
        self._surroundings = (host_memory, ulimit, str(spool_directory))
        self.logons = Logons(self, policy)
        self.subscribing = Subscribing(self)
        self.turns = Turns()
        self.steering = Steering(self)
        self.publishing = Publishing(self)
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

    def in_reader_thread(self, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run work that reads the journal where it doesn't stop the loop. It is queued at once, awaited or not."""
        begun = clock.monotonic_ms()
        reading = asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)
        reading.add_done_callback(lambda _: self._took(clock.monotonic_ms() - begun))
        return reading

    def _took(self, milliseconds: int) -> None:
        self.disk_ms = milliseconds

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
        self.judging.close_second()
        self.events.lost(self.ledger.close_intervals(), self.instance)
        for topic, bodies in self.events.take().items():
            self.publishing.publish_own(topic, bodies)

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
        await self.publishing.close()
        await self._write_durables()
        await self.save_replays()
        self._readers.shutdown(wait=True)
        self.journal.close()

