"""Backlog of an offlined client on disk, and the task that drains it as fast as the client reads.

`SpooledBacklog` moves deliveries into the spool and back. `SpoolDrain` loads them in chunks through the
reader thread. As with replays (`replay.read_ahead`), a chunk starts small, grows while the client reads
everything immediately, and the next one is loaded while the client reads the current one. When the client
stops, all unsent deliveries go back to the spool. Then only references are in memory, and unjournaled batches
themselves. So clients that have stopped use almost no memory.

Beside live traffic a drain waits in the line of the replays (`scheduling`), except for as many bytes as have
newly arrived for its client. So a drain is faster than its backlog grows, and ends. A chunk that was loaded
for a faster pace is given back.

Loaded deliveries count as waiting while they are in the reader thread, and then until they are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.lifecycle import ClientState, ClientStateEvent, next_state
from broker_core.delivery.loss_ledger import DiscardTally
from broker_core.delivery.outbox import Outbox
from broker_core.delivery.ports import BacklogOwner, DeliveryTarget, InstanceResources
from broker_core.delivery.scheduling import MAX_CHUNK_BYTES_BESIDE_LIVE, AdaptiveChunkSize
from broker_core.delivery.sink import PULL_BYTES, Sink
from broker_core.delivery.spool.entry_format import RUN_BYTES, SpoolEntry
from broker_core.delivery.spool.reader import load_deliveries, to_spool_entries
from broker_core.delivery.spool.spool import Spool
from broker_core.delivery.subscription_queues import SubscriptionQueue, SubscriptionQueues
from broker_core.errors import JournalError
from broker_core.journal.open_segments import Pin

MAX_COPIED_BYTES = 256 * 1024
"""Maximum bytes of a chunk while the spool holds unjournaled batches."""


@dataclass(slots=True, eq=False)
class DrainChunk:
    """Entries that were pulled from the spool together and aren't queued yet.

    No journaled record of the chunk is before `first`, and none of a stream is before its sequence in
    `firsts`.
    """

    entries: Sequence[SpoolEntry]
    first: int
    firsts: Mapping[int, int]
    reading: asyncio.Future[list[OutboxEntry]]
    messages: int
    nbytes: int
    copied_messages: int


class SpoolDrain:
    """Loads the chunks of one client's spool, one at a time."""

    def __init__(
        self,
        facilities: InstanceResources,
        spool: Spool,
        select_needed: Callable[[list[SpoolEntry]], list[SpoolEntry]],
    ) -> None:
        """Create a drain without a chunk.

        `select_needed` gets the pulled entries and returns those that are still needed.
        """
        self._facilities = facilities
        self._share = facilities.share
        self._spool = spool
        self._select_needed = select_needed
        self.chunk: DrainChunk | None = None
        self.size = AdaptiveChunkSize(facilities.share)
        self.arrived_bytes = 0
        """Bytes that arrived since the client resumed reading, minus those drained without a slot."""
        self._is_reading = False

    def set_reading(self, reading: bool) -> None:
        """Record whether the client reads. A change starts again with small chunks."""
        if reading != self._is_reading:
            self._is_reading = reading
            self._share.replays += 1 if reading else -1
            self.arrived_bytes = 0
            self.size.reset()

    async def wait_slot(self) -> None:
        """Wait until a chunk may be delivered."""
        if self._share.is_busy and self.size.nbytes > MAX_CHUNK_BYTES_BESIDE_LIVE:
            self.size.nbytes = MAX_CHUNK_BYTES_BESIDE_LIVE
            if (chunk := self._drop_chunk()) is not None:
                self._spool.requeue(chunk.entries, chunk.firsts)
        required_bytes = max(self.size.nbytes, RUN_BYTES)
        if self.arrived_bytes >= required_bytes:
            self.arrived_bytes -= required_bytes
        else:
            await self._share.wait_slot()

    def start(self) -> None:
        """Pull a chunk and start to load it, unless one is in flight.

        Raises:
            JournalError: spool_damaged.
        """
        if self.chunk is not None:
            return
        first, firsts = self._spool.first_sequence, self._spool.first_sequences()
        # Unjournaled batches that are given back stay in memory, so a chunk of them is small.
        size = min(self.size.nbytes, MAX_COPIED_BYTES) if self._spool.copied_messages else self.size.nbytes
        entries = self._select_needed(self._spool.pull(size))
        self.chunk = DrainChunk(
            entries,
            first,
            {entry.stream: firsts[entry.stream] for entry in entries if entry.stream in firsts},
            asyncio.ensure_future(self._read(entries)),
            sum(entry.count for entry in entries),
            sum(entry.nbytes for entry in entries),
            sum(entry.count for entry in entries if entry.batch is not None),
        )

    async def _read(self, entries: Sequence[SpoolEntry]) -> list[OutboxEntry]:
        return await self._facilities.reader.run(load_deliveries, self._facilities.journal, entries)

    def stop(self) -> DrainChunk | None:
        """Stop loading, because the client has stopped or the spool closes.

        Return the chunk in flight; the caller gives it back.
        """
        self.set_reading(False)
        return self._drop_chunk()

    def _drop_chunk(self) -> DrainChunk | None:
        """Remove the chunk in flight, if any, and cancel its loading. Return it."""
        chunk, self.chunk = self.chunk, None
        if chunk is not None:
            if chunk.reading.done() and not chunk.reading.cancelled():
                chunk.reading.exception()  # retrieve the error, because no caller awaits the future any more
            chunk.reading.cancel()
        return chunk


