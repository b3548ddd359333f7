"""Where a publisher keeps what the broker hasn't acknowledged: in memory, or in a file that survives the process.

A store holds whole batches by publisher sequence, oldest first. Its `limit` is also the bound on what may be in
flight: a publisher waits while `nbytes` is at or over it, so a store holds at most its limit and one batch.

The file is append-only: 16 bytes of magic, then entries

    0 length u32 | 4 crc32c u32 of all that follows | 8 first u64 | 16 last u64 | then `length` bytes of batch

An entry of length 0 says that everything from `first` to `last` is acknowledged. A torn tail, as a crash leaves it,
is cut off on opening; a damaged entry is passed over and those behind it are kept. Both are set aside in a `.torn`
beside the file. What was acknowledged is dropped by writing the file anew.
"""

from __future__ import annotations

import contextlib
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from broker_core.batch import HEADER_SIZE, MAX_BATCH_BYTES, Buffer, read_batch_header
from broker_core.batch import MAGIC as BATCH_MAGIC
from broker_core.checksum import crc32c
from broker_core.client.store_file import StoreFile
from broker_core.errors import ClientError, OperatorError

MEMORY_LIMIT = 8 * 1024 * 1024
FILE_LIMIT = 256 * 1024 * 1024
COMPACT_AT = 16 * 1024 * 1024
"""Acknowledged bytes in the file before it is written anew, and at least as many as are kept."""
_MAGIC = b"SLUICE-PUBLISH-1"
_ENTRY = struct.Struct("<IIQQ")
_COVERED = struct.Struct("<QQ")
_LOOK = 1024 * 1024


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
    durable: bool
    """Whether what is kept is there for the next process."""

    @property
    def messages(self) -> int:
        """Number of messages kept."""

    def add(self, first: int, last: int, batch: Buffer) -> None:
        """Keep a batch until it is discarded."""

    def discard(self, first: int, last: int) -> None:
        """Drop the batches that lie within these sequences."""

    def discard_upto(self, last: int) -> None:
        """Drop the batches that end at or before this sequence."""

    def replace(self, batches: Iterable[StoredBatch]) -> None:
        """Keep these batches in place of all others, or change nothing. They may be made of `pending` while
        this runs."""

    def pending(self, after: int = 0) -> Iterator[StoredBatch]:
        """What is kept and ends after this sequence, oldest first. Batches dropped meanwhile are left out."""

    def oldest(self) -> int:
        """The first sequence kept, 0 when nothing is."""

    def close(self) -> None:
        """Let go of files."""


