"""Publish stores: batches that the broker has not acknowledged, in memory or in a file.

A store holds complete batches by publisher sequence, oldest first. `limit` is also the limit on
unacknowledged bytes: a publisher waits while `nbytes` is at least `limit`. So a store holds at most its limit
and one batch.

The file is append-only: 16 bytes of magic, then entries:

    0 length u32 | 4 crc32c u32 of everything after it | 8 first u64 | 16 last u64 | `length` bytes of batch

An entry of length 0 means that everything from `first` to `last` is acknowledged. Opening the file cuts off a
torn tail, as a crash leaves it. Damaged entries are skipped and later entries are retained. Torn and damaged
bytes are moved to a `.torn` file beside it. Compaction removes acknowledged batches by writing a new file.
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
"""Default limit of a store in memory, in bytes."""
FILE_LIMIT = 256 * 1024 * 1024
"""Default limit of a store in a file, in bytes."""
COMPACT_AT = 16 * 1024 * 1024
"""Acknowledged bytes from which the file is compacted, if unacknowledged bytes are not more."""
_MAGIC = b"SLUICE-PUBLISH-1"
_ENTRY = struct.Struct("<IIQQ")
_COVERED = struct.Struct("<QQ")
_SEARCH_BYTES = 1024 * 1024
"""Bytes that are searched for a batch at a time."""


class StoredBatch(NamedTuple):
    """Unacknowledged batch with its first and last publisher sequence."""

    first: int
    last: int
    batch: Buffer


class PublishStore(Protocol):
    """Interface of a publish store. Sequences ascend from one `add()` to the next.

    Attributes:
        limit: Bytes of unacknowledged batches at which publishers wait.
        nbytes: Bytes of unacknowledged batches.
        last_sequence: Last publisher sequence that was ever added.
        durable: Whether the store outlives the process.
    """

    limit: int
    nbytes: int
    last_sequence: int
    durable: bool

    @property
    def messages(self) -> int:
        """Number of unacknowledged messages."""

    def add(self, first: int, last: int, batch: Buffer) -> None:
        """Store a batch until it is discarded."""

    def discard(self, first: int, last: int) -> None:
        """Remove the batches that lie completely within these sequences."""

    def discard_through(self, last: int) -> None:
        """Remove the batches that end at or before this sequence."""

    def replace(self, batches: Iterable[StoredBatch]) -> None:
        """Replace all batches, or change nothing and raise OperatorError `store_failed`.

        The new batches may be computed from `pending()` while this runs.
        """

    def pending(self, after: int = 0) -> Iterator[StoredBatch]:
        """Iterate over the batches that end after this sequence, oldest first.

        Skips batches that are removed meanwhile.
        """

    def oldest_sequence(self) -> int:
        """Return the first stored sequence, or 0 if the store is empty."""

    def close(self) -> None:
        """Close open files."""


class StoreEntry(Protocol):
    """Index entry of a batch of `length` bytes."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def length(self) -> int: ...


E = TypeVar("E", bound=StoreEntry)


class BasePublishStore(Generic[E]):
    """Index of unacknowledged batches, shared by the stores in memory and in files."""

    durable = False

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.last_sequence = 0
        self._entries: OrderedDict[int, E] = OrderedDict()

    @property
    def messages(self) -> int:
        """Number of unacknowledged messages."""
        return sum(entry.last - entry.first + 1 for entry in self._entries.values())

    def _add_entry(self, entry: E) -> None:
        self._entries[entry.first] = entry
        self.nbytes += entry.length
        self.last_sequence = entry.last

    def _remove_entries(self, removed: list[E], first: int, last: int) -> None:
        """Remove these entries because everything from `first` to `last` is acknowledged."""
        for entry in removed:
            del self._entries[entry.first]
            self.nbytes -= entry.length

    def _read_batch(self, entry: E) -> Buffer:
        raise NotImplementedError

    def _entries_between(self, first: int, last: int) -> list[E]:
        """Return the entries that lie completely within these sequences."""
        exact = self._entries.get(first)
        if exact is not None and exact.last == last:
            return [exact]
        candidates = takewhile(lambda entry: entry.first <= last, self._entries.values())
        return [entry for entry in candidates if entry.first >= first and entry.last <= last]

    def discard(self, first: int, last: int) -> None:
        """Remove the batches that lie completely within these sequences."""
        if removed := self._entries_between(first, last):
            self._remove_entries(removed, first, last)

    def discard_through(self, last: int) -> None:
        """Remove the batches that end at or before this sequence."""
        removed: list[E] = []
        for entry in self._entries.values():
            if entry.last > last:
                break
            removed.append(entry)
        if removed:
            self._remove_entries(removed, removed[0].first, last)

    def pending(self, after: int = 0) -> Iterator[StoredBatch]:
        """Iterate over the batches that end after this sequence, oldest first."""
        for first in list(self._entries):
            entry = self._entries.get(first)
            if entry is not None and entry.last > after:
                yield StoredBatch(first, entry.last, self._read_batch(entry))

    def oldest_sequence(self) -> int:
        """Return the first stored sequence, or 0 if the store is empty."""
        return next(iter(self._entries), 0)


