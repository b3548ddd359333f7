"""The commit log: batches go in, and come out in the one order in which they are durable.

A broker by itself has a `LocalCommitLog`, its journal. What is above knows the protocol `CommitLog` alone, so that a log that
several brokers share can take its place: then batches come out that others appended, and nobody here waits for them.

Group commit: what is appended in a turn is stamped at its end and goes to the journal's thread, which writes all that it finds
there with one fdatasync and goes on by itself: what comes meanwhile gathers, and nothing waits when the disk is idle. Order of
the steps, and what breaks otherwise:
  1. Stamp on the loop, in the order of appending. Subscribers that don't wait for the disk get it once its
     numbers are reserved (`Journal.reserve`): a number that was shown never names another record, whatever
     happens before step 2.
  2. Write and fdatasync in the one journal thread. On the loop, a slow disk would stop every client.
  3. Move the durable frontier and hand out, on the loop, only after fdatasync returned. Earlier, and a crash could
     take back what a subscriber has seen.
When a write fails, all that is stamped and all that has gathered fail together. Their numbers are given
again, but for those that were shown: the log goes on behind these. Letting later batches through would leave
a gap in a publisher's sequence that its republishing could not fill. The thread writes nothing from then
until the loop has heard of it. A disk without room may have some later; after any other failure, and after
whatever nobody foresaw, the log is `broken`: what is on the disk, or who has heard of it, can't be known, so
nothing more comes out and the process must end.

`accepted_at` never goes back: while a clock that was set back hasn't caught up, records bear the latest moment there was.
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

from broker_core.batch import Batch
from broker_core.errors import JournalError
from broker_core.journal.segment import BatchPosition

if TYPE_CHECKING:
    from broker_core.clock import Clock
    from broker_core.journal.journal import Journal
log = structlog.get_logger("sluice.commit_log")
MAX_GROUP_BYTES = 8 * 1024 * 1024
"""Bytes of one write: a bound on how long one fdatasync keeps the others waiting."""
TURN_S = 0.02
"""For so long, about, the loop is kept by handing out what is durable; what is left comes in its next turns. With a thousand
subscribers a group that has gathered while the loop was late costs more than it was late by, and what a turn queues for those
that read is seen by policy as theirs: sockets are written to between turns."""
RESERVED_AHEAD = 100_000
"""Numbers that are reserved at a time: one fdatasync more for each 50,000 records, while somebody gets them
early."""
MAX_AT_ONCE = 4_096
"""Batches handed out in one turn."""
PENDING_HIGH_BYTES = 16 * 1024 * 1024
"""Bytes that may gather before publishers are no longer read from."""

Owner = TypeVar("Owner")


@dataclass(slots=True)
class PendingBatch(Generic[Owner]):
    """A batch on its way through the log, and who must hear of it: None when nobody waits for it here."""

    batch: Batch
    owner: Owner | None = None
    failed: bool = False
    """It isn't stored: known when it has come out."""
    claims: bool = False
    """Whether its publisher session takes the name with it: a log that others append to as well must know
    that."""


class CommitListener(Protocol[Owner]):
    """Where batches come out, group by group, on the loop. Each that was stamped is then applied or has failed."""

    @property
    def shows_early(self) -> bool:
        """Whether somebody wants batches before they are durable."""

    def on_stamped(self, group: Sequence[PendingBatch[Owner]]) -> None:
        """A group has its sequences and isn't durable yet."""

    def show(self, group: Sequence[PendingBatch[Owner]], before: Iterable[PendingBatch[Owner]]) -> None:
        """Give batches to those who don't wait for the disk; their numbers name these records alone, whatever
        happens. `before` are the batches that come before them and aren't applied yet. Called while
        `shows_early`; before `applied`."""

    def on_durable(self, group: Sequence[PendingBatch[Owner]], positions: Sequence[BatchPosition]) -> None:
        """A group is durable; where each of its batches stands in the journal. The order of the log. It may be another one
        than was stamped together."""

    def on_duplicate(self, pending: PendingBatch[Owner]) -> None:
        """All of a batch is in the log already, by another broker, and durable: it is acknowledged, and not delivered."""

    def superseded(self, pending: PendingBatch[Owner]) -> None:
        """Close the client of a batch that isn't stored: in the log another session of its publisher came
        first."""

    def on_confirmed(self, upto: int) -> None:
        """Of a group's log: every member that is waited for has everything up to there. Not before `applied`."""

    def on_failed(self, group: Sequence[PendingBatch[Owner]], error: JournalError) -> None:
        """Nothing of these is stored, as far as can be said: all that was stamped and not applied, and what was to be next."""

    def on_log_broken(self, error: JournalError) -> None:
        """Nothing more will come out: the process must end. What is in the log is known when it is opened again."""


