"""Commit log: batches go in, and come out in the one order in which they become durable.

A broker without a group has a `LocalCommitLog` over its journal. Its users know only the protocol
`CommitLog`, so a log that several brokers share can replace it. Then batches of other brokers also come out,
which no publisher here waits for.

Group commit: batches appended in one event-loop iteration are stamped at its end and go to the journal's
thread. That thread writes all queued batches with one fdatasync, then continues with those that arrived
meanwhile. So no batch waits while the disk is idle. The order of the steps, and the failure that each
prevents:

1. Stamp on the event loop, in the order of appending. Subscribers with durability `live` get a batch once its
   numbers are reserved (`Journal.reserve`). A number that was shown then never names another record, whatever
   happens before step 2.
2. Write and fdatasync in the one journal thread. On the event loop a slow disk would stop every client.
3. Move the durable frontier and hand batches out, on the event loop, only after fdatasync returned. Earlier,
   a crash could take back records that a subscriber has received.

When a write fails, all stamped and all gathered batches fail together. Their numbers are assigned again,
except those that were shown: the log continues after these. Letting later batches through would leave a gap
in a publisher's sequence that its republishing could not fill. The thread writes nothing until the event loop
has processed the failure. After a full disk the log may recover. After any other failure, or an unexpected
exception, the log is `broken`: the content of the disk, or the set of notified clients, is unknown. Then
nothing more comes out and the process must end.

`accepted_at` never decreases, and a jump of the clock doesn't falsify it at once (`acceptance_clock`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import takewhile
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import structlog

from broker_core.batch import UNCERTAIN_TIME, Batch, write_flags
from broker_core.errors import JournalError
from broker_core.journal.acceptance_clock import AcceptanceClock
from broker_core.journal.segment import BatchPosition

if TYPE_CHECKING:
    from broker_core.clock import Clock
    from broker_core.journal.journal import Journal
log = structlog.get_logger("sluice.commit_log")
MAX_GROUP_BYTES = 8 * 1024 * 1024
"""Maximum bytes of one write; limits how long one fdatasync delays the next batches."""
DELIVERY_SLICE_S = 0.02
"""Approximate seconds for which handing out durable batches may occupy the event loop per iteration.

With a thousand subscribers, handing out a group that gathered while the loop was late takes longer than the
delay. And sockets are written between iterations, so policy would blame the clients for what one iteration
queues.
"""
RESERVED_AHEAD = 100_000
"""Sequences reserved at a time: one more fdatasync per 50,000 records while a subscriber gets records
early."""
MAX_AT_ONCE = 4_096
"""Maximum number of batches handed out per event-loop iteration."""
PENDING_HIGH_BYTES = 16 * 1024 * 1024
"""Unwritten bytes above which the broker stops reading from publishers."""

Owner = TypeVar("Owner")


class LogGeneration(NamedTuple):
    """Generation of a group's log, and the record `base` of the journals that it continues."""

    number: int
    base: int


@dataclass(slots=True)
class PendingBatch(Generic[Owner]):
    """Batch on its way through the log, and its owner: None when no publisher waits for it here."""

    batch: Batch
    owner: Owner | None = None
    """Object for the acknowledgement, chosen by the user of the log."""
    failed: bool = False
    """Whether it was not stored; valid once it has come out."""
    claims: bool = False
    """Whether its publisher session claims the publisher's name. A log shared by several brokers must know
    that."""


class CommitListener(Protocol[Owner]):
    """Receiver of the batches that come out of a log, group by group, on the event loop.

    Each stamped batch is later reported to exactly one of `on_durable` and `on_failed`, unless the log
    breaks.
    """

    @property
    def shows_early(self) -> bool:
        """Whether a subscriber wants batches before they are durable."""

    def on_stamped(self, group: Sequence[PendingBatch[Owner]]) -> None:
        """Called when a group has its sequences and is not durable yet."""

    def show(self, group: Sequence[PendingBatch[Owner]], before: Iterable[PendingBatch[Owner]]) -> None:
        """Deliver batches to the subscribers that don't wait for the disk.

        The numbers are reserved, so they never name other records. `before` are the stamped batches before
        these that are not durable yet. Called while `shows_early`, before `on_durable`.
        """

    def on_durable(self, group: Sequence[PendingBatch[Owner]], positions: Sequence[BatchPosition]) -> None:
        """Called when a group is durable, in the order of the log, with each batch's position in the journal.

        A group here may differ from the groups of `on_stamped`.
        """

    def on_duplicate(self, pending: PendingBatch[Owner]) -> None:
        """Called when another broker already stored the batch durably: acknowledge, don't deliver it."""

    def superseded(self, pending: PendingBatch[Owner]) -> None:
        """Close the client of a batch that was refused: another session of its publisher was first."""

    def on_confirmed(self, upto: int) -> None:
        """Called in a group when all sync members have everything up to `upto`; never before `on_durable`."""

    def on_failed(self, group: Sequence[PendingBatch[Owner]], error: JournalError) -> None:
        """Called when batches are not stored, as far as known: every stamped or gathered one."""

    def on_log_failed(self, error: JournalError) -> None:
        """Called when nothing more will come out: the process must end. Recovery finds out what is stored."""


