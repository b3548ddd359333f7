"""Restoring of a segment's damaged header.

Most fields are known from elsewhere: the file's name, the log, the batches, the neighbouring segments. Their
combinations are tried until a checksum of the original matches: the one in the damaged header, or the one in
the sidecar. Such a header is the original, byte for byte. Without a match the fields are likely values, and
the header says so where that matters: whether the sequences before the segment were skipped or their records
are lost.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from broker_core.journal.compressed_segment import encode_member, read_members, salvage_first_member
from broker_core.journal.files import FileSystem, OpenFile, replace_durably
from broker_core.journal.frontier_file import FrontierMark
from broker_core.journal.index_sidecar import load_summary
from broker_core.journal.segment import (
    HEADER_SIZE,
    SUFFIX_COMPRESSED,
    SegmentHeader,
    encode_header,
    header_crc,
    index_path,
    new_header,
    unchecked_header,
)
from broker_core.journal.segment_index import SegmentIndex
from broker_core.journal.segment_reader import open_source, scan_batches

MAX_EPOCHS = 64
"""Maximum number of epochs between those of the neighbouring segments that are tried."""


class HeaderSources(NamedTuple):
    """Values that the fields of a damaged header may have had, from other sources than the header.

    * `log`: identity of the log; None when no other source has it.
    * `last_before`: newest sequence before the segment that has a record; None when that isn't known.
    * `skipped_from`: values of that field that a broker would have written.
    * `sidecar_crc`: checksum of the header in the sidecar; 0 without one.
    """

    instance: str
    first_sequence: int
    log: UUID | None
    epochs: tuple[int, ...]
    created_at: tuple[int, ...]
    last_before: int | None
    skipped_from: tuple[int, ...]
    sidecar_crc: int


def find_header_sources(
    path: Path,
    instance: str,
    first_sequence: int,
    log: UUID | None,
    headers: Sequence[SegmentHeader],
    mark: FrontierMark,
    earlier: SegmentIndex | None,
) -> HeaderSources:
    """Return the values of a damaged header's fields that other files have.

    Args:
        path: The segment's file.
        log: Identity of the log; None when no other file has it.
        headers: Readable headers of the other segments.
        mark: Content of the frontier file.
        earlier: Index of the segment before; None for the first one.
    """
    sidecar = load_summary(index_path(path), instance, first_sequence)
    batches = scan_batches(open_source(path), HEADER_SIZE, path.stat().st_size, 1).batches[:1]
    oldest = max((one.epoch for one in headers if one.first_sequence < first_sequence), default=0)
    newest = min((one.epoch for one in headers if one.first_sequence > first_sequence), default=mark.epoch)
    last_before = earlier.last_sequence if earlier is not None else 0
    return HeaderSources(
        instance,
        first_sequence,
        log,
        epochs=(
            *(batch.header.epoch for batch in batches),
            *range(max(oldest, newest - MAX_EPOCHS + 1), newest + 1),
            oldest,
        ),
        created_at=(
            *([sidecar.first_at] if sidecar is not None else []),
            *(batch.accepted_at for batch in batches),
        ),
        last_before=last_before if earlier is not None or first_sequence == 1 else None,
        skipped_from=tuple(one for one in (last_before + 1, mark.given_up + 1) if one < first_sequence),
        sidecar_crc=sidecar.header_crc if sidecar is not None else 0,
    )


class RestoredHeader(NamedTuple):
    """Header to write in place of a damaged one. `is_original`: a checksum proves it."""

    header: SegmentHeader
    is_original: bool


def restore_original_header(raw: bytes, sources: HeaderSources) -> SegmentHeader | None:
    """Return the header that `raw` was before the damage, or None if that can't be proven.

    The damaged header's own values count as possible too.
    """
    damaged = unchecked_header(raw)
    checksums = {damaged.crc, sources.sidecar_crc} - {0}
    with_original = sources._replace(
        log=sources.log or damaged.log,
        epochs=(*sources.epochs, damaged.epoch),
        created_at=(*sources.created_at, damaged.created_at),
        skipped_from=(*sources.skipped_from, damaged.skipped_from),
    )
    found = (_with_crc(header) for header in _possible_headers(with_original)) if checksums else ()
    original = next((header for header in found if header.crc in checksums), None)
    if original is None and damaged._replace(crc=0) in _possible_headers(sources):
        return _with_crc(damaged)  # every field has an expected value, so the checksum was damaged
    return original


def restore_header(raw: bytes, sources: HeaderSources) -> RestoredHeader:
    """Return the original header, or a likely one if no checksum proves it. `sources.log` must be known."""
    original = restore_original_header(raw, sources)
    if original is not None:
        return RestoredHeader(original, True)
    assert sources.log is not None, "the log has an identity before its headers are rewritten"
    header = new_header(
        sources.instance,
        sources.epochs[0] if sources.epochs else 0,
        sources.first_sequence,
        sources.created_at[0] if sources.created_at else 0,
        sources.log,
        skips_unknown=sources.last_before != sources.first_sequence - 1,
    )
    return RestoredHeader(_with_crc(header), False)


def _possible_headers(sources: HeaderSources) -> Iterator[SegmentHeader]:
    """Yield a header for each combination of the fields' possible values; none without a log."""
    for epoch, created_at, log, skipped_from, skips_unknown in product(
        dict.fromkeys(sources.epochs),
        dict.fromkeys(sources.created_at),
        [sources.log] if sources.log is not None else [],
        dict.fromkeys((*sources.skipped_from, 0)),
        (False, True),
    ):
        yield new_header(
            sources.instance,
            epoch,
            sources.first_sequence,
            created_at,
            log,
            skipped_from,
            skips_unknown=skips_unknown,
        )


def _with_crc(header: SegmentHeader) -> SegmentHeader:
    return header._replace(crc=header_crc(encode_header(header)))


def read_raw_header(path: Path) -> bytes:
    """Return a segment's first 4,096 bytes unchecked; zeros where a compressed file doesn't give them."""
    file = OpenFile(path)
    try:
        compressed = path.name.endswith(SUFFIX_COMPRESSED)
        raw = salvage_first_member(file, HEADER_SIZE) if compressed else os.pread(file.fd, HEADER_SIZE, 0)
    finally:
        file.close()
    return raw[:HEADER_SIZE].ljust(HEADER_SIZE, b"\0")


def header_length(path: Path) -> int:
    """Return the number of bytes that a segment's header takes in its file, however damaged it is.

    Returns 0 for a compressed file in which no member after the header can be found.
    """
    if not path.name.endswith(SUFFIX_COMPRESSED):
        return HEADER_SIZE
    file = OpenFile(path)
    try:
        return next((one.offset for one in read_members(file) if one.raw_offset), 0)
    finally:
        file.close()


def write_header(files: FileSystem, path: Path, header: SegmentHeader) -> None:
    """Write a segment's header and sync the file; a compressed segment is replaced by a new file."""
    encoded = encode_header(header)
    if path.name.endswith(SUFFIX_COMPRESSED):
        old = OpenFile(path)
        content = memoryview(mmap.mmap(old.fd, 0, access=mmap.ACCESS_READ))
        replace_durably(files, path, encode_member(encoded, 0), content[header_length(path) :])
        return
    file = OpenFile(path, os.O_RDWR)
    files.pwritev(file.fd, [encoded], 0)
    files.fsync(file.fd)
