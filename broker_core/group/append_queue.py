"""Batches on their way through the group's log, and the appender that sends them as entries.

A batch waits in `PendingEntries` until the entry that carries it was applied here, or was abandoned.
`EntryAppender` appends under this member's name, one entry at a time, each behind the one before it.

Every append states which entry must be this member's newest. The log service refuses it otherwise. So an
entry whose answer was lost is found in the log instead of being sent twice. If two processes use one name,
only the later process can append: the earlier one is fenced.

The module also has helpers that end asyncio tasks together and protect work that must not be cut off.
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
"""Seconds before a task that swallowed its cancellation is cancelled again."""


async def shield_until_done(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, even if the caller is cancelled meanwhile.

    Reason: a thread is writing the journal.

    Raises CancelledError afterwards if the caller was cancelled, or the exception of `work`, which wins.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if task.cancelled() or (problem := task.exception()) is None:
            raise
        raise problem from None


async def wait_first_failure(*works: Coroutine[Any, Any, None]) -> None:
    """Run endless coroutines until one raises, cancel the others, and raise that exception.

    All of them have ended when this returns or raises.
    """
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
    """Cancel `tasks` and wait for their end; repeat the cancellation every `again_s` seconds.

    Once isn't enough: the NATS client, and `wait_for` itself, may swallow a cancellation.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_s)


@dataclass(slots=True)
class OutgoingEntry(Generic[Owner]):
    """Batches, and confirmed reads of the log's end, that one entry carries.

    With reads alone the entry is empty.

    `number` counts the entries of this process; `since` is the time in seconds at which its oldest batch
    was added; `nbytes` is the size of its batches.
    """

    number: int
    since: float
    nbytes: int = 0
    content: bytes = b""
    """The bytes of the entry as they are sent to the log service, packed if that makes them smaller."""
    batches: list[PendingBatch[Owner]] = field(default_factory=list)
    asking: list[asyncio.Future[int | None]] = field(default_factory=list)


def entry_batches(entry: LogEntry, own: OutgoingEntry[Owner] | None) -> list[Batch]:
    """Return the batches of an entry.

    If the log service returned the bytes that this process sent, the batches are those of `own`, already
    checked when their publisher sent them. Raises OperatorError engine_damaged.
    """
    if own is not None and entry.content == own.content:
        return [pending.batch for pending in own.batches]
    try:
        return list(decode_batches(entry))
    except ClientError as problem:
        raise damaged_entry_error(entry, problem) from None


class AbandonedEntry(NamedTuple, Generic[Owner]):
    """Batches that `PendingEntries.abandon_all` removed, and their bytes."""

    batches: list[PendingBatch[Owner]]
    nbytes: int


class PendingEntries(Generic[Owner]):
    """Batches and confirmed reads in order of arrival, grouped by the entry that carries them.

    Times are seconds.
    """

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        """Set when a batch or a read may be waiting for an entry."""
        self._number = 0
        self._gathered: list[PendingBatch[Owner]] = []
        self._gathered_since = 0.0
        self._asking: list[asyncio.Future[int | None]] = []
        self._sent: dict[int, OutgoingEntry[Owner]] = {}
        """Entries that are being appended or are committed, and are not yet applied here."""
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
        """Wait until the pending bytes are below the limit."""
        await self._room.wait()

    def add(self, batches: Sequence[PendingBatch[Owner]], now: float) -> None:
        """Queue batches behind all that wait for an entry."""
        if not self._gathered:
            self._gathered_since = now
        self._gathered += batches
        self._appended += len(batches)
        self._bytes += sum(pending.batch.nbytes for pending in batches)
        if self.is_full:
            self._room.clear()
        self.wanted.set()

    def request_catch_up(self) -> asyncio.Future[int | None]:
        """Begin a confirmed read of the log's end, and return a future.

        The future's result is the newest record here, once everything in the log by now has been applied.
        The result is None if the read was abandoned.
        """
        reached: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._asking.append(reached)
        self.wanted.set()
        return reached

    async def barrier(self) -> None:
        """Wait until every batch that was added before this call is applied or abandoned."""
        if self._settled < self._appended:
            reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((self._appended, reached))
            await reached

    def next_outgoing(self, now: float) -> OutgoingEntry[Owner] | None:
        """Make the next entry from the waiting batches and reads; None if there are none.

        An entry takes batches up to ENTRY_BYTES, one at least.
        """
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
        """Return the pending entry with this number; None if it is applied or abandoned."""
        return self._sent.get(number)

    def mark_applying(self, outgoing: OutgoingEntry[Owner]) -> None:
        """Remove an entry that was read from the log from the sent ones, because it is being applied."""
        del self._sent[outgoing.number]

    def unmark_applying(self, reached: Sequence[OutgoingEntry[Owner]]) -> None:
        """Put entries back among the sent ones, because they couldn't be applied."""
        for own in reached:
            self._sent[own.number] = own

    def remove_applied(self, own: OutgoingEntry[Owner], upto: int) -> None:
        """Finish an entry that is applied.

        `upto`: the newest record of the journal afterwards, which answers its reads.
        """
        _answer(own.asking, upto)
        self.release(len(own.batches), own.nbytes)

    def oldest_since(self) -> float | None:
        """Return since when the oldest pending batch has waited; None if none waits.

        Drop reads that were cancelled.
        """
        self._asking = [one for one in self._asking if not one.done()]
        found = [one.since for one in self._sent.values() if one.batches]
        if self._gathered:
            found.append(self._gathered_since)
        return min(found, default=None)

    def abandon_all(self) -> AbandonedEntry[Owner]:
        """Remove and return all pending batches, marked as failed; answer all reads with None.

        The caller must call `release` with the result after it has notified the batches' owners.
        """
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
        """Count `number` batches of `nbytes` bytes as finished.

        Wake publishers and barriers that waited for them.
        """
        self._bytes -= nbytes
        self._settled += number
        if not self.is_full:
            self._room.set()
        while self._barriers and self._barriers[0][0] <= self._settled:
            _, reached = self._barriers.pop(0)
            if not reached.done():
                reached.set_result(None)


