"""File faults under a whole broker: by call, file and count it delays, fails, tears or drops a write, or
kills the process.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from broker_core.batch import Buffer
from broker_core.journal.files import FileSystem

CALLS: Final = (
    "pwritev",
    "fdatasync",
    "fsync",
    "truncate",
    "reserve",
    "rename",
    "unlink",
    "sync_directory",
    "zero_fill",
)
"""All calls by which a broker changes a disk."""


@dataclass(frozen=True)
class FileFault:
    """Planned fault at call number `at` (1 is the first) of one type, on files whose name contains `name`.

    `what`: "before" and "after" kill the process before or after the call; "cut before" and "cut after"
    freeze it, and runs.py then cuts the power; "torn" does half of a write and kills; "short" writes half;
    "lie" does nothing and reports success; "delay" takes 0.3 s; a number is an errno.
    """

    call: str
    at: int
    what: str | int
    name: str = ""

    def __str__(self) -> str:
        said = errno.errorcode[self.what] if isinstance(self.what, int) else self.what
        return f"{said} at {self.call} {self.at} of {self.name or 'any'}"


class FaultyFiles:
    """A patch of `FileSystem` that counts the calls of the whole process after `install`."""

    def __init__(self, *misfortunes: FileFault) -> None:
        self.misfortunes = misfortunes
        self.calls: Counter[str] = Counter()
        self.met: list[FileFault] = []

    def install(self) -> None:
        """Patch `FileSystem` for the rest of the process, which must run only a broker."""
        for call in CALLS:
            setattr(FileSystem, call, self._wrapped(call, getattr(FileSystem, call)))

    def _wrapped(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(files: FileSystem, *arguments: Any) -> Any:
            one = self._next(call, _name_of(arguments))
            if one is None:
                return real(files, *arguments)
            self.met.append(one)
            return _suffer(one.what, real, files, arguments)

        return run

    def _next(self, call: str, name: str) -> FileFault | None:
        found = None
        for number, one in enumerate(self.misfortunes):
            if one.call == call and one.name in name:
                self.calls[str(number)] += 1
                if self.calls[str(number)] == one.at:
                    found = one
        return found


def _suffer(what: str | int, real: Callable[..., Any], files: FileSystem, arguments: tuple[Any, ...]) -> Any:
    if isinstance(what, int):
        raise OSError(what, os.strerror(what))
    if what == "cut before":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if what in ("torn", "short"):
        written = _half(real, files, *arguments)
        if what == "torn":
            os.kill(os.getpid(), signal.SIGKILL)
        return written
    if what == "lie":
        return None
    if what == "delay":
        time.sleep(0.3)
    made = real(files, *arguments)
    if what == "cut after":
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return made


def _half(
    real: Callable[..., Any], files: FileSystem, fd: int, buffers: Sequence[Buffer], offset: int
) -> Any:
    whole = b"".join(buffers)
    return real(files, fd, [whole[: max(1, len(whole) // 2)]], offset)


def _name_of(arguments: tuple[Any, ...]) -> str:
    last = next((one for one in reversed(arguments) if isinstance(one, Path)), None)
    if last is not None:
        return last.name
    try:
        return Path(f"/proc/self/fd/{arguments[0]}").readlink().name
    except OSError:
        return ""
