"""Format of one segment: names of the files, and the header before the batches.

    <instance>.<first sequence, 20 digits>.journal      header, batches; zeros at the end while it is current
    <instance>.<first sequence, 20 digits>.journal.gz   the same bytes as gzip members (compressed_segment.py)
    <instance>.<first sequence, 20 digits>.index.gz     sidecar (index_sidecar.py): never trusted
    <instance>.clients.ack                              last publisher sequences (publisher_sequences.py)
    <instance>.durable                                  newest durable sequence, identity (frontier_file.py)
    <instance>.lock                                     locked by the one writer
    <instance>.spare.<number>                           zeros, to become the next segment

Little-endian. A segment starts with 4,096 bytes:

    +-----------------------------------------------------------------------------------+
    | 0  magic "SLUICEJ1" | 8 version u32 = 1 | 12 header_crc u32                        |
    | 16 origin u64 | 24 epoch u32 | 28 flags u32 | 32 first_sequence u64                |
    | 40 created_at i64 | 48 name_length u16 | 50 instance name, 64 bytes, zero-padded   |
    | 114 log, a UUID's 16 bytes | 130 skipped_from u64 | 138 zeros to 4,096               |
    +-----------------------------------------------------------------------------------+

* header_crc is the CRC32C of the 4,096 bytes with its own field zero.
* Batches follow back to back, each a multiple of 8 bytes (batch/layout.py). The first eight zero bytes where
  a batch should start end the content: the rest of a preallocated file is zeros, and zeros are never data.
* epoch increases by one at each opening of the journal. It distinguishes a log that was wiped and has grown
  to the same sequence from the old one.
* log is the identity of the whole log, created at its first opening.
* skipped_from: the sequences from it to first_sequence - 1 name no record and never will. They were reserved
  for records that are shown before they are stored (frontier_file.py). 0: none.
* flags: bit 0 says that recovery rebuilt a damaged header without the original `skipped_from`. Then sequences
  missing right before the segment were skipped, or their records are lost.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from broker_core.batch import Buffer, hash64
from broker_core.checksum import crc32c
from broker_core.errors import JournalError, OperatorError

MAGIC = b"SLUICEJ1"
VERSION = 1
HEADER_SIZE = 4_096
_HEADER = struct.Struct("<8sIIQIIQqH64s16sQ")
_CRC_AT = 12
_SKIPS_UNKNOWN = 1
"""Bit of the flags."""
SUFFIX = ".journal"
SUFFIX_COMPRESSED = ".journal.gz"
SUFFIX_INDEX = ".index.gz"


class BatchPosition(NamedTuple):
    """Position of a batch: the first sequence of its segment, and the offset in the uncompressed file.

    Archiving or compressing the segment does not change it.
    """

    segment: int
    offset: int


class SegmentHeader(NamedTuple):
    """Content of the first 4,096 bytes of a segment."""

    instance: str
    origin: int
    epoch: int
    first_sequence: int
    created_at: int
    log: UUID
    crc: int = 0
    """Checksum of the header, which connects a sidecar with its segment; 0 in a header that isn't encoded
    yet."""
    skipped_from: int = 0
    """First of the skipped sequences right before this segment, which name no record; 0: none."""
    skips_unknown: bool = False
    """Whether `skipped_from` was lost: missing sequences before this segment may have been skipped."""


class SegmentInfo(NamedTuple):
    """Description of a segment for operators. Times are ns UTC, 0 if unknown.

    `state` is current, sealed or archived; a current segment is being written or not yet sealed. `written_at`
    is the modification time of its file.
    """

    name: str
    path: Path
    first_sequence: int
    last_sequence: int
    first_at: int
    last_at: int
    nbytes: int
    state: str
    compressed: bool
    records: int
    written_at: int = 0


class SegmentFile(NamedTuple):
    """File in the journal's directories with a segment's name of this instance."""

    path: Path
    first_sequence: int
    archived: bool
    compressed: bool


def encode_header(header: SegmentHeader) -> bytes:
    """Return the first 4,096 bytes of a segment."""
    name = header.instance.encode()
    encoded = bytearray(HEADER_SIZE)
    _HEADER.pack_into(
        encoded,
        0,
        MAGIC,
        VERSION,
        0,
        header.origin,
        header.epoch,
        _SKIPS_UNKNOWN if header.skips_unknown else 0,
        header.first_sequence,
        header.created_at,
        len(name),
        name,
        header.log.bytes,
        header.skipped_from,
    )
    struct.pack_into("<I", encoded, _CRC_AT, crc32c(encoded))
    return bytes(encoded)


def decode_header(raw: Buffer, path: Path) -> SegmentHeader:
    """Parse the first 4,096 bytes of a segment. Raises JournalError journal_damaged with the reason."""
    if len(raw) < HEADER_SIZE:
        raise damaged_segment_error(path, 0, f"its header has {len(raw)} of {HEADER_SIZE} bytes")
    magic, version, crc = _HEADER.unpack_from(raw)[:3]
    if magic != MAGIC:
        raise damaged_segment_error(path, 0, "it doesn't start with SLUICEJ1")
    if version != VERSION:
        raise damaged_segment_error(path, 8, f"version {version} isn't known")
    plain = bytearray(raw[:HEADER_SIZE])
    plain[_CRC_AT : _CRC_AT + 4] = bytes(4)
    if crc32c(plain) != crc:
        raise damaged_segment_error(path, _CRC_AT, "its header's checksum doesn't fit")
    return unchecked_header(raw)


def unchecked_header(raw: Buffer) -> SegmentHeader:
    """Parse a header's fields without checking them; bytes of the name that aren't UTF-8 are replaced."""
    _, _, crc, origin, epoch, flags, first, created_at, length, name, log, skipped = _HEADER.unpack_from(raw)
    return SegmentHeader(
        name[:length].decode(errors="replace"),
        origin,
        epoch,
        first,
        created_at,
        UUID(bytes=log),
        crc,
        skipped,
        bool(flags & _SKIPS_UNKNOWN),
    )


def header_crc(encoded: bytes) -> int:
    """Return the checksum in an encoded header."""
    found: int = struct.unpack_from("<I", encoded, _CRC_AT)[0]
    return found


def is_segment_of(header: SegmentHeader, instance: str, first_sequence: int, log: UUID | None) -> bool:
    """Whether a header belongs to this segment of this log; `log` None means any log."""
    same_log = log is None or header.log == log
    return same_log and (header.instance, header.first_sequence) == (instance, first_sequence)


def describe_header(header: SegmentHeader) -> str:
    """Return a short description of a header for error texts."""
    return f"segment {segment_name(header.instance, header.first_sequence)} of the log {header.log}"


def new_header(
    instance: str,
    epoch: int,
    first_sequence: int,
    created_at: int,
    log: UUID,
    skipped_from: int = 0,
    *,
    skips_unknown: bool = False,
) -> SegmentHeader:
    """Return the header of a segment of this instance."""
    origin = hash64(instance)
    return SegmentHeader(
        instance,
        origin,
        epoch,
        first_sequence,
        created_at,
        log,
        skipped_from=skipped_from,
        skips_unknown=skips_unknown,
    )


def damaged_segment_error(path: Path, offset: int, reason: str) -> JournalError:
    """Return the error for damaged bytes of a segment."""
    return JournalError(
        "journal_damaged",
        f"{path.name} is damaged at byte {offset}: {reason}.",
        "Run `manage.py journal verify`, then `repair`; the damaged bytes are saved.",
        file=path.name,
        offset=offset,
    )


def other_log_error(path: Path, header: SegmentHeader, log: UUID | None) -> JournalError:
    """Return the error for a file that has a segment's name and belongs to another log."""
    return JournalError(
        "other_log",
        f"{path} is {describe_header(header)}, and this is the log {log}.",
        "Another file has replaced the segment. Move that file away and restore the segment.",
        file=path.name,
        found=str(header.log),
        expected=str(log),
    )


