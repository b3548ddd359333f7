"""Format of compressed segments: a gzip file of independent members, readable by `zcat`, with random access.

Member 0 has only the segment's 4,096-byte header; each further member has about 1 MiB of whole batches. The
gzip header of each member has an extra field (RFC 1952, 2.3.1.1), so a reader goes from member to member
without inflating any:

    +--------------------------------------------------------------------------------+
    | 0 1f 8b 08 04 | 4 mtime u32 = 0 | 8 xfl u8 = 0 | 9 os u8 = 255 | 10 xlen u16 = 20 |
    | 12 "SJ" | 14 field length u16 = 16 | 16 member_length u32 | 20 raw_length u32     |
    | 24 raw_offset u64                                                                |
    | 32 deflate data ... | crc32 u32 | raw_length u32                                 |
    +--------------------------------------------------------------------------------+

member_length counts the whole member from byte 1f to its last byte. raw_offset is the offset of its content
in the uncompressed file.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections import OrderedDict
from itertools import count
from threading import Lock
from typing import NamedTuple, cast

from isal import isal_zlib

from broker_core.batch import Buffer
from broker_core.journal.files import OpenFile
from broker_core.journal.segment import HEADER_SIZE, damaged_segment_error

MEMBER_SIZE = 1024 * 1024
"""Approximate raw bytes of a member; it ends with the batch that exceeds them."""
LEVEL = 2
"""Compression level of isal."""
GZIP_MAGIC = b"\x1f\x8b"
_PREFIX = GZIP_MAGIC + b"\x08\x04\0\0\0\0\0\xff"
_HEAD = struct.Struct("<10sH2sHIIQ")
_TAIL = struct.Struct("<II")
CACHE_BYTES = 32 * MEMBER_SIZE
"""Bytes of inflated members in memory, over all segments of the process.

A limit per segment would not bound the memory of a replay through a hundred segments.
"""
_INFLATE_ERRORS = (cast("type[Exception]", isal_zlib.error), OverflowError, ValueError)


class GzipMember(NamedTuple):
    """Location of a member in the compressed file, and of its content in the raw file."""

    offset: int
    length: int
    raw_offset: int
    raw_length: int


def encode_member(raw: Buffer, raw_offset: int) -> bytes:
    """Return a gzip member with its extra field."""
    packer = isal_zlib.compressobj(LEVEL, isal_zlib.DEFLATED, -15)
    data = packer.compress(raw) + packer.flush()
    length = _HEAD.size + len(data) + _TAIL.size
    head = _HEAD.pack(_PREFIX, 20, b"SJ", 16, length, len(raw), raw_offset)
    return head + data + _TAIL.pack(isal_zlib.crc32(raw), len(raw))


def read_members(file: OpenFile) -> list[GzipMember]:
    """Return the members of a compressed segment that are complete by their extra field.

    Where the chain is broken, the next member is searched for; a missing member shows as a jump of
    `raw_offset`.
    """
    size = os.fstat(file.fd).st_size
    members: list[GzipMember] = []
    offset = raw_end = 0
    while offset < size:
        member = _member_at(file, offset, size, raw_end)
        if member is None:
            found = _find_member(file, offset + 1, size, raw_end)
            if found is None:
                break
            offset = found
            continue
        members.append(member)
        offset += member.length
        raw_end = member.raw_offset + member.raw_length
    return members


def _member_at(file: OpenFile, offset: int, size: int, raw_end: int) -> GzipMember | None:
    """Return the member at a file offset, or None if its header is invalid or it is incomplete.

    `raw_end` is the end of the previous member's content: a valid member starts there or later.
    """
    head = os.pread(file.fd, _HEAD.size, offset)
    if len(head) < _HEAD.size:
        return None
    prefix, extra, tag, field, length, raw_length, raw_offset = _HEAD.unpack(head)
    if (prefix, extra, tag, field) != (_PREFIX, 20, b"SJ", 16) or raw_offset < raw_end or raw_length == 0:
        return None
    if length < _HEAD.size + _TAIL.size or offset + length > size:
        return None
    if offset == 0 and (raw_offset, raw_length) != (0, HEADER_SIZE):
        return None  # the first member has the segment's header alone
    return GzipMember(offset, length, raw_offset, raw_length)


def read_first_member(file: OpenFile) -> bytes:
    """Return the content of the first member; b"" when it isn't complete.

    Raises JournalError journal_damaged.
    """
    found = _member_at(file, 0, os.fstat(file.fd).st_size, 0)
    return inflate(file, found) if found is not None else b""


def salvage_first_member(file: OpenFile, length: int) -> bytes:
    """Return up to `length` bytes of the first member's content, without its checks; b"" if none inflate."""
    stored = os.pread(file.fd, _HEAD.size + 2 * length, 0)
    try:
        return bytes(isal_zlib.decompressobj(-15).decompress(stored[_HEAD.size :], length))
    except _INFLATE_ERRORS:
        return b""