class _MemoryEntry(NamedTuple):
    first: int
    last: int
    batch: Buffer
    length: int


class MemoryPublishStore(BasePublishStore[_MemoryEntry]):
    """Publish store in memory, lost with the process."""

    def __init__(self, limit: int = MEMORY_LIMIT) -> None:
        super().__init__(limit)

    def add(self, first: int, last: int, batch: Buffer) -> None:
        """Store a batch until it is discarded."""
        self._entries[first] = _MemoryEntry(first, last, batch, len(batch))
        self.nbytes += len(batch)
        self.last_sequence = last

    def replace(self, batches: Iterable[StoredBatch]) -> None:
        """Replace all batches by new ones, which may be computed from `pending()`."""
        copies = list(batches)
        self._entries.clear()
        self.nbytes = 0
        for first, last, batch in copies:
            self.add(first, last, batch)

    def _read_batch(self, entry: _MemoryEntry) -> Buffer:
        return entry.batch

    def close(self) -> None:
        """Do nothing. The batches stay, so that another client object can continue with this store."""


class _FileEntry(NamedTuple):
    """Position of a batch's entry in the file."""

    first: int
    last: int
    at: int
    length: int


class FilePublishStore(BasePublishStore[_FileEntry]):
    """Publish store in a file, for one client at a time. Batches are read back only to be published again.

    `limit` bounds the unacknowledged bytes. The file has at most twice the limit plus COMPACT_AT bytes. A
    write survives the process. With `sync=True` it also survives a power failure, at the cost of an fdatasync
    per batch. Acknowledgements are not synced: losing one causes a repeat, which the broker drops.
    `set_aside_bytes` is the number of damaged bytes found on opening.

    Raises:
        OperatorError: `store_locked`, `store_failed`, or `bad_store` for a file of another kind. The file is
            then closed and unlocked.
    """

    durable = True

    def __init__(self, path: Path | str, limit: int = FILE_LIMIT, *, sync: bool = False) -> None:
        super().__init__(limit)
        self.set_aside_bytes = 0
        self._sync = sync
        self._unused_bytes = 0
        self._file = StoreFile(path, "publish store")
        self.path = self._file.path
        with self._file.close_on_error():
            self._recover()
            if sync:
                self._file.sync_directory()

    # Opening.

    def _recover(self) -> None:
        """Load the entries of the file. Damaged bytes are moved to the `.torn` file."""
        magic = self._file.read(0, len(_MAGIC))
        if not _MAGIC.startswith(magic):
            raise self._file.refuse()
        if magic != _MAGIC:
            self._file.truncate(0)
            self._file.append(_MAGIC, sync=self._sync)
        at, unusable, has_damage = len(_MAGIC), list[bytes](), False
        while at < self._file.end:
            entry = self._read_entry(at)
            if entry is not None:
                self._apply_entry(*entry, at)
                at += _ENTRY.size + entry[2]
                continue
            next_entry = self._next_batch(at + 1)
            unusable.append(self._file.read(at, (next_entry or self._file.end) - at))
            if next_entry is None:
                break
            at, has_damage = next_entry, True
        if unusable:
            self.set_aside_bytes = sum(map(len, unusable))
            self._file.set_aside(*unusable)
            self._file.truncate(at)
            if has_damage:
                self.compact()

    def _read_entry(self, at: int) -> tuple[int, int, int] | None:
        """Return first and last sequence and length of the entry at a position, or None if it is damaged."""
        if at + _ENTRY.size > self._file.end:
            return None
        length, crc, first, last = _ENTRY.unpack(self._file.read(at, _ENTRY.size))
        if at + _ENTRY.size + length > self._file.end or length > MAX_BATCH_BYTES or 0 < length < HEADER_SIZE:
            return None
        covered = _COVERED.pack(first, last) + self._file.read(at + _ENTRY.size, length)
        return (first, last, length) if crc32c(covered) == crc else None

    def _apply_entry(self, first: int, last: int, length: int, at: int) -> None:
        highest = max(self.last_sequence, last)
        if length:
            self._add_entry(_FileEntry(first, last, at, length))
        else:
            self._remove_from_index(self._entries_between(first, last), first, last)
        self.last_sequence = highest

    def _next_batch(self, start: int) -> int | None:
        """Return the position of the next valid entry with a batch, or None.

        The length of a damaged entry cannot be trusted, so the search uses the magic of batches.
        """
        while start < self._file.end:
            chunk = self._file.read(start, _SEARCH_BYTES + len(BATCH_MAGIC) - 1)
            found = chunk.find(BATCH_MAGIC)
            while found >= 0:
                at = start + found - _ENTRY.size
                if self._is_batch(at):
                    return at
                found = chunk.find(BATCH_MAGIC, found + 1)
            start += _SEARCH_BYTES
        return None

    def _is_batch(self, at: int) -> bool:
        """Return whether a valid entry with a batch starts at a position."""
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
        """Append a batch to the file.

        Raises:
            OperatorError: `store_failed`; the batch is not stored.
        """
        at = self._file.append(_entry_header(first, last, batch), batch, sync=self._sync)
        self._add_entry(_FileEntry(first, last, at, len(batch)))

    def _remove_entries(self, removed: list[_FileEntry], first: int, last: int) -> None:
        self._remove_from_index(removed, first, last)
        # On a full disk the acknowledgement is not written. That must not fail, because acknowledging frees
        # space.
        with contextlib.suppress(OperatorError):
            self._file.append(_entry_header(first, last, b""))
        self._unused_bytes += _ENTRY.size
        # The threshold bounds the cost: compaction writes at most as many bytes as it drops.
        if self._unused_bytes >= max(COMPACT_AT, self.nbytes):
            self.compact()

    def _remove_from_index(self, removed: list[_FileEntry], first: int, last: int) -> None:
        super()._remove_entries(removed, first, last)
        self._unused_bytes += sum(_ENTRY.size + entry.length for entry in removed)

    def _read_batch(self, entry: _FileEntry) -> Buffer:
        return self._file.read(entry.at + _ENTRY.size, entry.length)

    def replace(self, batches: Iterable[StoredBatch]) -> None:
        """Replace all batches. A crash leaves either the old or the new ones.

        Raises:
            OperatorError: `store_failed`; nothing changed.
        """
        new_entries: list[_FileEntry] = []

        def content() -> Iterator[Buffer]:
            yield _MAGIC + _entry_header(self.last_sequence, self.last_sequence, b"")
            at = len(_MAGIC) + _ENTRY.size
            for first, last, batch in batches:
                yield _entry_header(first, last, batch)
                yield batch
                new_entries.append(_FileEntry(first, last, at, len(batch)))
                at += _ENTRY.size + len(batch)

        if not self._file.rewrite(content()):
            raise OperatorError(
                "store_failed",
                f"The publish store {self.path} can't be rewritten.",
                "Free space on its disk.",
            )
        self._entries.clear()
        self.nbytes = self._unused_bytes = 0
        for entry in new_entries:
            self._add_entry(entry)

    def compact(self) -> None:
        """Write the unacknowledged batches to a new file, and replace the old file with it."""
        if self._file.rewrite(self._file_content()):
            at = len(_MAGIC) + _ENTRY.size
            for entry in list(self._entries.values()):
                self._entries[entry.first] = entry._replace(at=at)
                at += _ENTRY.size + entry.length
        # After a failure, too: the next attempt follows when as much is acknowledged again.
        self._unused_bytes = 0

    def _file_content(self) -> Iterator[bytes]:
        # Record the last sequence even if no batch is left: a publisher sequence must never be reused.
        yield _MAGIC + _entry_header(self.last_sequence, self.last_sequence, b"")
        for entry in self._entries.values():
            yield self._file.read(entry.at, _ENTRY.size + entry.length)

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()


def _entry_header(first: int, last: int, batch: Buffer) -> bytes:
    return _ENTRY.pack(len(batch), crc32c(batch, crc32c(_COVERED.pack(first, last))), first, last)
