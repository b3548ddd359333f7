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
CANCEL_RETRY_DELAY_S: Final = 0.1
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


async def cancel_and_wait(
    tasks: Sequence[asyncio.Task[None]], retry_delay_s: float = CANCEL_RETRY_DELAY_S
) -> None:
    """Cancel `tasks` and wait for their end; repeat the cancellation every `retry_delay_s` seconds.

    Once isn't enough: the NATS client, and `wait_for` itself, may swallow a cancellation.
    """
    remaining = set(tasks)
    while remaining:
        for task in remaining:
            task.cancel()
        _, remaining = await asyncio.wait(remaining, timeout=retry_delay_s)


@dataclass(slots=True)
class OutgoingEntry(Generic[Owner]):
    """Batches, and confirmed reads of the log's end, that one entry carries.

    With reads alone the entry is empty.

    `number` counts the entries of this process; `nbytes` is the size of its batches; `oldest_added_at` is the
    time in seconds at which the oldest of them was added.
    """

    number: int
    oldest_added_at: float
    nbytes: int = 0
    content: bytes = b""
    """The bytes of the entry as they are sent to the log service, packed if that makes them smaller."""
    batches: list[PendingBatch[Owner]] = field(default_factory=list)
    reads: list[asyncio.Future[int | None]] = field(default_factory=list)


def entry_batches(entry: LogEntry, outgoing: OutgoingEntry[Owner] | None) -> list[Batch]:
    """Return the batches of an entry.

    If the log service returned the bytes that this process sent, the batches are those of `outgoing`, already
    checked when their publisher sent them. Raises OperatorError engine_damaged.
    """
    if outgoing is not None and entry.content == outgoing.content:
        return [pending.batch for pending in outgoing.batches]
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
        self.work_event = asyncio.Event()
        """Set when a batch or a read may be waiting for an entry."""
        self._number = 0
        self._queued: list[PendingBatch[Owner]] = []
        self._queued_since = 0.0
        self._reads: list[asyncio.Future[int | None]] = []
        self._in_flight: dict[int, OutgoingEntry[Owner]] = {}
        """Entries that are being appended or are committed, and are not yet applied here."""
        self._bytes = 0
        self._appended = self._finished = 0
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._capacity_event = asyncio.Event()
        self._capacity_event.set()

    @property
    def is_full(self) -> bool:
        """Whether publishers should wait."""
        return self._bytes > PENDING_HIGH_BYTES

    async def wait_for_room(self) -> None:
        """Wait until the pending bytes are below the limit."""
        await self._capacity_event.wait()

    def add(self, batches: Sequence[PendingBatch[Owner]], now: float) -> None:
        """Queue batches behind all that wait for an entry."""
        if not self._queued:
            self._queued_since = now
        self._queued += batches
        self._appended += len(batches)
        self._bytes += sum(pending.batch.nbytes for pending in batches)
        if self.is_full:
            self._capacity_event.clear()
        self.work_event.set()

    def request_catch_up(self) -> asyncio.Future[int | None]:
        """Begin a confirmed read of the log's end, and return a future.

        The future's result is the newest record here, once everything in the log by now has been applied.
        The result is None if the read was abandoned.
        """
        read: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._reads.append(read)
        self.work_event.set()
        return read

    async def barrier(self) -> None:
        """Wait until every batch that was added before this call is applied or abandoned."""
        if self._finished < self._appended:
            barrier: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._barriers.append((self._appended, barrier))
            await barrier

    def next_outgoing(self, now: float) -> OutgoingEntry[Owner] | None:
        """Make the next entry from the waiting batches and reads; None if there are none.

        An entry takes batches up to ENTRY_BYTES, one at least.
        """
        if not self._queued and not self._reads:
            return None
        nbytes = count = 0
        for pending in self._queued[:MAX_BATCHES]:
            if nbytes + pending.batch.nbytes > ENTRY_BYTES and count:
                break
            nbytes += pending.batch.nbytes
            count += 1
        batches = self._queued[:count]
        del self._queued[:count]
        content = b"".join(pending.batch.buf for pending in batches)
        self._number += 1
        oldest_added_at = self._queued_since if count else now
        outgoing = OutgoingEntry(
            self._number, oldest_added_at, nbytes, pack_entry(content), batches, self._reads
        )
        self._reads = []
        self._in_flight[outgoing.number] = outgoing
        return outgoing

    def get_outgoing(self, number: int) -> OutgoingEntry[Owner] | None:
        """Return the pending entry with this number; None if it is applied or abandoned."""
        return self._in_flight.get(number)

    def mark_applying(self, outgoing: OutgoingEntry[Owner]) -> None:
        """Remove an entry that was read from the log from the sent ones, because it is being applied."""
        del self._in_flight[outgoing.number]

    def unmark_applying(self, outgoing_entries: Sequence[OutgoingEntry[Owner]]) -> None:
        """Put entries back among the sent ones, because they couldn't be applied."""
        for outgoing in outgoing_entries:
            self._in_flight[outgoing.number] = outgoing

    def remove_applied(self, outgoing: OutgoingEntry[Owner], newest_record: int) -> None:
        """Finish an entry that is applied.

        `newest_record`: the newest record of the journal afterwards, which answers its reads.
        """
        _complete_reads(outgoing.reads, newest_record)
        self.release(len(outgoing.batches), outgoing.nbytes)

    def oldest_pending_time(self) -> float | None:
        """Return since when the oldest pending batch has waited; None if none waits.

        Drop reads that were cancelled.
        """
        self._reads = [one for one in self._reads if not one.done()]
        times = [one.oldest_added_at for one in self._in_flight.values() if one.batches]
        if self._queued:
            times.append(self._queued_since)
        return min(times, default=None)

    def abandon_all(self) -> AbandonedEntry[Owner]:
        """Remove and return all pending batches, marked as failed; answer all reads with None.

        The caller must call `release` with the result after it has notified the batches' owners.
        """
        in_flight, self._in_flight = list(self._in_flight.values()), {}
        queued, self._queued = self._queued, []
        reads, self._reads = self._reads, []
        for outgoing in in_flight:
            _complete_reads(outgoing.reads, None)
        _complete_reads(reads, None)
        batches = [pending for outgoing in in_flight for pending in outgoing.batches] + queued
        for pending in batches:
            pending.failed = True
        nbytes = sum(outgoing.nbytes for outgoing in in_flight) + sum(
            pending.batch.nbytes for pending in queued
        )
        return AbandonedEntry(batches, nbytes)

    def release(self, number: int, nbytes: int) -> None:
        """Count `number` batches of `nbytes` bytes as finished.

        Wake publishers and barriers that waited for them.
        """
        self._bytes -= nbytes
        self._finished += number
        if not self.is_full:
            self._capacity_event.set()
        while self._barriers and self._barriers[0][0] <= self._finished:
            _, barrier = self._barriers.pop(0)
            if not barrier.done():
                barrier.set_result(None)