class CommitLog(Protocol[Owner]):
    """What publishing needs of a log. Made with the `CommitListener` that its batches come out at."""

    @property
    def is_full(self) -> bool:
        """Whether publishers should wait: more has gathered than the disk has taken."""

    async def wait_for_room(self) -> None:
        """Wait until the log isn't full."""

    def append(self, *batches: PendingBatch[Owner]) -> None:
        """Take batches, in order. Each comes out at `applied` or at `failed`, never within this call."""

    async def barrier(self) -> None:
        """Wait until everything appended before is durable or has failed, and the outlet has heard of it."""

    async def close(self) -> None:
        """Finish what was appended, also while this waits, and take nothing more. What a broken log has is left."""


class CommitLogFactory(Protocol):
    """Makes the log of a broker. `LocalCommitLog` is one."""

    def __call__(self, journal: Journal, outlet: CommitListener[Owner], clock: Clock) -> CommitLog[Owner]: ...


class Reservation(NamedTuple):
    """An order to the journal's thread: make it durable that numbers up to `upto` may be shown."""

    upto: int


class WriterCommand(Enum):
    """What the journal's thread is told between batches."""

    GO_ON = auto()
    """The loop has heard of what failed; what comes now has its numbers."""
    END = auto()


def run_steps_in_thread(step: Callable[[], bool]) -> Callable[[], None]:
    """Do steps in the journal's thread until one was the last. What is returned waits for that."""

    def steps() -> None:
        while step():
            pass

    thread = Thread(target=steps, name="journal", daemon=True)
    thread.start()
    return thread.join


