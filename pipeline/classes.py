"""The JVM's classes, kept from one job for the next (AppCDS), because loading and checking Spark's ten thousand took more than
half of a small job.

The first job on a machine leaves them behind when it ends, some 150 MB in the user's cache directory; later ones map that file. It is
only a gain of time: one that doesn't fit the JVM is ignored by the JVM, and where it can't be kept jobs start without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

END_SECONDS: Final = 120
KEPT: Final = 2
"""Files; of another Java or Spark than this one's is the second."""
_SILENT: Final = "-Xlog:disable -Xlog:all=off"
"""A file that doesn't fit is no news to who runs a job."""
_UNTOLD: Final = frozenset("'\"\\:\n")
"""Spark takes options apart at blanks outside of quotes, and a JVM the names of archives at colons."""


class Archive:
    """What a JVM is to be given, and what is to be done when it has ended."""

    def __init__(self, options: str = "", made: Path | None = None, name: Path | None = None) -> None:
        self.options = options
        self._made = made
        self._name = name

    @property
    def awaited(self) -> bool:
        """Whether the JVM writes the file when it ends."""
        return self._made is not None

    def keep(self) -> None:
        """Take what the JVM has left, which has ended."""
        if self._made is not None and self._name is not None:
            with contextlib.suppress(OSError):
                with self._made.open("rb") as file:
                    os.fsync(
                        file.fileno()
                    )  # a JVM trusts what it maps: no name for what a power loss would empty
                self._made.rename(self._name)


@contextmanager
def class_archive(java: Path, environment: Mapping[str, str] = os.environ) -> Iterator[Archive]:
    """The archive for this Java and this Spark; without one there yet, the order to make it, given to one job at a time."""
    folder = _folder(environment)
    with ExitStack() as held:
        found = Archive()
        if folder is not None:
            with contextlib.suppress(OSError):
                found = _found(folder, java, held)
        yield found


def _folder(environment: Mapping[str, str]) -> Path | None:
    """Where they are kept; None where there is no place for them, or none whose name could be told to a JVM."""
    caches = Path(environment.get("XDG_CACHE_HOME") or "")
    if not caches.is_absolute():  # such a one isn't meant, by the convention
        caches = Path(environment.get("HOME") or "", ".cache")
    return caches / "sluice" if caches.is_absolute() and not _UNTOLD & set(str(caches)) else None


def _found(folder: Path, java: Path, held: ExitStack) -> Archive:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    of = java.resolve()
    spark = find_spec("pyspark")  # its place is the class path, which has to be the same
    key = f"{of} {of.stat().st_mtime_ns} {version('pyspark')} {spark.origin if spark else ''}"
    name = folder / f"classes-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"
    if name.is_file():
        with contextlib.suppress(OSError):  # somebody else's may be read
            os.utime(name)
        return Archive(f'"-XX:SharedArchiveFile={name}" {_SILENT}')
    lock = held.enter_context((folder / ".lock").open("a"))
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: another job makes it
    for left in folder.glob("*.making"):
        left.unlink()
    older = sorted(folder.glob("classes-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in older[KEPT - 1 :]:
        path.unlink()
    made = name.with_suffix(".making")
    return Archive(f'"-XX:ArchiveClassesAtExit={made}" {_SILENT}', made, name)
