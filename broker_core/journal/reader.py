"""Reading forward: whole, checked batches from an offset of a segment, whatever form its file has.

A walk stops at the first bytes that aren't a batch and says why; who called decides whether that is the end of the
content, a torn tail or damage, and looks for the next whole batch with `next_batch`. Nothing here guesses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID

from broker_core.batch import HEADER_SIZE as BATCH_HEADER
from broker_core.batch import MAGIC, Batch, read_batch_header
from broker_core.checksum import crc32c
from broker_core.errors import ClientError, JournalError
from broker_core.journal.compressed import GZIP_MAGIC, CompressedSource, MemberCache, first_member
from broker_core.journal.files import OpenFile
from broker_core.journal.segment import (
    HEADER_SIZE,
    SegmentHeader,
    damaged,
    decode_header,
    fits,
    other_log,
)

CHUNK = 1024 * 1024
SEEK_CHUNK = 64 * 1024
"""Read while looking for a place: an index entry's stretch."""
_ZEROS = bytes(8)


class Source(Protocol):
    """A segment's uncompressed bytes by offset."""

    file: OpenFile
    length: int

    def read(self, offset: int, length: int) -> memoryview:
        """Up to `length` bytes; fewer when the source prefers, none behind the end. JournalError when damaged."""
        ...

    def after_damage(self, offset: int) -> int:
        """Where to look for whole batches again when the bytes at `offset` can't be read."""
        ...


class RawSource:
    """An uncompressed segment. `length` is the file's when it was opened; the current one is read beyond it."""

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self.length = os.fstat(file.fd).st_size

    def read(self, offset: int, length: int) -> memoryview:
        return memoryview(os.pread(self.file.fd, length, offset))

    def after_damage(self, offset: int) -> int:
        return offset + 8


def open_source(path: Path, kept: MemberCache | None = None) -> Source:
    """Open a segment's file for reading, in the form its first bytes tell. OSError when it isn't there.

    `kept` is where what was inflated is kept; by default with that of all other sources of the process.
    """
    file = OpenFile(path)
    return CompressedSource(file, kept) if os.pread(file.fd, 2, 0) == GZIP_MAGIC else RawSource(file)


def read_header(source: Source) -> SegmentHeader:
    """The segment's header, checked."""
    return decode_header(source.read(0, HEADER_SIZE), source.file.path)


def check_source(source: Source, instance: str, first_sequence: int, log: UUID | None) -> None:
    """JournalError other_log when the file is another segment than its name says.

    A header that can't be read says nothing: every batch is checked by itself.
    """
    try:
        header = read_header(source)
    except JournalError:
        return
    if not fits(header, instance, first_sequence, log):
        raise other_log(source.file.path, header, log)


class Front(NamedTuple):
    """What the beginning of a segment's file says: its header, None when that can't be read, and whether nothing was ever
    written to it."""

    header: SegmentHeader | None
    empty: bool


def read_front(path: Path) -> Front:
    """One small read, for opening a log of thousands of segments. OSError."""
    file = OpenFile(path)
    # A crash after the roll's rename leaves a file of zeros: look at its header and first batch.
    raw = os.pread(file.fd, HEADER_SIZE + len(_ZEROS), 0)
    empty = not any(raw)
    try:
        head = first_member(file) if raw.startswith(GZIP_MAGIC) else raw
        return Front(None if empty else decode_header(head[:HEADER_SIZE], path), empty)
    except JournalError:
        return Front(None, empty)
    finally:
        file.close()


class Walk(NamedTuple):
    """Batches read, their offsets, where the walk stopped, and what was wrong there (None: nothing)."""

    batches: list[Batch]
    offsets: list[int]
    stopped_at: int
    problem: str | None


ZEROS = "zeros where a batch should start"
CUT = "a batch is cut off"


def walk(source: Source, offset: int, end: int, max_bytes: int) -> Walk:
    """Whole batches from `offset`, up to about `max_bytes` (one batch at least) and to `end`."""
    try:
        view = _read_one_batch(source, offset, min(max_bytes, end - offset), end)
    except JournalError as error:
        return Walk([], [], offset, error.sentence)
    batches: list[Batch] = []
    offsets: list[int] = []
    at, size = 0, len(view)
    problem: str | None = None
    while size - at >= BATCH_HEADER:
        try:
            header = read_batch_header(view, at)
        except ClientError as error:
            problem = ZEROS if view[at : at + 8] == _ZEROS else error.sentence
            break
        stop = at + header.size
        if stop > size:
            break
        if crc32c(view[at + BATCH_HEADER : stop]) != header.payload_crc:
            problem = "a batch's checksum doesn't fit"
            break
        batches.append(Batch(view[at:stop], header))
        offsets.append(offset + at)
        at = stop
    if not batches and problem is None and offset < end:
        problem = ZEROS if not any(view) else CUT
    return Walk(batches, offsets, offset + at, problem if not batches else None)


def _read_one_batch(source: Source, offset: int, length: int, end: int) -> memoryview:
    """A chunk that holds one whole batch at least, if there is one at `offset`."""
    view = source.read(offset, min(max(length, BATCH_HEADER), max(end - offset, 0)))
    if len(view) >= BATCH_HEADER:
        try:
            size = read_batch_header(view).size
        except ClientError:
            return view
        if size > len(view) and offset + size <= end:
            return source.read(offset, size)
    return view


def next_batch(source: Source, offset: int, end: int, origin: int, after: int) -> int | None:
    """The offset of the next whole batch behind damage at `offset`: of this origin and with a sequence > `after`."""
    start = _behind(source, offset, end, origin, after)
    while start < end:
        try:
            raw = bytes(source.read(start, min(CHUNK, end - start)))
        except JournalError:
            start = source.after_damage(start)
            continue
        # Batches start at multiples of 8, and so do the chunks: no magic is cut in two by their border.
        found = raw.find(MAGIC)
        while found >= 0:
            if found % 8 == 0 and _is_batch(source, start + found, end, origin, after):
                return start + found
            found = raw.find(MAGIC, found + 1)
        if len(raw) < 8:
            return None
        start += len(raw) & ~7
    return None


def _behind(source: Source, offset: int, end: int, origin: int, after: int) -> int:
    """Where to start looking: behind a batch whose header is good, else behind the bytes that can't be read.

    A batch's payload is never searched while its header stands: a body may hold bytes that look like a batch.
    """
    try:
        header = read_batch_header(source.read(offset, BATCH_HEADER))
    except (ClientError, JournalError):
        return source.after_damage(offset)
    stop = offset + header.size
    good = header.origin == origin and header.first_sequence > after and stop <= end
    return stop if good else source.after_damage(offset)


def _is_batch(source: Source, offset: int, end: int, origin: int, after: int) -> bool:
    found = walk(source, offset, end, BATCH_HEADER)
    return (
        bool(found.batches) and found.batches[0].origin == origin and found.batches[0].first_sequence > after
    )


def chunks(
    path: Path, offset: int = HEADER_SIZE, end: int | None = None, size: int = CHUNK
) -> Iterator[Walk]:
    """A segment file's batches, checked, chunk by chunk, from a batch's offset; for readers without a broker.

    Ends at the content's end. Raises JournalError journal_damaged at bytes that are neither a batch nor zeros.
    """
    source = open_source(path)
    limit = source.length if end is None else min(end, source.length)
    while offset < limit:
        found = walk(source, offset, limit, size)
        if found.problem == ZEROS:
            return
        if found.problem is not None:
            raise damaged(path, offset, found.problem)
        yield found
        offset = found.stopped_at
