"""The chunks of a drain: what is pulled from a spool at once, read in the reader thread, and when it is its turn.

As with replays (`read_ahead`) a chunk starts small and grows while the client takes everything at once, and the next
one is read while the client takes the one before. When it stops, everything unsent is given back and only references to
it wait in memory (of what no journal keeps, itself), so that clients that have stopped hold next to nothing.

Beside live traffic a drain stands in the line of the replays (`scheduling`), but for as much as has come for its client
meanwhile: so it goes faster than its backlog grows, and ends. A chunk that was read for a faster pace is given back.

An offlined client's way back: its spool, and the task that drains it as fast as the client takes it.

What is pulled from the spool is on its way through the reader thread for a moment. It counts as waiting until it is
queued in memory, and then until it is sent.
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
from broker_core.delivery.scheduling import LARGEST_BESIDE_LIVE, AdaptiveChunkSize
from broker_core.delivery.sink import PULL_BYTES, Sink
from broker_core.delivery.spool.entry_format import RUN_BYTES, SpoolEntry
from broker_core.delivery.spool.reader import load_deliveries, to_spool_entries
from broker_core.delivery.spool.spool import Spool
from broker_core.delivery.subscription_queues import SubscriptionQueue, SubscriptionQueues
from broker_core.errors import JournalError
from broker_core.journal.open_segments import Pin

LARGEST_COPIED = 256 * 1024
"""Bytes of a chunk while the spool holds batches that no journal keeps."""


@dataclass(slots=True, eq=False)
class DrainChunk:
    """What was pulled from the spool together and isn't queued yet. No journaled record of it is before `first`, and none of a
    stream before its `firsts`."""

    entries: Sequence[SpoolEntry]
    first: int
    firsts: Mapping[int, int]
    reading: asyncio.Future[list[OutboxEntry]]
    messages: int
    nbytes: int
    copied_messages: int


class SpoolDrain:
    """The chunks of one client's spool, one in flight at a time."""

    def __init__(
        self,
        facilities: InstanceResources,
        spool: Spool,
        leave_out: Callable[[list[SpoolEntry]], list[SpoolEntry]],
    ) -> None:
        """`leave_out` is given what was pulled; it returns what is still wanted."""
        self._facilities = facilities
        self._share = facilities.share
        self._spool = spool
        self._leave_out = leave_out
        self.chunk: DrainChunk | None = None
        self.size = AdaptiveChunkSize(facilities.share)
        self.came_bytes = 0
        """How much more came for the client since it reads, or since it was delivered so much."""
        self._reads = False

    def set_reading(self, reading: bool) -> None:
        """The client reads again, or has stopped."""
        if reading != self._reads:
            self._reads = reading
            self._share.replays += 1 if reading else -1
            self.came_bytes = 0
            self.size.reset()

    async def wait_turn(self) -> None:
        """Wait until a chunk may be delivered."""
        if self._share.busy and self.size.nbytes > LARGEST_BESIDE_LIVE:
            self.size.nbytes = LARGEST_BESIDE_LIVE
            if (chunk := self._drop()) is not None:
                self._spool.requeue(chunk.entries, chunk.firsts)
        owed = max(self.size.nbytes, RUN_BYTES)
        if self.came_bytes >= owed:
            self.came_bytes -= owed
        else:
            await self._share.wait_turn()

    def start(self) -> None:
        """Pull a chunk and begin to read it, unless one is in flight. JournalError spool_damaged."""
        if self.chunk is not None:
            return
        first, firsts = self._spool.first_sequence, self._spool.first_sequences()
        # What was copied can't be given back but in memory.
        size = min(self.size.nbytes, LARGEST_COPIED) if self._spool.copied_messages else self.size.nbytes
        entries = self._leave_out(self._spool.pull(size))
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
        """Nothing is wanted, for now or any more. What was in flight."""
        self.set_reading(False)
        return self._drop()

    def _drop(self) -> DrainChunk | None:
        chunk, self.chunk = self.chunk, None
        if chunk is not None:
            if chunk.reading.done() and not chunk.reading.cancelled():
                chunk.reading.exception()  # nobody will ask for it any more
            chunk.reading.cancel()
        return chunk


