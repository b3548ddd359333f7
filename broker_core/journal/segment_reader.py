"""Reading of whole, checked batches from an offset of a segment, and scans of a whole segment.

A read stops at the first bytes that aren't a batch and gives the reason. The caller decides whether that is
the end of the content, a torn tail or damage, and finds the next whole batch with `find_next_batch`.

`scan_segment` reads one segment from end to end: its index, its missing ranges, its publishers, and the bytes
after its content. It is used at opening, to rebuild a sidecar, and by `verify`; it changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID

from broker_core.batch import HEADER_SIZE as BATCH_HEADER
from broker_core.batch import MAGIC, Batch, hash64, read_batch_header
from broker_core.checksum import crc32c
from broker_core.errors import ClientError, JournalError
from broker_core.journal.compressed_segment import (
    GZIP_MAGIC,
    CompressedSegmentSource,
    GzipMemberCache,
    read_first_member,
)
from broker_core.journal.files import OpenFile
from broker_core.journal.publishers import Publishers
from broker_core.journal.segment import (
    HEADER_SIZE,
    SUFFIX_COMPRESSED,
    SegmentHeader,
    damaged_segment_error,
    decode_header,
    is_segment_of,
    other_log_error,
)
from broker_core.journal.segment_index import MISSING_RECORDS, MissingRange, SegmentIndex

CHUNK = 1024 * 1024
"""Bytes per read of a scan."""
SEEK_CHUNK = 64 * 1024
"""Bytes per read while searching for a position: the range of one index entry."""
_ZEROS = bytes(8)


class SegmentSource(Protocol):
    """Uncompressed bytes of a segment by offset."""

    file: OpenFile
    length: int

    def read(self, offset: int, length: int) -> memoryview:
        """Return up to `length` bytes; fewer if the source prefers, none after the end.

        Raises JournalError if damaged.
        """
        ...

    def next_offset_after(self, offset: int) -> int:
        """Return the next offset to search for whole batches after unreadable bytes at `offset`."""
        ...


class RawSegmentSource:
    """Reader of an uncompressed segment.

    `length` is the file's when it was opened; the current segment is read beyond it.
    """

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self.length = os.fstat(file.fd).st_size

    def read(self, offset: int, length: int) -> memoryview:
        return memoryview(os.pread(self.file.fd, length, offset))

    def next_offset_after(self, offset: int) -> int:
        return offset + 8


def open_source(path: Path, cache: GzipMemberCache | None = None) -> SegmentSource:
    """Open a segment's file for reading. Raises OSError.

    Its name or its first bytes say that it is compressed: the name of a copy doesn't, and the bytes may be
    damaged.
    `cache` is the cache for inflated members, by default the one of the process.
    """
    file = OpenFile(path)
    compressed = path.name.endswith(SUFFIX_COMPRESSED) or os.pread(file.fd, 2, 0) == GZIP_MAGIC
    return CompressedSegmentSource(file, cache) if compressed else RawSegmentSource(file)


def read_header(source: SegmentSource) -> SegmentHeader:
    """Return the segment's header, checked. Raises JournalError journal_damaged."""
    return decode_header(source.read(0, HEADER_SIZE), source.file.path)


def check_source(source: SegmentSource, instance: str, first_sequence: int, log: UUID | None) -> None:
    """Raise JournalError other_log when the file belongs to another segment or log.

    A file with an unreadable header passes: every batch is checked on its own.
    """
    try:
        header = read_header(source)
    except JournalError:
        return
    if not is_segment_of(header, instance, first_sequence, log):
        raise other_log_error(source.file.path, header, log)


class SegmentHead(NamedTuple):
    """Header of a segment's file, None if unreadable, and whether the file was never written.

    `problem` is the reason why the header can't be read.
    """

    header: SegmentHeader | None
    empty: bool
    problem: str = ""


def read_segment_head(path: Path) -> SegmentHead:
    """Read a segment's header by one small read, for opening a log of thousands of segments.

    Raises OSError.
    """
    file = OpenFile(path)
    try:
        raw = os.pread(file.fd, HEADER_SIZE, 0)
        # A crash after the roll's rename leaves a file of zeros. Damage may have left zeros here alone.
        empty = not any(raw) and _has_only_zeros(file)
        head = read_first_member(file) if raw.startswith(GZIP_MAGIC) else raw
        return SegmentHead(None if empty else decode_header(head[:HEADER_SIZE], path), empty)
    except JournalError as error:
        return SegmentHead(None, empty, error.sentence)
    finally:
        file.close()


