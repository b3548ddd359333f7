"""Group commit: while one fdatasync runs in a thread, what arrives gathers, and the next one carries it all.

Order of the steps, and what breaks otherwise:
  1. Stamp on the loop when the group is taken. Earlier, and a failed write would leave a hole in the sequences.
  2. Write and fdatasync in the one journal thread. On the loop, a slow disk would stop every client.
  3. Move the durable frontier and deliver, on the loop, only after fdatasync returned. Earlier, and a crash could
     take back what a subscriber has seen.
When a write fails, the group and everything that has gathered behind it fail together: letting later batches
through would leave a gap in a publisher's sequence that its republishing could not fill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker_core.batch import Batch
from broker_core.errors import JournalError
from broker_core.journal.journal import Journal
from broker_core.journal.segment import Position
from broker_core.protocols.replies import Ack
from broker_core.runtime import clock

if TYPE_CHECKING:
    from broker_core.runtime.connection import Connection

MAX_GROUP_BYTES = 8 * 1024 * 1024
"""Bytes of one write: a bound on how long one fdatasync keeps the others waiting."""
PENDING_HIGH_BYTES = 16 * 1024 * 1024
"""Bytes that may gather before publishers are no longer read from."""


@dataclass(slots=True)
class Pending:
    """A batch on its way to the disk and who must hear of it. `owner` is None for the broker's own events."""

    batch: Batch
    owner: Connection | None
    last_publisher_sequence: int
    answers: Sequence[Ack]


class GroupCommit:
    """Owns the journal's writing side.

    On the loop run `stamped(group)`, before the disk is asked, and then `committed(group, positions)` or
    `failed(group, error)`. One group is under way at a time, so what was stamped before has been committed or failed.
    """

    def __init__(
        self,
        journal: Journal,
        committed: Callable[[list[Pending], list[Position]], None],
        failed: Callable[[list[Pending], JournalError], None],
        stamped: Callable[[list[Pending]], None],
    ) -> None:
        self._journal = journal
        self._committed = committed
        self._failed = failed
        self._stamped = stamped
        self._pending: list[Pending] = []
        self._thread = ThreadPoolExecutor(1, "journal")
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.pending_bytes = 0
        self.groups = 0

    @property
    def full(self) -> bool:
        """Whether publishers should wait: more has gathered than the disk has taken."""
        return self.pending_bytes > PENDING_HIGH_BYTES

    async def room(self) -> None:
        """Wait until there is room again."""
        await self._room.wait()

    def submit(self, pending: Pending) -> None:
        """Take a batch. It is durable when `committed` is called with it."""
        self._pending.append(pending)
        self.pending_bytes += pending.batch.nbytes
        if self.full:
            self._room.clear()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="group-commit")

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                group = self._take()
                self._stamp(group)
                self._stamped(group)
                try:
                    positions = await loop.run_in_executor(self._thread, self._write, [p.batch for p in group])
                except JournalError as error:
                    self._fail(group, error)
                    continue
                self.groups += 1
                self._release(group)
                self._committed(group, positions)
        finally:
            self._task = None

    def _take(self) -> list[Pending]:
        size = 0
        for number, pending in enumerate(self._pending):
            size += pending.batch.nbytes
            if size > MAX_GROUP_BYTES and number:
                group, self._pending = self._pending[:number], self._pending[number:]
                return group
        group, self._pending = self._pending, []
        return group

    def _stamp(self, group: list[Pending]) -> None:
        sequence, at = self._journal.next_sequence, clock.now_ns()
        origin, epoch = self._journal.origin, self._journal.epoch
        for pending in group:
            batch = pending.batch
            batch.stamp(origin=origin, epoch=epoch, first_sequence=sequence, accepted_at=at)
            sequence += batch.header.count

    def _write(self, batches: list[Batch]) -> list[Position]:
        positions = self._journal.write(batches)
        self._journal.sync()
        return positions

    def _release(self, group: list[Pending]) -> None:
        self.pending_bytes -= sum(pending.batch.nbytes for pending in group)
        if not self.full:
            self._room.set()

    def _fail(self, group: list[Pending], error: JournalError) -> None:
        group = group + self._pending
        self._pending = []
        self._release(group)
        self._failed(group, error)

    async def idle(self) -> None:
        """Wait until everything submitted is on disk or has failed."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Finish what was submitted and end the thread."""
        await self.idle()
        self._thread.shutdown(wait=True)