class StoreEntry(Protocol):
    """What stands for a batch of `length` bytes."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def length(self) -> int: ...


E = TypeVar("E", bound=StoreEntry)


class BasePublishStore(Generic[E]):
    """What is the same in every store: which batches are kept, and which go."""

    durable = False

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.last_sequence = 0
        self._kept: OrderedDict[int, E] = OrderedDict()

    @property
    def messages(self) -> int:
        """Number of messages kept."""
        return sum(entry.last - entry.first + 1 for entry in self._kept.values())

    def _keep(self, entry: E) -> None:
        self._kept[entry.first] = entry
        self.nbytes += entry.length
        self.last_sequence = entry.last

    def _drop(self, gone: list[E], first: int, last: int) -> None:
        """Forget these, because everything of `first` to `last` is acknowledged."""
        for entry in gone:
            del self._kept[entry.first]
            self.nbytes -= entry.length

    def _batch_of(self, entry: E) -> Buffer:
        raise NotImplementedError

    def _within(self, first: int, last: int) -> list[E]:
        exact = self._kept.get(first)
        if exact is not None and exact.last == last:
            return [exact]
        begun = takewhile(lambda entry: entry.first <= last, self._kept.values())
        return [entry for entry in begun if entry.first >= first and entry.last <= last]

    def discard(self, first: int, last: int) -> None:
        if gone := self._within(first, last):
            self._drop(gone, first, last)

    def discard_upto(self, last: int) -> None:
        gone: list[E] = []
        for entry in self._kept.values():
            if entry.last > last:
                break
            gone.append(entry)
        if gone:
            self._drop(gone, gone[0].first, last)

    def pending(self, after: int = 0) -> Iterator[StoredBatch]:
        for first in list(self._kept):
            entry = self._kept.get(first)
            if entry is not None and entry.last > after:
                yield StoredBatch(first, entry.last, self._batch_of(entry))

    def oldest(self) -> int:
        return next(iter(self._kept), 0)


class _MemoryEntry(NamedTuple):
    first: int
    last: int
    batch: Buffer
    length: int


class MemoryPublishStore(BasePublishStore[_MemoryEntry]):
    """Keeps batches while the process lives."""

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        super().__init__(limit)

    def add(self, first: int, last: int, batch: Buffer) -> None:
        self._kept[first] = _MemoryEntry(first, last, batch, len(batch))
        self.nbytes += len(batch)
        self.last_sequence = last

    def replace(self, batches: Iterable[StoredBatch]) -> None:
        made = list(batches)
        self._kept.clear()
        self.nbytes = 0
        for first, last, batch in made:
            self.add(first, last, batch)

    def _batch_of(self, entry: _MemoryEntry) -> Buffer:
        return entry.batch

    def close(self) -> None:
        """Nothing to let go of; what is kept stays, so that another client object can go on with it."""


class _FileEntry(NamedTuple):
    """Where the entry of a batch stands."""

    first: int
    last: int
    at: int
    length: int


class FilePublishStore(BasePublishStore[_FileEntry]):
    """Keeps batches in a file, one client at a time. Batches are read back only to be republished.

    `limit` bounds what is unacknowledged (a publisher waits); the file has at most twice that and COMPACT_AT bytes.
    A write survives the process; with `sync=True` also the machine, for an fdatasync a batch. Acknowledgements
    aren't synced: one that is lost costs a repeat, which the broker drops. `set_aside_bytes` is what opening
    couldn't use.
    """

    durable = True

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
            self._file.truncate(0)
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
        if unusable:
            self.set_aside_bytes = sum(map(len, unusable))
            self._file.set_aside(*unusable)
            self._file.truncate(at)
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
        highest = max(self.last_sequence, last)
        if length:
            self._keep(_FileEntry(first, last, at, length))
        else:
            self._forget(self._within(first, last), first, last)
        self.last_sequence = highest

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
            return (
                read_batch_header(self._file.read(at + _ENTRY.size, entry[2])).first_publisher_sequence
                == entry[0]
            )
        return False

    # Use.

    def add(self, first: int, last: int, batch: Buffer) -> None:
        at = self._file.append(_head(first, last, batch), batch, sync=self._sync)
        self._keep(_FileEntry(first, last, at, len(batch)))

    def _drop(self, gone: list[_FileEntry], first: int, last: int) -> None:
        self._forget(gone, first, last)
        # On a full disk the acknowledgement isn't kept: it frees room, and must not fail for the lack of it.
        with contextlib.suppress(OperatorError):
            self._file.append(_head(first, last, b""))
        self._dead += _ENTRY.size
        if self._dead >= max(COMPACT_AT, self.nbytes):  # so that writing anew costs at most what it drops
            self.compact()

    def _forget(self, gone: list[_FileEntry], first: int, last: int) -> None:
        super()._drop(gone, first, last)
        self._dead += sum(_ENTRY.size + place.length for place in gone)

    def _batch_of(self, entry: _FileEntry) -> Buffer:
        return self._file.read(entry.at + _ENTRY.size, entry.length)

    def replace(self, batches: Iterable[StoredBatch]) -> None:
        """Keep these batches in place of all others; a crash leaves either. OperatorError store_failed."""
        places: list[_FileEntry] = []

        def parts() -> Iterator[Buffer]:
            yield _MAGIC + _head(self.last_sequence, self.last_sequence, b"")
            at = len(_MAGIC) + _ENTRY.size
            for first, last, batch in batches:
                yield _head(first, last, batch)
                yield batch
                places.append(_FileEntry(first, last, at, len(batch)))
                at += _ENTRY.size + len(batch)

        if not self._file.rewrite(parts()):
            raise OperatorError(
                "store_failed",
                f"The publish store {self.path} can't be written anew.",
                "Free space on its disk.",
            )
        self._kept.clear()
        self.nbytes = self._dead = 0
        for place in places:
            self._keep(place)

    def compact(self) -> None:
        """Write what is still kept into a new file and put it in the old one's place."""
        if self._file.rewrite(self._parts()):
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
