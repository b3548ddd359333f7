"""Tasks that are ended together, and work that is not to be cut off.

What waits here on its way through the group's log: gathered, then in an entry, until that has been applied here or was given up.

What a member appends: under its own name, one entry at a time, each behind the one before it.

Each is appended on condition that the newest of this name is the one that this process takes for it. So an entry whose answer was
lost is found in the log instead of being sent twice, and of two processes with one name only the later one appends: the other is
fenced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from broker_core.batch import Batch
from broker_core.errors import ClientError, OperatorError
from broker_core.group.engine_log import (
    ENTRY_BYTES,
    AppendConflictError,
    EntrySender,
    LogEntry,
    SharedLog,
    pack_entry,
)
from broker_core.group.state_machine import MAX_BATCHES, damaged_entry_error, decode_batches
from broker_core.journal.commit_log import PENDING_HIGH_BYTES, Owner, PendingBatch

T = TypeVar("T")
RETRY_DELAY_S: Final = 0.1
"""How soon a task that took a cancellation for something else is cancelled again."""


async def shield_until_done(work: Coroutine[Any, Any, T]) -> T:
    """Whoever is cancelled meanwhile still waits for it: a thread is at the journal."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if task.cancelled() or (problem := task.exception()) is None:
            raise
        raise problem from None


async def wait_first_failure(*works: Coroutine[Any, Any, None]) -> None:
    """Do several things that never end until one raises; that is raised, and the others are over by then."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(tasks)
    for task in tasks:
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            raise problem


async def cancel_and_wait(tasks: Sequence[asyncio.Task[None]], again_s: float = RETRY_DELAY_S) -> None:
    """Cancel, until they are over: a client library, and `wait_for` itself, may take a cancellation for something else."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_s)


@dataclass(slots=True)
class OutgoingEntry(Generic[Owner]):
    """Batches and confirmed reads of the log's end that one entry carries. With reads alone it is empty."""

    number: int
    since: float
    nbytes: int = 0
    content: bytes = b""
    """As it goes to the engine."""
    batches: list[PendingBatch[Owner]] = field(default_factory=list)
    asking: list[asyncio.Future[int | None]] = field(default_factory=list)


def entry_batches(entry: LogEntry, own: OutgoingEntry[Owner] | None) -> list[Batch]:
    """What an entry holds. What this process sent, and came back as it was, was checked when its publisher sent it. OperatorError
    engine_damaged."""
    if own is not None and entry.content == own.content:
        return [pending.batch for pending in own.batches]
    try:
        return list(decode_batches(entry))
    except ClientError as problem:
        raise damaged_entry_error(entry, problem) from None


class AbandonedEntry(NamedTuple, Generic[Owner]):
    """What waited: nothing here hears of it any more."""

    batches: list[PendingBatch[Owner]]
    nbytes: int


class PendingEntries(Generic[Owner]):
    """Batches and questions in the order in which they came, by the entry that carries them. Moments are seconds."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        """Something may have gathered."""
        self._number = 0
        self._gathered: list[PendingBatch[Owner]] = []
        self._gathered_since = 0.0
        self._asking: list[asyncio.Future[int | None]] = []
        self._sent: dict[int, OutgoingEntry[Owner]] = {}
        """Under way or committed, and not applied here."""
        self._bytes = 0
        self._appended = self._settled = 0
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._room = asyncio.Event()
        self._room.set()

    @property
    def is_full(self) -> bool:
        """Whether publishers should wait."""
        return self._bytes > PENDING_HIGH_BYTES

    async def wait_for_room(self) -> None:
        """Wait until it isn't full."""
        await self._room.wait()

    def add(self, batches: Sequence[PendingBatch[Owner]], now: float) -> None:
        """Behind everything that has gathered."""
        if not self._gathered:
            self._gathered_since = now
        self._gathered += batches
        self._appended += len(batches)
        self._bytes += sum(pending.batch.nbytes for pending in batches)
        if self.is_full:
            self._room.clear()
        self.wanted.set()

    def request_catch_up(self) -> asyncio.Future[int | None]:
        """Begin a confirmed read of the log's end.

        Its result is the newest record here, once everything that is in the log by now has been applied. It is None
        when the read was given up.
        """
        reached: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._asking.append(reached)
        self.wanted.set()
        return reached

    async def barrier(self) -> None:
        """Wait until all that was added before is settled."""
        if self._settled < self._appended:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((self._appended, reached))
            await reached

    def next_outgoing(self, now: float) -> OutgoingEntry[Owner] | None:
        """The next entry: what there is, up to the size that is best."""
        if not self._gathered and not self._asking:
            return None
        nbytes = count = 0
        for pending in self._gathered[:MAX_BATCHES]:
            if nbytes + pending.batch.nbytes > ENTRY_BYTES and count:
                break
            nbytes += pending.batch.nbytes
            count += 1
        batches = self._gathered[:count]
        del self._gathered[:count]
        content = b"".join(pending.batch.buf for pending in batches)
        self._number += 1
        since = self._gathered_since if count else now
        made = OutgoingEntry(self._number, since, nbytes, pack_entry(content), batches, self._asking)
        self._asking = []
        self._sent[made.number] = made
        return made

    def outgoing_of(self, number: int) -> OutgoingEntry[Owner] | None:
        """What went into an entry, if somebody still waits for it."""
        return self._sent.get(number)

    def mark_applying(self, outgoing: OutgoingEntry[Owner]) -> None:
        """It has come back, and is being applied."""
        del self._sent[outgoing.number]

    def unmark_applying(self, reached: Sequence[OutgoingEntry[Owner]]) -> None:
        """What was taken couldn't be applied."""
        for own in reached:
            self._sent[own.number] = own

    def remove_applied(self, own: OutgoingEntry[Owner], upto: int) -> None:
        """Settle an entry that is applied. `upto` is the newest record of the journal behind it."""
        _answer(own.asking, upto)
        self.release(len(own.batches), own.nbytes)

    def oldest_since(self) -> float | None:
        """When the oldest batch that waits began to; None when none does. Forgets questions that nobody waits for any more."""
        self._asking = [one for one in self._asking if not one.done()]
        found = [one.since for one in self._sent.values() if one.batches]
        if self._gathered:
            found.append(self._gathered_since)
        return min(found, default=None)

    def abandon_all(self) -> AbandonedEntry[Owner]:
        """Take out everything that waits; reads of the end fail. The caller settles it when owners were told."""
        sent, self._sent = list(self._sent.values()), {}
        gathered, self._gathered = self._gathered, []
        asking, self._asking = self._asking, []
        for own in sent:
            _answer(own.asking, None)
        _answer(asking, None)
        batches = [one for own in sent for one in own.batches] + gathered
        for pending in batches:
            pending.failed = True
        nbytes = sum(own.nbytes for own in sent) + sum(one.batch.nbytes for one in gathered)
        return AbandonedEntry(batches, nbytes)

    def release(self, number: int, nbytes: int) -> None:
        """So many batches wait no more."""
        self._bytes -= nbytes
        self._settled += number
        if not self.is_full:
            self._room.set()
        while self._barriers and self._barriers[0][0] <= self._settled:
            _, reached = self._barriers.pop(0)
            if not reached.done():
                reached.set_result(None)


