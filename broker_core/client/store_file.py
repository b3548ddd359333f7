"""File of a store: locked by one process, appended atomically, and compacted by rename.

A crash can leave a torn tail, which the store cuts, and a `.tmp` file, which the next opening removes unread.
A rename replaces the file only after the new bytes are on disk, so one of the two files is always complete.
Bytes that no store can use are moved to a `.torn` file beside it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from broker_core.batch import Buffer
from broker_core.errors import OperatorError


class StoreFile:
    """Open, locked file of `end` bytes.

    `description` names the kind of store in error messages. Every OSError of the file becomes OperatorError
    `store_failed`, and a failed construction leaves nothing open or locked.

    Raises:
        OperatorError: `store_locked` if another process has the file, or `store_failed`.
    """

    def __init__(self, path: Path | str, description: str) -> None:
        self.path = Path(path)
        self.end = 0
        self._description = description
        self._new_path = self.path.with_name(self.path.name + ".tmp")
        self._file = -1
        self._directory_synced = True
        """Whether the directory is on disk since the last rename."""
        with self.close_on_error():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open_locked()
            self._new_path.unlink(missing_ok=True)
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
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file), self.path.stat()):
                        return file
            except BlockingIOError:
                os.close(file)
                raise OperatorError(
                    "store_locked",
                    f"The {self._description} {self.path} is in use by another process.",
                    "Use a separate store for each client.",
                ) from None
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # a compaction replaced the file between open and lock: open the new one

    @contextmanager
    def close_on_error(self) -> Iterator[None]:
        """Close the file if the block fails. An OSError becomes OperatorError `store_failed`."""
        try:
            with self._named_errors():
                yield
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raise OperatorError `store_failed` for an OSError of the block."""
        try:
            yield
        except OSError as problem:
            raise self._failed(problem) from problem

    def _failed(self, problem: OSError) -> OperatorError:
        return OperatorError(
            "store_failed",
            f"The {self._description} {self.path} can't be read or written: {problem}.",
            "Free space on its disk, or repair the disk.",
        )

    def read(self, at: int, length: int) -> bytes:
        """Return bytes of the file; fewer at its end.

        Raises:
            OperatorError: `store_failed`.
        """
        try:
            return os.pread(self._file, length, at)
        except OSError as problem:
            raise self._failed(problem) from problem

    def append(self, *parts: Buffer, sync: bool = False) -> int:
        """Append all parts or nothing. Returns the position at which they start.

        With `sync` the bytes are on disk when this returns, and the file's name is, too.

        Raises:
            OperatorError: `store_failed`.
        """
        if sync and not self._directory_synced:
            self.sync_directory()
        at, nbytes = self.end, sum(map(len, parts))
        try:
            written = os.pwritev(self._file, parts, at)
            if written != nbytes:
                raise OSError(f"{written} of {nbytes} bytes were written")
            if sync:
                os.fdatasync(self._file)
        except OSError as problem:
            with suppress(OSError):  # the next append overwrites these bytes; an opening cuts a torn tail
                os.ftruncate(self._file, at)
            raise self._failed(problem) from problem
        self.end = at + nbytes
        return at

    def truncate(self, end: int) -> None:
        """Cut the file at a position.

        Raises:
            OperatorError: `store_failed`.
        """
        with self._named_errors():
            os.ftruncate(self._file, end)
        self.end = end

    def set_aside(self, *parts: Buffer) -> None:
        """Write unusable bytes to the `.torn` file beside the file, replacing its previous content.

        Raises:
            OperatorError: `store_failed`.
        """
        with self._named_errors():
            self.path.with_name(self.path.name + ".torn").write_bytes(b"".join(parts))

    def rewrite(self, parts: Iterable[Buffer]) -> bool:
        """Replace the file by one with these parts.

        Returns False if the disk refuses; the old file then stays in use. After True the new file is in use,
        even if the directory could not be synced. A power failure may then bring the old file back, so the
        next synced append syncs the directory first.

        The parts may be read from this file: it is unchanged until the new one is on disk.
        """
        try:
            file, end = self._write_new(parts)
        except (OSError, OperatorError):  # the second one by reading the parts from this file
            return False
        replaced, self._file, self.end = self._file, file, end
        self._directory_synced = False
        with suppress(OSError):
            os.close(replaced)
        with suppress(OperatorError):
            self.sync_directory()
        return True

    def _write_new(self, parts: Iterable[Buffer]) -> tuple[int, int]:
        """Write a file with these parts and give it the store's name.

        Returns the open, locked file and its size. An error leaves the old file under the name.
        """
        file, end = os.open(self._new_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), 0
        try:
            # Lock before the rename gives it the name, so that no other process can lock it first.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for part in parts:
                if os.pwrite(file, part, end) != len(part):
                    raise OSError("the disk accepted only some of the bytes")
                end += len(part)
            os.fsync(file)  # before the rename: after a crash the name must not refer to missing bytes
            self._new_path.replace(self.path)
        except BaseException:
            os.close(file)
            raise
        return file, end

    def sync_directory(self) -> None:
        """Sync the directory, so that the file's name is as durable as its content.

        Raises:
            OperatorError: `store_failed`.
        """
        with self._named_errors():
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        self._directory_synced = True

    def refuse(self) -> OperatorError:
        """Close a file of another kind without changing it. Returns the error to raise."""
        self.close()
        return OperatorError(
            "bad_store",
            f"{self.path} isn't a {self._description}.",
            "Name another file; this one was left as it is.",
        )

    def close(self) -> None:
        """Close the file and release its lock. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
