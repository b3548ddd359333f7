"""File `<instance>.durable`: the durable frontier of a log, and the log's identity.

    +------------------------------------------------------------------------------------+
    | 0 magic "SLUICED1" | 8 crc u32 (CRC32C of what follows) | 12 epoch u32              |
    | 16 sequence u64 | 24 given_up u64 | 32 log, a UUID's 16 bytes | 48 zeros to 512     |
    | 512 the same 48 bytes once more                                                     |
    | 1024 magic "SLUICER1" | 1032 crc u32 | 1036 reserved u64 | 1044 zeros to 1,536       |
    | 1536 the same 20 bytes once more                                                    |
    +------------------------------------------------------------------------------------+

* `sequence`: every record up to it is on disk. It is written after an fdatasync of the journal and not synced
  itself, so after a power loss it may be too small, never too large. Readers in other processes use it
  (Spark, `manage.py journal`), and so does opening: records after it are trusted only after they were
  written again. A log that ends before it lacks acknowledged records.
* `given_up`: lost records up to here were accepted by an operator; their numbers are never assigned again.
* `epoch`: number of the newest opening, so that it still increases when every segment has been removed.
* `reserved`: sequences up to it may have been shown to subscribers before their records were stored. It is
  written and synced before they are shown, and only while a subscriber asks for records before they are on
  disk. A file without a reservation ends at byte 560. An opening that finds fewer records continues after
  it; a clean close takes back the unused part.

The two copies are in different sectors and are written in one call. The newer readable copy counts.
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
"""Offset of the second copy; no sector has parts of both."""
_HEAD = struct.Struct("<8sI")
_FIELDS = struct.Struct("<IQQ16s")
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT = 16
SIZE = _HEAD.size + _FIELDS.size
RESERVATION_AT = 2 * COPY_AT
_RESERVATION = struct.Struct("<8sIQ")
_RESERVATION_MAGIC = b"SLUICER1"
MAX_SEQUENCE = 2**63 - 1


class FrontierMark(NamedTuple):
    """Content of the file. `log` is None where no file could be read."""

    sequence: int
    """Durable frontier."""
    log: UUID | None = None
    epoch: int = 0
    given_up: int = 0
    """Lost records up to here were accepted by an operator; 0: none."""
    reserved: int = 0
    """Newest sequence that may have been shown before its record was stored; 0: none."""


class KnownLog(NamedTuple):
    """Identity and durable frontier of an instance's log, as last reported to the control plane."""

    log: UUID | None
    sequence: int


def frontier_path(directory: Path, instance: str) -> Path:
    """Return the path of an instance's frontier file."""
    return directory / f"{instance}.durable"


def encode_mark(mark: FrontierMark) -> bytes:
    """Return the file's content."""
    assert mark.log is not None, "a mark that is written names its log"
    fields = _FIELDS.pack(mark.epoch, mark.sequence, mark.given_up, mark.log.bytes)
    copy = _HEAD.pack(MAGIC, crc32c(fields)) + fields
    marks = copy.ljust(COPY_AT, b"\0") + copy
    return marks.ljust(RESERVATION_AT, b"\0") + _encode_reservation(mark.reserved) if mark.reserved else marks


def _encode_reservation(reserved: int) -> bytes:
    number = _SEQUENCE.pack(reserved)
    copy = _RESERVATION.pack(_RESERVATION_MAGIC, crc32c(number), reserved)
    return copy.ljust(COPY_AT, b"\0") + copy


def decode_mark(raw: bytes) -> FrontierMark | None:
    """Return the newer valid copy; None if neither is valid."""
    copies = [mark for at in (0, COPY_AT) if (mark := _decode(raw[at : at + SIZE])) is not None]
    newest = max(copies, key=lambda mark: mark.sequence, default=None)
    return None if newest is None else newest._replace(reserved=_decode_reservation(raw))


def _decode_reservation(raw: bytes) -> int:
    """Return the greater valid copy. Both are written and synced before a reservation is used."""
    found = [0]
    for at in (RESERVATION_AT, RESERVATION_AT + COPY_AT):
        if len(raw) >= at + _RESERVATION.size:
            magic, crc, reserved = _RESERVATION.unpack_from(raw, at)
            if magic == _RESERVATION_MAGIC and crc == crc32c(_SEQUENCE.pack(reserved)):
                found.append(reserved)
    return min(max(found), MAX_SEQUENCE)


def _decode(raw: bytes) -> FrontierMark | None:
    """Return the mark in one copy, or None if it is invalid."""
    if len(raw) != SIZE:
        return None
    magic, crc = _HEAD.unpack_from(raw)
    if magic != MAGIC or crc32c(raw[_HEAD.size :]) != crc:
        return None
    epoch, sequence, given_up, log = _FIELDS.unpack_from(raw, _HEAD.size)
    if not given_up <= sequence <= MAX_SEQUENCE:
        return None
    return FrontierMark(sequence, UUID(bytes=log), epoch, given_up)


class FrontierFile:
    """Open frontier file: one small write per move of the frontier. `first` is its first content."""

    def __init__(self, files: FileSystem, path: Path, first: FrontierMark) -> None:
        self._files = files
        self._file = OpenFile(path, os.O_RDWR | os.O_CREAT)
        self._content = bytearray(encode_mark(first._replace(reserved=0)))
        self._checked = memoryview(self._content)[_HEAD.size : SIZE]
        self._written = -1
        self._named_durably = False
        """Whether the directory was synced, so that the file's name is on disk."""

    def write(self, sequence: int) -> None:
        """Write the frontier. Raises OSError when the disk refuses."""
        if sequence != self._written:
            content = self._content  # reused because this runs once per group
            _SEQUENCE.pack_into(content, _SEQUENCE_AT, sequence)
            _HEAD.pack_into(content, 0, MAGIC, crc32c(self._checked))
            content[COPY_AT : COPY_AT + SIZE] = content[:SIZE]
            write_all(self._files, self._file.fd, [content], 0)
            self._written = sequence

    def reserve(self, upto: int) -> None:
        """Make durable that sequences up to `upto` may be shown before their records are stored.

        Raises OSError when the disk refuses.
        """
        write_all(self._files, self._file.fd, [_encode_reservation(upto)], RESERVATION_AT)
        self._files.fdatasync(self._file.fd)
        if not self._named_durably:
            self._files.sync_directory(self._file.path.parent)
            self._named_durably = True

    def close(self) -> None:
        self._file.close()


def read_mark(directory: Path, instance: str) -> FrontierMark | None:
    """Return the content of the frontier file; None if it is missing or neither copy is valid."""
    try:
        return decode_mark(frontier_path(directory, instance).read_bytes())
    except OSError:
        return None


def read_frontier(directory: Path, instance: str) -> int | None:
    """Return the durable frontier; None as for `read_mark`."""
    mark = read_mark(directory, instance)
    return None if mark is None else mark.sequence
