"""The file of a store: one process at a time, appended to whole or not at all, written anew beside and put in place.

What a crash can leave: a torn tail, which the store cuts; and a `.tmp` beside the file, which nobody reads and the
next opening removes. A rename puts the new file in place only after its bytes are on disk, so one of the two files
is always whole. Bytes that no store can use are kept in a `.torn` beside it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from broker_core.batch import Buffer
from broker_core.errors import OperatorError


class StoreFile:
    """An open, locked file of `end` bytes. Raises OperatorError store_locked or store_failed; `what` names the store."""

    def __init__(self, path: Path | str, what: str) -> None:
        self.path = Path(path)
        self._what = what
        self._fresh = self.path.with_name(self.path.name + ".tmp")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open_locked()
        self._fresh.unlink(missing_ok=True)
        self.end = os.fstat(self._file).st_size

    def _open_locked(self) -> int:
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
            os.close(file)  # it was written anew between open and lock: this one has no name any more

    def read(self, at: int, length: int) -> bytes:
        """Bytes of the file; fewer at its end."""
        return os.pread(self._file, length, at)

    def append(self, *parts: Buffer, sync: bool = False) -> int:
        """Write at the end, all or nothing; where it stands. With `sync` it is on disk when this returns."""
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
        """Forget everything from there on."""
        os.ftruncate(self._file, end)
        self.end = end

    def set_aside(self, *parts: Buffer) -> None:
        """Keep bytes that can't be used in a `.torn` beside the file, in place of those kept before."""
        self.path.with_name(self.path.name + ".torn").write_bytes(b"".join(parts))

    def rewrite(self, parts: Iterable[Buffer]) -> bool:
        """Put a file of these parts in this one's place. False when the disk refuses: this one is whole and goes on.

        The parts may be read from this file: it stays as it is until the new one is on disk.
        """
        file, end = -1, 0
        try:
            file = os.open(self._fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            # Before it has the name, so that nobody slips in.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for part in parts:
                if os.pwrite(file, part, end) != len(part):
                    raise OSError("the disk took only a part")
                end += len(part)
            os.fsync(file)
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
        """Make the file's name as durable as its bytes."""
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def refuse(self) -> OperatorError:
        """Close a file that is something else, as it was; the error to raise."""
        self.close()
        return OperatorError(
            "bad_store",
            f"{self.path} isn't a {self._what}.",
            "Name another file; this one was left as it is.",
        )

    def close(self) -> None:
        """Let go of it. Calling it twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
