"""Slow part of archiving and compressing: pure file work of a worker process while the broker runs.

It reads a sealed segment, writes a temporary file, syncs it and reads it back. The broker then swaps it in
(`Journal.archive_swap`, `compress_swap`). `progress(done, total)` is called about once per MiB, in bytes of
the source. It may raise to cancel; the unfinished file is then removed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from broker_core.batch import hash64
from broker_core.errors import JournalError, OperatorError
from broker_core.journal.compressed_segment import (
    MEMBER_SIZE,
    CompressedSegmentSource,
    encode_member,
    inflate,
)
from broker_core.journal.files import OpenFile, journal_error
from broker_core.journal.index_sidecar import load_sidecar
from broker_core.journal.segment import (
    HEADER_SIZE,
    SUFFIX_COMPRESSED,
    damaged_segment_error,
    index_path,
    parse_segment_path,
)
from broker_core.journal.segment_index import MissingRange
from broker_core.journal.segment_reader import (
    SegmentSource,
    find_next_batch,
    open_source,
    read_header,
    scan_batches,
    scan_segment,
)

Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Ignore progress; the default callback."""


class VerifyReport(NamedTuple):
    """Findings about a segment's file.

    `problem` describes an error of its header. `torn_bytes` are after the content; they are harmless where
    nothing was acknowledged as persisted (`unsynced`).
    """

    path: Path
    first_sequence: int
    last_sequence: int
    records: int
    content_bytes: int
    holes: tuple[MissingRange, ...]
    torn_bytes: int
    problem: str
    unsynced: bool = False
    skipped_from: int = 0
    """First of the skipped sequences right before the segment, which name no record; 0: none."""
    skips_unknown: bool = False
    """Whether missing sequences right before the segment may have been skipped: its header was damaged."""

    @property
    def is_ok(self) -> bool:
        return not (self.holes or self.problem or (self.torn_bytes and not self.unsynced))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, for the command line."""
        holes = [hole._asdict() for hole in self.holes]
        return {**self._asdict(), "path": str(self.path), "holes": holes, "ok": self.is_ok}


@contextmanager
def _create_file(path: Path) -> Iterator[OpenFile]:
    """Open a new file, closed at the end and removed on any error.

    Raises JournalError disk_full on a full disk, else journal_failed.
    """
    handle = OpenFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        yield handle
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise journal_error(error, str(path)) from error
        raise
    finally:
        handle.close()


def copy_segment(src: Path, dst: Path, progress: Progress = no_progress) -> str:
    """Copy a sealed segment, compressed or not, and read the copy back; return its SHA-256 (hexadecimal).

    Raises JournalError journal_damaged when the copy differs, disk_full or journal_failed.
    """
    written = hashlib.sha256()
    total = src.stat().st_size
    with src.open("rb") as source, _create_file(dst) as target:
        done = 0
        while chunk := source.read(MEMBER_SIZE):
            _write(target, chunk)
            written.update(chunk)
            done += len(chunk)
            progress(done, total)
        _sync_and_evict(target)
        if _digest(target) != written.hexdigest():
            raise JournalError(
                "journal_damaged",
                f"The copy {dst} isn't what was read from {src.name}.",
                "Check the disk it is on, then archive again.",
            )
    return written.hexdigest()


def segment_sha256(path: Path, progress: Progress = no_progress) -> str:
    """Return the SHA-256 (hexadecimal) of a segment's file. Raises JournalError journal_failed."""
    try:
        return _digest(OpenFile(path), progress)
    except OSError as error:
        raise journal_error(error, f"reading {path.name}") from error


def _digest(file: OpenFile, progress: Progress = no_progress) -> str:
    found, total = hashlib.sha256(), os.fstat(file.fd).st_size
    offset = 0
    while chunk := os.pread(file.fd, MEMBER_SIZE, offset):
        found.update(chunk)
        offset += len(chunk)
        progress(offset, total)
    return found.hexdigest()


def _sync_and_evict(file: OpenFile) -> None:
    """Sync the file and drop it from the kernel's memory, so that it is read back from the disk."""
    os.fsync(file.fd)
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _write(file: OpenFile, content: bytes) -> None:
    unwritten = memoryview(content)
    while unwritten:
        unwritten = unwritten[os.write(file.fd, unwritten) :]


def compress_segment(src: Path, dst: Path, progress: Progress = no_progress) -> None:
    """Write the seekable gzip form of a sealed segment, and compare it with the original byte by byte.

    For the format see compressed_segment.py. Raises OperatorError journal_compressed; JournalError.
    """
    if src.name.endswith(SUFFIX_COMPRESSED):
        raise OperatorError(
            "journal_compressed", f"{src.name} is compressed already.", "There is nothing left to do."
        )
    source = open_source(src)
    with _create_file(dst) as target:
        for offset, raw in _iter_members(source):
            _write(target, encode_member(raw, offset))
            progress(offset + len(raw), source.length)
        _sync_and_evict(target)
        _compare(source, target)


def _iter_members(source: SegmentSource) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset, raw bytes) of each member: the header, then whole batches of about a MiB.

    Damaged bytes become a member of their own, so that compressing loses no bytes that a repair might use.
    """
    yield 0, source.read(0, HEADER_SIZE)
    origin, after, offset = hash64(read_header(source).instance), 0, HEADER_SIZE
    while offset < source.length:
        found = scan_batches(source, offset, source.length, MEMBER_SIZE)
        if found.batches:
            after, stop = found.batches[-1].last_sequence, found.stopped_at
        else:
            stop = find_next_batch(source, offset, source.length, origin, after) or source.length
        yield offset, source.read(offset, stop - offset)
        offset = stop


def _compare(source: SegmentSource, target: OpenFile) -> None:
    """Inflate each member and compare it with the source. Raises JournalError journal_damaged."""
    packed = CompressedSegmentSource(target)
    if packed.length != source.length:
        raise damaged_segment_error(target.path, 0, f"it holds {packed.length} of {source.length} bytes")
    for member in packed.members:
        if inflate(target, member) != source.read(member.raw_offset, member.raw_length):
            raise damaged_segment_error(target.path, member.offset, "a member isn't what was compressed")


def verify_segment(path: Path, log: UUID | None = None) -> VerifyReport:
    """Read and check every batch of a segment's file, compressed or not, and the log that it belongs to.

    Changes nothing and needs no lock.
    """
    instance, first = parse_segment_path(path)
    found = scan_segment(open_source(path), instance, first, load_sidecar(index_path(path), instance, first))
    torn = found.torn[1] - found.torn[0] if found.torn else 0
    index = found.index
    if log is not None and found.log not in (None, log):
        found.header_problem = f"it belongs to the log {found.log}, and this is the log {log}"
    return VerifyReport(
        path,
        index.first_sequence,
        index.last_sequence,
        index.records,
        index.end,
        index.holes,
        torn,
        found.header_problem or "",
        skipped_from=index.skipped_from,
        skips_unknown=index.skips_unknown,
    )
