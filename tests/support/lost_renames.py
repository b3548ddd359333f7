"""A file system that loses power at a chosen call, and with it the renames that were not synced.

A rename is durable only after its directory was synced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from broker_core.batch import Buffer
from broker_core.journal.files import FileSystem


class LostRenames(FileSystem):
    """A file system without effect from call number `power_goes_at` on.

    `power_on` leaves file names as they may be found after a power loss: POSIX guarantees a rename only after
    a sync of the directory. Bytes written to files stay, torn or not; other tests check those.
    """

    def __init__(self, beside: Path) -> None:
        self._beside = beside
        """Directory for replaced files, in case a rename is undone."""
        self._unsynced: list[tuple[Path, Path, Path | None]] = []
        self.calls = 0
        self.power_goes_at = 0
        """0: never."""

    def _call(self) -> None:
        self.calls += 1
        if self.power_goes_at and self.calls >= self.power_goes_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def power_on(self) -> int:
        """Undo the renames that were not synced; return their number."""
        lost = len(self._unsynced)
        while self._unsynced:
            source, target, replaced = self._unsynced.pop()
            target.rename(source)
            if replaced is not None:
                replaced.rename(target)
        return lost

    def rename(self, source: Path, target: Path) -> None:
        self._call()
        replaced = self._beside / f"replaced.{self.calls}" if target.exists() else None
        if replaced is not None:
            os.link(target, replaced)
        super().rename(source, target)
        self._unsynced.append((source, target, replaced))

    def sync_directory(self, directory: Path) -> None:
        self._call()
        super().sync_directory(directory)
        self._unsynced = [one for one in self._unsynced if one[1].parent != directory]

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._call()
        return super().pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        self._call()
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._call()
        super().fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        self._call()
        super().truncate(fd, length)

    def unlink(self, path: Path) -> None:
        self._call()
        super().unlink(path)
