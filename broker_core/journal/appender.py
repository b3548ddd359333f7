"""The writing end: the current segment, rolling to the next, spare files made in advance, sealing what is full.

Durability order of a roll:

1. a spare (zeros, synced) is renamed to the new segment's name and its header is written;
2. batches go into it, while the full one still has its preallocated tail;
3. the next sync makes both files' data and the directory durable, and only then is anything acknowledged;
4. later, in `finish_sealed`: the full one is cut to its content, its sidecar and `.clients.ack` are written.

A crash between any two of these leaves files that recovery tells apart by their content alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from broker_core.batch import Batch
from broker_core.journal.files import Files, OpenFile, write_all
from broker_core.journal.held import Segment
from broker_core.journal.index import SegmentIndex
from broker_core.journal.segment import HEADER_SIZE, crc_of, encode_header, new_header, segment_name
from broker_core.journal.spares import Spares


class JournalOptions(NamedTuple):
    """Sizes. `segment_size` is approximate: a segment ends with the batch before it, and holds one batch at least.
    `preallocated` is the number of segments made in advance beside the current one."""

    segment_size: int = 128 * 1024 * 1024
    preallocated: int = 2


@dataclass(slots=True, eq=False)
class Tail:
    """A segment open for writing; `offset` is where the next batch goes."""

    segment: Segment
    file: OpenFile
    offset: int


class Part(NamedTuple):
    """Consecutive batches that go into one segment, with the offset of each."""

    tail: Tail
    batches: Sequence[Batch]
    offsets: list[int]


class Appender:
    """Writes batches at the tail. A failed append leaves nothing behind; the caller holds the journal's lock."""

    def __init__(
        self, files: Files, directory: Path, instance: str, log: UUID, epoch: int, options: JournalOptions
    ) -> None:
        self.files = files
        self.directory = directory
        self.instance = instance
        self.log = log
        self.epoch = epoch
        self.options = options
        self.spares = Spares(files, directory, instance, options.segment_size, options.preallocated)
        self.tail: Tail | None = None
        self.skipped_from = 0
        """First of the numbers before the next segment that name no record; 0: none."""
        self.directory_changed = False
        self.broken = False
        """Whether bytes of a failed append could not be cut off: nothing may be written behind them."""

    def use(self, options: JournalOptions) -> None:
        """Other sizes from the next segment on."""
        self.options = options
        self.spares.use(options.segment_size, options.preallocated)

    @property
    def needs_a_spare(self) -> bool:
        """Whether the next segment will be needed soon, and isn't there."""
        return not self.spares and self.tail is not None and 2 * self.tail.offset > self.options.segment_size

    def go_on_in(self, segment: Segment) -> None:
        """Continue the segment that recovery found to be the current one."""
        file = OpenFile(segment.path, os.O_RDWR)
        self.tail = Tail(segment, file, segment.index.end)
        with suppress(OSError):
            # Only costs speed if it fails: an append behind the file's end needs room only then.
            self.files.reserve(file.fd, self.options.segment_size)

    def append(self, batches: Sequence[Batch]) -> list[Part]:
        """Write all of `batches`, rolling as needed, or none: after an OSError the files are as before."""
        parts: list[Part] = []
        opened: list[Tail] = []
        tail = self.tail
        try:
            start = 0
            while start < len(batches):
                if tail is None:
                    tail = self._open_segment(batches[start], 0 if opened else self.skipped_from)
                    opened.append(tail)
                stop, offsets = self._fit(tail, batches, start)
                if stop > start:
                    some = batches[start:stop]
                    parts.append(Part(tail, some, offsets))
                    write_all(self.files, tail.file.fd, [batch.buf for batch in some], tail.offset)
                start = stop
                if start < len(batches):
                    tail = None
        except OSError:
            try:
                self._undo(parts, opened)
            except OSError:
                self.broken = True
            raise
        return parts

    def _fit(self, tail: Tail, batches: Sequence[Batch], start: int) -> tuple[int, list[int]]:
        """How far the batches from `start` fit into a segment, and their offsets there."""
        ends = list(accumulate([batch.nbytes for batch in batches[start:]], initial=tail.offset))
        size = max(self.options.segment_size, HEADER_SIZE)
        if ends[-1] <= size:
            return len(batches), ends[:-1]
        fitting = sum(1 for end in ends[1:] if end <= size)
        if fitting == 0 and tail.offset == HEADER_SIZE:
            fitting = 1  # larger than a segment: it gets one of its own
        return start + fitting, ends[:fitting]

    def _open_segment(self, first: Batch, skipped_from: int) -> Tail:
        path = self.directory / segment_name(self.instance, first.first_sequence)
        file = self.spares.take(path)
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
        index.header_crc, index.skipped_from = crc_of(encoded), header.skipped_from
        tail = Tail(Segment(path, False, False, index, sealed=False), file, HEADER_SIZE)
        try:
            write_all(self.files, file.fd, [encoded], 0)
        except OSError:
            self._remove(tail)
            raise
        self.directory_changed = True
        return tail

    def _undo(self, parts: list[Part], opened: list[Tail]) -> None:
        for tail in opened:
            self._remove(tail)
        if self.tail is not None and parts and parts[0].tail is self.tail:
            # Cutting works on a full disk, and leaves nothing behind the tail that could be taken for batches.
            fd = self.tail.file.fd
            self.files.truncate(fd, self.tail.offset)
            with suppress(OSError):
                self.files.reserve(fd, self.options.segment_size)

    def _remove(self, tail: Tail) -> None:
        tail.file.close()
        self.files.unlink(tail.segment.path)

    def commit(self, parts: list[Part]) -> list[Tail]:
        """Take the written parts as the journal's; returns the tails that are full and have to be sealed."""
        full: list[Tail] = []
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
