"""Disks that lose power: an ext4 image whose page cache is dropped. Needs root."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_SHUTDOWN: Final = 0x8004587D
"""EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32)."""
_NO_LOG_FLUSH: Final = 2
"""Also lose changes that the file system's own journal has not committed."""
_LOG_FLUSH: Final = 1
"""Names and lengths of files are committed, contents aren't: ordered data apart."""
_SYNC_FILE_RANGE_WRITE: Final = 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_uint]
MIB = 1024 * 1024


class PowerDisk:
    """A mounted file system of `mib` MiB; `cut` cuts its power, and it can be mounted again."""

    def __init__(self, home: Path, mib: int = 192) -> None:
        self._image, self.place = home / "disk", home / "mnt"
        self.place.mkdir()
        with self._image.open("wb") as image:
            image.truncate(mib * MIB)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", str(self._image))
        self._mounted = False
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.place))
        self._mounted = True

    def write_some_back(self, chance: random.Random) -> None:
        """Write back some pages of some files, as a kernel does in arbitrary order."""
        for path in self.place.rglob("*"):
            if path.is_file() and chance.random() < 0.4:
                with suppress(OSError):
                    file = os.open(path, os.O_RDONLY)
                    size = os.fstat(file).st_size
                    start = chance.randrange(size + 1) // 4_096 * 4_096
                    length = chance.randrange(1, size + 4_096)
                    _libc.sync_file_range(file, start, length, _SYNC_FILE_RANGE_WRITE)
                    os.close(file)

    def cut(self, chance: random.Random) -> None:
        """Cut the power: unwritten data is lost, and later writes fail with EIO."""
        self.write_some_back(chance)
        place = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        cut_power(place, commits=chance.random() < 0.3)
        os.close(place)

    def unmount(self) -> None:
        if self._mounted:
            _run("umount", str(self.place))
            self._mounted = False

    def power_on(self) -> None:
        """Mount the disk again after a cut, with an empty cache; all files must be closed."""
        self.unmount()
        self.mount()


def cut_power(fd: int, *, commits: bool = False) -> None:
    """Shut down the file system of an open file.

    With `commits`, its log of names and lengths is written first.
    """
    fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _LOG_FLUSH if commits else _NO_LOG_FLUSH))


@contextmanager
def power_disk() -> Iterator[PowerDisk]:
    """Create and mount a disk until the block ends.

    Raises RuntimeError with the reason if mounting is impossible.
    """
    home = Path(tempfile.mkdtemp(prefix="pd-"))
    disk: PowerDisk | None = None
    try:
        disk = PowerDisk(home)
        yield disk
    finally:
        if disk is not None:
            with suppress(RuntimeError):
                disk.unmount()
        _run("umount", "-l", str(home / "mnt"), fails=True)
        shutil.rmtree(home, ignore_errors=True)


def unavailable_reason() -> str:
    """Return why power cuts are unavailable here, or ""."""
    if os.geteuid() != 0:
        return "only root may mount a disk and cut its power"
    try:
        with power_disk() as disk:
            disk.cut(random.Random(0))
            disk.power_on()
    except (RuntimeError, OSError) as problem:
        return f"no disk whose power could be cut: {problem}"
    return ""


def _run(*words: str, fails: bool = False) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as problem:
        raise RuntimeError(str(problem)) from None
    if done.returncode and not fails:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip()}")
