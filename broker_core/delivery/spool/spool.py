"""Spool: the backlog of one offlined client on disk.

Entries are added at the end and pulled from the front, in order.

A reference is 40 bytes, for one batch or for a run of adjacent batches of the journal. Memory holds only
counts, up to 16 KiB of unwritten entries (`file_queue`), and one sequence per 1,024 entries, however large
the backlog is.
"""

from __future__ import annotations

import os
import secrets
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_core.batch import Batch
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.loss_ledger import DiscardTally
from broker_core.delivery.spool.entry_format import (
    ENTRY_SIZE,
    BatchRun,
    Rows,
    SpoolEntry,
    SpoolEntryHeader,
    decode_entry,
    decode_entry_header,
    encode_copy,
    encode_reference,
)
from broker_core.delivery.spool.file_queue import SpoolFileQueue
from broker_core.errors import OperatorError
from broker_core.journal.files import FileSystem, OpenFile


def check_spool_directories(directories: Iterable[str]) -> None:
    """Write to each directory to check that spools can be written there, before a policy needs them.

    Raises:
        OperatorError: bad_spool_path, with the first directory that failed and the reason.
    """
    for directory in sorted(set(directories)):
        try:
            _try(Path(directory))
        except OSError as problem:
            raise OperatorError(
                "bad_spool_path",
                f"Spools can't be written in {directory}: {problem.strerror or problem}.",
                "Give message_disk_path a directory that the broker may write to, with room.",
                path=directory,
            ) from None


