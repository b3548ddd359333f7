"""The commit log: batches go in, and come out in the one order in which they are durable.

A broker by itself has a `LocalLog`, its journal. What is above knows the protocol `CommitLog` alone, so that a log that
several brokers share can take its place: then batches come out that others appended, and nobody here waits for them.

Group commit: while one fdatasync runs in a thread, what is appended gathers, and the next one carries it all. Order of
the steps, and what breaks otherwise:
  1. Stamp on the loop when the group is taken. Earlier, and a failed write would leave a hole in the sequences.
  2. Write and fdatasync in the one journal thread. On the loop, a slow disk would stop every client.
  3. Move the durable frontier and hand out, on the loop, only after fdatasync returned. Earlier, and a crash could
     take back what a subscriber has seen.
When a write fails, the group and everything that has gathered behind it fail together: letting later batches
through would leave a gap in a publisher's sequence that its republishing could not fill. A disk without room may have some
later; after any other failure, and after whatever nobody foresaw, the log is `broken`: what is on the disk, or who has heard
of it, can't be known, so nothing more comes out and the process must end.

`accepted_at` never goes back: while a clock that was set back hasn't caught up, records bear the latest moment there was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import structlog

from broker_core.batch import Batch
from broker_core.errors import JournalError
from broker_core.journal.segment import Position

if TYPE_CHECKING:
    from broker_core.clock import Clock
    from broker_core.journal.journal import Journal
log = structlog.get_logger("sluice.commit_log")
MAX_GROUP_BYTES = 8 * 1024 * 1024
"""Bytes of one write: a bound on how long one fdatasync keeps the others waiting."""
PENDING_HIGH_BYTES = 16 * 1024 * 1024
"""Bytes that may gather before publishers are no longer read from."""

Owner = TypeVar("Owner")


@dataclass(slots=True)
class Pending(Generic[Owner]):
    """A batch on its way through the log, and who must hear of it: None when nobody waits for it here."""

    batch: Batch
    owner: Owner | None = None
    failed: bool = False
    """It isn't stored: known when it has come out."""


class Outlet(Protocol[Owner]):
    """Where batches come out, group by group, on the loop. Each that was stamped is then applied or has failed, before the
    next group is stamped."""

    def stamped(self, group: list[Pending[Owner]]) -> None:
        """A group has its sequences and isn't durable yet."""

    def applied(self, group: list[Pending[Owner]], positions: list[Position]) -> None:
        """A group is durable; where each of its batches stands in the journal. The order of the log."""

    def repeated(self, pending: Pending[Owner]) -> None:
        """All of a batch is in the log already, by another broker, and durable: it is acknowledged, and not delivered."""

    def failed(self, group: list[Pending[Owner]], error: JournalError) -> None:
        """Nothing of these is stored, as far as can be said. Only the first of them may have been stamped."""

    def broken(self, error: JournalError) -> None:
        """Nothing more will come out: the process must end. What is in the log is known when it is opened again."""


class CommitLog(Protocol[Owner]):
    """What publishing needs of a log. Made with the `Outlet` that its batches come out at."""

    @property
    def full(self) -> bool:
        """Whether publishers should wait: more has gathered than the disk has taken."""

    async def room(self) -> None:
        """Wait until the log isn't full."""

    def append(self, *batches: Pending[Owner]) -> None:
        """Take batches, in order. Each comes out at `applied` or at `failed`, never within this call."""

    async def barrier(self) -> None:
        """Wait until everything appended before is durable or has failed, and the outlet has heard of it."""

    async def close(self) -> None:
        """Finish what was appended, also while this waits, and take nothing more. What a broken log has is left."""


class LogMaker(Protocol):
    """Makes the log of a broker. `LocalLog` is one."""

    def __call__(self, journal: Journal, outlet: Outlet[Owner], clock: Clock) -> CommitLog[Owner]: ...


