"""`<instance>.durable`: the durable frontier, and which log it is of.

    +------------------------------------------------------------------------------------+
    | 0 magic "SLUICED1" | 8 crc u32 (CRC32C of what follows) | 12 epoch u32              |
    | 16 sequence u64 | 24 given_up u64 | 32 log, a UUID's 16 bytes | 48 zeros to 512     |
    | 512 the same 48 bytes once more                                                     |
    | 1024 magic "SLUICER1" | 1032 crc u32 | 1036 reserved u64 | 1044 zeros to 1,536       |
    | 1536 the same 20 bytes once more                                                    |
    +------------------------------------------------------------------------------------+

Everything up to `sequence` is on disk. Written after an fdatasync of the journal and not synced itself: after a power
loss it may be behind, never ahead. For readers in other processes (Spark, `manage.py journal`), and for opening: what
stands behind it is trusted only when it has been written again, and a log that ends before it lacks records that were
acknowledged. Up to `given_up` an operator knows of that and goes on; their numbers are never given to others. `epoch` is
the newest opening's, so that it goes on when every segment has been removed.

The copies stand in sectors of their own and are written in one go: of two that can be read the newer counts.

Numbers up to `reserved` may have been shown to subscribers before their records were stored. The reservation
is written ahead of them and synced, and only while somebody asks for records before they are on disk; a file
without it ends at byte 560. An opening that finds fewer records goes on behind `reserved`, and a clean end
takes back what was not used.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from broker_core.checksum import crc32c
from broker_core.journal.files import FileSystem, OpenFile, write_all

MAGIC = b"SLUICED1"
COPY_AT = 512
"""Where the second copy stands: no sector holds both."""
_HEAD = struct.Struct("<8sI")
_REST = struct.Struct("<IQQ16s")
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT = 16
SIZE = _HEAD.size + _REST.size
RESERVATION_AT = 2 * COPY_AT
_RESERVATION = struct.Struct("<8sIQ")
_RESERVATION_MAGIC = b"SLUICER1"
MAX_SEQUENCE = 2**63 - 1


class FrontierMark(NamedTuple):
    """Content of the file. `log` is None where no file could be read."""

    sequence: int
    log: UUID | None = None
    epoch: int = 0
    given_up: int = 0
    reserved: int = 0
    """Last number that may have been shown to somebody before its record was stored; 0: none was."""


class KnownLog(NamedTuple):
    """What the control plane last heard of an instance's log: its identity, and how far it was durable."""

    log: UUID | None
    sequence: int


def frontier_path(directory: Path, instance: str) -> Path:
    """Where an instance's file is."""
    return directory / f"{instance}.durable"


def encode_mark(mark: FrontierMark) -> bytes:
    """The file's content."""
    assert mark.log is not None, "a mark that is written names its log"
    rest = _REST.pack(mark.epoch, mark.sequence, mark.given_up, mark.log.bytes)
    copy = _HEAD.pack(MAGIC, crc32c(rest)) + rest
    marks = copy.ljust(COPY_AT, b"\0") + copy
    return marks.ljust(RESERVATION_AT, b"\0") + _encode_reservation(mark.reserved) if mark.reserved else marks


def _encode_reservation(reserved: int) -> bytes:
    number = _SEQUENCE.pack(reserved)
    copy = _RESERVATION.pack(_RESERVATION_MAGIC, crc32c(number), reserved)
    return copy.ljust(COPY_AT, b"\0") + copy


def decode_mark(raw: bytes) -> FrontierMark | None:
    """The newer of the copies that can be believed; None when there is none."""
    copies = [mark for at in (0, COPY_AT) if (mark := _decode(raw[at : at + SIZE])) is not None]
    newest = max(copies, key=lambda mark: mark.sequence, default=None)
    return None if newest is None else newest._replace(reserved=_decode_reservation(raw))


def _decode_reservation(raw: bytes) -> int:
    """Return the greater of the copies that can be believed: neither is relied on before both are written."""
    found = [0]
    for at in (RESERVATION_AT, RESERVATION_AT + COPY_AT):
        if len(raw) >= at + _RESERVATION.size:
            magic, crc, reserved = _RESERVATION.unpack_from(raw, at)
            if magic == _RESERVATION_MAGIC and crc == crc32c(_SEQUENCE.pack(reserved)):
                found.append(reserved)
    return min(max(found), MAX_SEQUENCE)


def _decode(raw: bytes) -> FrontierMark | None:
    if len(raw) != SIZE:
        return None
    magic, crc = _HEAD.unpack_from(raw)
    if magic != MAGIC or crc32c(raw[_HEAD.size :]) != crc:
        return None
    epoch, sequence, given_up, log = _REST.unpack_from(raw, _HEAD.size)
    if not given_up <= sequence <= MAX_SEQUENCE:
        return None
    return FrontierMark(sequence, UUID(bytes=log), epoch, given_up)


class FrontierFile:
    """Keeps the file open; one small write when the frontier has moved. `first` is what it says from now on."""

    def __init__(self, files: FileSystem, path: Path, first: FrontierMark) -> None:
        self._files = files
        self._file = OpenFile(path, os.O_RDWR | os.O_CREAT)
        self._content = bytearray(encode_mark(first._replace(reserved=0)))
        self._checked = memoryview(self._content)[_HEAD.size : SIZE]
        self._written = -1
        self._named_durably = False
        """Whether the file's name is known to be on disk."""

    def write(self, sequence: int) -> None:
        """Note the frontier. OSError when the disk refuses."""
        if sequence != self._written:
            content = self._content  # as `encode_mark` made it; once for each group, so nothing is made anew
            _SEQUENCE.pack_into(content, _SEQUENCE_AT, sequence)
            _HEAD.pack_into(content, 0, MAGIC, crc32c(self._checked))
            content[COPY_AT : COPY_AT + SIZE] = content[:SIZE]
            write_all(self._files, self._file.fd, [content], 0)
            self._written = sequence

    def reserve(self, upto: int) -> None:
        """Note durably that numbers up to `upto` may be shown before they are stored. OSError when the disk
        refuses."""
        write_all(self._files, self._file.fd, [_encode_reservation(upto)], RESERVATION_AT)
        self._files.fdatasync(self._file.fd)
        if not self._named_durably:
            self._files.sync_directory(self._file.path.parent)
            self._named_durably = True

    def close(self) -> None:
        self._file.close()


def read_mark(directory: Path, instance: str) -> FrontierMark | None:
    """What the file says; None when there is none, or neither copy can be read."""
    try:
        return decode_mark(frontier_path(directory, instance).read_bytes())
    except OSError:
        return None


def read_frontier(directory: Path, instance: str) -> int | None:
    """The durable frontier; None as `read_mark`."""
    mark = read_mark(directory, instance)
    return None if mark is None else mark.sequence