log = structlog.get_logger("sluice.offline")
STALLED_AFTER_S = 1.0
"""Time after which a draining client that reads nothing counts as offlined again, s."""


class LiveBacklogPort(Protocol):
    """Interface of the client's `Backlog` that this part of it uses."""

    state: ClientState
    outbox: Outbox
    queues: SubscriptionQueues

    @property
    def recipients(self) -> Mapping[int, DeliveryTarget]: ...
    def queue_in_memory(self, entry: OutboxEntry) -> None: ...
    def send_waiting(self) -> None: ...
    def take_pending(self) -> list[OutboxEntry]: ...
    def on_spool_empty(self) -> None: ...


class SpooledBacklog:
    """Backlog of one client on disk, from the decision to offline it until its spool is empty."""

    def __init__(
        self,
        backlog: LiveBacklogPort,
        owner: BacklogOwner,
        sink: Sink,
        facilities: InstanceResources,
        spool: Spool,
    ) -> None:
        self._backlog = backlog
        self._owner = owner
        self._sink = sink
        self._facilities = facilities
        self.spool = spool
        self._drain = SpoolDrain(facilities, spool, self._skip_ended)
        self._pin: Pin | None = None
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._blocked_queues: tuple[SubscriptionQueue, ...] = ()
        """Queues that were blocked when the drain stopped; their loaded deliveries are in the spool again."""

    # The chunk that was pulled from the spool and isn't queued yet.

    @property
    def memory_bytes(self) -> int:
        """Bytes of the chunk in flight and of copies that were given back."""
        chunk = self._drain.chunk
        return self.spool.requeued_bytes + (chunk.nbytes if chunk is not None else 0)

    @property
    def chunk_messages(self) -> int:
        chunk = self._drain.chunk
        return chunk.messages if chunk is not None else 0

    @property
    def chunk_oldest_at(self) -> int:
        chunk = self._drain.chunk
        return chunk.entries[0].accepted_at if chunk is not None and chunk.entries else 0

    @property
    def chunk_first(self) -> int:
        """Journal sequence before which the chunk needs no record; 0 when the chunk has no journaled one."""
        chunk = self._drain.chunk
        return chunk.first if chunk is not None and chunk.messages > chunk.copied_messages else 0

    def tallies(self) -> dict[int, DiscardTally]:
        """Return the counts of all deliveries here, in the spool and in the chunk, by stream."""
        tallies = {stream: replace(tally) for stream, tally in self.spool.tallies.items() if tally.messages}
        chunk = self._drain.chunk
        if chunk is not None:
            _add_entries(tallies, chunk.entries, chunk.firsts)
        return tallies

    def has_pending(self, stream: int) -> bool:
        """Return whether deliveries of a subscription are here."""
        spooled, chunk = self.spool.tallies.get(stream), self._drain.chunk
        if spooled is not None and spooled.messages:
            return True
        return chunk is not None and any(entry.stream == stream for entry in chunk.entries)

    def get_first_sequence(self, stream: int) -> int:
        """Return a sequence that no waiting record of a subscription is before; 0 when none waits."""
        tally = self.tallies().get(stream)
        return tally.first if tally is not None else 0

    # In.

    def start(self, entries: Sequence[OutboxEntry]) -> None:
        """Move the entries from memory into the spool, and drain it from now on whenever the client reads."""
        # Entries are ordered by queue, so the first one isn't necessarily the oldest.
        oldest = min((entry.batch.first_sequence for entry in entries if entry.source is not None), default=0)
        if oldest:
            # Before the first write, so that retention can't remove records that the spool refers to.
            self._pin_log(oldest)
        for number, entry in enumerate(entries):
            if not self.extend_last(entry) and not self._try_spool(entry, entries[number + 1 :]):
                return
        self._task = asyncio.get_running_loop().create_task(self._run(), name="drain")

    def extend_last(self, entry: OutboxEntry) -> bool:
        """Add an entry to the last reference if it follows directly in the journal.

        It then uses no memory and no disk.

        Returns whether it was added.
        """
        if entry.rows is not None or not self.spool.extend(entry):
            return False
        self._drain.arrived_bytes += entry.nbytes
        return True

    def append(self, entry: OutboxEntry) -> None:
        """Write an entry to the spool.

        If the disk fails, the client gets an error and is closed; an entry is never skipped.
        """
        self._try_spool(entry, ())

    def _try_spool(self, entry: OutboxEntry, behind: Sequence[OutboxEntry]) -> bool:
        """Write an entry to the spool and return whether it succeeded.

        If not, the client has been closed, and the entry and those `behind` it are queued in memory, so that
        they are counted.
        """
        self._drain.arrived_bytes += entry.nbytes
        try:
            self._spool_entry(entry)
        except JournalError as error:
            for one in (entry, *behind):
                self._backlog.queue_in_memory(one)
            self._owner.on_spool_failed(error)
            return False
        return True

    def _spool_entry(self, entry: OutboxEntry) -> None:
        """Append an entry as a copy if it has no source in the log, else as a reference.

        Pin the log at the first reference.
        """
        if entry.source is None:
            self.spool.append_copy(entry.stream, entry.batch, entry.accepted_at)
            return
        if self._pin is None:
            self._pin_log(entry.batch.first_sequence)
        self.spool.append_reference(
            entry.stream,
            entry.source,
            entry.source_length,
            entry.count,
            entry.accepted_at,
            entry.batch.first_sequence,
            entry.rows,
            entry.nbytes,
            entry.batch.last_sequence,
        )

    def _pin_log(self, sequence: int) -> None:
        """Pin the log from the sequence on, because the spool refers to it."""
        self._pin = self._facilities.journal.pin(sequence, f"spool of {self._owner.name}")

    # Out.

    def resume_drain(self) -> None:
        """Continue the drain, because the socket or a window allows more."""
        self._woken.set()

    async def _run(self) -> None:
        """Drain the spool until the client is live or closed."""
        try:
            while await self._wait_until_readable() and (
                self._drain.chunk is not None or not self.spool.empty
            ):
                await self._load_chunk()
            if self._backlog.state is not ClientState.CLOSED:
                self._task = None
                self._backlog.on_spool_empty()
        except JournalError as error:
            self._owner.fail(error)
        except Exception:
            # No caller awaits this task. A client whose backlog can't be loaded must be closed instead of
            # waiting in silence.
            log.exception("drain_failed", client=self._owner.name)
            self._owner.close("internal_error", "The broker couldn't load this client's backlog from disk.")

    async def _load_chunk(self) -> None:
        """Load and queue the next chunk."""
        facilities, drain = self._facilities, self._drain
        await drain.wait_slot()
        async with facilities.share.reads:
            began = facilities.clock.seconds()
            self._release_log()
            drain.start()
            assert drain.chunk is not None
            worked = facilities.clock.seconds() - began
            loaded = await drain.chunk.reading
        if self._backlog.state is ClientState.CLOSED:
            return
        began = facilities.clock.seconds()
        drain.chunk = None
        for entry in loaded:
            if entry.batch.last_sequence:
                self.spool.set_delivered_upto(entry.stream, entry.batch.last_sequence)
            if entry.stream in self._backlog.recipients:
                self._backlog.queue_in_memory(entry)
        self._backlog.send_waiting()
        if self.is_draining:
            drain.size.grow()
        if drain.size.is_read_ahead_useful and not self.spool.empty:
            drain.start()
        worked += facilities.reader.worked_s + facilities.clock.seconds() - began
        facilities.share.charge(worked)
        self._owner.mark_changed()

    def _release_log(self) -> None:
        """Advance the pin past delivered records. Records that may have to be loaded again stay pinned."""
        first = self.chunk_first or self.spool.first_sequence
        if (
            self._pin is not None
            and first
            and not self._backlog.outbox.messages
            and not self._backlog.queues.messages
        ):
            self._pin.move(first)

    def _skip_ended(self, entries: list[SpoolEntry]) -> list[SpoolEntry]:
        """Return the entries without those of ended subscriptions, which are accounted as discarded."""
        return [entry for entry in entries if entry.stream in self._backlog.recipients]

    @property
    def is_draining(self) -> bool:
        """Whether the client reads everything that is queued in memory."""
        return (
            self._sink.is_writable
            and not self._backlog.outbox.nbytes
            and self._backlog.queues.nbytes < PULL_BYTES
            and not self._is_drain_blocked
        )

    @property
    def _is_drain_blocked(self) -> bool:
        """Whether the queues at the front of the spool wait for an acknowledgement or the end of a pause."""
        queues = self._backlog.queues
        return bool(self._blocked_queues) and all(
            queue.is_blocked and queues.get(queue.stream) is queue for queue in self._blocked_queues
        )

    async def _wait_until_readable(self) -> bool:
        """Wait until the client reads, and update its state. Return False if it was closed meanwhile."""
        backlog = self._backlog
        while not self.is_draining and backlog.state is not ClientState.CLOSED:
            self._woken.clear()
            try:
                async with asyncio.timeout(
                    STALLED_AFTER_S if backlog.state is ClientState.DRAINING else None
                ):
                    await self._woken.wait()
            except TimeoutError:
                self.on_stalled()
        self._blocked_queues = ()
        if backlog.state is ClientState.OFFLINED:
            backlog.state = next_state(backlog.state, ClientStateEvent.READING)
            self._drain.set_reading(True)
        return backlog.state is not ClientState.CLOSED

    def on_stalled(self) -> None:
        """Return unsent deliveries to the spool, because a draining client has stopped."""
        backlog, chunk = self._backlog, self._drain.stop()
        self._blocked_queues = tuple(backlog.queues.nonempty.values()) if self._sink.is_writable else ()
        backlog.state = next_state(backlog.state, ClientStateEvent.OFFLINE)
        unsent = backlog.take_pending()
        entries, firsts = to_spool_entries(unsent), dict(chunk.firsts if chunk is not None else {})
        for one in unsent:
            if one.source is not None:
                first = one.batch.first_sequence
                firsts[one.stream] = min(firsts.get(one.stream, first), first)
        if chunk is not None:
            entries += chunk.entries
        self.spool.requeue(entries, firsts)
        self._owner.mark_changed()

    def close(self) -> None:
        """Remove the spool and release the pin."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._drain.stop()
        self.spool.close(remove=True)
        if self._pin is not None:
            self._pin.release()
            self._pin = None


def _add_entries(
    tallies: dict[int, DiscardTally], entries: Sequence[SpoolEntry], firsts: Mapping[int, int]
) -> None:
    """Add entries to tallies by stream.

    No journaled record of a stream is before its sequence in `firsts`.
    """
    for entry in entries:
        known = firsts.get(entry.stream, 0) if entry.batch is None else entry.batch.first_sequence
        tallies.setdefault(entry.stream, DiscardTally()).add(entry.count, entry.nbytes, known, known)
