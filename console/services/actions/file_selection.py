"""Selection of files that actions may delete or compress.

Files must be in declared folders. Journals, links and files that a process has open are never selected.

A folder is opened once, and all operations use its descriptor. So a path that is replaced by a link after
the check has no effect. Sub-folders are ignored. Source: AMPS's pages Remove Files and Compress Files.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from isal import igzip

from broker_core.errors import OperatorError
from console.services import journal_directories
from console.services.actions.patterns import compile_glob

MAX_FILES = 10_000
"""Maximum files per step. A larger folder takes several runs, oldest files first."""
PROTECTED = (
    ".journal",
    ".ack",
    ".index",
    ".spool",
    ".quarantine",
    ".sqlite3",
    "secret_key",
    ".lock",
    ".sock",
)
"""Parts of file names that actions never touch, whatever the pattern."""
_PART = ".sluice-part"
"""Suffix of a compressed file that isn't complete."""


@dataclass(frozen=True, slots=True)
class SelectedFile:
    """File chosen for a step: name, size, time of the last change in ns, and identity (device, inode)."""

    name: str
    nbytes: int
    changed_ns: int
    identity: tuple[int, int]


@dataclass(frozen=True, slots=True)
class FileSelection:
    """Files that a step would change, and files that it skips, each with the reason."""

    folder: Path
    chosen: list[SelectedFile]
    skipped: list[tuple[str, str]]

    @property
    def nbytes(self) -> int:
        """Total bytes of the chosen files."""
        return sum(found.nbytes for found in self.chosen)


def check_folder(text: str) -> Path:
    """Return the real path of a folder.

    Raises OperatorError `folder_refused` unless it is in a declared folder.
    """
    folder = Path(os.path.realpath(text)) if text.startswith("/") else None
    declared = [Path(os.path.realpath(one)) for one in settings.SLUICE_ACTION_FOLDERS]
    if folder is None or not any(folder == one or one in folder.parents for one in declared):
        raise _refused(f"{text[:200]!r} isn't in a declared directory.")
    for reserved in (*journal_directories.all_directories(), settings.SLUICE_SPOOL_DIRECTORY):
        inner = Path(os.path.realpath(reserved))
        if folder == inner or inner in folder.parents:
            raise _refused(f"{text[:200]!r} contains journals or spools.")
    if not folder.is_dir():
        raise _refused(f"{text[:200]!r} isn't a directory.")
    return folder


def select_files(text: str, pattern: str, age_s: int, now_ns: int, *, packed: bool) -> FileSelection:
    """Select a folder's files that match a pattern and were last changed at least `age_s` ago.

    Args:
        text: The folder.
        pattern: Glob for names of files.
        age_s: Minimum age in seconds.
        now_ns: The present time in ns since 1970.
        packed: Skip files that are compressed already.

    Raises:
        OperatorError: `folder_refused` or `bad_pattern`.
    """
    fits, oldest = compile_glob(pattern), now_ns - age_s * 10**9
    chosen: list[SelectedFile] = []
    skipped: list[tuple[str, str]] = []
    folder = check_folder(text)
    with _open_folder(folder) as descriptor, os.scandir(descriptor) as entries:
        for entry in entries:
            if not fits(entry.name) or not entry.is_file(follow_symlinks=False):
                continue  # never follow links or sub-folders
            facts = entry.stat(follow_symlinks=False)
            if reason := _skip_reason(entry.name, facts, oldest, packed):
                skipped.append((entry.name, reason))
            else:
                chosen.append(
                    SelectedFile(entry.name, facts.st_size, facts.st_mtime_ns, (facts.st_dev, facts.st_ino))
                )
    chosen.sort(key=lambda found: (found.changed_ns, found.name))
    return _without_open(FileSelection(folder, chosen[:MAX_FILES], sorted(skipped)[:100]))