class CommitLog(Protocol[Owner]):
    """Log of batches, as publishing uses it.

    Its factory gets the `CommitListener` that receives the batches.
    """

    @property
    def is_full(self) -> bool:
        """Whether publishers should wait, because more batches have gathered than the disk has written."""

    async def wait_for_room(self) -> None:
        """Wait until the log isn't full."""

    def append(self, *batches: PendingBatch[Owner]) -> None:
        """Append batches in order. Each comes out at `on_durable` or `on_failed`, never within this call."""

    async def barrier(self) -> None:
        """Wait until every batch appended before is durable or failed, and the listener was called for it."""

    async def close(self) -> None:
        """Finish the appended batches, including those appended during the wait, and stop.

        A broken log drops the rest.
        """


class CommitLogFactory(Protocol):
    """Function that creates a broker's log; `LocalCommitLog` is one."""

    def __call__(self, journal: Journal, outlet: CommitListener[Owner], clock: Clock) -> CommitLog[Owner]: ...


class Reservation(NamedTuple):
    """Command to the journal's thread: make durable that sequences up to `upto` may be shown."""

    upto: int
    """Newest sequence to reserve."""


class WriterCommand(Enum):
    """Commands to the journal's thread between batches."""

    GO_ON = auto()
    """The event loop has processed a failure; later batches have their new sequences."""
    END = auto()
    """No batch follows: the thread ends."""


def run_steps_in_thread(step: Callable[[], bool]) -> Callable[[], None]:
    """Run `step` in the journal's thread until it returns False; return a function that waits for the end."""

    def steps() -> None:
        while step():
            pass

    thread = Thread(target=steps, name="journal", daemon=True)
    thread.start()
    return thread.join