def _has_only_zeros(file: OpenFile) -> bool:
    """Return whether a file has nothing but zeros. Raises OSError."""
    offset = 0
    while chunk := os.pread(file.fd, CHUNK, offset):
        if any(chunk):
            return False
        offset += len(chunk)
    return True


class BatchScan(NamedTuple):
    """Batches read, their offsets, the offset at which the read stopped, and the problem there or None."""

    batches: list[Batch]
    offsets: list[int]
    stopped_at: int
    problem: str | None


ZEROS = "zeros where a batch should start"
"""Problem at the end of the content in a preallocated file."""
TRUNCATED = "a batch is cut off"
"""Problem at a batch whose end is missing."""


def scan_batches(source: SegmentSource, offset: int, end: int, max_bytes: int) -> BatchScan:
    """Read whole batches from `offset` to at most `end`, about `max_bytes`, at least one batch.

    Reports damage in the result and never raises JournalError.
    """
    try:
        view = _read_one_batch(source, offset, min(max_bytes, end - offset), end)
    except JournalError as error:
        return BatchScan([], [], offset, error.sentence)
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
        problem = ZEROS if not any(view) else TRUNCATED
    return BatchScan(batches, offsets, offset + at, problem if not batches else None)


def _read_one_batch(source: SegmentSource, offset: int, length: int, end: int) -> memoryview:
    """Return a chunk that has at least one whole batch, if there is one at `offset`."""
    view = source.read(offset, min(max(length, BATCH_HEADER), max(end - offset, 0)))
    if len(view) >= BATCH_HEADER:
        try:
            size = read_batch_header(view).size
        except ClientError:
            return view
        if size > len(view) and offset + size <= end:
            return source.read(offset, size)
    return view


def find_next_batch(source: SegmentSource, offset: int, end: int, origin: int, after: int) -> int | None:
    """Return the offset of the next whole batch after damage at `offset`, or None.

    The batch must have this origin and a sequence > `after`.
    """
    start = _search_start(source, offset, end, origin, after)
    while start < end:
        try:
            raw = bytes(source.read(start, min(CHUNK, end - start)))
        except JournalError:
            start = source.next_offset_after(start)
            continue
        # Batches and chunks start at multiples of 8, so a chunk's border never divides a magic.
        found = raw.find(MAGIC)
        while found >= 0:
            if found % 8 == 0 and _is_batch(source, start + found, end, origin, after):
                return start + found
            found = raw.find(MAGIC, found + 1)
        if len(raw) < 8:
            return None
        start += len(raw) & ~7
    return None


def _search_start(source: SegmentSource, offset: int, end: int, origin: int, after: int) -> int:
    """Return the offset to search from: after a batch with a valid header, else after the unreadable bytes.

    The payload of a batch with a valid header is never searched: a body may have bytes that look like a
    batch.
    """
    try:
        header = read_batch_header(source.read(offset, BATCH_HEADER))
    except (ClientError, JournalError):
        return source.next_offset_after(offset)
    stop = offset + header.size
    good = header.origin == origin and header.first_sequence > after and stop <= end
    return stop if good else source.next_offset_after(offset)


def _is_batch(source: SegmentSource, offset: int, end: int, origin: int, after: int) -> bool:
    """Return whether a whole batch of this origin, with a sequence > `after`, is at `offset`."""
    found = scan_batches(source, offset, end, BATCH_HEADER)
    return (
        bool(found.batches) and found.batches[0].origin == origin and found.batches[0].first_sequence > after
    )


def iter_batches(
    path: Path, offset: int = HEADER_SIZE, end: int | None = None, size: int = CHUNK
) -> Iterator[BatchScan]:
    """Yield a segment file's checked batches, chunk by chunk, from a batch's offset.

    For readers without a broker.

    Stops at the end of the content. Raises JournalError journal_damaged at bytes that are neither a batch nor
    zeros.
    """
    source = open_source(path)
    limit = source.length if end is None else min(end, source.length)
    while offset < limit:
        found = scan_batches(source, offset, limit, size)
        if found.problem == ZEROS:
            return
        if found.problem is not None:
            raise damaged_segment_error(path, offset, found.problem)
        yield found
        offset = found.stopped_at


