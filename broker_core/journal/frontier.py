"""`<instance>.durable`: the durable frontier, for readers in other processes (Spark, `manage.py journal`).

Twenty decimal digits and a newline: everything up to that sequence is on disk. Written after an fdatasync of the
journal and not synced itself: after a power loss it may be behind, never ahead. At opening it tells whether records
that were durable are missing from the log, so that their numbers are never given to others, also when every segment
has been removed.
"""

from __future__ import annotations

import os
from pathlib import Path

from broker_core.journal.files import OpenFile


def frontier_path(directory: Path, instance: str) -> Path:
    """Where an instance's file is."""
    return directory / f"{instance}.durable"


class FrontierFile:
    """Keeps the file open; one small write when the frontier has moved."""

    def __init__(self, path: Path) -> None:
        self._file = OpenFile(path, os.O_RDWR | os.O_CREAT)
        self._written = -1

    def write(self, sequence: int) -> None:
        """Note the frontier. OSError when the disk refuses."""
        if sequence != self._written:
            os.pwrite(self._file.fd, b"%020d\n" % sequence, 0)
            self._written = sequence

    def close(self) -> None:
        self._file.close()


def read_frontier(directory: Path, instance: str) -> int | None:
    """The durable frontier; None when there is no file or it can't be one."""
    try:
        text = frontier_path(directory, instance).read_bytes()
    except OSError:
        return None
    return int(text) if len(text) == 21 and text[:20].isdigit() else None