def _answer(asking: Sequence[asyncio.Future[int | None]], upto: int | None) -> None:
    for one in asking:
        if not one.done():
            one.set_result(upto)


OVERTAKEN_RETRY_DELAY_S: Final = 0.1
"""An entry that was overtaken is tried again so soon."""


class EntryAppender(Generic[Owner]):
    """`run` is this process, among those that may bear the member's name."""

    def __init__(self, engine: SharedLog, member: str, run: str) -> None:
        self._engine, self._member, self._run = engine, member, run
        self._newest: int | None = None
        """The place of this member's newest entry; None before this process has opened."""
        self.underway: OutgoingEntry[Owner] | None = None

    async def open(self) -> None:
        """Append under this member's name from now on; an earlier process of that name can't any more. OperatorError member_fenced."""
        while True:
            newest = await self._engine.newest_entry()
            if self._newest is not None:
                self._newest = self._own(newest)
                underway = self.underway
                if underway is not None and newest is not None and newest[1].number >= underway.number:
                    self.underway = None  # it is in the log: only its answer was lost
                return
            at = newest[0] if newest is not None else 0
            try:
                self._newest = await self._engine.append(self._sender(0), b"", at)
                return
            except AppendConflictError:
                continue

    async def append(self, outgoing: OutgoingEntry[Owner]) -> None:
        """Until it is in the log. LogServiceUnavailableError; OperatorError member_fenced."""
        self.underway = outgoing
        while True:
            assert self._newest is not None
            try:
                self._newest = await self._engine.append(
                    self._sender(outgoing.number), outgoing.content, self._newest
                )
                break
            except AppendConflictError:
                # Its own answer was lost, or one that was given up came late: the newest entry says which.
                newest = await self._engine.newest_entry()
                self._newest = self._own(newest)
                if newest is not None and newest[1].number >= outgoing.number:
                    break
                await asyncio.sleep(OVERTAKEN_RETRY_DELAY_S)

    def on_appended(self, outgoing: OutgoingEntry[Owner]) -> None:
        """It is in the log. It may have been given up meanwhile, and another be under way."""
        if self.underway is outgoing:
            self.underway = None

    def entry_number(self, entry: LogEntry) -> int | None:
        """Which of this process's entries this is; None for another's. OperatorError member_fenced when a later process of this name
        appended it."""
        sender = entry.sender
        if sender.member != self._member:
            return None
        if sender.run != self._run:
            # Of an earlier process, unless it came after this one had opened.
            if self._newest is not None and entry.number > self._newest:
                self._own((entry.number, sender))
            return None
        return sender.number

    def _own(self, newest: tuple[int, EntrySender] | None) -> int:
        if newest is None:
            return 0
        if newest[1].run != self._run:
            raise OperatorError(
                "member_fenced",
                f"Another process has joined the group as {self._member}, after this one.",
                "Stop one of the two, or give it a name of its own (SLUICE_GROUP_MEMBER).",
            )
        return newest[0]

    def _sender(self, number: int) -> EntrySender:
        return EntrySender(self._member, self._run, number)
