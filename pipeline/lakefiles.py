"""Files of the lake, put in place whole: written under another name, synced, renamed. One writer at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from broker_core.errors import OperatorError

ROW_GROUP = 131_072
_TEMPORARY = ".tmp-"


def write_parquet(table: pa.Table, path: Path, dictionary: list[str]) -> int:
    """Put the table at `path`, replacing what is there; returns the file's bytes. Readers see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Names that start with a dot are ignored by Spark and by pyarrow; the random part keeps a repeated task apart.
    temporary = path.parent / f"{_TEMPORARY}{uuid4().hex}"
    try:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            compression_level=1,
            row_group_size=ROW_GROUP,
            use_dictionary=dictionary,
            write_statistics=True,
        )
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        size = temporary.stat().st_size
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return size


def sync_directory(directory: Path) -> None:
    """Make renames in a directory survive a power loss."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def one_writer(directory: Path) -> Iterator[None]:
    """Hold a directory of the lake for one job, and clear what a killed one left. OperatorError lake_busy."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OperatorError(
                "lake_busy",
                f"Another job is writing to {directory.name} of the lake.",
                "Wait until it has ended.",
            ) from None
        for left in directory.glob(f"*/{_TEMPORARY}*"):
            left.unlink(missing_ok=True)
        yield
