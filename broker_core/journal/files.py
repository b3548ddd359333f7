"""File port: every system call of the journal and the spool that changes a disk, in one small class.

Tests pass a subclass that fails or records calls; nothing else may replace it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import secrets
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from broker_core.batch import Buffer
from broker_core.errors import JournalError, OperatorError

MAX_BUFFERS = 1_024
"""Maximum number of buffers in one pwritev (IOV_MAX on Linux)."""
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a full disk or an exceeded limit."""
_TOKEN_BYTES: Final = 4
_TEMPORARY: Final = re.compile(r"(?P<name>.+?)\.[0-9a-f]{8}\.tmp")

_statx: Final = ctypes.PyDLL(None, use_errno=True).statx
"""statx(2), called without releasing the interpreter lock.

`os.stat` releases it, and beside a busy event loop its thread waits longer to get it back than the call
takes. Two checks after each sync were a fifth of a sync's time at 5,000 messages a second (`python -m
bench.latency --trace`). The call reads only the kernel's memory: the path of a file that is open.
"""
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_STATX_INO: Final = 0x100
_STATX: Final = struct.Struct("=32xQ96xII112x")
"""Layout of `struct statx`, 256 bytes on every machine: stx_ino, stx_dev_major, stx_dev_minor."""


def _inode(path: bytes = b"", fd: int = _AT_FDCWD) -> tuple[int, int, int] | None:
    """Return inode and device of a path or an open file; None when the path doesn't exist. Raises OSError."""
    found = ctypes.create_string_buffer(_STATX.size)
    if _statx(fd, path, 0 if path else _AT_EMPTY_PATH, _STATX_INO, found) == 0:
        inode, major, minor = _STATX.unpack(found)
        return inode, major, minor
    number = ctypes.get_errno()
    if number == errno.ENOENT:
        return None
    raise OSError(number, os.strerror(number), os.fsdecode(path))


class OpenFile:
    """File descriptor that closes itself when its last reference is dropped.

    So a swap never interrupts a reader of the old file.
    """

    __slots__ = ("_inode", "_name", "fd", "path")

    def __init__(self, path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> None:
        self.path = path
        self._name = os.fsencode(path)
        self._inode: tuple[int, int, int] | None = None
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, mode)

    @property
    def is_current(self) -> bool:
        """Whether the path still refers to this file: it was not removed, moved or replaced."""
        if self._inode is None:
            self._inode = _inode(fd=self.fd)
        return _inode(self._name) == self._inode

    def close(self) -> None:
        """Close now. For writers; a reader's file is closed when its last reference is dropped."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class FileSystem:
    """Operating system, as the journal and the spool use it."""

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def reserve(self, fd: int, length: int) -> None:
        """Extend the file with zeros to `length` bytes and allocate its blocks.

        A later write to them can't fail for lack of space.
        """
        os.posix_fallocate(fd, 0, length)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, directory: Path) -> None:
        """Make renames and removals in a directory survive a power loss."""
        handle = OpenFile(directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(handle.fd)
        handle.close()

    def zero_fill(self, fd: int, offset: int, length: int) -> None:
        """Write `length` zeros at `offset` and sync them.

        Overwriting written blocks changes no metadata of the file. An fdatasync then took half as long as on
        blocks that were only allocated (0.21 against 0.38 ms).
        """
        write_all(self, fd, [bytes(length)], offset)
        self.fdatasync(fd)


def write_all(files: FileSystem, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all buffers back to back at `offset`; return the offset after them.

    One pwritev per 1,024 buffers.
    """
    for start in range(0, len(buffers), MAX_BUFFERS):
        part = buffers[start : start + MAX_BUFFERS]
        requested = sum(map(len, part))
        written = files.pwritev(fd, part, offset)
        if written < requested:
            # A full disk or a limit causes a short write first; writing the rest then raises the error.
            unwritten = memoryview(b"".join(part))
            while written < requested:
                written += files.pwritev(fd, [unwritten[written:]], offset + written)
        offset += requested
    return offset


def replace_durably(files: FileSystem, path: Path, *content: Buffer, mode: int = 0o600) -> None:
    """Replace a whole file. After a crash at any step the old or the new file is there, complete.

    The content is written to a temporary file with a unique name, so that two writers of one file don't mix
    their bytes. It is synced and renamed, and the directory is synced. `temporary_target` recognises
    leftovers of a crash.

    Raises OSError: the old file is unchanged. If only the directory's sync failed, the new file is there.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(_TOKEN_BYTES)}.tmp")
    handle = OpenFile(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        try:
            write_all(files, handle.fd, content, 0)
            files.fsync(handle.fd)
        finally:
            handle.close()
        files.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            files.unlink(temporary)
        raise
    files.sync_directory(path.parent)


def temporary_target(name: str) -> str | None:
    """Return the file that a temporary file of `replace_durably` was to replace; None for any other name."""
    found = _TEMPORARY.fullmatch(name)
    return found["name"] if found else None


def remove_temporaries(files: FileSystem, path: Path) -> None:
    """Remove leftovers of crashes beside one small file. Only its sole writer may call it, before it writes.

    Raises OSError.
    """
    for beside in path.parent.glob(f"{path.name}.*"):
        if temporary_target(beside.name) == path.name:
            files.unlink(beside)


def journal_error(error: OSError, subject: str, *, final: bool = False) -> JournalError:
    """Return the named error for a failed system call.

    `final`: a full disk is no excuse either, because the state of the written bytes is unknown.
    """
    if error.errno in DISK_FULL_ERRNOS and not final:
        return JournalError(
            "disk_full",
            f"The disk has no space for {subject}: {error.strerror}.",
            "Free disk space, or archive or remove journals; publishing continues automatically "
            "when there is space.",
            errno=error.errno,
        )
    return JournalError(
        "journal_failed",
        f"The disk refused {subject}: {error.strerror}.",
        "Check the disk and the system's log. The broker exits, and reopens its log when it is restarted.",
        errno=error.errno,
    )


def lock_directory(path: Path) -> OpenFile:
    """Lock a directory for one writer until the returned file is closed.

    Raises OperatorError journal_locked.
    """
    handle = OpenFile(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = path.read_text().strip() or "unknown"
        raise OperatorError(
            "journal_locked",
            f"The journal {path.parent} is in use by process {owner}.",
            "Stop the other broker or the repair that runs there, or give this instance its own directory.",
            path=str(path),
            pid=owner,
        ) from None
    if not handle.is_current:
        raise OperatorError(
            "journal_locked",
            f"The lock {path} was replaced while it was being taken.",
            "Start one broker at a time, and leave its files alone.",
            path=str(path),
        )
    os.ftruncate(handle.fd, 0)
    os.pwrite(handle.fd, str(os.getpid()).encode(), 0)
    return handle