def delete_files(choice: FileSelection, each: Callable[[int], None]) -> tuple[int, int]:
    """Delete the chosen files that are unchanged, and return the numbers of files and bytes.

    `each` is called with the index before every file; an exception that it raises ends the deletion.
    """
    count = nbytes = 0
    with _open_folder(choice.folder) as descriptor:
        for number, found in enumerate(choice.chosen):
            each(number)
            if _is_same(descriptor, found):
                os.unlink(found.name, dir_fd=descriptor)
                count, nbytes = count + 1, nbytes + found.nbytes
    return count, nbytes


def compress_files(choice: FileSelection, each: Callable[[int], None]) -> tuple[int, int]:
    """Replace the chosen, unchanged files by `NAME.gz`, and return the numbers of files and bytes saved.

    `each` is called with the index before every file; an exception that it raises ends the work.
    """
    count = saved = 0
    with _open_folder(choice.folder) as descriptor:
        for number, found in enumerate(choice.chosen):
            each(number)
            if _is_same(descriptor, found):
                saved += found.nbytes - _compress_one(descriptor, found)
                count += 1
    return count, saved


def _compress_one(folder: int, found: SelectedFile) -> int:
    """Compress one file, remove the original, and return the compressed size.

    The data is synced under a temporary name before the rename, so that `NAME.gz` is always complete. A
    temporary file left by a killed worker is replaced.
    """
    part, target = f"{found.name}{_PART}", f"{found.name}.gz"
    with suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)
    source = os.open(found.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    with os.fdopen(source, "rb") as reading:
        writing = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        with os.fdopen(writing, "wb") as raw:
            with igzip.IGzipFile(fileobj=raw, mode="wb") as packed:
                shutil.copyfileobj(reading, packed, 1024 * 1024)
            raw.flush()
            os.fsync(raw.fileno())
            os.utime(raw.fileno(), ns=(found.changed_ns, found.changed_ns))
            nbytes = os.fstat(raw.fileno()).st_size
    os.rename(part, target, src_dir_fd=folder, dst_dir_fd=folder)
    os.unlink(found.name, dir_fd=folder)
    return nbytes


def _skip_reason(name: str, facts: os.stat_result, oldest: int, packed: bool) -> str:
    """Return the reason why a file must be skipped, or "". `oldest` is the newest allowed change in ns."""
    if any(part in name for part in PROTECTED):
        return "it belongs to the broker or the control plane"
    if packed and name.endswith((".gz", _PART)):
        return "it is already compressed"
    if facts.st_nlink > 1:
        return "it has another hard link"
    return "it is too recent" if facts.st_mtime_ns > oldest else ""


def _is_same(folder: int, found: SelectedFile) -> bool:
    """Whether the file still has the inode and the time of change that it had when it was chosen."""
    try:
        facts = os.stat(found.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    same = (facts.st_dev, facts.st_ino) == found.identity and facts.st_mtime_ns == found.changed_ns
    return same and stat.S_ISREG(facts.st_mode)


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    """Open a folder, and yield its descriptor.

    Raises OperatorError `folder_refused` if the folder was moved in the meantime.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if Path(f"/proc/self/fd/{descriptor}").readlink() != folder:
            raise _refused(f"{str(folder)[:200]!r} was moved in the meantime.")
        yield descriptor
    finally:
        os.close(descriptor)


def _without_open(choice: FileSelection) -> FileSelection:
    """Move files that a process of this account holds open from the chosen to the skipped ones."""
    open_now = _open_files() if choice.chosen else set()
    open_files = [(found.name, "it is open") for found in choice.chosen if found.identity in open_now]
    closed_files = [found for found in choice.chosen if found.identity not in open_now]
    return FileSelection(choice.folder, closed_files, [*choice.skipped, *open_files])


def _open_files() -> set[tuple[int, int]]:
    """Return device and inode of every file that a visible process holds open."""
    found: set[tuple[int, int]] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    facts = descriptor.stat()
                    found.add((facts.st_dev, facts.st_ino))
    return found


def _refused(sentence: str) -> OperatorError:
    return OperatorError(
        "folder_refused",
        sentence,
        "Declare directories in SLUICE_ACTION_FOLDERS, in the environment of the console.",
    )