def _complete_reads(reads: Sequence[asyncio.Future[int | None]], newest_record: int | None) -> None:
    """Complete confirmed reads with `newest_record`; skip cancelled ones."""
    for read in reads:
        if not read.done():
            read.set_result(newest_record)


CONFLICT_RETRY_DELAY_S: Final = 0.1
"""Seconds before an append is repeated that lost against another entry of this member."""


class EntryAppender(Generic[Owner]):
    """Appender of one process's entries.

    `run` distinguishes this process from others that use the member's name.
    """

    def __init__(self, log_service: SharedLog, member: str, run: str) -> None:
        self._log_service, self._member, self._run = log_service, member, run
        self._newest: int | None = None
        """The position of this member's newest entry; None before this process has called `open`."""
        self.in_flight: OutgoingEntry[Owner] | None = None

    async def open(self) -> None:
        """Claim the member's name for this process, which fences any earlier process of that name.

        After a reconnect it only looks up the newest entry: if the append under way is in the log, its
        answer alone was lost. Raises OperatorError member_fenced.
        """
        while True:
            newest = await self._log_service.newest_entry()
            if self._newest is not None:
                self._newest = self._checked_position(newest)
                in_flight = self.in_flight
                if in_flight is not None and newest is not None and newest[1].number >= in_flight.number:
                    self.in_flight = None  # its answer alone was lost
                return
            position = newest[0] if newest is not None else 0
            try:
                self._newest = await self._log_service.append(self._make_sender(0), b"", position)
                return
            except AppendConflictError:
                continue

    async def append(self, outgoing: OutgoingEntry[Owner]) -> None:
        """Append an entry; return when it is in the log.

        Raises LogServiceUnavailableError; OperatorError member_fenced.
        """
        self.in_flight = outgoing
        while True:
            assert self._newest is not None
            try:
                self._newest = await self._log_service.append(
                    self._make_sender(outgoing.number), outgoing.content, self._newest
                )
                break
            except AppendConflictError:
                # Either the answer to this append was lost, or an abandoned append arrived late. The newest
                # entry tells which.
                newest = await self._log_service.newest_entry()
                self._newest = self._checked_position(newest)
                if newest is not None and newest[1].number >= outgoing.number:
                    break
                await asyncio.sleep(CONFLICT_RETRY_DELAY_S)

    def on_appended(self, outgoing: OutgoingEntry[Owner]) -> None:
        """Clear the append under way, unless it was abandoned meanwhile and another one is under way."""
        if self.in_flight is outgoing:
            self.in_flight = None

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
                self._checked_position((entry.number, sender))
            return None
        return sender.number

    def _checked_position(self, newest: tuple[int, EntrySender] | None) -> int:
        """Return the position of the member's newest entry. Raises OperatorError member_fenced for another
        process's."""
        if newest is None:
            return 0
        if newest[1].run != self._run:
            raise OperatorError(
                "member_fenced",
                f"Another process has joined the group as {self._member}, after this one.",
                "Stop one of the two, or give it another name (SLUICE_GROUP_MEMBER).",
            )
        return newest[0]

    def _make_sender(self, number: int) -> EntrySender:
        return EntrySender(self._member, self._run, number)
