"""The heavy part of archiving and compressing: pure file work, for a worker process while the broker runs.

Reads a sealed segment, writes a temporary file, syncs it and reads it back. The broker alone then swaps it in
(`Journal.archive_swap`, `compress_swap`). `progress(done, total)` is called about once a MiB, in bytes of the
source; it may raise to cancel, and the unfinished file is then removed.
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
    """Progress nobody asked for."""


class VerifyReport(NamedTuple):
    """What a segment's file holds. `problem` is what is wrong with its header; `torn_bytes` stand behind its content,
    which is harmless where nothing was persisted yet (`unsynced`)."""

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
    """First of the numbers right before the segment that name no record and never will; 0: there are none."""

    @property
    def is_ok(self) -> bool:
        return not (self.holes or self.problem or (self.torn_bytes and not self.unsynced))

    def as_dict(self) -> dict[str, Any]:
        """For the command line, as JSON."""
        holes = [hole._asdict() for hole in self.holes]
        return {**self._asdict(), "path": str(self.path), "holes": holes, "ok": self.is_ok}


@contextmanager
def _made(path: Path) -> Iterator[OpenFile]:
    """A new file, closed at the end; removed if anything goes wrong. A full disk gets its own error."""
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
    """Copy a sealed segment, compressed or not, and read the copy back. Returns its SHA-256 (hexadecimal)."""
    written = hashlib.sha256()
    total = src.stat().st_size
    with src.open("rb") as source, _made(dst) as target:
        done = 0
        while chunk := source.read(MEMBER_SIZE):
            _write(target, chunk)
            written.update(chunk)
            done += len(chunk)
            progress(done, total)
        _settle(target)
        if _digest(target) != written.hexdigest():
            raise JournalError(
                "journal_damaged",
                f"The copy {dst} isn't what was read from {src.name}.",
                "Check the disk it is on, then archive again.",
            )
    return written.hexdigest()


def segment_sha256(path: Path, progress: Progress = no_progress) -> str:
    """The SHA-256 (hexadecimal) of a segment's file."""
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


def _settle(file: OpenFile) -> None:
    """Sync it, and ask for it to be read back from the disk rather than from memory."""
    os.fsync(file.fd)
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _write(file: OpenFile, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file.fd, rest) :]


def compress_segment(src: Path, dst: Path, progress: Progress = no_progress) -> None:
    """Make the seekable gzip of a sealed segment and read it back, byte for byte (see compressed_segment.py)."""
    if src.name.endswith(SUFFIX_COMPRESSED):
        raise OperatorError(
            "journal_compressed", f"{src.name} is compressed already.", "There is nothing left to do."
        )
    source = open_source(src)
    with _made(dst) as target:
        for offset, raw in _stretches(source):
            _write(target, encode_member(raw, offset))
            progress(offset + len(raw), source.length)
        _settle(target)
        _compare(source, target)


def _stretches(source: SegmentSource) -> Iterator[tuple[int, memoryview]]:
    """(offset, raw bytes): the header alone, then whole batches of about a MiB. Damaged bytes are carried along as
    they are, in a member of their own, so that compressing loses nothing that a repair might use."""
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
    packed = CompressedSegmentSource(target)
    if packed.length != source.length:
        raise damaged_segment_error(target.path, 0, f"it holds {packed.length} of {source.length} bytes")
    for member in packed.members:
        if inflate(target, member) != source.read(member.raw_offset, member.raw_length):
            raise damaged_segment_error(target.path, member.offset, "a member isn't what was compressed")


def verify_segment(path: Path, log: UUID | None = None) -> VerifyReport:
    """Read every batch of a segment's file, compressed or not, and check it, and that it is of this log. Changes nothing;
    needs no lock."""
    instance, first = parse_segment_path(path)
    found = scan_segment(open_source(path), instance, first, load_sidecar(index_path(path), instance, first))
    torn = found.torn[1] - found.torn[0] if found.torn else 0
    index = found.index
    if log is not None and found.log not in (None, log):
        found.header_problem = f"it belongs to the log {found.log}, and this is the log {log}"
    return VerifyReport(
        path, index.first_sequence, index.last_sequence, index.records, index.end, index.holes, torn,
        found.header_problem or "", skipped_from=index.skipped_from,
    )  # fmt: skip