class LocalCommitLog(Generic[Owner]):
    """Log of a broker without a group. It is the only writer of its journal. Implements `CommitLog`.

    Args:
        journal: Journal to write.
        outlet: Listener for the batches that come out.
        clock: Source of the acceptance times.
        start: Called at the first batch with a blocking step. It runs the step until that returns False, and
            returns a function that waits for the end.
    """

    def __init__(
        self,
        journal: Journal,
        outlet: CommitListener[Owner],
        clock: Clock,
        start: Callable[[Callable[[], bool]], Callable[[], None]] = run_steps_in_thread,
    ) -> None:
        self._journal = journal
        self._outlet = outlet
        self._clock = clock
        self._gathered: list[PendingBatch[Owner]] = []
        """Batches appended in this event-loop iteration."""
        self._stamped: deque[PendingBatch[Owner]] = deque()
        """Batches that are neither durable nor failed, as far as the event loop knows."""
        self._pending_bytes = 0
        """Bytes of the gathered and stamped batches."""
        self._durable: deque[tuple[PendingBatch[Owner], BatchPosition]] = deque()
        """First of the stamped batches: durable, and not handed out yet."""
        self._portion = MAX_AT_ONCE
        """Batches to hand out per iteration, adapted to the time that the last ones took."""
        self._unshown: deque[PendingBatch[Owner]] = deque()
        """Last of the stamped batches, while a subscriber waits for them early: their numbers aren't reserved
        yet."""
        self._newest_shown = 0
        """Newest sequence that was shown early."""
        self._reserving = self._reserved = journal.reserved
        """Sequences up to which a reservation was requested, and is durable."""
        self._next_sequence = journal.next_sequence
        self._acceptance = AcceptanceClock(clock, journal.last_at)
        self._appended = self._finished = 0
        """Number of batches since the start: appended, and durable or failed."""
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._has_space = asyncio.Event()
        self._has_space.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start = start
        self._stop_writer: Callable[[], None] | None = None
        self._to_write: SimpleQueue[PendingBatch[Owner] | Reservation | WriterCommand] = SimpleQueue()
        self._next_item: PendingBatch[Owner] | Reservation | WriterCommand | None = None
        """Item that the journal's thread has taken from the queue and not used."""
        self._refusing = False
        """Whether a write has failed and the event loop may not have processed it yet."""

    @property
    def is_full(self) -> bool:
        return self._pending_bytes > PENDING_HIGH_BYTES

    async def wait_for_room(self) -> None:
        await self._has_space.wait()

    def append(self, *batches: PendingBatch[Owner]) -> None:
        if not batches:
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._stop_writer = self._start(self._write_next)
        if not self._gathered:
            self._loop.call_soon(self._queue_gathered)
        self._gathered += batches
        self._appended += len(batches)
        self._pending_bytes += sum(pending.batch.nbytes for pending in batches)
        if self.is_full:
            self._has_space.clear()

    async def barrier(self) -> None:
        if self._finished < self._appended:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((self._appended, reached))
            await reached

    async def close(self) -> None:
        while self._finished < self._appended:
            await self.barrier()
        self._to_write.put(WriterCommand.END)
        if self._stop_writer is not None:
            self._stop_writer()

    # On the event loop.

    def _queue_gathered(self) -> None:
        """Stamp and queue the batches gathered in this event-loop iteration."""
        group, self._gathered = self._gathered, []
        if not group:
            return  # the group failed together with the batches before it
        self._stamp(group)
        self._stamped += group
        try:
            self._outlet.on_stamped(group)
            if self._outlet.shows_early:
                self._unshown += group
                self._reserve(group[-1].batch.last_sequence)
                self._show(self._reserved)
        except Exception as problem:
            self._break(problem)
            return
        for pending in group:
            self._to_write.put(pending)

    def _stamp(self, group: Sequence[PendingBatch[Owner]]) -> None:
        """Assign sequences and the acceptance time to a group."""
        sequence = self._next_sequence
        at = self._acceptance.read()
        origin, epoch = self._journal.origin, self._journal.epoch
        for pending in group:
            batch = pending.batch
            if not self._acceptance.is_certain:
                assert isinstance(batch.buf, bytearray)
                write_flags(batch.buf, UNCERTAIN_TIME)
            batch.stamp(origin=origin, epoch=epoch, first_sequence=sequence, accepted_at=at)
            sequence += batch.header.count
        self._next_sequence = sequence

    def _reserve(self, last: int) -> None:
        """Request the reservation of sequences up to `last` and some more, before the batches are written."""
        if last + RESERVED_AHEAD // 2 > self._reserving:
            self._reserving = last + RESERVED_AHEAD
            self._to_write.put(Reservation(self._reserving))

    def _show(self, upto: int) -> None:
        """Show the unshown batches that end at or before sequence `upto`."""
        ready = []
        while self._unshown and self._unshown[0].batch.last_sequence <= upto:
            ready.append(self._unshown.popleft())
        if ready:
            self._newest_shown = ready[-1].batch.last_sequence
            self._outlet.show(ready, takewhile(lambda one: one is not ready[0], self._stamped))

    def _on_reserved(self, upto: int) -> None:
        """Show batches up to the reserved sequence `upto`, after the journal's thread has reserved it.

        0: the reservation failed, and the next group requests it again.
        """
        if upto:
            self._reserved = max(upto, self._reserved)
        else:
            self._reserving = self._reserved
        try:
            self._show(self._reserved)
        except Exception as problem:
            self._break(problem)

    def _on_group_durable(
        self, group: Sequence[PendingBatch[Owner]], positions: Sequence[BatchPosition]
    ) -> None:
        """Queue a durable group for handing out. The journal's thread schedules it on the event loop."""
        if not self._stamped:
            return  # the log is broken; recovery finds out what was still written
        # The invariant of every acknowledgement.
        assert group[-1].batch.last_sequence <= self._journal.durable_sequence
        waiting = bool(self._durable)
        self._durable.extend(zip(group, positions, strict=True))
        if not waiting:
            self._hand_out()

    def _hand_out(self) -> None:
        """Hand out durable batches, limited per event-loop iteration, and schedule the rest."""
        if not self._durable:
            return  # a later group has failed, and removed the batches
        began, number = self._clock.seconds(), min(self._portion, len(self._durable))
        self._hand(number)
        duration_s = self._clock.seconds() - began
        if duration_s > DELIVERY_SLICE_S:
            self._portion = max(int(number * DELIVERY_SLICE_S / duration_s), 1)
        elif number == self._portion:
            self._portion = min(2 * self._portion, MAX_AT_ONCE)
        if self._durable:
            assert self._loop is not None
            self._loop.call_soon(self._hand_out)

    def _hand(self, number: int) -> None:
        """Report the first `number` durable batches to the listener."""
        part = [self._durable.popleft() for _ in range(number)]
        group, positions = [pending for pending, _ in part], [position for _, position in part]
        try:
            if self._unshown:
                self._show(group[-1].batch.last_sequence)  # durable batches need no reservation
            for _ in group:
                self._stamped.popleft()
            self._release(group)
            self._outlet.on_durable(group, positions)
        except Exception as problem:
            self._break(problem)
            return
        self._count_finished(number)

    def _fail_all(self, problem: Exception) -> None:
        """Fail all stamped and gathered batches after an error in the journal's thread.

        Batches that became durable before the error are handed out first. Breaks the log if the error is
        final.
        """
        if self._durable:
            self._hand(len(self._durable))  # the batches before the failure are stored
        # After any error each publisher must get an answer for a batch that isn't stored.
        error = _as_journal_error(problem)
        if group := self._drop():
            self._outlet.on_failed(group, error)
            self._count_finished(len(group))
        if self._journal.failure is None:
            self._journal.skip_to(self._newest_shown + 1)
        self._next_sequence = self._journal.next_sequence
        self._to_write.put(WriterCommand.GO_ON)
        if self._journal.failure is not None or not isinstance(problem, JournalError):
            self._break(error)

    def _break(self, problem: Exception) -> None:
        """Mark the log as broken, drop all batches and report it to the listener."""
        error = _as_journal_error(problem)
        self._journal.failure = self._journal.failure or error
        self._drop()
        self._count_finished(self._appended - self._finished)
        self._outlet.on_log_failed(error)

    def _drop(self) -> list[PendingBatch[Owner]]:
        """Remove and return all batches that have not come out, marked as failed."""
        group = [*self._stamped, *self._gathered]
        self._stamped.clear()
        self._unshown.clear()
        self._durable.clear()
        self._gathered = []
        for pending in group:
            pending.failed = True
        self._release(group)
        return group

    def _release(self, group: Sequence[PendingBatch[Owner]]) -> None:
        """Subtract batches from the pending bytes, and let publishers continue if there is room."""
        self._pending_bytes -= sum(pending.batch.nbytes for pending in group)
        if not self.is_full:
            self._has_space.set()

    def _count_finished(self, number: int) -> None:
        """Count batches as durable or failed, and wake the barriers that they complete."""
        self._finished += number
        while self._barriers and self._barriers[0][0] <= self._finished:
            _, reached = self._barriers.pop(0)
            if not reached.done():
                reached.set_result(None)

    # In the journal's thread.

    def _write_next(self) -> bool:
        """Wait for a batch, then write and sync all queued batches; return False after END."""
        item = self._next_item or self._to_write.get()
        self._next_item = None
        if isinstance(item, WriterCommand):
            self._refusing = False
            return item is WriterCommand.GO_ON
        if isinstance(item, Reservation):
            self._reserve_now(item.upto)
            return True
        if self._refusing:
            return True  # it fails together with the batches before it
        group = self._gather(item)
        assert self._loop is not None
        try:
            positions = self._journal.write([pending.batch for pending in group])
            self._journal.sync(
                partial(self._loop.call_soon_threadsafe, self._on_group_durable, group, positions)
            )
        except Exception as problem:
            self._refusing = True
            self._loop.call_soon_threadsafe(self._fail_all, problem)
        return True

    def _reserve_now(self, upto: int) -> None:
        """Write a reservation and report it to the event loop; 0 reports a refusal."""
        assert self._loop is not None
        try:
            self._journal.reserve(upto)
        except JournalError as problem:
            log.warning("reservation_refused", why=problem.sentence)
            upto = 0
        self._loop.call_soon_threadsafe(self._on_reserved, upto)

    def _gather(self, first: PendingBatch[Owner]) -> list[PendingBatch[Owner]]:
        """Return `first` and the queued batches that fit into the same write."""
        group, size = [first], first.batch.nbytes
        with suppress(Empty):
            while self._next_item is None:
                item = self._to_write.get_nowait()
                if not isinstance(item, PendingBatch) or (size := size + item.batch.nbytes) > MAX_GROUP_BYTES:
                    self._next_item = item
                else:
                    group.append(item)
        return group


def _as_journal_error(problem: Exception) -> JournalError:
    """Return a JournalError as it is, and any other exception logged and wrapped in one."""
    if isinstance(problem, JournalError):
        return problem
    log.error("group_commit_failed", exc_info=problem)
    return JournalError(
        "journal_failed", f"The log failed unexpectedly: {problem!r}.", "See the broker's log."
    )