def _try(directory: Path) -> None:
    """Write, sync and remove a file in a directory. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    probe = directory / f".sluice-{secrets.token_hex(8)}"
    file = OpenFile(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.pwrite(file.fd, b"\0" * 4_096, 0)
        os.fsync(file.fd)
    finally:
        file.close()
        probe.unlink()


BLOCK_ENTRIES = 1_024
"""Number of entries for which one smallest sequence is kept."""


@dataclass(slots=True)
class _SequenceBlock:
    """Smallest journal sequence among some consecutive entries; 0 when none of them refers to the journal."""

    added: int = 0
    waiting: int = 0
    least: int = 0


class Spool:
    """Backlog of one client on disk. Not thread-safe: it belongs to its client's task.

    `backlog_bytes` counts undelivered bytes, `disk_bytes` the bytes of the files. `first_sequence` is never
    above the oldest journal record that an entry refers to; 0 when there is none.
    """

    def __init__(self, path: Path, *, files: FileSystem | None = None) -> None:
        self.messages = 0
        self.copied_messages = 0
        self.backlog_bytes = 0
        self.entries = 0
        self.tallies: dict[int, DiscardTally] = {}
        """Counts of the entries by stream.

        After the first pull, `first` is a lower bound (`set_delivered_upto` raises it).
        """
        self._unordered: set[int] = set()
        """Streams in which an older record came behind a newer one. Their `first` is not raised."""
        self._parts = SpoolFileQueue(path, files or FileSystem())
        self._run: BatchRun | None = None
        """Last reference, behind the files, that may still become longer.

        It is counted, and encoded when it is complete.
        """
        self._front: deque[SpoolEntry] = deque()
        """Entries that were given back. They come before everything in the files."""
        self.requeued_bytes = 0
        """Bytes of copies that were given back and are in memory."""
        self._blocks: deque[_SequenceBlock] = deque()

    @property
    def empty(self) -> bool:
        return self.entries == 0

    @property
    def disk_bytes(self) -> int:
        """Bytes of the files and of entries that will be written to them."""
        return self._parts.disk_bytes + (0 if self._run is None else ENTRY_SIZE)

    @property
    def first_sequence(self) -> int:
        return min((block.least for block in self._blocks if block.least), default=0)

    @property
    def oldest_at(self) -> int:
        """Time at which the oldest waiting delivery was accepted, ns UTC; 0 when the spool is empty."""
        if self._front:
            return self._front[0].accepted_at
        return 0 if self.entries == 0 else self._head().accepted_at

    # Adding entries.

    def extend(self, entry: OutboxEntry) -> bool:
        """Add a whole journaled batch to the last reference. Return False if it isn't adjacent to that.

        Most deliveries of offlined clients take this path, and there may be thousands of such clients.
        """
        run, source = self._run, entry.source
        if (
            run is None
            or source is None
            or not run.try_extend(entry.stream, source, entry.source_length, entry.count)
        ):
            return False
        tally, last = self.tallies[entry.stream], entry.batch.last_sequence
        tally.messages += entry.count
        tally.nbytes += entry.nbytes
        if last > tally.last:
            tally.last = last
        self.messages += entry.count
        self.backlog_bytes += entry.nbytes
        return True

    def append_reference(
        self,
        stream: int,
        position: tuple[int, int],
        length: int,
        count: int,
        accepted_at: int,
        first_sequence: int,
        rows: Rows | None = None,
        nbytes: int | None = None,
        last_sequence: int = 0,
    ) -> None:
        """Add `count` records of the journaled batch of `length` bytes at `position`: all, or the given rows.

        `nbytes` is the size that counts in the backlog, by default `length`.

        Raises:
            JournalError: disk_full, when the disk is full and too much is in memory. This entry isn't added
                then; all earlier entries stay.
        """
        counted = length if nbytes is None else nbytes
        if rows is None and counted == length:
            self._append(b"", small=True)
            self._run = BatchRun(stream, position, length, count, accepted_at)
        else:
            self._append(
                encode_reference(stream, position, length, count, counted, accepted_at, rows), small=True
            )
        self._enter(first_sequence)
        self._count(stream, count, counted, first_sequence, last_sequence or first_sequence + count - 1)

    def append_copy(self, stream: int, batch: Batch, accepted_at: int) -> None:
        """Add a whole unjournaled batch. Its age counts from `accepted_at`, ns.

        Raises:
            JournalError: as for `append_reference`.
        """
        self._append(encode_copy(stream, batch, accepted_at))
        self._count(stream, batch.count, batch.nbytes, batch.first_sequence, batch.last_sequence)
        self._enter(0)
        self.copied_messages += batch.count

    def _append(self, entry: bytes, *, small: bool = False) -> None:
        """Add an encoded entry at the end; b"" when a run begins there."""
        self._end_run()
        self._parts.append(entry, small=small)

    def _end_run(self) -> None:
        """Encode the open reference and put it behind the other bytes."""
        run, self._run = self._run, None
        if run is not None:
            self._parts.put_deferred(run.encode())

    def _count(self, stream: int, count: int, nbytes: int, first_sequence: int, last_sequence: int) -> None:
        """Count the records of an added entry."""
        tally = self.tallies.get(stream)
        if tally is None:
            tally = self.tallies[stream] = DiscardTally()
        if first_sequence and first_sequence <= tally.last:
            self._unordered.add(stream)
        self._add(tally, count, nbytes, first_sequence, last_sequence)

    def _add(
        self, tally: DiscardTally, count: int, nbytes: int, first_sequence: int, last_sequence: int
    ) -> None:
        tally.add(count, nbytes, first_sequence, last_sequence)
        self.messages += count
        self.backlog_bytes += nbytes

    def _enter(self, first_sequence: int) -> None:
        """Count one more entry; `first_sequence` 0 when it doesn't refer to the journal."""
        self.entries += 1
        if not self._blocks or self._blocks[-1].added == BLOCK_ENTRIES:
            self._blocks.append(_SequenceBlock())
        block = self._blocks[-1]
        block.added += 1
        block.waiting += 1
        if first_sequence and (block.least == 0 or first_sequence < block.least):
            block.least = first_sequence

    # Pulling entries.

    def pull(self, max_bytes: int) -> list[SpoolEntry]:
        """Remove and return the oldest entries; [] when the spool is empty.

        They refer to about `max_bytes` bytes of batches. At least one entry is returned.

        Raises:
            JournalError: spool_damaged, when the disk returned other bytes than were written.
        """
        pulled: list[SpoolEntry] = []
        size = 0
        while self.entries and (not pulled or size < max_bytes):
            entry = self._take_front() if self._front else self._read_next()
            self._uncount(entry)
            pulled.append(entry)
            size += entry.length
        if self.entries == 0:
            self._parts.start_new_file()
        return pulled

    def first_sequences(self) -> dict[int, int]:
        """Return, by stream, a sequence that no waiting journaled record of the stream is before."""
        return {
            stream: tally.first for stream, tally in self.tallies.items() if tally.messages and tally.first
        }

    def set_delivered_upto(self, stream: int, last: int) -> None:
        """Record that a subscription's journaled records up to `last` were pulled and queued.

        The others come after them.
        """
        tally = self.tallies.get(stream)
        if tally is not None and tally.messages and tally.first and stream not in self._unordered:
            tally.first = max(tally.first, last + 1)

    def requeue(self, entries: Sequence[SpoolEntry], firsts: Mapping[int, int]) -> None:
        """Put pulled entries back to the front, in order.

        No journaled record of a stream is before its sequence in `firsts`.

        They are in memory from then on, so they should be small: references without their batches, copies
        completely.
        """
        if not entries:
            return
        self._front.extendleft(reversed(entries))
        self._blocks.appendleft(_SequenceBlock(BLOCK_ENTRIES, len(entries), min(firsts.values(), default=0)))
        self.entries += len(entries)
        for entry in entries:
            batch = entry.batch
            tally = self.tallies.setdefault(entry.stream, DiscardTally())
            if batch is None:
                first = firsts[entry.stream]
                self._add(tally, entry.count, entry.nbytes, first, first)
            else:
                self._add(tally, entry.count, entry.nbytes, batch.first_sequence, batch.last_sequence)
                self.copied_messages += entry.count
                self.requeued_bytes += entry.nbytes

    def _take_front(self) -> SpoolEntry:
        entry = self._front.popleft()
        if entry.batch is not None:
            self.requeued_bytes -= entry.nbytes
        return entry

    def _read_next(self) -> SpoolEntry:
        """Return the first entry in the files and remove it from there."""
        head = self._head()
        entry = decode_entry(self._parts.peek(head.size), 0, head)
        self._parts.skip(head.size)
        return entry

    def _head(self) -> SpoolEntryHeader:
        """Return the header of the first entry in the files."""
        if not self._parts.open_next_file():
            self._end_run()
            self._parts.detach_unwritten()
        return decode_entry_header(self._parts.peek(ENTRY_SIZE), 0)

    def _uncount(self, entry: SpoolEntry) -> None:
        """Subtract a pulled entry from all counts."""
        tally = self.tallies[entry.stream]
        tally.messages -= entry.count
        tally.nbytes -= entry.nbytes
        if entry.batch is not None and not entry.batch.first_sequence:
            tally.unjournaled -= entry.count
            tally.unjournaled_bytes -= entry.nbytes
        if tally.messages == 0:
            tally.first = tally.last = 0
            self._unordered.discard(entry.stream)
        self.entries -= 1
        self.messages -= entry.count
        self.backlog_bytes -= entry.nbytes
        if entry.batch is not None:
            self.copied_messages -= entry.count
        block = self._blocks[0]
        block.waiting -= 1
        if block.waiting == 0:
            self._blocks.popleft()

    def close(self, remove: bool = True) -> None:
        """Close the spool. `remove` deletes its files; otherwise they stay until `remove_leftover_spools`."""
        self._parts.close(remove)
        self._run = None
        self._front.clear()
        self._blocks.clear()
        self.tallies.clear()
        self.entries = self.messages = self.copied_messages = self.backlog_bytes = self.requeued_bytes = 0
