"""File systems that are slow or fail at chosen calls; a broker gets one in place of `FileSystem`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from broker_core.batch import Buffer
from broker_core.journal.files import FileSystem


@dataclass(frozen=True)
class Failpoint:
    """A planned failure of file calls.

    From call number `at` (1 is the first) of type `call` on files whose name contains `name`, `times` calls
    wait `delay_s` and fail with `errno` (0: they succeed).
    """

    call: str
    at: int
    errno: int = 0
    delay_s: float = 0.0
    times: int = 1
    name: str = ".journal"


class Failpoints(FileSystem):
    """A file system that counts calls and applies failpoints."""

    def __init__(self, *points: Failpoint) -> None:
        self.points = points
        self.calls: Counter[str] = Counter()

    def _apply_points(self, call: str, name: str) -> None:
        met = [point for point in self.points if point.call == call and point.name in name]
        self.calls.update({f"{call} {point.name}" for point in met})
        for point in met:
            if point.at <= self.calls[f"{call} {point.name}"] < point.at + point.times:
                time.sleep(point.delay_s)
                if point.errno:
                    raise OSError(point.errno, os.strerror(point.errno))

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._apply_points("pwritev", _name(fd))
        return super().pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        self._apply_points("fdatasync", _name(fd))
        super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._apply_points("fsync", _name(fd))
        super().fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        self._apply_points("truncate", _name(fd))
        super().truncate(fd, length)

    def rename(self, source: Path, target: Path) -> None:
        self._apply_points("rename", target.name)
        super().rename(source, target)

    def sync_directory(self, directory: Path) -> None:
        self._apply_points("sync_directory", directory.name)
        super().sync_directory(directory)


class SyncGate(FileSystem):
    """A file system whose segment syncs wait while it is blocked, and can be made to fail."""

    def __init__(self) -> None:
        self._open = Event()
        self._open.set()
        self.waiting = Event()
        """Set while a sync is blocked."""
        self.error: OSError | None = None

    def block(self) -> None:
        self._open.clear()

    def release(self, error: OSError | None = None) -> None:
        """Let syncs continue; the waiting sync fails with `error` if given."""
        self.error = error
        self._open.set()

    def fdatasync(self, fd: int) -> None:
        if not self._open.is_set():
            self.waiting.set()
            assert self._open.wait(60), "the gate was not opened in time"
            self.waiting.clear()
        error: Any = self.error
        if error is not None:
            raise error
        super().fdatasync(fd)


def _name(fd: int) -> str:
    return Path(f"/proc/self/fd/{fd}").readlink().name
