"""Bookmark stores: positions up to which subscribers have processed records, for `MOST_RECENT`.

An application that writes its results to a database should store the bookmark in the same transaction instead
(`Subscription.bookmark_after`).

File format: text. The first line identifies the file. Each later line is one update: the CRC32C in hex, a
space, and `["subscription","instance",sequence]`. The last valid line of a subscription and instance counts.
A sequence of -1 deletes the subscription. A line with one number more,
`["subscription","instance",first,last]`, marks records as processed although earlier ones are not. Invalid
lines, such as a torn last line, are moved to a `.torn` file. The records that they named are then processed
again, never skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import orjson

from broker_core.bookmark import EPOCH_TEXT, Bookmark
from broker_core.checksum import crc32c
from broker_core.client.store_file import StoreFile
from broker_core.errors import OperatorError
from broker_core.sequence_set import SequenceSet

MOST_RECENT = "MOST_RECENT"
"""Bookmark that the client replaces by the position in its store. It is never sent to the broker."""
MAX_POSITIONS = 10_000
"""Maximum number of positions in one store: pairs of a subscription and an instance."""
MAX_RANGES = 10_000
"""Maximum number of processed ranges per subscription and instance.

Records in further ranges are processed again after a restart.
"""
FIRST_LINE = b"SLUICE-BOOKMARKS-1\n"
COMPACT_AT = 1024 * 1024
"""File size in bytes from which the file is compacted, if its content fills at most half of it."""


class BookmarkStore(Protocol):
    """Interface of a bookmark store."""

    def record(self, subscription: str, instance: str, sequence: int) -> None:
        """Store that the application has processed every record up to `sequence` of an instance."""

    def record_done(self, subscription: str, instance: str, first: int, last: int) -> None:
        """Store that the records `first` to `last` are processed, but not all earlier ones."""

    def processed_ranges(self, subscription: str, instance: str) -> SequenceSet | None:
        """Return the ranges processed beyond the most recent bookmark, or None if there are none."""

    def most_recent(self, subscription: str) -> str | None:
        """Return the bookmark to resume from, or None if the subscription is unknown.

        The bookmark is a comma-separated list with one position per instance.
        """

    def forget(self, subscription: str) -> None:
        """Delete all positions of a subscription."""

    def close(self) -> None:
        """Close open files."""


def resolve_bookmark(bookmark: str | None, store: BookmarkStore | None, subscription: str) -> str | None:
    """Return the bookmark to send to the broker.

    `MOST_RECENT` is replaced by the stored position, or by EPOCH if the store has none.

    Raises:
        OperatorError: `no_bookmark_store` for `MOST_RECENT` without a store.
    """
    if bookmark != MOST_RECENT:
        return bookmark
    if store is None:
        raise OperatorError(
            "no_bookmark_store", "MOST_RECENT needs a bookmark store.", "Give the client one."
        )
    return store.most_recent(subscription) or EPOCH_TEXT


def format_positions(positions: Mapping[str, int]) -> str:
    """Return the bookmark that resumes after these records, one per instance; "" if there are none."""
    return ",".join(str(Bookmark(instance, sequence)) for instance, sequence in positions.items())


class MemoryBookmarkStore:
    """Bookmark store in memory, lost with the process.

    `record` raises OperatorError `store_full` beyond MAX_POSITIONS.
    """

    def __init__(self) -> None:
        self._sequences: dict[str, dict[str, int]] = {}
        self._positions = 0
        self._processed: dict[tuple[str, str], SequenceSet] = {}

    def record(self, subscription: str, instance: str, sequence: int) -> None:
        """Store that every record up to `sequence` of an instance is processed.

        Raises:
            OperatorError: `store_full` beyond MAX_POSITIONS; in a file also `store_failed`.
        """
        sequences = self._sequences.get(subscription, {})
        if instance not in sequences:
            if self._positions >= MAX_POSITIONS:
                raise OperatorError(
                    "store_full",
                    f"A bookmark store holds at most {MAX_POSITIONS} positions.",
                    "forget() subscriptions that no longer exist, or use a separate store for each client.",
                )
            self._positions += 1
            self._sequences[subscription] = sequences
        sequences[instance] = sequence
        processed = self._processed.get((subscription, instance))
        if processed is not None:
            processed.remove_through(sequence)
            if not processed:
                del self._processed[subscription, instance]

    def record_done(self, subscription: str, instance: str, first: int, last: int) -> None:
        """Store that the records `first` to `last` are processed, but not all earlier ones."""
        self._processed.setdefault((subscription, instance), SequenceSet(max_ranges=MAX_RANGES)).add(
            first, last
        )

    def processed_ranges(self, subscription: str, instance: str) -> SequenceSet | None:
        """Return the ranges processed beyond the most recent bookmark, or None if there are none."""
        return self._processed.get((subscription, instance))

    def most_recent(self, subscription: str) -> str | None:
        """Return the bookmark to resume from, or None if the subscription is unknown."""
        return format_positions(self._sequences.get(subscription, {})) or None

    def forget(self, subscription: str) -> None:
        """Delete all positions of a subscription."""
        self._positions -= len(self._sequences.pop(subscription, {}))
        for key in [key for key in self._processed if key[0] == subscription]:
            del self._processed[key]

    def close(self) -> None:
        """Do nothing: there are no files to close."""


class FileBookmarkStore(MemoryBookmarkStore):
    """Bookmark store in a file, for one client at a time. Each update is one line and survives the process.

    With `sync=True` each update also survives a power failure, at the cost of an fdatasync; then call
    `done()` with batches. The file has at most COMPACT_AT bytes, or twice its content if that is more.
    `set_aside_bytes` is the number of invalid bytes found on opening; they are stored in a `.torn` file
    beside it.

    Raises:
        OperatorError: `store_locked`, `store_failed`, `store_full`, or `bad_store` for a file of another
            kind. The file is then closed and unlocked.
    """

    def __init__(self, path: Path | str, *, sync: bool = False) -> None:
        super().__init__()
        self._sync = sync
        self._file = StoreFile(path, "bookmark store")
        self.path = self._file.path
        with self._file.close_on_error():
            self.set_aside_bytes = self._recover()
            if sync:
                self._file.sync_directory()
        self._compact_at = COMPACT_AT

    def _recover(self) -> int:
        """Load the file. Returns the number of invalid bytes, which are moved to the `.torn` file."""
        raw = self._file.read(0, self._file.end)
        lines = raw.splitlines(keepends=True)
        if FIRST_LINE.startswith(raw):
            self._file.truncate(0)
            self._file.append(FIRST_LINE, sync=self._sync)
            return 0
        are_valid = [lines[0] == FIRST_LINE, *map(self._apply_line, lines[1:])]
        if not any(are_valid):
            raise self._file.refuse()
        damaged = [line for line, is_valid in zip(lines, are_valid, strict=True) if not is_valid]
        if damaged:
            self._file.set_aside(*damaged)
            if all(are_valid[:-1]):
                self._file.truncate(len(raw) - len(damaged[0]))
            elif not self._file.rewrite(self._lines()):
                raise OperatorError(
                    "store_failed",
                    f"The bookmark store {self.path} can't be repaired.",
                    "Free space on its disk.",
                )
        return sum(map(len, damaged))

    def _apply_line(self, line: bytes) -> bool:
        """Apply one line of the file. Returns whether the line is valid."""
        if len(line) < 10 or not line.endswith(b"\n") or line[:9] != b"%08x " % crc32c(line[9:-1]):
            return False
        subscription, instance, sequence, *last = orjson.loads(line[9:-1])
        if last:
            super().record_done(subscription, instance, sequence, *last)
        elif sequence < 0:
            super().forget(subscription)
        else:
            super().record(subscription, instance, sequence)
        return True

    def record(self, subscription: str, instance: str, sequence: int) -> None:
        super().record(subscription, instance, sequence)
        self._write(_format_line(subscription, instance, sequence))

    def record_done(self, subscription: str, instance: str, first: int, last: int) -> None:
        super().record_done(subscription, instance, first, last)
        self._write(_format_line(subscription, instance, first, last))

    def forget(self, subscription: str) -> None:
        super().forget(subscription)
        self._write(_format_line(subscription, "", -1))
        self.compact()  # otherwise damage to this one line would bring the older positions back

    def _write(self, line: bytes) -> None:
        self._file.append(line, sync=self._sync)
        if self._file.end >= self._compact_at:
            self.compact()

    def compact(self) -> None:
        """Write the content to a new file, and replace the old file with it."""
        self._file.rewrite(self._lines())
        # Set after a failure, too: compaction is retried after further growth, not at the next update.
        self._compact_at = max(COMPACT_AT, 2 * self._file.end)

    def _lines(self) -> Iterator[bytes]:
        yield FIRST_LINE
        for subscription, sequences in self._sequences.items():
            yield b"".join(
                _format_line(subscription, instance, sequence) for instance, sequence in sequences.items()
            )
        for (subscription, instance), processed in self._processed.items():
            yield b"".join(_format_line(subscription, instance, first, last) for first, last in processed)

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()


def _format_line(subscription: str, instance: str, *sequences: int) -> bytes:
    text = orjson.dumps([subscription, instance, *sequences])
    return b"%08x %s\n" % (crc32c(text), text)
