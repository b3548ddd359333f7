"""Where a subscriber keeps how far it is done, so that `MOST_RECENT` resumes there.

An application that writes its results to a database keeps the bookmark there instead, in the same transaction
(`Subscription.bookmark_after`).

The file is text: a first line that says what it is, then one line for each move, the CRC32C in hex, a space, and
`["subscription","instance",sequence]`. The last good line of a subscription and instance counts; a sequence of -1
forgets the subscription. A line with one number more, `["subscription","instance",first,last]`, says that these records are
done although something before them isn't. Lines that aren't good, a torn last one or damaged ones, are set aside: what they
said is then done again, never skipped.
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
"""The bookmark that the store knows; the broker never sees this word."""
MAX_POSITIONS = 10_000
"""Subscriptions, times the instances each had records from, that one store keeps."""
MAX_RANGES = 10_000
"""Of a subscription and instance; what is done beyond them comes again after a restart."""
FIRST_LINE = b"SLUICE-BOOKMARKS-1\n"
COMPACT_AT = 1024 * 1024
"""Bytes of the file before it is written anew, and at least twice what is kept."""


class BookmarkStore(Protocol):
    """What a client needs of a store."""

    def record(self, subscription: str, instance: str, sequence: int) -> None:
        """Everything of this subscription up to that record of that instance is done."""

    def record_done(self, subscription: str, instance: str, first: int, last: int) -> None:
        """These records are done, although something before them isn't."""

    def processed_ranges(self, subscription: str, instance: str) -> SequenceSet | None:
        """What was done behind the most recent bookmark; None: nothing."""

    def most_recent(self, subscription: str) -> str | None:
        """The bookmark to resume from; one per instance, by commas. None when nothing is known."""

    def forget(self, subscription: str) -> None:
        """Start anew next time."""

    def close(self) -> None:
        """Let go of files."""


def starting_point(bookmark: str | None, store: BookmarkStore | None, subscription: str) -> str | None:
    """The bookmark to send: MOST_RECENT is what the store says, and the start when it says nothing."""
    if bookmark != MOST_RECENT:
        return bookmark
    if store is None:
        raise OperatorError(
            "no_bookmark_store", "MOST_RECENT needs a bookmark store.", "Give the client one."
        )
    return store.most_recent(subscription) or EPOCH_TEXT


def format_positions(positions: Mapping[str, int]) -> str:
    """The bookmark that resumes after these records, one of each instance; "" without any."""
    return ",".join(str(Bookmark(instance, sequence)) for instance, sequence in positions.items())


class MemoryBookmarkStore:
    """Keeps bookmarks while the process lives: MAX_POSITIONS of them, then OperatorError store_full."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}
        self._positions = 0
        self._done: dict[tuple[str, str], SequenceSet] = {}

    def record(self, subscription: str, instance: str, sequence: int) -> None:
        known = self._known.get(subscription, {})
        if instance not in known:
            if self._positions >= MAX_POSITIONS:
                raise OperatorError(
                    "store_full",
                    f"A bookmark store holds at most {MAX_POSITIONS} positions.",
                    "forget() subscriptions that no longer exist, or give each client a store of its own.",
                )
            self._positions += 1
            self._known[subscription] = known
        known[instance] = sequence
        done = self._done.get((subscription, instance))
        if done is not None:
            done.remove_upto(sequence)
            if not done:
                del self._done[subscription, instance]

    def record_done(self, subscription: str, instance: str, first: int, last: int) -> None:
        self._done.setdefault((subscription, instance), SequenceSet(most=MAX_RANGES)).add(first, last)

    def processed_ranges(self, subscription: str, instance: str) -> SequenceSet | None:
        return self._done.get((subscription, instance))

    def most_recent(self, subscription: str) -> str | None:
        return format_positions(self._known.get(subscription, {})) or None

    def forget(self, subscription: str) -> None:
        self._positions -= len(self._known.pop(subscription, {}))
        for key in [key for key in self._done if key[0] == subscription]:
            del self._done[key]

    def close(self) -> None:
        """Nothing to let go of."""


class FileBookmarkStore(MemoryBookmarkStore):
    """Keeps bookmarks in a file, one client at a time. Each move is a line, and survives the process.

    With `sync=True` each also survives the machine, for an fdatasync each: then say done() with batches. The file
    has at most COMPACT_AT bytes, or twice what is kept when that is more. `set_aside_bytes` is what opening
    couldn't use: kept in a `.torn` beside the file.
    """

    def __init__(self, path: Path | str, *, sync: bool = False) -> None:
        super().__init__()
        self._sync = sync
        self._file = StoreFile(path, "bookmark store")
        self.path = self._file.path
        self.set_aside_bytes = self._recover()
        self._longest = COMPACT_AT
        if sync:
            self._file.sync_directory()

    def _recover(self) -> int:
        raw = self._file.read(0, self._file.end)
        lines = raw.splitlines(keepends=True)
        if FIRST_LINE.startswith(raw):
            self._file.truncate(0)
            self._file.append(FIRST_LINE, sync=self._sync)
            return 0
        good = [lines[0] == FIRST_LINE, *map(self._take, lines[1:])]
        if not any(good):
            raise self._file.refuse()
        bad = [line for line, fine in zip(lines, good, strict=True) if not fine]
        if bad:
            self._file.set_aside(*bad)
            if all(good[:-1]):
                self._file.truncate(len(raw) - len(bad[0]))
            elif not self._file.rewrite(self._lines()):
                raise OperatorError(
                    "store_failed",
                    f"The bookmark store {self.path} can't be repaired.",
                    "Free space on its disk.",
                )
        return sum(map(len, bad))

    def _take(self, line: bytes) -> bool:
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
        self._write(_line(subscription, instance, sequence))

    def record_done(self, subscription: str, instance: str, first: int, last: int) -> None:
        super().record_done(subscription, instance, first, last)
        self._write(_line(subscription, instance, first, last))

    def forget(self, subscription: str) -> None:
        super().forget(subscription)
        self._write(_line(subscription, "", -1))
        self.compact()  # if this line alone were damaged, the older ones would speak again

    def _write(self, line: bytes) -> None:
        self._file.append(line, sync=self._sync)
        if self._file.end >= self._longest:
            self.compact()

    def compact(self) -> None:
        """Write what is kept into a new file and put it in the old one's place."""
        self._file.rewrite(self._lines())
        # After a failure, too: it isn't tried again at once.
        self._longest = max(COMPACT_AT, 2 * self._file.end)

    def _lines(self) -> Iterator[bytes]:
        yield FIRST_LINE
        for subscription, known in self._known.items():
            yield b"".join(_line(subscription, instance, sequence) for instance, sequence in known.items())
        for (subscription, instance), done in self._done.items():
            yield b"".join(_line(subscription, instance, first, last) for first, last in done)

    def close(self) -> None:
        self._file.close()


def _line(subscription: str, instance: str, *sequences: int) -> bytes:
    text = orjson.dumps([subscription, instance, *sequences])
    return b"%08x %s\n" % (crc32c(text), text)
