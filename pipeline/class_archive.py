"""An archive of the JVM's classes (AppCDS) from one job for the next.

Loading and checking Spark's ten thousand classes took more than half of a small job.

The first job on a machine writes the archive when it ends, some 150 MB in the user's cache directory; later
jobs map that file. The archive only saves time: the JVM ignores an unsuitable one, and jobs start without
it if it can't be written. A JVM checks little of what it maps. So the file's name contains its checksum,
and a damaged one is made again.
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
"""Maximum seconds that a job waits for its JVM to write the archive."""
MAX_ARCHIVES: Final = 2
"""Archives to retain. The second one is for another Java or Spark."""
_SILENT: Final = "-Xlog:disable -Xlog:all=off"
"""JVM options that silence messages about an unsuitable archive."""
_UNREPORTED: Final = frozenset("'\"\\:\n")
"""Characters that a path can't have.

Spark splits options at unquoted blanks, and a JVM splits archives at colons.
"""
_CLASS_PATH: Final = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_SUBMIT_OPTS")
"""Variables that change the class path. A JVM accepts only an archive made with its own class path."""
_NEW_ARCHIVE: Final = ".making"


class JvmClassArchive:
    """Options for the JVM, and the work to do when it has ended."""

    def __init__(self, options: str = "", made: Path | None = None, key: str = "") -> None:
        self.options = options
        self._new_archive = made
        self._key = key

    @property
    def is_pending(self) -> bool:
        """Whether the JVM writes the archive when it ends."""
        return self._new_archive is not None

    def store(self) -> None:
        """Put the archive in place that the JVM, which has ended, has written."""
        if self._new_archive is not None:
            with contextlib.suppress(OSError, ValueError):
                with self._new_archive.open("rb") as file:
                    os.fsync(file.fileno())
                self._new_archive.rename(
                    self._new_archive.with_name(f"{self._key}-{_checksum(self._new_archive)}.jsa")
                )


@contextmanager
def class_archive(java: Path, environment: Mapping[str, str] = os.environ) -> Iterator[JvmClassArchive]:
    """Yield the archive for this Java and this Spark.

    If there is none, options that make it, for one job at a time.
    """
    folder = _folder(environment)
    with ExitStack() as stack:
        found = JvmClassArchive()
        if folder is not None:
            with contextlib.suppress(OSError):
                found = _find_archive(folder, _key(java, environment), stack)
        yield found


def _folder(environment: Mapping[str, str]) -> Path | None:
    """Return the archives' directory; None if there is none, or if its path can't be passed to a JVM."""
    caches = Path(environment.get("XDG_CACHE_HOME") or "")
    if not caches.is_absolute():  # the XDG convention says to ignore a relative path
        caches = Path(environment.get("HOME") or "", ".cache")
    return caches / "sluice" if caches.is_absolute() and not _UNREPORTED & set(str(caches)) else None


def _key(java: Path, environment: Mapping[str, str]) -> str:
    """Return the beginning of file names for this Java and this Spark.

    Raises OSError if there is no such Java.
    """
    of = java.resolve()
    spark = find_spec("pyspark")
    origin = spark.origin if spark and spark.origin else ""
    jars = (
        Path(origin).parent / "jars"
    )  # A JVM compares the jars' times, and Spark may have been reinstalled.
    laid = jars.stat().st_mtime_ns if jars.is_dir() else 0
    besides = [environment.get(name, "") for name in _CLASS_PATH]
    identity = f"{of} {of.stat().st_mtime_ns} {version('pyspark')} {origin} {laid} {besides}"
    return f"classes-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def _find_archive(folder: Path, key: str, stack: ExitStack) -> JvmClassArchive:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    archives = sorted(folder.glob(f"{key}-*.jsa"))
    for path in archives:
        if _is_complete(path):
            with contextlib.suppress(OSError):  # another user's archive is only readable
                os.utime(path)
            return JvmClassArchive(f'"-XX:SharedArchiveFile={path}" {_SILENT}')
    lock = stack.enter_context((folder / ".lock").open("a"))
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: another job makes it
    for leftover in [*folder.glob(f"*{_NEW_ARCHIVE}"), *archives]:
        _remove(leftover)
    older = sorted(folder.glob("classes-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in older[MAX_ARCHIVES - 1 :]:
        _remove(path)
    # A unique name: the JVM of a killed job may still be writing to an earlier one.
    made = folder / f"{key}.{uuid4().hex}{_NEW_ARCHIVE}"
    stack.callback(_remove, made)
    return JvmClassArchive(f'"-XX:ArchiveClassesAtExit={made}" {_SILENT}', made, key)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _is_complete(path: Path) -> bool:
    """Whether an archive matches its checksum.

    Takes some 20 ms, and loads the pages that the JVM needs anyway.
    """
    try:
        return path.stem.rpartition("-")[2] == _checksum(path)
    except (OSError, ValueError):
        return False


def _checksum(path: Path) -> str:
    """Return the file's checksum. Raises OSError; ValueError if it is empty."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return f"{crc32c(content):08x}"
