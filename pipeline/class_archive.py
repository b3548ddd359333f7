"""The JVM's classes, kept from one job for the next (AppCDS), because loading and checking Spark's ten thousand took more than
half of a small job.

The first job on a machine leaves them behind when it ends, some 150 MB in the user's cache directory; later ones map that file. It is
only a gain of time: one that doesn't fit the JVM is ignored by the JVM, and where it can't be kept jobs start without it. A JVM
checks little of what it maps. So the file's name has its checksum, and one that is damaged is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from uuid import uuid4

from broker_core.checksum import crc32c

END_SECONDS: Final = 120
KEPT: Final = 2
"""Files; of another Java or Spark than this one's is the second."""
_SILENT: Final = "-Xlog:disable -Xlog:all=off"
"""A file that doesn't fit is no news to who runs a job."""
_UNTOLD: Final = frozenset("'\"\\:\n")
"""Spark takes options apart at blanks outside of quotes, and a JVM the names of archives at colons."""
_CLASS_PATH: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_SUBMIT_OPTS")
"""What changes the class path besides: a JVM wants the one that the file was made with."""
_MAKING: Final = ".making"


class JvmClassArchive:
    """What a JVM is to be given, and what is to be done when it has ended."""

    def __init__(self, options: str = "", made: Path | None = None, key: str = "") -> None:
        self.options = options
        self._made = made
        self._key = key

    @property
    def is_pending(self) -> bool:
        """Whether the JVM writes the file when it ends."""
        return self._made is not None

    def store(self) -> None:
        """Take what the JVM has left, which has ended."""
        if self._made is not None:
            with contextlib.suppress(OSError, ValueError):
                with self._made.open("rb") as file:
                    os.fsync(file.fileno())
                self._made.rename(self._made.with_name(f"{self._key}-{_sum_of(self._made)}.jsa"))


@contextmanager
def class_archive(java: Path, environment: Mapping[str, str] = os.environ) -> Iterator[JvmClassArchive]:
    """The archive for this Java and this Spark; without one there yet, the order to make it, given to one job at a time."""
    folder = _folder(environment)
    with ExitStack() as held:
        found = JvmClassArchive()
        if folder is not None:
            with contextlib.suppress(OSError):
                found = _found(folder, _key(java, environment), held)
        yield found


def _folder(environment: Mapping[str, str]) -> Path | None:
    """Where they are kept; None where there is no place for them, or none whose name could be told to a JVM."""
    caches = Path(environment.get("XDG_CACHE_HOME") or "")
    if not caches.is_absolute():  # such a one isn't meant, by the convention
        caches = Path(environment.get("HOME") or "", ".cache")
    return caches / "sluice" if caches.is_absolute() and not _UNTOLD & set(str(caches)) else None


def _key(java: Path, environment: Mapping[str, str]) -> str:
    """What a file's name begins with that fits this Java and this Spark. OSError when there is no such Java."""
    of = java.resolve()
    spark = find_spec("pyspark")
    origin = spark.origin if spark and spark.origin else ""
    jars = (
        Path(origin).parent / "jars"
    )  # a JVM looks at their times, and Spark may have been installed once more
    laid = jars.stat().st_mtime_ns if jars.is_dir() else 0
    besides = [environment.get(name, "") for name in _CLASS_PATH]
    told = f"{of} {of.stat().st_mtime_ns} {version('pyspark')} {origin} {laid} {besides}"
    return f"classes-{hashlib.sha256(told.encode()).hexdigest()[:16]}"


def _found(folder: Path, key: str, held: ExitStack) -> JvmClassArchive:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = sorted(folder.glob(f"{key}-*.jsa"))
    for path in kept:
        if _is_whole(path):
            with contextlib.suppress(OSError):  # somebody else's may be read
                os.utime(path)
            return JvmClassArchive(f'"-XX:SharedArchiveFile={path}" {_SILENT}')
    lock = held.enter_context((folder / ".lock").open("a"))
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: another job makes it
    for left in [*folder.glob(f"*{_MAKING}"), *kept]:
        _remove(left)
    older = sorted(folder.glob("classes-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in older[KEPT - 1 :]:
        _remove(path)
    # A name of its own: the JVM of a job that was killed may still be writing to another.
    made = folder / f"{key}.{uuid4().hex}{_MAKING}"
    held.callback(_remove, made)
    return JvmClassArchive(f'"-XX:ArchiveClassesAtExit={made}" {_SILENT}', made, key)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _is_whole(path: Path) -> bool:
    """Whether a file is what it was when it was named. Some 20 ms of the page cache, into which the JVM wants it anyway."""
    try:
        return path.stem.rpartition("-")[2] == _sum_of(path)
    except (OSError, ValueError):
        return False


def _sum_of(path: Path) -> str:
    """The file's checksum. OSError; ValueError when it is empty."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return f"{crc32c(content):08x}"