class LocalCommitLog(Generic[Owner]):
    """The log of a broker by itself: owns its journal's writing side. Satisfies `CommitLog`.

    `clock` tells when a batch was accepted. `start` begins with the first batch: it calls a step that blocks again and again,
    until that returns False, and returns what waits for the end.
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
        """Appended in this turn."""
        self._stamped: deque[PendingBatch[Owner]] = deque()
        """Neither durable nor failed, as far as the loop has heard."""
        self._pending_bytes = 0
        """Of both."""
        self._durable: deque[tuple[PendingBatch[Owner], BatchPosition]] = deque()
        """The first of the stamped ones: durable, and not handed out yet."""
        self._portion = MAX_AT_ONCE
        """Batches that are handed out in one turn, by what the last ones took."""
        self._unshown: deque[PendingBatch[Owner]] = deque()
        """The last of the stamped ones, as far as somebody waits for them early: their numbers aren't
        reserved yet."""
        self._shown = 0
        """Newest number that was shown early."""
        self._reserving = self._reserved = journal.reserved
        """Up to where numbers may be shown: asked for, and durable."""
        self._next_sequence = journal.next_sequence
        self._last_at = journal.last_at
        self._appended = self._settled = 0
        """Batches since the start; settled are those that are durable or have failed."""
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._room = asyncio.Event()
        self._room.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start = start
        self._ended: Callable[[], None] | None = None
        self._to_write: SimpleQueue[PendingBatch[Owner] | Reservation | WriterCommand] = SimpleQueue()
        self._found: PendingBatch[Owner] | Reservation | WriterCommand | None = None
        """What the journal's thread has taken from there and not used."""
        self._refusing = False
        """Whether a write has failed and the loop may not have heard of it."""

    @property
    def is_full(self) -> bool:
        return self._pending_bytes > PENDING_HIGH_BYTES

    async def wait_for_room(self) -> None:
        await self._room.wait()

    def append(self, *batches: PendingBatch[Owner]) -> None:
        if not batches:
            return
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._ended = self._start(self._write_next)
        if not self._gathered:
            self._loop.call_soon(self._take)
        self._gathered += batches
        self._appended += len(batches)
        self._pending_bytes += sum(pending.batch.nbytes for pending in batches)
        if self.is_full:
            self._room.clear()

    async def barrier(self) -> None:
        if self._settled < self._appended:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((self._appended, reached))
            await reached

    async def close(self) -> None:
        while self._settled < self._appended:
            await self.barrier()
        self._to_write.put(WriterCommand.END)
        if self._ended is not None:
            self._ended()

    # On the loop.

    def _take(self) -> None:
        """The end of a turn in which something was appended."""
        group, self._gathered = self._gathered, []
        if not group:
            return  # it has failed with what was before it
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
        sequence = self._next_sequence
        at = self._last_at = max(self._clock.now_ns(), self._last_at)
        origin, epoch = self._journal.origin, self._journal.epoch
        for pending in group:
            batch = pending.batch
            batch.stamp(origin=origin, epoch=epoch, first_sequence=sequence, accepted_at=at)
            sequence += batch.header.count
        self._next_sequence = sequence

    def _reserve(self, last: int) -> None:
        """Have numbers reserved up to `last`, and some more, before the batches that have them are
        written."""
        if last + RESERVED_AHEAD // 2 > self._reserving:
            self._reserving = last + RESERVED_AHEAD
            self._to_write.put(Reservation(self._reserving))

    def _show(self, upto: int) -> None:
        """Show what waits for that and ends at `upto` or before it."""
        ready = []
        while self._unshown and self._unshown[0].batch.last_sequence <= upto:
            ready.append(self._unshown.popleft())
        if ready:
            self._shown = ready[-1].batch.last_sequence
            self._outlet.show(ready, takewhile(lambda one: one is not ready[0], self._stamped))

    def _is_reserved(self, upto: int) -> None:
        """Show what numbers up to `upto` allow. 0: the journal's thread was refused, and the next group asks
        again."""
        if upto:
            self._reserved = max(upto, self._reserved)
        else:
            self._reserving = self._reserved
        try:
            self._show(self._reserved)
        except Exception as problem:
            self._break(problem)

    def _applied(self, group: Sequence[PendingBatch[Owner]], positions: Sequence[BatchPosition]) -> None:
        if not self._stamped:
            return  # the log is broken: what was still written is found when it is opened again
        # The law of every acknowledgement.
        assert group[-1].batch.last_sequence <= self._journal.durable_sequence
        waiting = bool(self._durable)
        self._durable.extend(zip(group, positions, strict=True))
        if not waiting:
            self._hand_out()

    def _hand_out(self) -> None:
        """Hand out what is durable, as far as a turn goes."""
        if not self._durable:
            return  # a group behind it has failed, and took it along
        began, number = self._clock.seconds(), min(self._portion, len(self._durable))
        self._hand(number)
        took = self._clock.seconds() - began
        if took > TURN_S:
            self._portion = max(int(number * TURN_S / took), 1)
        elif number == self._portion:
            self._portion = min(2 * self._portion, MAX_AT_ONCE)
        if self._durable:
            assert self._loop is not None
            self._loop.call_soon(self._hand_out)

    def _hand(self, number: int) -> None:
        part = [self._durable.popleft() for _ in range(number)]
        group, positions = [pending for pending, _ in part], [position for _, position in part]
        try:
            if self._unshown:
                self._show(group[-1].batch.last_sequence)  # what is durable needs no reservation
            for _ in group:
                self._stamped.popleft()
            self._release(group)
            self._outlet.on_durable(group, positions)
        except Exception as problem:
            self._break(problem)
            return
        self._settle(number)

    def _failed(self, problem: Exception) -> None:
        if self._durable:
            self._hand(len(self._durable))  # what was before it is stored
        # Whatever it was, nobody waits in silence for what isn't stored.
        error = _as_journal_error(problem)
        if group := self._drop():
            self._outlet.on_failed(group, error)
            self._settle(len(group))
        if self._journal.failed is None:
            self._journal.skip_to(self._shown + 1)
        self._next_sequence = self._journal.next_sequence
        self._to_write.put(WriterCommand.GO_ON)
        if self._journal.failed is not None or not isinstance(problem, JournalError):
            self._break(error)

    def _break(self, problem: Exception) -> None:
        error = _as_journal_error(problem)
        self._journal.failed = self._journal.failed or error
        self._drop()
        self._settle(self._appended - self._settled)
        self._outlet.on_log_broken(error)

    def _drop(self) -> list[PendingBatch[Owner]]:
        """Whatever waits, with nobody to wait for it any more."""
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
        self._pending_bytes -= sum(pending.batch.nbytes for pending in group)
        if not self.is_full:
            self._room.set()

    def _settle(self, number: int) -> None:
        self._settled += number
        while self._barriers and self._barriers[0][0] <= self._settled:
            _, reached = self._barriers.pop(0)
            if not reached.done():
                reached.set_result(None)

    # In the journal's thread.

    def _write_next(self) -> bool:
        """Wait for something to write, and write and sync all that is there; False when nothing comes any more."""
        found = self._found or self._to_write.get()
        self._found = None
        if isinstance(found, WriterCommand):
            self._refusing = False
            return found is WriterCommand.GO_ON
        if isinstance(found, Reservation):
            self._reserve_now(found.upto)
            return True
        if self._refusing:
            return True  # it has failed with what was before it
        group = self._gather(found)
        assert self._loop is not None
        try:
            positions = self._journal.write([pending.batch for pending in group])
            self._journal.sync(partial(self._loop.call_soon_threadsafe, self._applied, group, positions))
        except Exception as problem:
            self._refusing = True
            self._loop.call_soon_threadsafe(self._failed, problem)
        return True

    def _reserve_now(self, upto: int) -> None:
        assert self._loop is not None
        try:
            self._journal.reserve(upto)
        except JournalError as problem:
            log.warning("reservation_refused", why=problem.sentence)
            upto = 0
        self._loop.call_soon_threadsafe(self._is_reserved, upto)

    def _gather(self, first: PendingBatch[Owner]) -> list[PendingBatch[Owner]]:
        """What is written together with it: all that waits, as far as one write goes."""
        group, size = [first], first.batch.nbytes
        with suppress(Empty):
            while self._found is None:
                found = self._to_write.get_nowait()
                if (
                    not isinstance(found, PendingBatch)
                    or (size := size + found.batch.nbytes) > MAX_GROUP_BYTES
                ):
                    self._found = found
                else:
                    group.append(found)
        return group


def _as_journal_error(problem: Exception) -> JournalError:
    if isinstance(problem, JournalError):
        return problem
    log.error("group_commit_failed", exc_info=problem)
    return JournalError(
        "journal_failed", f"The log failed unexpectedly: {problem!r}.", "See the broker's log."
    )
