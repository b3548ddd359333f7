"""Writing end of the journal: appends to the current segment, rolls to the next one, and seals full ones.

Durability order of a roll:

1. a spare (zeros, synced) is renamed to the new segment's name and its header is written;
2. batches go into it, while the full segment still has its preallocated tail;
3. the next sync makes both files' data and the directory durable; nothing is acknowledged before;
4. later, `seal_pending` cuts the full segment to its content, and writes its sidecar and `.clients.ack`.

A crash between any two of these leaves files that recovery can distinguish by their content alone.

Sealing a segment: sync, cut to the content, store the publishers, write the sidecar. Then actions may move
the segment.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from uuid import UUID

from broker_core.batch import Batch
from broker_core.journal import index_sidecar
from broker_core.journal.files import FileSystem, OpenFile, journal_error, replace_durably, write_all
from broker_core.journal.open_segments import Segment
from broker_core.journal.preallocation import SpareSegments
from broker_core.journal.publisher_sequences import publisher_sequences_path, write_publisher_sequences
from broker_core.journal.publishers import Publishers
from broker_core.journal.segment import (
    HEADER_SIZE,
    encode_header,
    header_crc,
    index_path,
    new_header,
    segment_name,
)
from broker_core.journal.segment_index import SegmentIndex


class JournalOptions(NamedTuple):
    """Sizes of segments.

    * `segment_size`: approximate bytes. A segment ends before the batch that would exceed it, and has at
      least one.
    * `preallocated`: number of spare segments made in advance.
    """

    segment_size: int = 128 * 1024 * 1024
    preallocated: int = 2


@dataclass(slots=True, eq=False)
class WriteTail:
    """Segment open for writing; the next batch is written at `offset`.

    `reserved`: bytes of the file, with the space for later batches.
    """

    segment: Segment
    file: OpenFile
    offset: int
    reserved: int = 0

    def note_reserved(self) -> None:
        """Note the bytes of the file, after it was extended or cut."""
        self.reserved = os.fstat(self.file.fd).st_size

    @property
    def was_cut(self) -> bool:
        """Whether another process has cut the file: the broker never makes it shorter without a note."""
        return os.fstat(self.file.fd).st_size < max(self.reserved, self.offset)


class SegmentWrite(NamedTuple):
    """Consecutive batches for one segment, with the offset of each."""

    tail: WriteTail
    batches: Sequence[Batch]
    offsets: list[int]


class Appender:
    """Writer of batches at the end of the journal.

    A failed append leaves no bytes behind. The caller holds the journal's lock.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        instance: str,
        log: UUID,
        epoch: int,
        options: JournalOptions,
    ) -> None:
        self.files = files
        self.directory = directory
        self.instance = instance
        self.log = log
        self.epoch = epoch
        self.options = options
        self.spares = SpareSegments(files, directory, instance, options.segment_size, options.preallocated)
        self.tail: WriteTail | None = None
        self.skipped_from = 0
        """First of the skipped sequences before the next segment, which name no record; 0: none."""
        self.needs_directory_sync = False
        """Whether a segment was created since the last sync, which must then sync the directory too."""
        self.has_partial_append = False
        """Whether bytes of a failed append could not be cut off; nothing may be written after them."""

    def set_options(self, options: JournalOptions) -> None:
        """Set the sizes from the next segment on."""
        self.options = options
        self.spares.set_size(options.segment_size, options.preallocated)

    @property
    def needs_spare_segment(self) -> bool:
        """Whether the next segment is needed soon (the current one is half full) and no spare exists."""
        return not self.spares and self.tail is not None and 2 * self.tail.offset > self.options.segment_size

    def continue_segment(self, segment: Segment) -> None:
        """Continue the segment that recovery found to be the current one."""
        file = OpenFile(segment.path, os.O_RDWR)
        self.tail = WriteTail(segment, file, segment.index.end)
        with suppress(OSError):
            # A failure only costs speed: then each append allocates its blocks itself.
            self.files.reserve(file.fd, self.options.segment_size)
        self.tail.note_reserved()

    def append(self, batches: Sequence[Batch]) -> list[SegmentWrite]:
        """Write all batches, rolling as needed, or none: after an OSError the files are as before."""
        parts: list[SegmentWrite] = []
        new_tails: list[WriteTail] = []
        tail = self.tail
        try:
            start = 0
            while start < len(batches):
                if tail is None:
                    tail = self._open_segment(batches[start], 0 if new_tails else self.skipped_from)
                    new_tails.append(tail)
                stop, offsets = self._fit(tail, batches, start)
                if stop > start:
                    fitting_batches = batches[start:stop]
                    parts.append(SegmentWrite(tail, fitting_batches, offsets))
                    write_all(self.files, tail.file.fd, [batch.buf for batch in fitting_batches], tail.offset)
                start = stop
                if start < len(batches):
                    tail = None
        except OSError:
            try:
                self._undo(parts, new_tails)
            except OSError:
                self.has_partial_append = True
            raise
        return parts

    def _fit(self, tail: WriteTail, batches: Sequence[Batch], start: int) -> tuple[int, list[int]]:
        """Return the end index of the batches from `start` that fit into a segment, and their offsets."""
        ends = list(accumulate([batch.nbytes for batch in batches[start:]], initial=tail.offset))
        size = max(self.options.segment_size, HEADER_SIZE)
        if ends[-1] <= size:
            return len(batches), ends[:-1]
        fitting = sum(1 for end in ends[1:] if end <= size)
        if fitting == 0 and tail.offset == HEADER_SIZE:
            fitting = 1  # larger than a segment: it gets a segment of its own
        return start + fitting, ends[:fitting]

    def _open_segment(self, first: Batch, skipped_from: int) -> WriteTail:
        """Create the segment that begins with batch `first`, and write its header."""
        path = self.directory / segment_name(self.instance, first.first_sequence)
        file = self.spares.create_file(path)
        header = new_header(
            self.instance,
            self.epoch,
            first.first_sequence,
            first.accepted_at,
            self.log,
            skipped_from,
        )
        encoded = encode_header(header)
        index = SegmentIndex(self.instance, first.first_sequence, self.epoch)
        index.set_header(header._replace(crc=header_crc(encoded)))
        tail = WriteTail(Segment(path, False, False, index, sealed=False), file, HEADER_SIZE)
        try:
            write_all(self.files, file.fd, [encoded], 0)
        except OSError:
            self._remove(tail)
            raise
        tail.note_reserved()
        self.needs_directory_sync = True
        return tail

    def _undo(self, parts: list[SegmentWrite], new_tails: list[WriteTail]) -> None:
        """Remove the bytes and files of a failed append."""
        for tail in new_tails:
            self._remove(tail)
        if self.tail is not None and parts and parts[0].tail is self.tail:
            # Cutting works on a full disk. It also leaves no bytes after the end that recovery could take
            # for batches.
            fd = self.tail.file.fd
            self.tail.reserved = 0
            self.files.truncate(fd, self.tail.offset)
            with suppress(OSError):
                self.files.reserve(fd, self.options.segment_size)
            self.tail.note_reserved()

    def _remove(self, tail: WriteTail) -> None:
        tail.file.close()
        self.files.unlink(tail.segment.path)

    def commit(self, parts: list[SegmentWrite]) -> list[WriteTail]:
        """Make the written parts the journal's content; return the tails of full segments, to be sealed."""
        full: list[WriteTail] = []
        for tail, batches, offsets in parts:
            if self.tail is not None and tail is not self.tail:
                full.append(self.tail)
            self.tail = tail
            add = tail.segment.index.add
            for offset, batch in zip(offsets, batches, strict=True):
                add(offset, batch)
            tail.offset = tail.segment.index.end
        return full

    def close(self) -> None:
        if self.tail is not None:
            self.tail.file.close()


