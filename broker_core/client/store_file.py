"""File of a store: locked by one process, appended atomically, and compacted by rename.

A crash can leave a torn tail, which the store cuts, and a `.tmp` file, which the next opening removes unread.
A rename replaces the file only after the new bytes are on disk, so one of the two files is always complete.
Bytes that no store can use are moved to a `.torn` file beside it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from broker_core.batch import Buffer
from broker_core.errors import OperatorError


class StoreFile:
    """Open, locked file of `end` bytes.

    `what` names the kind of store in error messages.

    Raises:
        OperatorError: `store_locked` if another process has the file, or `store_failed`.
    """

    def __init__(self, path: Path | str, what: str) -> None:
        self.path = Path(path)
        self._what = what
        self._fresh = self.path.with_name(self.path.name + ".tmp")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open_locked()
        self._fresh.unlink(missing_ok=True)
        self.end = os.fstat(self._file).st_size

    def _open_locked(self) -> int:
        """Open and lock the file.

        Another process may replace the file between open and lock. So the loop checks that the name still
        refers to it.
        """
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                raise OperatorError(
                    "store_locked",
                    f"The {self._what} {self.path} is in use by another process.",
                    "Give each client a store of its own.",
                ) from None
            try:
                if os.path.samestat(os.fstat(file), self.path.stat()):
                    return file
            except FileNotFoundError:
                pass
            os.close(file)  # a compaction replaced the file between open and lock: open the new one

    def read(self, at: int, length: int) -> bytes:
        """Return bytes of the file; fewer at its end."""
        return os.pread(self._file, length, at)

    def append(self, *parts: Buffer, sync: bool = False) -> int:
        """Append all parts or nothing. Returns the position at which they start.

        With `sync` the bytes are on disk when this returns.

        Raises:
            OperatorError: `store_failed`.
        """
        at, wanted = self.end, sum(map(len, parts))
        try:
            written = os.pwritev(self._file, parts, at)
            if written != wanted:
                raise OSError(f"{written} of {wanted} bytes were written")
            if sync:
                os.fdatasync(self._file)
        except OSError as problem:
            os.ftruncate(self._file, at)
            raise OperatorError(
                "store_failed",
                f"The {self._what} {self.path} can't be written: {problem}.",
                "Free space on its disk.",
            ) from problem
        self.end = at + wanted
        return at

    def truncate(self, end: int) -> None:
        """Cut the file at a position."""
        os.ftruncate(self._file, end)
        self.end = end

    def set_aside(self, *parts: Buffer) -> None:
        """Write unusable bytes to the `.torn` file beside the file, replacing its previous content."""
        self.path.with_name(self.path.name + ".torn").write_bytes(b"".join(parts))

    def rewrite(self, parts: Iterable[Buffer]) -> bool:
        """Replace the file by one with these parts.

        Returns False if the disk refuses; the old file then stays in use.

        The parts may be read from this file: it is unchanged until the new one is on disk.
        """
        file, end = -1, 0
        try:
            file = os.open(self._fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            # Lock before the rename gives it the name, so that no other process can lock it first.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for part in parts:
                if os.pwrite(file, part, end) != len(part):
                    raise OSError("the disk took only a part")
                end += len(part)
            os.fsync(file)  # before the rename: after a crash the name must not refer to missing bytes
            self._fresh.replace(self.path)
        except OSError:
            if file >= 0:
                os.close(file)
            return False
        os.close(self._file)
        self._file, self.end = file, end
        self.sync_directory()
        return True

    def sync_directory(self) -> None:
        """Sync the directory, so that the file's name is as durable as its content."""
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def refuse(self) -> OperatorError:
        """Close a file of another kind without changing it. Returns the error to raise."""
        self.close()
        return OperatorError(
            "bad_store",
            f"{self.path} isn't a {self._what}.",
            "Name another file; this one was left as it is.",
        )

    def close(self) -> None:
        """Close the file and release its lock. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