log = structlog.get_logger("sluice.offline")
STALLED_AFTER_S = 1.0
"""A draining client that takes nothing for this long counts as offlined again."""


class LiveBacklogPort(Protocol):
    """The client's backlog, which this is a part of: `Backlog`."""

    state: ClientState
    outbox: Outbox
    lanes: SubscriptionQueues

    @property
    def recipients(self) -> Mapping[int, DeliveryTarget]: ...
    def queue_in_memory(self, entry: OutboxEntry) -> None: ...
    def send_waiting(self) -> None: ...
    def take_pending(self) -> list[OutboxEntry]: ...
    def on_spool_empty(self) -> None: ...


class SpooledBacklog:
    """One client's time on disk, from the decision until its spool is empty."""

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
        self._drain = SpoolDrain(facilities, spool, self._leave_out_ended)
        self._pin: Pin | None = None
        self._task: asyncio.Task[None] | None = None
        self._wakened = asyncio.Event()
        self._holding: tuple[SubscriptionQueue, ...] = ()
        """The lanes that let nothing through of what was brought back for them, so that it went to the spool again."""

    # The chunk that has left the spool and isn't queued yet.

    @property
    def memory_bytes(self) -> int:
        """Of what is in flight, and of copies that were on their way and were given back."""
        chunk = self._drain.chunk
        return self.spool.held_bytes + (chunk.nbytes if chunk is not None else 0)

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
        """The journal's sequences before this one aren't needed; 0 when nothing of it is journaled."""
        chunk = self._drain.chunk
        return chunk.first if chunk is not None and chunk.messages > chunk.copied_messages else 0

    def tallies(self) -> dict[int, DiscardTally]:
        """Everything that waits here, by stream."""
        tallies = {stream: replace(tally) for stream, tally in self.spool.tallies.items() if tally.messages}
        chunk = self._drain.chunk
        if chunk is not None:
            _tell(tallies, chunk.entries, chunk.firsts)
        return tallies

    def has_pending(self, stream: int) -> bool:
        """Whether something waits here for a subscription."""
        spooled, chunk = self.spool.tallies.get(stream), self._drain.chunk
        if spooled is not None and spooled.messages:
            return True
        return chunk is not None and any(entry.stream == stream for entry in chunk.entries)

    def first_of(self, stream: int) -> int:
        """A sequence no waiting record of a subscription is before; 0 when none waits."""
        tally = self.tallies().get(stream)
        return tally.first if tally is not None else 0

    # In.

    def start(self, entries: Sequence[OutboxEntry]) -> None:
        """Take what waited in memory, and drain from now on whenever the client reads."""
        # Of lanes one comes after another, so the first entry needn't be the oldest.
        oldest = min((entry.batch.first_sequence for entry in entries if entry.source is not None), default=0)
        if oldest:
            self._keep_log(oldest)
        for number, entry in enumerate(entries):
            if not self.extend_last(entry) and not self._keep(entry, entries[number + 1 :]):
                return
        self._task = asyncio.get_running_loop().create_task(self._run(), name="drain")

    def extend_last(self, entry: OutboxEntry) -> bool:
        """Keep an entry as a part of the last reference, if it stands right behind that: of memory and disk it takes nothing."""
        if entry.rows is not None or not self.spool.extend(entry):
            return False
        self._drain.came_bytes += entry.nbytes
        return True

    def append(self, entry: OutboxEntry) -> None:
        """Put an entry in the spool; a client whose entry the disk doesn't take is told and closed, never skipped."""
        self._keep(entry, ())

    def _keep(self, entry: OutboxEntry, behind: Sequence[OutboxEntry]) -> bool:
        """Whether it is kept; if not, the client has been closed with it and those behind it still waiting."""
        self._drain.came_bytes += entry.nbytes
        try:
            self._to_spool(entry)
        except JournalError as error:
            for one in (entry, *behind):
                self._backlog.queue_in_memory(one)
            self._owner.on_spool_failed(error)
            return False
        return True

    def _to_spool(self, entry: OutboxEntry) -> None:
        if entry.source is None:
            self.spool.append_copy(entry.stream, entry.batch, entry.accepted_at)
            return
        if self._pin is None:
            self._keep_log(entry.batch.first_sequence)
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

    def _keep_log(self, sequence: int) -> None:
        """What the spool refers to must stay in the log from this record on."""
        self._pin = self._facilities.journal.pin(sequence, f"spool of {self._owner.name}")

    # Out.

    def resume_drain(self) -> None:
        """The socket or a window takes more."""
        self._wakened.set()

    async def _run(self) -> None:
        """From OFFLINED to LIVE, or to a closed connection."""
        try:
            while await self._until_wanted() and (self._drain.chunk is not None or not self.spool.empty):
                await self._bring_back()
            if self._backlog.state is not ClientState.CLOSED:
                self._task = None
                self._backlog.on_spool_empty()
        except JournalError as error:
            self._owner.fail(error)
        except Exception:
            # Nobody awaits this task: a client whose backlog can't come back must not wait for it in silence.
            log.exception("drain_failed", client=self._owner.name)
            self._owner.close(
                "internal_error", "What waited for this client on disk couldn't be brought back."
            )

    async def _bring_back(self) -> None:
        """Deliver the next chunk."""
        facilities, drain = self._facilities, self._drain
        await drain.wait_turn()
        async with facilities.share.reads:
            began = facilities.clock.seconds()
            self._let_go()
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

    def _let_go(self) -> None:
        """What was sent isn't needed from the journal any more. Everything else may have to be read again."""
        first = self.chunk_first or self.spool.first_sequence
        if (
            self._pin is not None
            and first
            and not self._backlog.outbox.messages
            and not self._backlog.lanes.messages
        ):
            self._pin.move(first)

    def _leave_out_ended(self, entries: list[SpoolEntry]) -> list[SpoolEntry]:
        """What is for subscriptions that ended meanwhile needn't be read; their accounts say already that it is gone."""
        return [entry for entry in entries if entry.stream in self._backlog.recipients]

    @property
    def is_draining(self) -> bool:
        """Whether the client takes more than waits for it in memory."""
        return (
            self._sink.is_writable
            and not self._backlog.outbox.nbytes
            and self._backlog.lanes.nbytes < PULL_BYTES
            and not self._held
        )

    @property
    def _held(self) -> bool:
        """Whether what is at the front of the spool would only wait in memory again: for an acknowledgement, or a pause's end."""
        lanes = self._backlog.lanes
        return bool(self._holding) and all(
            lane.is_blocked and lanes.get(lane.stream) is lane for lane in self._holding
        )

    async def _until_wanted(self) -> bool:
        """Wait for the client; say so in the state. False when it closed meanwhile."""
        backlog = self._backlog
        while not self.is_draining and backlog.state is not ClientState.CLOSED:
            self._wakened.clear()
            try:
                async with asyncio.timeout(
                    STALLED_AFTER_S if backlog.state is ClientState.DRAINING else None
                ):
                    await self._wakened.wait()
            except TimeoutError:
                self.on_stalled()
        self._holding = ()
        if backlog.state is ClientState.OFFLINED:
            backlog.state = next_state(backlog.state, ClientStateEvent.READING)
            self._drain.set_reading(True)
        return backlog.state is not ClientState.CLOSED

    def on_stalled(self) -> None:
        """A draining client has stopped reading, or acknowledging: what it wasn't sent waits on disk again."""
        backlog, chunk = self._backlog, self._drain.stop()
        self._holding = tuple(backlog.lanes.filled.values()) if self._sink.is_writable else ()
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
        """Remove the spool and let go of the journal."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._drain.stop()
        self.spool.close(remove=True)
        if self._pin is not None:
            self._pin.release()
            self._pin = None


def _tell(tallies: dict[int, DiscardTally], entries: Sequence[SpoolEntry], firsts: Mapping[int, int]) -> None:
    """Add entries by stream. No journaled record of a stream is before its `firsts`."""
    for entry in entries:
        known = firsts.get(entry.stream, 0) if entry.batch is None else entry.batch.first_sequence
        tallies.setdefault(entry.stream, DiscardTally()).add(entry.count, entry.nbytes, known, known)
