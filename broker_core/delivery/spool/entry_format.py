"""File format of a spool's entries.

A spool is files `<path>.<number, 6 digits>`, each of at most about 16 MiB. They are read from the lowest
number up and removed when they are read. They live as long as the client's connection. A restart needs none
of them, so the broker syncs none. Little-endian, entries back to back, each a multiple of 8 bytes:

    +-----------------------------------------------------------------------------------+
    | 0 crc u32 | 4 kind u8 | 5 flags u8 | 6 stream u16 | 8 count u32 | 12 length u32     |
    | 16 nbytes u32 | 20 place u32 | 24 segment u64 | 32 accepted_at i64                 |
    | 40 kind 2: the batch, `length` bytes                                              |
    | 40 flag 1: row numbers, count x u16, zero-padded to 8                             |
    +-----------------------------------------------------------------------------------+

* crc is the CRC32C of the rest of the entry.
* kind 1, a reference: the `length` bytes at offset 8 x `place` of the segment that starts with sequence
  `segment`. They are one whole batch or several adjacent ones. With flag 1 they are one batch, of which only
  the listed rows are meant. kind 2, a copy: the batch follows.
* count is the number of records delivered, nbytes the size that counts in the client's backlog, accepted_at
  the time from which the age of the first batch counts.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from broker_core.batch import Batch
from broker_core.checksum import crc32c
from broker_core.errors import JournalError
from broker_core.journal.segment import BatchPosition

ENTRY = struct.Struct("<IBBHIIIIQq")
ENTRY_SIZE = ENTRY.size
REFERENCE = 1
"""Kind of an entry that refers to the journal."""
COPY = 2
"""Kind of an entry with its own copy of a batch."""
HAS_ROWS = 1
"""Flag of a reference with row numbers."""
Rows = npt.NDArray[np.int64]
_CRC = struct.Struct("<I")


RUN_BYTES = 64 * 1024
"""Maximum bytes of adjacent batches in one reference. A drain loads at least one reference.

So it bounds the memory that a client uses after it has stopped again.
"""


@dataclass(slots=True, eq=False)
class BatchRun:
    """Adjacent whole batches of one stream in a segment. It grows until it is encoded."""

    stream: int
    position: tuple[int, int]
    length: int
    records: int
    accepted_at: int

    def try_extend(self, stream: int, position: tuple[int, int], length: int, records: int) -> bool:
        """Add a batch that is adjacent to the run.

        Return False if it isn't, or the run would exceed RUN_BYTES.
        """
        segment, offset = self.position
        longer = self.length + length
        if (
            offset + self.length != position[1]
            or segment != position[0]
            or stream != self.stream
            or longer > RUN_BYTES
        ):
            return False
        self.length = longer
        self.records += records
        return True

    def encode(self) -> bytes:
        """Return the run as an encoded reference of ENTRY_SIZE bytes."""
        return encode_reference(
            self.stream, self.position, self.length, self.records, self.length, self.accepted_at, None
        )


@dataclass(frozen=True, slots=True)
class SpoolEntry:
    """Decoded entry. A reference has `position` and `length` and possibly `rows`; a copy has `batch`."""

    stream: int
    kind: str
    position: BatchPosition
    length: int
    rows: Rows | None
    batch: Batch | None
    count: int
    nbytes: int
    accepted_at: int


class SpoolEntryHeader(NamedTuple):
    """Fixed part of an entry."""

    crc: int
    kind: int
    flags: int
    stream: int
    records: int
    length: int
    nbytes: int
    offset_in_words: int
    segment: int
    accepted_at: int

    @property
    def size(self) -> int:
        """Bytes of the whole entry."""
        if self.kind == COPY:
            return ENTRY_SIZE + self.length
        rows = 2 * self.records if self.flags & HAS_ROWS else 0
        return ENTRY_SIZE + rows + (-rows % 8)


def encode_reference(
    stream: int,
    position: tuple[int, int],
    length: int,
    count: int,
    nbytes: int,
    accepted_at: int,
    rows: Rows | None,
) -> bytes:
    """Return an encoded reference."""
    segment, offset = position
    listed = b"" if rows is None else rows.astype("<u2").tobytes()
    flags = 0 if rows is None else HAS_ROWS
    tail = (
        ENTRY.pack(
            0,
            REFERENCE,
            flags,
            stream,
            count,
            length,
            nbytes,
            offset // 8,
            segment,
            accepted_at,
        )[4:]
        + listed
        + bytes(-len(listed) % 8)
    )
    return _CRC.pack(crc32c(tail)) + tail


def encode_copy(stream: int, batch: Batch, accepted_at: int) -> bytes:
    """Return an encoded copy."""
    head = ENTRY.pack(0, COPY, 0, stream, batch.count, batch.nbytes, batch.nbytes, 0, 0, accepted_at)
    tail = head[4:] + bytes(batch.buf)
    return _CRC.pack(crc32c(tail)) + tail


def decode_entry_header(view: memoryview, offset: int) -> SpoolEntryHeader:
    """Return the header at an offset. `decode_entry` checks its checksum, which covers the whole entry."""
    return SpoolEntryHeader._make(ENTRY.unpack_from(view, offset))


def decode_entry(view: memoryview, offset: int, head: SpoolEntryHeader) -> SpoolEntry:
    """Return the whole entry at an offset.

    Raises:
        JournalError: spool_damaged, when the checksum is wrong.
    """
    end = offset + head.size
    if crc32c(view[offset + 4 : end]) != head.crc or head.kind not in (REFERENCE, COPY):
        raise JournalError(
            "spool_damaged",
            f"A spool entry is damaged at byte {offset}.",
            "Check the disk of the spools; the client has to subscribe again from its bookmark.",
            offset=offset,
        )
    if head.kind == COPY:
        batch = Batch.parse(view[offset + ENTRY_SIZE : end], verify=False)
        return SpoolEntry(
            head.stream,
            "copy",
            BatchPosition(0, 0),
            head.length,
            None,
            batch,
            head.records,
            head.nbytes,
            head.accepted_at,
        )
    rows: Rows | None = None
    if head.flags & HAS_ROWS:
        rows = np.frombuffer(view, "<u2", head.records, offset + ENTRY_SIZE).astype(np.int64)
    return SpoolEntry(
        head.stream,
        "reference",
        BatchPosition(head.segment, head.offset_in_words * 8),
        head.length,
        rows,
        None,
        head.records,
        head.nbytes,
        head.accepted_at,
    )
