"""Queue of bytes in files. Bytes are added at the end and read from the front; read files are removed.

Added bytes stay in memory until they are worth a write. If the reader needs them before, it gets them from
memory, so a short backlog makes no file. A new file begins at PART_BYTES, so that a client that drains while
more arrives doesn't keep its read bytes on the disk.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from broker_core.errors import JournalError
from broker_core.journal.files import FileSystem, OpenFile, journal_error, write_all

PART_BYTES = 16 * 1024 * 1024
"""Size at which a new file begins, bytes."""
FLUSH_BYTES = 16 * 1024
"""Bytes in memory at which they are written."""
READ_BYTES = 64 * 1024
"""Bytes of one read."""
MEMORY_BYTES = 1024 * 1024
"""Bytes of references that may wait in memory for a full disk: some 26,000 batches, or runs of them."""


@dataclass(slots=True, eq=False)
class _SpoolFile:
    """Spool file and its size; or, without a file, bytes that are read before they were written."""

    file: OpenFile | None
    size: int = 0
    memory: bytes = b""


class SpoolFileQueue:
    """Queue of bytes in files `<path>.<number>`.

    `disk_bytes` counts the files and the bytes that will be written.
    """

    def __init__(self, path: Path, files: FileSystem) -> None:
        self.disk_bytes = 0
        self._path = path
        self._files = files
        self._parts: deque[_SpoolFile] = deque()
        self._made = 0
        self._unwritten = bytearray()
        self._flush_at = FLUSH_BYTES
        self._read_at = 0
        self._window = memoryview(b"")
        self._window_at = 0

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of `disk_bytes` that are in memory."""
        return len(self._unwritten)

    # Adding bytes.

    def put_deferred(self, raw: bytes) -> None:
        """Add bytes without writing; never fails. The next `append` may write them."""
        self._unwritten += raw
        self.disk_bytes += len(raw)

    def append(self, raw: bytes, *, small: bool = False) -> None:
        """Add bytes, and write all bytes in memory if there are enough of them.

        Bytes that are `small` may wait in memory for a full disk, up to MEMORY_BYTES.

        Raises:
            JournalError: disk_full or journal_failed. These bytes aren't added then; all earlier ones stay.
        """
        self.put_deferred(raw)
        if len(self._unwritten) >= self._flush_at:
            try:
                self._flush()
                self._flush_at = FLUSH_BYTES
            except JournalError:
                if small and len(self._unwritten) <= MEMORY_BYTES:
                    self._flush_at = len(self._unwritten) + FLUSH_BYTES
                    return
                del self._unwritten[len(self._unwritten) - len(raw) :]
                self.disk_bytes -= len(raw)
                raise

    def _flush(self) -> None:
        """Write all bytes in memory to the last file."""
        try:
            part, file = self._last_file()
            try:
                write_all(self._files, file.fd, [self._unwritten], part.size)
            except OSError:
                # A part of the bytes may be in the file; the next write must begin at `part.size` again.
                self._files.truncate(file.fd, part.size)
                raise
        except OSError as error:
            raise journal_error(error, "a client's spool") from error
        part.size += len(self._unwritten)
        self._unwritten = bytearray()

    def _last_file(self) -> tuple[_SpoolFile, OpenFile]:
        """Return the last file; a new one if there is none or it is full."""
        if self._parts:
            last = self._parts[-1]
            if last.file is not None and last.size < PART_BYTES:
                return last, last.file
        self._made += 1
        file = OpenFile(
            self._path.with_name(f"{self._path.name}.{self._made:06d}"), os.O_RDWR | os.O_CREAT | os.O_TRUNC
        )
        # The lock tells remove_leftover_spools that the spool is in use.
        fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._parts.append(_SpoolFile(file))
        return self._parts[-1], file

    # Reading bytes.

    def open_next_file(self) -> bool:
        """Go to the first file with unread bytes, and remove read ones.

        Return False if only unwritten bytes remain.
        """
        while self._parts and self._read_at >= self._parts[0].size:
            self._drop(self._parts.popleft())
            self._read_at = 0
        return bool(self._parts)

    def detach_unwritten(self) -> None:
        """Make the unwritten bytes the next part to be read. They are never written."""
        self._parts.append(_SpoolFile(None, len(self._unwritten), bytes(self._unwritten)))
        self.disk_bytes -= len(self._unwritten)
        self._unwritten, self._flush_at = bytearray(), FLUSH_BYTES

    def peek(self, size: int) -> memoryview:
        """Return the next `size` bytes without removing them.

        Raises:
            JournalError: spool_damaged, when there are fewer.
        """
        start = self._read_at - self._window_at
        if start < 0 or start + size > len(self._window):
            self._window, self._window_at, start = (
                memoryview(self._read(max(size, READ_BYTES))),
                self._read_at,
                0,
            )
        found = self._window[start : start + size]
        if len(found) < size:
            raise JournalError(
                "spool_damaged",
                f"The spool {self._path.name} ends in the middle of an entry.",
                "Check the disk of the spools; the client has to subscribe again from its bookmark.",
            )
        return found

    def _read(self, size: int) -> bytes:
        """Return up to `size` unread bytes of the first part."""
        part = self._parts[0]
        if part.file is None:
            return part.memory[self._read_at :]
        try:
            return os.pread(part.file.fd, size, self._read_at)
        except OSError as error:
            raise journal_error(error, "reading a client's spool") from error

    def skip(self, size: int) -> None:
        """Remove the next `size` bytes."""
        self._read_at += size

    def _drop(self, part: _SpoolFile) -> None:
        """Close and remove a part."""
        self._window, self._window_at = memoryview(b""), 0
        if part.file is not None:
            self.disk_bytes -= part.size
            part.file.close()
            with suppress(OSError):
                self._files.unlink(part.file.path)

    def start_new_file(self) -> None:
        """Remove all files, because everything written has been read."""
        while self._parts:
            self._drop(self._parts.popleft())
        self._read_at = 0

    def close(self, remove: bool) -> None:
        """Close the files. `remove` deletes them; otherwise they stay until `remove_leftover_spools`."""
        while self._parts:
            part = self._parts.popleft()
            if remove:
                self._drop(part)
            elif part.file is not None:
                part.file.close()
        self._unwritten, self._window = bytearray(), memoryview(b"")
        self.disk_bytes = self._read_at = 0


def remove_leftover_spools(directory: Path, instance: str) -> list[Path]:
    """Remove the spools that an earlier run of this instance left, except those in use.

    Return the removed paths.
    """
    removed: list[Path] = []
    if not directory.is_dir():
        return removed
    for path in sorted(directory.iterdir()):
        stem, _, number = path.name.rpartition(".")
        if not (path.name.startswith(f"{instance}.") and stem.endswith(".spool") and number.isdigit()):
            continue
        handle = OpenFile(path, os.O_RDWR)
        try:
            fcntl.flock(handle.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed.append(path)
        except BlockingIOError:
            continue
        finally:
            handle.close()
    return removed
