"""File systems of a few hundred MiB in an ext4 image, which tests fill and free. Needs root."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024


class SmallDisk:
    """Mounted file system at `place`; its image is beside it.

    Raises RuntimeError with the reason if mounting is impossible.
    """

    def __init__(self, place: Path, mib: int = 256) -> None:
        self.place, self._image = place, place.with_suffix(".disk")
        self._filler = place / "filler"
        place.mkdir()
        with self._image.open("wb") as image:
            image.truncate(mib * MIB)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(place))

    def fill(self) -> None:
        """Fill the disk to the last block."""
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        try:
            for step in (MIB, 4096):
                with suppress(OSError):
                    while True:
                        os.posix_fallocate(fd, os.fstat(fd).st_size, step)
        finally:
            os.close(fd)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount lazily; open files stay usable until they are closed."""
        _run("umount", "-l", str(self.place))


def unavailable_reason(home: Path) -> str:
    """Return why small disks are unavailable here, or ""."""
    if os.geteuid() != 0:
        return "only root may mount a disk"
    try:
        SmallDisk(home / "tried", 8).close()
    except (RuntimeError, OSError) as problem:
        return f"no disk can be mounted: {problem}"
    return ""


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]}: {done.stderr.strip()}")