def segment_name(instance: str, first_sequence: int, *, compressed: bool = False) -> str:
    """Return the file name of a segment."""
    return f"{instance}.{first_sequence:020d}{SUFFIX_COMPRESSED if compressed else SUFFIX}"


def index_path(segment: Path) -> Path:
    """Return the path of the sidecar of a segment's file, compressed or not."""
    return segment.with_name(segment.name.removesuffix(".gz").removesuffix(SUFFIX) + SUFFIX_INDEX)


def parse_segment_name(name: str, instance: str) -> tuple[int, bool] | None:
    """Parse a file name into (first sequence, compressed); None if it isn't a segment of this instance."""
    numbered = name.removeprefix(f"{instance}.")
    digits, suffix = numbered[:20], numbered[20:]
    if numbered == name or len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    if suffix not in (SUFFIX, SUFFIX_COMPRESSED):
        return None
    return int(digits), suffix == SUFFIX_COMPRESSED


def parse_segment_path(path: Path) -> tuple[str, int]:
    """Parse a segment's path into (instance, first sequence). Raises OperatorError unknown_journal."""
    instance, _, digits = path.name.removesuffix(".gz").removesuffix(SUFFIX).rpartition(".")
    if not instance or parse_segment_name(path.name, instance) is None:
        raise OperatorError(
            "unknown_journal", f"{path.name} isn't the name of a segment.", "See `journal ls`."
        )
    return instance, int(digits)


def find_segment_files(
    directory: Path, instance: str, archive_directory: Path | None = None
) -> list[SegmentFile]:
    """Return the segment files of an instance, oldest first. Needs no lock.

    The journal's directory is listed before the archive, so a segment that moves meanwhile appears twice
    rather than not at all. When a segment has two forms (a swap was interrupted or is in progress), the older
    form comes first.
    """
    found: list[SegmentFile] = []
    for searched, archived in ((directory, False), (archive_directory, True)):
        if searched is None or not searched.is_dir():
            continue
        for path in searched.iterdir():
            parsed = parse_segment_name(path.name, instance)
            if parsed is not None and path.is_file():
                found.append(SegmentFile(path, parsed[0], archived, parsed[1]))
    return sorted(found, key=lambda file: (file.first_sequence, file.archived, file.compressed))