def _find_member(file: OpenFile, offset: int, size: int, raw_end: int) -> int | None:
    """Return the file offset of the next complete member at or after `offset`, or None."""
    while offset < size:
        chunk = os.pread(file.fd, MEMBER_SIZE, offset)
        found = chunk.find(_PREFIX)
        while found >= 0:
            if _member_at(file, offset + found, size, raw_end) is not None:
                return offset + found
            found = chunk.find(_PREFIX, found + 1)
        # The chunks overlap, so that a prefix across their border is found.
        offset += max(len(chunk) - len(_PREFIX) + 1, 1)
    return None


class GzipMemberCache:
    """Cache of the most recently read inflated members, by source and member number. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._members: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._lock = Lock()
        self.nbytes = 0

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._members

    def get(self, key: tuple[int, int]) -> bytes | None:
        """Return a cached member and make it the most recent; None if it isn't cached."""
        with self._lock:
            raw = self._members.get(key)
            if raw is not None:
                self._members.move_to_end(key)
            return raw

    def put(self, key: tuple[int, int], raw: bytes) -> None:
        """Add a member, and drop the least recently used ones beyond the limit."""
        with self._lock:
            self.nbytes += len(raw) - len(self._members.pop(key, b""))
            self._members[key] = raw
            while self.nbytes > self._max_bytes and len(self._members) > 1:
                self.nbytes -= len(self._members.popitem(last=False)[1])


_CACHE = GzipMemberCache(CACHE_BYTES)
"""Cache of the whole process, because it bounds the memory of the process."""
_SERIALS = count(1)


class CompressedSegmentSource:
    """Reader of a compressed segment by raw offset; recently inflated members are cached."""

    def __init__(self, file: OpenFile, cache: GzipMemberCache | None = None) -> None:
        """Read the chain of members. `cache` replaces the process's cache of inflated members."""
        self.file = file
        self._cache = _CACHE if cache is None else cache
        self.members = read_members(file)
        self.length = self.members[-1].raw_offset + self.members[-1].raw_length if self.members else 0
        self._starts = [member.raw_offset for member in self.members]
        self._serial = next(_SERIALS)
        self._next_stored: tuple[int, bytes] | None = None
        """Number and compressed bytes of the next member, read in advance for a sequential reader."""

    def read(self, offset: int, length: int) -> memoryview:
        """Return up to `length` raw bytes from `offset`, not beyond its member, whose end no batch crosses.

        Raises JournalError journal_damaged when the member is missing or damaged.
        """
        if offset >= self.length:
            return memoryview(b"")
        number = bisect_right(self._starts, offset) - 1
        start = offset - self._starts[number] if number >= 0 else 0
        if number < 0 or start >= self.members[number].raw_length:
            raise damaged_segment_error(
                self.file.path, offset, "a gzip member is missing or its header is damaged"
            )
        return memoryview(self._inflate(number))[start : start + length]

    def next_offset_after(self, offset: int) -> int:
        """Return the next member's raw offset, to continue there after unreadable bytes at `offset`."""
        number = bisect_right(self._starts, offset)
        return self._starts[number] if number < len(self._starts) else max(self.length, offset + 8)

    def _inflate(self, number: int) -> bytes:
        """Return the content of a member, from the cache if it is there."""
        cached = self._cache.get((self._serial, number))
        if cached is not None:
            return cached
        ready, is_sequential = self._next_stored, (self._serial, number - 1) in self._cache
        stored = (
            ready[1]
            if ready is not None and ready[0] == number
            else _read_stored(self.file, self.members[number])
        )
        raw = _inflated(self.file, self.members[number], stored)
        # Read the next member in advance, so that the next call starts by inflating. Inflating releases the
        # interpreter lock, so the event loop sends one chunk while the next is inflated. A read would release
        # it too, but would then wait to get it back.
        following = number + 1
        ready = (
            (following, _read_stored(self.file, self.members[following]))
            if (is_sequential and following < len(self.members))
            else None
        )
        self._next_stored = ready
        self._cache.put((self._serial, number), raw)
        return raw


def inflate(file: OpenFile, member: GzipMember) -> bytes:
    """Return a member's content. Raises JournalError journal_damaged if its length or CRC is wrong."""
    return _inflated(file, member, _read_stored(file, member))


def _read_stored(file: OpenFile, member: GzipMember) -> bytes:
    return os.pread(file.fd, member.length, member.offset)


def _inflated(file: OpenFile, member: GzipMember, stored: bytes) -> bytes:
    data = memoryview(stored)[_HEAD.size : -_TAIL.size]
    try:
        # One byte more than needed: otherwise isal doubles its full buffer and copies it twice before it
        # finds the end of the data. That took more than two thirds of the time.
        raw: bytes = isal_zlib.decompress(data, -15, member.raw_length + 1)
    except _INFLATE_ERRORS:
        raise damaged_segment_error(file.path, member.offset, "a gzip member can't be inflated") from None
    if (isal_zlib.crc32(raw), len(raw)) != _TAIL.unpack(stored[-_TAIL.size :]) or len(
        raw
    ) != member.raw_length:
        raise damaged_segment_error(file.path, member.offset, "a gzip member's checksum doesn't fit")
    return raw