def _answer(asking: Sequence[asyncio.Future[int | None]], upto: int | None) -> None:
    """Complete confirmed reads with `upto`; skip cancelled ones."""
    for one in asking:
        if not one.done():
            one.set_result(upto)


OVERTAKEN_RETRY_DELAY_S: Final = 0.1
"""Seconds before an append is repeated that lost against another entry of this member."""


class EntryAppender(Generic[Owner]):
    """Appender of one process's entries.

    `run` distinguishes this process from others that use the member's name.
    """

    def __init__(self, engine: SharedLog, member: str, run: str) -> None:
        self._engine, self._member, self._run = engine, member, run
        self._newest: int | None = None
        """The position of this member's newest entry; None before this process has called `open`."""
        self.underway: OutgoingEntry[Owner] | None = None

    async def open(self) -> None:
        """Claim the member's name for this process, which fences any earlier process of that name.

        After a reconnect it only looks up the newest entry: if the append under way is in the log, its
        answer alone was lost. Raises OperatorError member_fenced.
        """
        while True:
            newest = await self._engine.newest_entry()
            if self._newest is not None:
                self._newest = self._own(newest)
                underway = self.underway
                if underway is not None and newest is not None and newest[1].number >= underway.number:
                    self.underway = None  # its answer alone was lost
                return
            at = newest[0] if newest is not None else 0
            try:
                self._newest = await self._engine.append(self._sender(0), b"", at)
                return
            except AppendConflictError:
                continue

    async def append(self, outgoing: OutgoingEntry[Owner]) -> None:
        """Append an entry; return when it is in the log.

        Raises LogServiceUnavailableError; OperatorError member_fenced.
        """
        self.underway = outgoing
        while True:
            assert self._newest is not None
            try:
                self._newest = await self._engine.append(
                    self._sender(outgoing.number), outgoing.content, self._newest
                )
                break
            except AppendConflictError:
                # Either the answer to this append was lost, or an abandoned append arrived late. The newest
                # entry tells which.
                newest = await self._engine.newest_entry()
                self._newest = self._own(newest)
                if newest is not None and newest[1].number >= outgoing.number:
                    break
                await asyncio.sleep(OVERTAKEN_RETRY_DELAY_S)

    def on_appended(self, outgoing: OutgoingEntry[Owner]) -> None:
        """Clear the append under way, unless it was abandoned meanwhile and another one is under way."""
        if self.underway is outgoing:
            self.underway = None

    def entry_number(self, entry: LogEntry) -> int | None:
        """Return the number that this process gave to an entry.

        None for an entry of another process or member.

        Raises OperatorError member_fenced if a later process of this name appended it.
        """
        sender = entry.sender
        if sender.member != self._member:
            return None
        if sender.run != self._run:
            # Normally an entry of an earlier process; behind this process's newest entry, a later process
            # has the name.
            if self._newest is not None and entry.number > self._newest:
                self._own((entry.number, sender))
            return None
        return sender.number

    def _own(self, newest: tuple[int, EntrySender] | None) -> int:
        """Return the position of the member's newest entry. Raises OperatorError member_fenced for another
        process's."""
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
