"""Where a publisher keeps what the broker hasn't acknowledged: in memory, or in a file that survives the process.

A store holds whole batches by publisher sequence, oldest first. Its `limit` is also the bound on what may be in
flight: a publisher waits while `nbytes` is at or over it.

The file is append-only: 16 bytes of magic, then entries

    0 length u32 | 4 crc32c u32 of all that follows | 8 first u64 | 16 last u64 | then `length` bytes of batch

An entry of length 0 says that everything from `first` to `last` is acknowledged. A torn tail, as a crash leaves it,
is cut off on opening and its bytes kept beside the file. What was acknowledged is dropped by writing the file anew.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from crc32c import crc32c

from broker_core.batch import HEADER_SIZE, MAX_BATCH_BYTES, Buffer
from broker_core.errors import OperatorError

MEMORY_LIMIT = 8 * 1024 * 1024
FILE_LIMIT = 256 * 1024 * 1024
COMPACT_AT = 16 * 1024 * 1024
"""Acknowledged bytes in the file before it is written anew, and at least as many as are kept."""


class StoredBatch(NamedTuple):
    """One unacknowledged batch and the publisher sequences in it."""

    first: int
    last: int
    batch: Buffer


class PublishStore(Protocol):
    """What a client needs of a store. Sequences ascend from one add() to the next."""

    limit: int
    nbytes: int
    last_sequence: int

    def add(self, first: int, last: int, batch: Buffer) -> None:
        """Keep a batch until it is discarded."""

    def discard(self, first: int, last: int) -> None:
        """Drop the batches that lie within these sequences."""

    def discard_upto(self, last: int) -> None:
        """Drop the batches that end at or before this sequence."""

    def pending(self, after: int = 0) -> Iterator[StoredBatch]:
        """What is kept and ends after this sequence, oldest first. Batches dropped meanwhile are left out."""

    def oldest(self) -> int:
        """The first sequence kept, 0 when nothing is."""

    def close(self) -> None:
        """Let go of files."""


class MemoryPublishStore:
    """Keeps batches while the process lives."""

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        self.limit = limit
        self.nbytes = 0
        self.last_sequence = 0
        self._batches: OrderedDict[int, StoredBatch] = OrderedDict()

    def add(self, first: int, last: int, batch: Buffer) -> None:
        self._batches[first] = StoredBatch(first, last, batch)
        self.nbytes += len(batch)
        self.last_sequence = last

    def discard(self, first: int, last: int) -> None:
        for key in _within(self._batches, first, last):
            self.nbytes -= len(self._batches.pop(key).batch)

    def discard_upto(self, last: int) -> None:
        batches = self._batches
        while batches:
            oldest = next(iter(batches.values()))
            if oldest.last > last:
                return
            del batches[oldest.first]
            self.nbytes -= len(oldest.batch)

    def pending(self, after: int = 0) -> Iterator[StoredBatch]:
        for first in list(self._batches):
            stored = self._batches.get(first)
            if stored is not None and stored.last > after:
                yield stored

    def oldest(self) -> int:
        return next(iter(self._batches), 0)

    def close(self) -> None:
        """Nothing to let go of; what is kept stays, so that another client object can go on with it."""


class _Place(NamedTuple):
    first: int
    last: int
    offset: int
    length: int


_Spanned = TypeVar("_Spanned", StoredBatch, _Place)


def _within(batches: OrderedDict[int, _Spanned], first: int, last: int) -> list[int]:
    exact = batches.get(first)
    if exact is not None and exact.last == last:
        return [first]
    found: list[int] = []
    for stored in batches.values():
        if stored.first > last:
            break
        if stored.first >= first and stored.last <= last:
            found.append(stored.first)
    return found


_MAGIC = b"SLUICE-PUBLISH-1"
_ENTRY = struct.Struct("<IIQQ")
_COVERED = struct.Struct("<QQ")


class FilePublishStore:
    """Keeps batches in a file, one client at a time. Batches are read back only to be republished.

    A write survives the process. With `sync=True` each also survives the machine, for an fdatasync a batch.
    `truncated_bytes` says what a crash left unfinished at the end.
    """

    def __init__(self, path: Path | str, limit: int = FILE_LIMIT, *, sync: bool = False) -> None:
        self.path = Path(path)
        self.limit = limit
        self.nbytes = 0
        self.last_sequence = 0
        self.truncated_bytes = 0
        self._sync = sync
        self._places: OrderedDict[int, _Place] = OrderedDict()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open()
        self._end = 0
        self._dead = 0
        self._recover()

    def _open(self) -> int:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise OperatorError(
                "store_locked", f"The publish store {self.path} is in use by another process.",
                "Give each publisher a store of its own.",
            ) from None
        return file

    def _recover(self) -> None:
        size = os.fstat(self._file).st_size
        magic = os.pread(self._file, len(_MAGIC), 0)
        if magic != _MAGIC:
            if size >= len(_MAGIC) or not _MAGIC.startswith(magic):
                os.close(self._file)
                raise OperatorError(
                    "bad_store", f"{self.path} isn't a publish store.", "Name another file; this one was left as it is."
                )
            os.pwrite(self._file, _MAGIC, 0)
            size = len(_MAGIC)
        self._end = len(_MAGIC)
        while (entry := self._read_entry(self._end, size)) is not None:
            first, last, length = entry
            if length:
                self._places[first] = _Place(first, last, self._end + _ENTRY.size, length)
                self.nbytes += length
            else:
                self._forget(first, last)
            self.last_sequence = max(self.last_sequence, last)
            self._end += _ENTRY.size + length
        self._cut_tail(size)

    def _read_entry(self, at: int, size: int) -> tuple[int, int, int] | None:
        if at + _ENTRY.size > size:
            return None
        length, crc, first, last = _ENTRY.unpack(os.pread(self._file, _ENTRY.size, at))
        if at + _ENTRY.size + length > size or length > MAX_BATCH_BYTES or 0 < length < HEADER_SIZE:
            return None
        covered = _COVERED.pack(first, last) + os.pread(self._file, length, at + _ENTRY.size)
        return (first, last, length) if crc32c(covered) == crc else None

    def _cut_tail(self, size: int) -> None:
        self.truncated_bytes = size - self._end
        if self.truncated_bytes:
            torn = os.pread(self._file, self.truncated_bytes, self._end)
            self.path.with_name(self.path.name + ".torn").write_bytes(torn)
            os.ftruncate(self._file, self._end)

    def add(self, first: int, last: int, batch: Buffer) -> None:
        offset = self._end + _ENTRY.size
        self._append(first, last, batch)
        self._places[first] = _Place(first, last, offset, len(batch))
        self.nbytes += len(batch)
        self.last_sequence = last

    def _append(self, first: int, last: int, batch: Buffer) -> None:
        covered = _COVERED.pack(first, last)
        head = _ENTRY.pack(len(batch), crc32c(batch, crc32c(covered)), first, last)
        wanted = len(head) + len(batch)
        try:
            written = os.pwritev(self._file, (head, batch), self._end)
            if written != wanted:
                raise OSError(f"{written} of {wanted} bytes were written")
            if self._sync:
                os.fdatasync(self._file)
        except OSError as problem:
            os.ftruncate(self._file, self._end)
            raise OperatorError(
                "store_failed", f"The publish store {self.path} can't be written: {problem}.",
                "Make room on its disk; the messages were not sent.",
            ) from problem
        self._end += wanted

    def discard(self, first: int, last: int) -> None:
        self._drop(_within(self._places, first, last), first, last)

    def discard_upto(self, last: int) -> None:
        gone: list[int] = []
        for place in self._places.values():
            if place.last > last:
                break
            gone.append(place.first)
        self._drop(gone, gone[0] if gone else 0, last)

    def _drop(self, gone: list[int], first: int, last: int) -> None:
        if not gone:
            return
        self._forget(first, last, gone)
        self._append(first, last, b"")
        if self._dead >= max(COMPACT_AT, self.nbytes):  # so that writing anew costs at most what it drops
            self.compact()

    def _forget(self, first: int, last: int, gone: list[int] | None = None) -> None:
        for key in _within(self._places, first, last) if gone is None else gone:
            place = self._places.pop(key)
            self.nbytes -= place.length
            self._dead += place.length

    def pending(self, after: int = 0) -> Iterator[StoredBatch]:
        for first in list(self._places):
            place = self._places.get(first)
            if place is not None and place.last > after:
                yield StoredBatch(first, place.last, os.pread(self._file, place.length, place.offset))

    def oldest(self) -> int:
        return next(iter(self._places), 0)

    def compact(self) -> None:
        """Write what is still kept into a new file and put it in the old one's place."""
        fresh = self.path.with_name(self.path.name + ".tmp")
        old, old_places, old_end = self._file, self._places, self._end
        kept = list(self.pending())
        file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # Locked before it has the name, so that no other process can take it in between.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(file, _MAGIC, 0)
            self._file, self._places, self._end = file, OrderedDict(), len(_MAGIC)
            # The last sequence must outlive the batches: numbers are never used twice.
            self._append(self.last_sequence, self.last_sequence, b"")
            for first, last, batch in kept:
                offset = self._end + _ENTRY.size
                self._append(first, last, batch)
                self._places[first] = _Place(first, last, offset, len(batch))
            os.fsync(file)
            fresh.replace(self.path)
        except (OSError, OperatorError):
            # The old file is whole; go on with it and try again when as much is dead once more.
            os.close(file)
            self._file, self._places, self._end, self._dead = old, old_places, old_end, 0
            return
        os.close(old)
        self._dead = 0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
