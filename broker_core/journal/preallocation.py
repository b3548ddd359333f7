"""Spare segments: files of zeros made in advance, so that a roll is a rename and an fdatasync stays cheap.

`<instance>.spare.<number>` exists under that name only when it is complete and synced. Filling happens outside the
journal's lock, in whatever thread calls `fill`, in steps, each synced by itself, with rests between them: a sync of the
journal waits for what the disk has to do for a spare as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from broker_core.journal.files import FileSystem, OpenFile

STEP = 256 * 1024
"""Bytes of zeros that are written and synced in one go: a millisecond of a disk that takes 256 MB/s."""


class SpareSegments:
    """The spare files of one journal."""

    def __init__(self, files: FileSystem, directory: Path, instance: str, size: int, wanted: int) -> None:
        self._files = files
        self._directory = directory
        self._prefix = f"{instance}.spare."
        self._size = size
        self._wanted = wanted
        self._filling = Lock()
        self._ready = self._find()

    def _find(self) -> list[Path]:
        """Spares an earlier run left; unfinished ones and those of another size are removed."""
        ready: list[Path] = []
        for path in sorted(self._directory.glob(f"{self._prefix}*")):
            if not path.name.removeprefix(self._prefix).removesuffix(".tmp").isdigit():
                continue  # a file of an instance whose own name begins like our spares'
            if path.suffix != ".tmp" and path.stat().st_size == self._size and len(ready) < self._wanted:
                ready.append(path)
            else:
                self._files.unlink(path)
        return ready

    def __len__(self) -> int:
        return len(self._ready)

    def set_size(self, size: int, wanted: int) -> None:
        """Another size and number, from the next `fill` on. A spare of the old size may still be taken until then."""
        self._size, self._wanted = size, wanted

    def create_missing(self, rest: Callable[[], bool]) -> int:
        """Make what is missing of the wanted number; returns how many were made. OSError when there is no room.

        `rest` is called after each step, and says whether to go on; what has been begun is thrown away if not.
        """
        made = 0
        with self._filling:
            self._remove_useless()
            while len(self._ready) < self._wanted and (spare := self._make(rest)) is not None:
                self._ready.append(spare)
                made += 1
        return made

    def _remove_useless(self) -> None:
        for number, path in enumerate(list(self._ready)):
            with suppress(OSError, ValueError):  # taken meanwhile
                if number >= self._wanted or path.stat().st_size != self._size:
                    self._ready.remove(path)
                    self._files.unlink(path)

    def _make(self, rest: Callable[[], bool]) -> Path | None:
        taken = {path.name for path in self._ready}
        number = next(n for n in range(1, self._wanted + 2) if f"{self._prefix}{n}" not in taken)
        path = self._directory / f"{self._prefix}{number}"
        temporary = path.with_name(path.name + ".tmp")
        size = self._size
        handle = OpenFile(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            for offset in range(0, size, STEP):
                self._files.zero_fill(handle.fd, offset, min(STEP, size - offset))
                if not rest():
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

    def take(self, path: Path) -> OpenFile:
        """A file of zeros under the name of the next segment: a spare, or one made now whose blocks are reserved."""
        if self._ready:
            self._files.rename(self._ready.pop(0), path)
            return OpenFile(path, os.O_RDWR)
        handle = OpenFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._files.reserve(handle.fd, self._size)
        except OSError:
            handle.close()
            self._files.unlink(path)
            raise
        return handle