@dataclass(slots=True)
class SegmentScan:
    """Content of a segment.

    * `torn`: (offset, end) of bytes after the content that are not zeros, or None.
    * `header_problem`: problem of the first 4,096 bytes, or None.
    """

    index: SegmentIndex
    publishers: Publishers = field(default_factory=Publishers)
    torn: tuple[int, int] | None = None
    torn_reason: str = ""
    header_problem: str | None = None
    log: UUID | None = None
    """Identity of the log that it belongs to, from its header."""


def scan_segment(
    source: SegmentSource, instance: str, first_sequence: int, sealed: SegmentIndex | None = None
) -> SegmentScan:
    """Read a whole segment. Raises only OSError: damage is part of the result.

    `sealed` is the index from its sidecar, if there is one. It gives the end of the content if that is
    damaged.
    """
    scan = SegmentScan(SegmentIndex(instance, first_sequence, 0))
    try:
        header = read_header(source)
        scan.index.epoch, scan.log = header.epoch, header.log
        scan.index.set_header(header)
        if (header.instance, header.first_sequence) != (instance, first_sequence):
            scan.header_problem = (
                f"it says {header.instance}.{header.first_sequence}, its name says otherwise"
            )
    except JournalError as error:
        scan.header_problem = error.sentence
        scan.index.skips_unknown = True
    offset, end, origin = HEADER_SIZE, source.length, hash64(instance)
    while offset < end:
        found = scan_batches(source, offset, end, CHUNK)
        for at, batch in zip(found.offsets, found.batches, strict=True):
            _add_batch(scan, at, batch)
        offset = found.stopped_at
        if found.problem is None:
            continue
        # Whole batches after the damage make it a missing range. Without any, the sidecar decides whether
        # records are lost or this is the end of the content.
        following = find_next_batch(source, offset, end, origin, scan.index.last_sequence)
        if following is None and sealed is not None and sealed.end > offset:
            index = scan.index
            lost = MissingRange(
                first_sequence,
                offset,
                sealed.end - offset,
                index.last_sequence + 1,
                sealed.last_sequence,
                found.problem,
            )
            index.holes, index.end, index.last_sequence = (
                (*index.holes, lost),
                sealed.end,
                sealed.last_sequence,
            )
            break
        if following is None:
            _find_content_end(scan, source, offset, end, found.problem)
            break
        _add_hole(scan.index, offset, following, source, found.problem)
        offset = following
    return scan


def _add_batch(scan: SegmentScan, at: int, batch: Batch) -> None:
    """Add a batch to a scan; a jump of the sequence becomes a missing range without bytes."""
    index = scan.index
    expected = index.last_sequence + 1
    if batch.first_sequence > expected and not (index.holes and index.holes[-1].last_sequence >= expected):
        missing = MissingRange(
            index.first_sequence, at, 0, expected, batch.first_sequence - 1, MISSING_RECORDS
        )
        index.holes = (*index.holes, missing)
    index.add(at, batch)
    if batch.last_publisher_sequence:
        scan.publishers.note(batch.publisher_name, batch.session, batch.last_publisher_sequence)


def _add_hole(index: SegmentIndex, offset: int, following: int, source: SegmentSource, reason: str) -> None:
    """Add the missing range whose bytes end at the batch at `following`."""
    after = scan_batches(source, following, source.length, 1).batches[0]
    hole = MissingRange(
        index.first_sequence,
        offset,
        following - offset,
        index.last_sequence + 1,
        after.first_sequence - 1,
        reason,
    )
    index.holes = (*index.holes, hole)


def _find_content_end(scan: SegmentScan, source: SegmentSource, offset: int, end: int, reason: str) -> None:
    """Set the content's end after the last whole batch; bytes there that aren't zeros are a torn tail."""
    last = offset
    at = offset
    while at < end:
        try:
            raw = bytes(source.read(at, min(CHUNK, end - at)))
        except JournalError:
            raw = b""
            last = at = source.next_offset_after(at)
            continue
        if not raw:
            break
        content_length = len(raw.rstrip(b"\0"))
        if content_length:
            last = at + content_length
        at += len(raw)
    scan.index.end = offset
    if last > offset:
        scan.torn = (offset, min(last + (-last % 8), end))
        scan.torn_reason = reason