class LocalLog(Generic[Owner]):
    """The log of a broker by itself: owns its journal's writing side. Satisfies `CommitLog`.

    `clock` tells when a batch was accepted. `thread` runs one call at a time, and is this log's from then on; by default a
    thread of its own.
    """

    def __init__(
        self, journal: Journal, outlet: Outlet[Owner], clock: Clock, thread: Executor | None = None
    ) -> None:
        self._journal = journal
        self._outlet = outlet
        self._clock = clock
        self._thread = thread or ThreadPoolExecutor(1, "journal")
        self._pending: list[Pending[Owner]] = []
        self._pending_bytes = 0
        self._last_at = journal.last_at
        self._appended = self._settled = 0
        """Batches since the start; settled are those that are durable or have failed."""
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    @property
    def full(self) -> bool:
        return self._pending_bytes > PENDING_HIGH_BYTES

    async def room(self) -> None:
        await self._room.wait()

    def append(self, *batches: Pending[Owner]) -> None:
        self._pending += batches
        self._appended += len(batches)
        self._pending_bytes += sum(pending.batch.nbytes for pending in batches)
        if self.full:
            self._room.clear()
        if self._task is None and self._pending:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="group-commit")

    async def barrier(self) -> None:
        if self._settled < self._appended:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((self._appended, reached))
            await reached

    async def close(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        try:
            while self._pending:
                await self._commit(self._take())
        except Exception as problem:
            self._break(problem)
        finally:
            self._task = None

    async def _commit(self, group: list[Pending[Owner]]) -> None:
        self._stamp(group)
        self._outlet.stamped(group)
        try:
            positions = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._write, [p.batch for p in group]
            )
        except Exception as problem:
            # Whatever it was, nobody waits in silence for what isn't stored.
            group, self._pending = group + self._pending, []
            self._release(group)
            for pending in group:
                pending.failed = True
            self._outlet.failed(group, _as_journal_error(problem))
            self._settle(len(group))
            if self._journal.failed is not None or not isinstance(problem, JournalError):
                raise
            return
        # The law of every acknowledgement.
        assert group[-1].batch.last_sequence <= self._journal.durable_sequence
        self._release(group)
        self._outlet.applied(group, positions)
        self._settle(len(group))

    def _break(self, problem: Exception) -> None:
        error = _as_journal_error(problem)
        self._journal.failed = self._journal.failed or error
        self._release(self._pending)
        for pending in self._pending:
            pending.failed = True
        self._pending = []
        self._settle(self._appended - self._settled)
        self._outlet.broken(error)

    def _take(self) -> list[Pending[Owner]]:
        size = 0
        for number, pending in enumerate(self._pending):
            size += pending.batch.nbytes
            if size > MAX_GROUP_BYTES and number:
                group, self._pending = self._pending[:number], self._pending[number:]
                return group
        group, self._pending = self._pending, []
        return group

    def _stamp(self, group: list[Pending[Owner]]) -> None:
        sequence = self._journal.next_sequence
        at = self._last_at = max(self._clock.now_ns(), self._last_at)
        origin, epoch = self._journal.origin, self._journal.epoch
        for pending in group:
            batch = pending.batch
            batch.stamp(origin=origin, epoch=epoch, first_sequence=sequence, accepted_at=at)
            sequence += batch.header.count

    def _write(self, batches: Sequence[Batch]) -> list[Position]:
        positions = self._journal.write(batches)
        self._journal.sync()
        return positions

    def _release(self, group: list[Pending[Owner]]) -> None:
        self._pending_bytes -= sum(pending.batch.nbytes for pending in group)
        if not self.full:
            self._room.set()

    def _settle(self, number: int) -> None:
        self._settled += number
        while self._barriers and self._barriers[0][0] <= self._settled:
            _, reached = self._barriers.pop(0)
            if not reached.done():
                reached.set_result(None)


def _as_journal_error(problem: Exception) -> JournalError:
    if isinstance(problem, JournalError):
        return problem
    log.error("group_commit_failed", exc_info=problem)
    return JournalError("journal_failed", f"The log failed unforeseen: {problem!r}.", "See the broker's log.")
