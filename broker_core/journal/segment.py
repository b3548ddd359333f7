"""THE FORMAT of one segment: names of the files, and the header before the batches.

    <instance>.<first sequence, 20 digits>.journal        header, batches, and while it is current zeros
    <instance>.<first sequence, 20 digits>.journal.gz     the same bytes as gzip members (see compressed_segment.py)
    <instance>.<first sequence, 20 digits>.index.gz       sidecar (see index_sidecar.py); can be rebuilt, is never trusted
    <instance>.clients.ack                                last publisher sequences (see publisher_sequences.py)
    <instance>.durable                                    newest sequence known to be on disk, and of which log (see frontier_file.py)
    <instance>.lock                                       held by the one writer
    <instance>.spare.<number>                             zeros, to become the next segment

Little-endian. A segment starts with 4,096 bytes:

    +-----------------------------------------------------------------------------------+
    | 0  magic "SLUICEJ1" | 8 version u32 = 1 | 12 header_crc u32                        |
    | 16 origin u64 | 24 epoch u32 | 28 zero u32 | 32 first_sequence u64                 |
    | 40 created_at i64 | 48 name_length u16 | 50 instance name, 64 bytes, zero-padded   |
    | 114 log, a UUID's 16 bytes | 130 skipped_from u64 | 138 zeros to 4,096               |
    +-----------------------------------------------------------------------------------+

* header_crc is the CRC32C of the 4,096 bytes with its own field zero.
* Batches follow back to back, each a multiple of 8 bytes (batch/layout.py). The first eight zero bytes where a batch
  should start end the content: a preallocated file is zeros behind it, and zeros are never data.
* epoch is one more at each opening of the journal, so that a log that was wiped and regrown to the same sequence
  doesn't look like the one before.
* log is the identity of the whole log, made at its first opening.
* skipped_from says that the numbers from it to first_sequence - 1 name no record and never will: they had
  been reserved for records that are shown before they are stored (frontier_file.py). 0: there are none.
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
SUFFIX = ".journal"
SUFFIX_COMPRESSED = ".journal.gz"
SUFFIX_INDEX = ".index.gz"


class BatchPosition(NamedTuple):
    """Where a batch stands: its segment's first sequence, and the offset in the uncompressed file.

    It stays true when the segment is archived or compressed.
    """

    segment: int
    offset: int


class SegmentHeader(NamedTuple):
    """What the first 4,096 bytes say."""

    instance: str
    origin: int
    epoch: int
    first_sequence: int
    created_at: int
    log: UUID
    crc: int = 0
    """The header's own checksum, by which a sidecar knows its segment; 0 in one that isn't encoded yet."""
    skipped_from: int = 0
    """First of the numbers right before this segment that name no record; 0: none."""


class SegmentInfo(NamedTuple):
    """One segment as operators see it. `current` is being written or closed; times are nanoseconds UTC, 0 unknown.

    `written_at` is when its file was last changed.
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
    """A file in the journal's directories whose name says that it is a segment of this instance."""

    path: Path
    first_sequence: int
    archived: bool
    compressed: bool


def encode_header(header: SegmentHeader) -> bytes:
    """The first 4,096 bytes of a segment."""
    name = header.instance.encode()
    whole = bytearray(HEADER_SIZE)
    _HEADER.pack_into(
        whole,
        0,
        MAGIC,
        VERSION,
        0,
        header.origin,
        header.epoch,
        0,
        header.first_sequence,
        header.created_at,
        len(name),
        name,
        header.log.bytes,
        header.skipped_from,
    )
    struct.pack_into("<I", whole, _CRC_AT, crc32c(whole))
    return bytes(whole)


def decode_header(raw: Buffer, path: Path) -> SegmentHeader:
    """The header in the first 4,096 bytes; JournalError journal_damaged says what is wrong with it."""
    if len(raw) < HEADER_SIZE:
        raise damaged_segment_error(path, 0, f"its header has {len(raw)} of {HEADER_SIZE} bytes")
    magic, version, crc, origin, epoch, _, first, created_at, length, name, log, skipped = (
        _HEADER.unpack_from(raw)
    )
    if magic != MAGIC:
        raise damaged_segment_error(path, 0, "it doesn't start with SLUICEJ1")
    if version != VERSION:
        raise damaged_segment_error(path, 8, f"version {version} isn't known")
    plain = bytearray(raw[:HEADER_SIZE])
    plain[_CRC_AT : _CRC_AT + 4] = bytes(4)
    if crc32c(plain) != crc:
        raise damaged_segment_error(path, _CRC_AT, "its header's checksum doesn't fit")
    return SegmentHeader(
        name[:length].decode(), origin, epoch, first, created_at, UUID(bytes=log), crc, skipped
    )


