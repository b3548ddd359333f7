"""What waits for one client, and its way to the socket: outbox in memory, spool on disk, live again when drained.

    LIVE      offer → outbox → flush → socket
    OFFLINED  offer → spool; nothing is sent
    DRAINING  offer → spool; the drain task sends from the spool's front as fast as the socket takes it

The order of a client's deliveries never changes: the outbox goes to the spool whole and first, everything new goes
behind it, and the client is live again only when the spool is empty.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker_core.delivery import ClientState, Event, Outbox, OutboxEntry, next_state
from broker_core.errors import JournalError
from broker_core.journal.held import Pin
from broker_core.journal.segment import Position
from broker_core.runtime.sink import TRANSPORT_HIGH_BYTES, Sink
from broker_core.slow_clients.signals import Waiting
from broker_core.spool.entries import SpoolEntry
from broker_core.spool.spool import Spool

if TYPE_CHECKING:
    from broker_core.runtime.connection import Connection

PULL_BYTES = TRANSPORT_HIGH_BYTES
STALLED_AFTER_S = 1.0
"""A draining client whose socket takes nothing for this long counts as offlined again."""


class Backlog:
    """One client's deliveries. Satisfies `slow_clients.signals.Backlog`."""

    def __init__(self, connection: Connection, sink: Sink) -> None:
        self._connection = connection
        self._sink = sink
        self.outbox = Outbox()
        self.spool: Spool | None = None
        self.state = ClientState.CONNECTED
        self.offlined_at = 0
        self.blocked_since = 0
        self.sent_messages = 0
        self.sent_bytes = 0
        self._pin: Pin | None = None
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._paced: list[asyncio.Future[None]] = []
        self.conflated_bytes = 0
        """What conflated subscriptions hold back; kept by `holding`."""

    # What policy asks.

    @property
    def oldest_at(self) -> int:
        """From when the oldest waiting delivery's age counts, ns; 0 when nothing waits."""
        spooled = self.spool.oldest_at if self.spool is not None else 0
        return spooled or self.outbox.oldest_at

    def waiting(self) -> Waiting:
        """The counts for a decision."""
        spool = self.spool
        first = (spool.first_sequence if spool is not None else 0) or self.outbox.first_sequence
        copied = spool.copied_messages if spool is not None else 0
        return Waiting(
            self.outbox.messages,
            spool.messages if spool is not None else 0,
            self.outbox.unjournaled_messages + copied,
            self._connection.bookmark_before(first) if first else "",
            self.blocked_since,
        )

    @property
    def spool_bytes(self) -> int:
        """Bytes of the spool file."""
        return self.spool.disk_bytes if self.spool is not None else 0

    # The way in and out.

    def offer(self, entry: OutboxEntry) -> None:
        """Queue one delivery behind everything that waits. The caller flushes once per turn."""
        if self.spool is None:
            self.outbox.offer(entry)
        else:
            self._keep(self.spool, entry)

    def flush(self) -> None:
        """Hand the socket what it takes, then tell policy what is left."""
        sink, outbox = self._sink, self.outbox
        if self.spool is None:
            while outbox.nbytes and sink.writable:
                self._send(outbox.pull(PULL_BYTES))
            if sink.writable:
                self.blocked_since = 0
                self._wake_paced()
            elif self.blocked_since == 0:
                self.blocked_since = self._connection.host.now_ns()
        self._connection.host.judging.judge(self._connection)

    def _send(self, entries: list[OutboxEntry]) -> None:
        self._sink.send_entries(entries)
        for entry in entries:
            self.sent_messages += entry.count
            self.sent_bytes += entry.nbytes

    def on_writable(self) -> None:
        """The socket takes bytes again."""
        self.blocked_since = 0
        self._writable.set()
        if self.state is ClientState.LIVE:
            self.flush()

    @property
    def has_room(self) -> bool:
        """Whether the client is live and has taken everything."""
        return self.spool is None and not self.outbox.nbytes and self._sink.writable

    async def room(self) -> None:
        """Wait until the client has taken everything and is live: how replays are paced by the socket."""
        while self.state is not ClientState.CLOSED and not self.has_room:
            waiter = asyncio.get_running_loop().create_future()
            self._paced.append(waiter)
            await waiter

    def take_back(self, stream: int) -> list[OutboxEntry]:
        """Take a replay's unsent deliveries out again, because its client has stopped reading. They are in the log."""
        if self.spool is not None:
            return []
        taken = self.outbox.take_stream(stream)
        self._connection.host.judging.judge(self._connection)
        return taken

    def _wake_paced(self) -> None:
        waiters, self._paced = self._paced, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # Offline, drain, live again.

    def go_offline(self, spool: Spool) -> None:
        """Move everything that waits to the spool, in order, and drain it from now on when the client reads."""
        self.state = next_state(self.state, Event.OFFLINE)
        self.offlined_at = self._connection.host.now_ns()
        self.spool = spool
        for entry in self.outbox.take_all():
            self._keep(spool, entry)
            if self.state is ClientState.CLOSED:
                return
        if not self._sink.writable:
            self._writable.clear()
        self._task = asyncio.get_running_loop().create_task(self._drain(spool), name="drain")

    def _keep(self, spool: Spool, entry: OutboxEntry) -> None:
        """Put an entry in the spool; a client whose entry the disk doesn't take is told and closed, never skipped."""
        try:
            self._to_spool(spool, entry)
        except JournalError as error:
            self._connection.fail(error)

    def _to_spool(self, spool: Spool, entry: OutboxEntry) -> None:
        if entry.source is None:
            spool.append_copy(entry.stream, entry.batch)
            return
        if self._pin is None:
            self._pin = self._connection.host.pin(entry.batch.first_sequence, self._connection.name)
        spool.append_reference(
            entry.stream, Position(*entry.source), entry.source_length, entry.count, entry.accepted_at,
            entry.batch.first_sequence, entry.rows, entry.nbytes,
        )

    async def _drain(self, spool: Spool) -> None:
        """The drain task: from OFFLINED to LIVE, or to a closed connection."""
        try:
            await self._drain_all(spool)
        except JournalError as error:
            self._connection.fail(error)

    async def _drain_all(self, spool: Spool) -> None:
        host = self._connection.host
        while await self._until_writable():
            entries = spool.pull(PULL_BYTES)
            if not entries:
                break
            loaded = await host.in_reader_thread(self._load, entries)
            if self.state is ClientState.CLOSED:
                return
            if loaded:
                self._send(loaded)
            if self._pin is not None and spool.first_sequence:
                self._pin.move(spool.first_sequence)
            host.judging.judge(self._connection)
        if self.state is not ClientState.CLOSED:
            self._back_to_live()

    async def _until_writable(self) -> bool:
        """Wait for the socket; say so in the state. False when the client closed meanwhile."""
        while not self._sink.writable and self.state is not ClientState.CLOSED:
            self._writable.clear()
            stalled_after = STALLED_AFTER_S if self.state is ClientState.DRAINING else None
            try:
                async with asyncio.timeout(stalled_after):
                    await self._writable.wait()
            except TimeoutError:
                self.state = next_state(self.state, Event.OFFLINE)
        if self.state is ClientState.OFFLINED:
            self.state = next_state(self.state, Event.READING)
        return self.state is not ClientState.CLOSED

    def _load(self, entries: list[SpoolEntry]) -> list[OutboxEntry]:
        """Bring entries back, in the reader thread; those of subscriptions that ended meanwhile are left out."""
        journal, connection = self._connection.host.journal, self._connection
        loaded = []
        for entry in entries:
            if not connection.has_stream(entry.stream):
                continue
            batch = entry.batch
            if batch is None:
                batch = journal.read_at(entry.position, entry.length)
                if entry.rows is not None:
                    batch = batch.select(entry.rows)
            loaded.append(OutboxEntry(entry.stream, batch, None, None, 0, batch.count, batch.nbytes, entry.accepted_at))
        return loaded

    def _back_to_live(self) -> None:
        self.state = next_state(self.state, Event.DRAINED)
        self._drop_spool()
        self.offlined_at = 0
        self._task = None
        self._connection.host.judging.went_live(self._connection)
        self.flush()

    def _drop_spool(self) -> None:
        if self.spool is not None:
            self.spool.close(remove=True)
            self.spool = None
        if self._pin is not None:
            self._pin.release()
            self._pin = None

    def close(self) -> None:
        """Forget everything that waits and remove the spool."""
        self.state = next_state(self.state, Event.CLOSE)
        self.outbox.take_all()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._drop_spool()
        self._wake_paced()
