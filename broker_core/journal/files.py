"""The file port: every system call of the journal and the spool that changes a disk, in one small class.

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
"""Buffers in one pwritev (IOV_MAX on Linux)."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_TOKEN_BYTES: Final = 4
_TEMPORARY: Final = re.compile(r"(?P<name>.+?)\.[0-9a-f]{8}\.tmp")

_statx: Final = ctypes.PyDLL(None, use_errno=True).statx
"""statx(2), called without letting go of the interpreter: `os.stat` lets go, and beside a busy loop its thread waits longer
to have it back than the call takes. Two looks after each sync were a fifth of what a sync took at 5,000 messages a second
(`python -m bench.latency --trace`). It asks what the kernel has in memory, the path of a file that is held open."""
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_STATX_INO: Final = 0x100
_STATX: Final = struct.Struct("=32xQ96xII112x")
"""Of `struct statx`, 256 bytes on every machine: stx_ino, stx_dev_major, stx_dev_minor."""


def _inode(path: bytes = b"", fd: int = _AT_FDCWD) -> tuple[int, int, int] | None:
    """What a path stands for, or an open file: inode and device; None when nothing is there. OSError."""
    found = ctypes.create_string_buffer(_STATX.size)
    if _statx(fd, path, 0 if path else _AT_EMPTY_PATH, _STATX_INO, found) == 0:
        inode, major, minor = _STATX.unpack(found)
        return inode, major, minor
    number = ctypes.get_errno()
    if number == errno.ENOENT:
        return None
    raise OSError(number, os.strerror(number), os.fsdecode(path))


class OpenFile:
    """A file descriptor that closes itself when its last user lets go, so that a swap never cuts off a reader."""

    __slots__ = ("_inode", "_name", "fd", "path")

    def __init__(self, path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> None:
        self.path = path
        self._name = os.fsencode(path)
        self._inode: tuple[int, int, int] | None = None
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, mode)

    @property
    def is_current(self) -> bool:
        """Whether its path still stands for it: nobody has removed, moved or replaced it."""
        if self._inode is None:
            self._inode = _inode(fd=self.fd)
        return _inode(self._name) == self._inode

    def close(self) -> None:
        """Close now. For writers; a reader's file is closed by the last reference to it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class FileSystem:
    """The operating system, as the journal and the spool use it."""

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def reserve(self, fd: int, length: int) -> None:
        """Make the file `length` bytes of zeros whose blocks are taken, so that a later write can't lack room."""
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

        Overwriting written blocks needs no change of the file's metadata: an fdatasync then took half as long as
        on blocks that were only reserved (0.21 against 0.38 ms).
        """
        write_all(self, fd, [bytes(length)], offset)
        self.fdatasync(fd)


def write_all(files: FileSystem, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all buffers back to back at `offset`; returns the offset after them. One pwritev per 1,024 buffers."""
    for start in range(0, len(buffers), MAX_BUFFERS):
        part = buffers[start : start + MAX_BUFFERS]
        wanted = sum(map(len, part))
        written = files.pwritev(fd, part, offset)
        if written < wanted:
            # A full disk or a limit shows itself as a short write first; the rest raises the reason.
            rest = memoryview(b"".join(part))
            while written < wanted:
                written += files.pwritev(fd, [rest[written:]], offset + written)
        offset += wanted
    return offset


def replace_durably(files: FileSystem, path: Path, *content: Buffer, mode: int = 0o600) -> None:
    """Put a whole file in place; after a crash at any step the old or the new one is there, whole.

    It is written beside, under a name that nobody else has, so that two who replace the same file don't mix their
    bytes; synced, renamed, and the directory synced. What a crash leaves beside is found by `temporary_target`.
    Raises OSError, and the old file is whole; if the directory's sync was what failed, the new one is.
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
    """The file that a temporary one, by its name, was to replace; None when it isn't one of `replace_durably`'s."""
    found = _TEMPORARY.fullmatch(name)
    return found["name"] if found else None


def remove_temporaries(files: FileSystem, path: Path) -> None:
    """Remove what crashes left beside one small file. For its only writer, before it writes. OSError."""
    for beside in path.parent.glob(f"{path.name}.*"):
        if temporary_target(beside.name) == path.name:
            files.unlink(beside)


def journal_error(error: OSError, what: str, *, final: bool = False) -> JournalError:
    """The named error for a failed system call. `final`: it is no matter of room, what was written can't be known."""
    if error.errno in NO_ROOM and not final:
        return JournalError(
            "disk_full",
            f"There is no room for {what}: {error.strerror}.",
            "Free disk space, or archive or remove journals; publishing goes on by itself when there is room.",
            errno=error.errno,
        )
    return JournalError(
        "journal_failed",
        f"The disk refused {what}: {error.strerror}.",
        "Check the disk and the system's log. The broker exits, and reopens its log when it is restarted.",
        errno=error.errno,
    )


def lock_directory(path: Path) -> OpenFile:
    """Hold a directory for one writer until the returned file is closed. OperatorError journal_locked if taken."""
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
