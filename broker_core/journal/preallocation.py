"""Spare segments: files of zeros made in advance. A roll is then a rename, and an fdatasync stays cheap.

A file `<instance>.spare.<number>` is complete and synced whenever it has this name. A background thread fills
spares outside the journal's lock, through `create_missing`. It works in steps, syncs each, and pauses between
them, because a sync of the journal also waits for the disk's work on a spare.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from broker_core.journal.files import FileSystem, OpenFile

STEP = 256 * 1024
"""Bytes of zeros that are written and synced per step: a millisecond on a disk with 256 MB/s."""


class SpareSegments:
    """Spare files of one journal."""

    def __init__(self, files: FileSystem, directory: Path, instance: str, size: int, target: int) -> None:
        self._files = files
        self._directory = directory
        self._prefix = f"{instance}.spare."
        self._size = size
        self._target = target
        self._filling = Lock()
        self._spares = self._find()

    def _find(self) -> list[Path]:
        """Return the spares of an earlier run; remove unfinished ones and those of another size."""
        found_spares: list[Path] = []
        for path in sorted(self._directory.glob(f"{self._prefix}*")):
            if not path.name.removeprefix(self._prefix).removesuffix(".tmp").isdigit():
                continue  # another instance's file whose name begins with this prefix
            if (
                path.suffix != ".tmp"
                and path.stat().st_size == self._size
                and len(found_spares) < self._target
            ):
                found_spares.append(path)
            else:
                self._files.unlink(path)
        return found_spares

    def __len__(self) -> int:
        return len(self._spares)

    def set_size(self, size: int, target: int) -> None:
        """Set size and number from the next `create_missing` on.

        Until then a roll may use a spare of the old size.
        """
        self._size, self._target = size, target

    def create_missing(self, pause: Callable[[], bool]) -> int:
        """Create the missing spares; return their number. Raises OSError when the disk is full.

        `pause` is called after each step and returns whether to continue; otherwise the unfinished spare is
        removed.
        """
        made = 0
        with self._filling:
            self._remove_useless()
            while len(self._spares) < self._target and (spare := self._make(pause)) is not None:
                self._spares.append(spare)
                made += 1
        return made

    def _remove_useless(self) -> None:
        """Remove spares of another size or beyond the wanted number."""
        for number, path in enumerate(list(self._spares)):
            with suppress(OSError, ValueError):  # used by a roll meanwhile
                if number >= self._target or path.stat().st_size != self._size:
                    self._spares.remove(path)
                    self._files.unlink(path)

    def _make(self, pause: Callable[[], bool]) -> Path | None:
        """Create one spare; return None if `pause` asked to stop.

        It is written under a temporary name and renamed when it is complete and synced.
        """
        used_names = {path.name for path in self._spares}
        number = next(n for n in range(1, self._target + 2) if f"{self._prefix}{n}" not in used_names)
        path = self._directory / f"{self._prefix}{number}"
        temporary = path.with_name(path.name + ".tmp")
        size = self._size
        handle = OpenFile(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            for offset in range(0, size, STEP):
                self._files.zero_fill(handle.fd, offset, min(STEP, size - offset))
                if not pause():
                    self._files.unlink(temporary)
                    return None
            self._files.fsync(handle.fd)
            self._files.rename(temporary, path)
        except OSError:
            with suppress(OSError):
                self._files.unlink(temporary)
            raise
        finally:
            handle.close()
        return path

    def create_file(self, path: Path) -> OpenFile:
        """Return an open file of zeros at `path`: a spare, or a new file with reserved blocks.

        Raises OSError when the disk is full.
        """
        if self._spares:
            self._files.rename(self._spares.pop(0), path)
            return OpenFile(path, os.O_RDWR)
        handle = OpenFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._files.reserve(handle.fd, self._size)
        except OSError:
            handle.close()
            self._files.unlink(path)
            raise
        return handle
