"""The publish store in a file that survives the process, and with `sync=True` the machine.

The file is append-only: 16 bytes of magic, then entries

    0 length u32 | 4 crc32c u32 of all that follows | 8 first u64 | 16 last u64 | then `length` bytes of batch

An entry of length 0 says that everything from `first` to `last` is acknowledged. A torn tail, as a crash leaves it,
is cut off on opening; a damaged entry is passed over and those behind it are kept. Both are set aside in a `.torn`
beside the file. What was acknowledged is dropped by writing the file anew.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from broker_core.batch import HEADER_SIZE, MAX_BATCH_BYTES, Buffer, peek
from broker_core.batch import MAGIC as BATCH_MAGIC
from broker_core.client.publish_store import KeptBatches
from broker_core.client.store_file import StoreFile
from broker_core.errors import ClientError, OperatorError

FILE_LIMIT = 256 * 1024 * 1024
COMPACT_AT = 16 * 1024 * 1024
"""Acknowledged bytes in the file before it is written anew, and at least as many as are kept."""
_MAGIC = b"SLUICE-PUBLISH-1"
_ENTRY = struct.Struct("<IIQQ")
_COVERED = struct.Struct("<QQ")
_LOOK = 1024 * 1024


class _Place(NamedTuple):
    """Where the entry of a batch stands."""

    first: int
    last: int
    at: int
    length: int


class FilePublishStore(KeptBatches[_Place]):
    """Keeps batches in a file, one client at a time. Batches are read back only to be republished.

    `limit` bounds what is unacknowledged (a publisher waits); the file has at most twice that and COMPACT_AT bytes.
    A write survives the process; with `sync=True` also the machine, for an fdatasync a batch. Acknowledgements
    aren't synced: one that is lost costs a repeat, which the broker drops. `set_aside_bytes` is what opening
    couldn't use.
    """

    def __init__(self, path: Path | str, limit: int = FILE_LIMIT, *, sync: bool = False) -> None:
        super().__init__(limit)
        self.set_aside_bytes = 0
        self._sync = sync
        self._dead = 0
        self._file = StoreFile(path, "publish store")
        self.path = self._file.path
        self._recover()
        if sync:
            self._file.sync_directory()

    # Opening.

    def _recover(self) -> None:
        magic = self._file.read(0, len(_MAGIC))
        if not _MAGIC.startswith(magic):
            raise self._file.refuse()
        if magic != _MAGIC:
            self._file.cut(0)
            self._file.append(_MAGIC, sync=self._sync)
        at, unusable, holes = len(_MAGIC), list[bytes](), False
        while at < self._file.end:
            entry = self._read_entry(at)
            if entry is not None:
                self._enter(*entry, at)
                at += _ENTRY.size + entry[2]
                continue
            behind = self._next_batch(at + 1)
            unusable.append(self._file.read(at, (behind or self._file.end) - at))
            if behind is None:
                break
            at, holes = behind, True
        self._set_aside(unusable, at, holes)

    def _set_aside(self, unusable: list[bytes], end: int, holes: bool) -> None:
        if unusable:
            self.set_aside_bytes = sum(map(len, unusable))
            self._file.set_aside(*unusable)
            self._file.cut(end)
            if holes:
                self.compact()

    def _read_entry(self, at: int) -> tuple[int, int, int] | None:
        if at + _ENTRY.size > self._file.end:
            return None
        length, crc, first, last = _ENTRY.unpack(self._file.read(at, _ENTRY.size))
        if at + _ENTRY.size + length > self._file.end or length > MAX_BATCH_BYTES or 0 < length < HEADER_SIZE:
            return None
        covered = _COVERED.pack(first, last) + self._file.read(at + _ENTRY.size, length)
        return (first, last, length) if crc32c(covered) == crc else None

    def _enter(self, first: int, last: int, length: int, at: int) -> None:
        if length:
            self._keep(_Place(first, last, at, length))
        else:
            self._forget(self._within(first, last))
            self.last_sequence = max(self.last_sequence, last)

    def _next_batch(self, start: int) -> int | None:
        """The next whole entry with a batch: what a damaged length says can't be trusted, a batch's magic can."""
        while start < self._file.end:
            looked = self._file.read(start, _LOOK + len(BATCH_MAGIC) - 1)
            found = looked.find(BATCH_MAGIC)
            while found >= 0:
                at = start + found - _ENTRY.size
                if self._is_batch(at):
                    return at
                found = looked.find(BATCH_MAGIC, found + 1)
            start += _LOOK
        return None

    def _is_batch(self, at: int) -> bool:
        entry = self._read_entry(at) if at >= len(_MAGIC) else None
        if entry is None:
            return False
        with contextlib.suppress(ClientError):
            return peek(self._file.read(at + _ENTRY.size, entry[2])).first_publisher_sequence == entry[0]
        return False

    # Use.

    def add(self, first: int, last: int, batch: Buffer) -> None:
        at = self._file.append(_head(first, last, batch), batch, sync=self._sync)
        self._keep(_Place(first, last, at, len(batch)))

    def _drop(self, gone: list[_Place], first: int, last: int) -> None:
        super()._drop(gone, first, last)
        # On a full disk the acknowledgement isn't kept: it frees room, and must not fail for the lack of it.
        with contextlib.suppress(OperatorError):
            self._file.append(_head(first, last, b""))
        self._dead += _ENTRY.size
        if self._dead >= max(COMPACT_AT, self.nbytes):  # so that writing anew costs at most what it drops
            self.compact()

    def _forget(self, gone: list[_Place]) -> None:
        super()._forget(gone)
        self._dead += sum(_ENTRY.size + place.length for place in gone)

    def _batch_of(self, entry: _Place) -> Buffer:
        return self._file.read(entry.at + _ENTRY.size, entry.length)

    def compact(self) -> None:
        """Write what is still kept into a new file and put it in the old one's place."""
        if self._file.write_anew(self._parts()):
            at = len(_MAGIC) + _ENTRY.size
            for place in list(self._kept.values()):
                self._kept[place.first] = place._replace(at=at)
                at += _ENTRY.size + place.length
        self._dead = 0  # after a failure, too: it is tried again when as much is dead once more

    def _parts(self) -> Iterator[bytes]:
        # The last sequence must outlive the batches: numbers are never used twice.
        yield _MAGIC + _head(self.last_sequence, self.last_sequence, b"")
        for place in self._kept.values():
            yield self._file.read(place.at, _ENTRY.size + place.length)

    def close(self) -> None:
        self._file.close()


def _head(first: int, last: int, batch: Buffer) -> bytes:
    return _ENTRY.pack(len(batch), crc32c(batch, crc32c(_COVERED.pack(first, last))), first, last)