def header_crc(encoded: bytes) -> int:
    """The checksum in an encoded header."""
    found: int = struct.unpack_from("<I", encoded, _CRC_AT)[0]
    return found


def is_segment_of(header: SegmentHeader, instance: str, first_sequence: int, log: UUID | None) -> bool:
    """Whether it is that segment of that log; of any log where `log` is None."""
    same_log = log is None or header.log == log
    return same_log and (header.instance, header.first_sequence) == (instance, first_sequence)


def describe_header(header: SegmentHeader) -> str:
    """What a header says of itself, in words."""
    return f"segment {segment_name(header.instance, header.first_sequence)} of the log {header.log}"


def new_header(
    instance: str,
    epoch: int,
    first_sequence: int,
    created_at: int,
    log: UUID,
    skipped_from: int = 0,
) -> SegmentHeader:
    """Return the header of a segment of this instance."""
    origin = hash64(instance)
    return SegmentHeader(instance, origin, epoch, first_sequence, created_at, log, skipped_from=skipped_from)


def damaged_segment_error(path: Path, offset: int, why: str) -> JournalError:
    """The error for bytes that can't be what they should be."""
    return JournalError(
        "journal_damaged",
        f"{path.name} is damaged at byte {offset}: {why}.",
        "Run `manage.py journal verify`, then `repair`; the damaged bytes are kept.",
        file=path.name,
        offset=offset,
    )


def other_log_error(path: Path, header: SegmentHeader, log: UUID | None) -> JournalError:
    """The error for a file that has the name of a segment and is another one."""
    return JournalError(
        "other_log",
        f"{path} is {describe_header(header)}, and this is the log {log}.",
        "Somebody put a file in its place. Move it away and bring back the segment that was there.",
        file=path.name,
        found=str(header.log),
        expected=str(log),
    )


def segment_name(instance: str, first_sequence: int, *, compressed: bool = False) -> str:
    """The file name of a segment."""
    return f"{instance}.{first_sequence:020d}{SUFFIX_COMPRESSED if compressed else SUFFIX}"


def index_path(segment: Path) -> Path:
    """The sidecar that belongs to a segment's file, compressed or not."""
    return segment.with_name(segment.name.removesuffix(".gz").removesuffix(SUFFIX) + SUFFIX_INDEX)


def parse_segment_name(name: str, instance: str) -> tuple[int, bool] | None:
    """(first sequence, compressed) of a segment's file name; None if the file is foreign to this instance."""
    rest = name.removeprefix(f"{instance}.")
    digits, suffix = rest[:20], rest[20:]
    if rest == name or len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    if suffix not in (SUFFIX, SUFFIX_COMPRESSED):
        return None
    return int(digits), suffix == SUFFIX_COMPRESSED


def parse_segment_path(path: Path) -> tuple[str, int]:
    """(instance, first sequence) of a segment's file. OperatorError unknown_journal if its name isn't one's."""
    instance, _, digits = path.name.removesuffix(".gz").removesuffix(SUFFIX).rpartition(".")
    if not instance or parse_segment_name(path.name, instance) is None:
        raise OperatorError(
            "unknown_journal", f"{path.name} isn't the name of a segment.", "See `journal ls`."
        )
    return instance, int(digits)


def find_segment_files(
    directory: Path, instance: str, archive_directory: Path | None = None
) -> list[SegmentFile]:
    """The segment files of an instance, oldest first; needs no lock.

    Live ones are listed before archived ones, so that a segment that moves meanwhile is seen twice rather than not
    at all. When a segment is there in two forms (a swap was cut short, or is going on), the older form comes first.
    """
    found: list[SegmentFile] = []
    for place, archived in ((directory, False), (archive_directory, True)):
        if place is None or not place.is_dir():
            continue
        for path in place.iterdir():
            parsed = parse_segment_name(path.name, instance)
            if parsed is not None and path.is_file():
                found.append(SegmentFile(path, parsed[0], archived, parsed[1]))
    return sorted(found, key=lambda file: (file.first_sequence, file.archived, file.compressed))