class FullSegment(NamedTuple):
    """Full segment, still open, with the publishers at the time when it became full."""

    tail: WriteTail
    publishers: Publishers


class SegmentSealer:
    """Queue of full segments that are not sealed yet, oldest first."""

    def __init__(self, files: FileSystem, directory: Path, instance: str) -> None:
        self._files = files
        self._acks = publisher_sequences_path(directory, instance)
        self._full: list[FullSegment] = []
        self._seal_lock = Lock()

    def __len__(self) -> int:
        return len(self._full)

    def add(self, tail: WriteTail, publishers: Publishers) -> None:
        """Add a full segment; `publishers` is copied."""
        self._full.append(FullSegment(tail, Publishers(publishers)))

    def unsynced_tails(self) -> list[WriteTail]:
        """Return the open files that the next sync must include."""
        return [full_segment.tail for full_segment in self._full]

    def seal_pending(self) -> None:
        """Seal all full segments.

        Raises JournalError when the disk refuses; the next call retries the same one.
        """
        with self._seal_lock:
            while self._full:
                self._seal(self._full[0])
                del self._full[0]

    def _seal(self, full_segment: FullSegment) -> None:
        """Seal one full segment.

        The order matters: the sidecar tells recovery that the segment is completely on disk, so it is written
        last. Raises JournalError when the disk refuses.
        """
        segment, fd = full_segment.tail.segment, full_segment.tail.file.fd
        try:
            self._files.fdatasync(fd)
            full_segment.tail.reserved = 0
            self._files.truncate(fd, segment.index.end)
            self._files.fsync(fd)
        except OSError as error:
            raise journal_error(error, f"closing {segment.path.name}", final=True) from error
        with suppress(OSError):
            # Both files can be rebuilt from the segments, so the journal works without them on a full disk.
            self.write_acks(segment.index.last_sequence, full_segment.publishers)
            replace_durably(
                self._files, index_path(segment.path), index_sidecar.encode_sidecar(segment.index)
            )
            segment.index.set_entries(None)
        # The file closes itself when the last user drops it: a sync in another thread may still use the tail.
        segment.sealed = True

    def write_acks(self, upto: int, publishers: Publishers) -> None:
        """Write the publishers of the log up to sequence `upto` to `.clients.ack`."""
        write_publisher_sequences(self._files, self._acks, upto, publishers)
