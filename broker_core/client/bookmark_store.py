"""Where a subscriber keeps how far it is done, so that `MOST_RECENT` resumes there.

The file is text, one line for each move: the CRC32C in hex, a space, and `["subscription","instance",sequence]`.
The last good line of a subscription and instance counts. A torn last line, as a crash leaves it, is cut off.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

import orjson
from crc32c import crc32c

from broker_core.bookmark import EPOCH_TEXT, Bookmark
from broker_core.errors import OperatorError

MOST_RECENT = "MOST_RECENT"
"""The bookmark that the store knows; the broker never sees this word."""
COMPACT_AT = 1024 * 1024


class BookmarkStore(Protocol):
    """What a client needs of a store."""

    def record(self, subscription: str, instance: str, sequence: int) -> None:
        """Everything of this subscription up to that record of that instance is done."""

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
        raise OperatorError("no_bookmark_store", "MOST_RECENT needs a bookmark store.", "Give the client one.")
    return store.most_recent(subscription) or EPOCH_TEXT


class MemoryBookmarkStore:
    """Keeps bookmarks while the process lives."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}

    def record(self, subscription: str, instance: str, sequence: int) -> None:
        self._known.setdefault(subscription, {})[instance] = sequence

    def most_recent(self, subscription: str) -> str | None:
        known = self._known.get(subscription)
        if not known:
            return None
        return ",".join(str(Bookmark(instance, sequence)) for instance, sequence in known.items())

    def forget(self, subscription: str) -> None:
        self._known.pop(subscription, None)

    def close(self) -> None:
        """Nothing to let go of."""


class FileBookmarkStore(MemoryBookmarkStore):
    """Keeps bookmarks in a file, for one process at a time. A line is written for each move, and survives the process."""

    def __init__(self, path: Path | str) -> None:
        super().__init__()
        self.path = Path(path)
        self.truncated_bytes = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _open_locked(self.path)
        self._size = self._recover()

    def _recover(self) -> int:
        raw = self.path.read_bytes()
        good = 0
        for line in raw.splitlines(keepends=True):
            if not self._take(line):
                break
            good += len(line)
        if good == 0 and (b"\n" in raw or len(raw) > 4_096):  # no torn first line, but something else
            os.close(self._file)
            raise OperatorError(
                "bad_store", f"{self.path} isn't a bookmark store.", "Name another file; this one was left as it is."
            )
        self.truncated_bytes = len(raw) - good
        if self.truncated_bytes:
            self.path.with_name(self.path.name + ".torn").write_bytes(raw[good:])
            os.ftruncate(self._file, good)
        return good

    def _take(self, line: bytes) -> bool:
        if len(line) < 10 or not line.endswith(b"\n") or line[:8] != b"%08x" % crc32c(line[9:-1]):
            return False
        subscription, instance, sequence = orjson.loads(line[9:-1])
        if sequence < 0:
            super().forget(subscription)
        else:
            super().record(subscription, instance, sequence)
        return True

    def record(self, subscription: str, instance: str, sequence: int) -> None:
        super().record(subscription, instance, sequence)
        self._write(_line(subscription, instance, sequence))

    def forget(self, subscription: str) -> None:
        super().forget(subscription)
        self._write(_line(subscription, "", -1))

    def _write(self, line: bytes) -> None:
        try:
            if os.pwrite(self._file, line, self._size) != len(line):
                raise OSError("the disk took only a part")
        except OSError as problem:
            os.ftruncate(self._file, self._size)
            raise OperatorError(
                "store_failed", f"The bookmark store {self.path} can't be written: {problem}.", "Make room on its disk."
            ) from problem
        self._size += len(line)
        if self._size >= COMPACT_AT:
            self._compact()

    def _compact(self) -> None:
        lines = [_line(subscription, instance, sequence)
                 for subscription, known in self._known.items() for instance, sequence in known.items()]
        fresh = self.path.with_name(self.path.name + ".tmp")
        file = _open_locked(fresh, os.O_TRUNC)
        whole = b"".join(lines)
        try:
            if os.pwrite(file, whole, 0) != len(whole):
                raise OSError("the disk took only a part")
            os.fsync(file)
            fresh.replace(self.path)
        except OSError:
            os.close(file)  # the old file is whole and goes on
            return
        os.close(self._file)
        self._file, self._size = file, len(whole)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _line(subscription: str, instance: str, sequence: int) -> bytes:
    text = orjson.dumps([subscription, instance, sequence])
    return b"%08x %s\n" % (crc32c(text), text)


def _open_locked(path: Path, more: int = 0) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | more, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise OperatorError(
            "store_locked", f"The bookmark store {path} is in use by another process.",
            "Give each subscriber a store of its own.",
        ) from None
    return file
