"""Atomic writes of lake files: written under another name, synced, renamed. One writer at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from broker_core.errors import OperatorError

ROW_GROUP = 131_072
_TEMPORARY = ".tmp-"
FACT = "sluice."


def write_parquet(
    table: pa.Table, path: Path, dictionary: list[str], facts: Mapping[str, str] | None = None
) -> int:
    """Write a table to `path`, replacing the file there; return the file's bytes.

    Readers see all of it or nothing.

    `facts` are stored in the file's footer, each as `sluice.<name>`.
    """
    groups = (table.slice(start, ROW_GROUP) for start in range(0, max(table.num_rows, 1), ROW_GROUP))
    return write_groups(groups, path, dictionary, facts)


def write_groups(
    groups: Iterable[pa.Table],
    path: Path,
    dictionary: list[str],
    facts: Mapping[str, str] | None = None,
    counting: Sequence[str] = (),
) -> int:
    """Write a table that arrives in row groups, at least one, so that it is never whole in memory.

    Otherwise like `write_parquet`. `counting`: columns of numbers that usually increase a little from row
    to row.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Spark and pyarrow ignore names that start with a dot. The random part distinguishes a repeated task.
    temporary = path.parent / f"{_TEMPORARY}{uuid4().hex}"
    writer: pq.ParquetWriter | None = None
    try:
        for group in groups:
            if writer is None:
                writer = pq.ParquetWriter(
                    temporary,
                    group.schema,
                    compression="zstd",
                    compression_level=1,
                    use_dictionary=dictionary,
                    column_encoding=dict.fromkeys(counting, "DELTA_BINARY_PACKED"),
                    write_statistics=True,
                    # Readers get plain text columns, also from dictionary-encoded ones.
                    store_schema=not any(map(pa.types.is_dictionary, group.schema.types)),
                )
            writer.write_table(group, ROW_GROUP)
        assert writer is not None, "a table has a row group"
        writer.add_key_value_metadata({f"{FACT}{name}": value for name, value in (facts or {}).items()})
        writer.close()
        # Sync before the rename: after a power loss a name must never refer to incomplete data.
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        size = temporary.stat().st_size
        temporary.rename(path)
    finally:
        if writer is not None:
            with suppress(OSError, pa.ArrowException):
                writer.close()  # closed already after success
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return size


def file_metadata(file: pq.ParquetFile) -> dict[str, str]:
    """Return the facts that `write_parquet` stored."""
    metadata = {
        key.decode(): value.decode()
        for key, value in (file.metadata.metadata or {}).items()
        if key.startswith(FACT.encode())
    }
    return {key.removeprefix(FACT): value for key, value in metadata.items()}


def write_whole(path: Path, text: bytes) -> None:
    """Write a small file; readers see the old one or the new one. Raises OperatorError lake_unwritable."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(text + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        raise unwritable_error(path.parent.parent, error) from error


def unwritable_error(directory: Path, error: OSError) -> OperatorError:
    """Return the error for a lake that can't be written to."""
    return OperatorError(
        "lake_unwritable",
        f"{directory} of the lake can't be written to: {error.strerror or error}.",
        "Choose another directory with --lake, or check its free space and permissions.",
        directory=str(directory),
    )


def sync_directory(directory: Path) -> None:
    """Make renames in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def lock_lake(directory: Path) -> Iterator[None]:
    """Lock a directory of the lake for one job, and remove temporary files of killed jobs.

    Raises OperatorError lake_busy, lake_unwritable.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock_file = (directory / ".lock").open("a")
    except OSError as error:
        raise unwritable_error(directory, error) from error
    with lock_file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OperatorError(
                "lake_busy",
                f"Another job is writing to {directory.name} of the lake.",
                "Wait until it has ended.",
            ) from None
        for leftover in directory.glob(f"*/{_TEMPORARY}*"):
            leftover.unlink(missing_ok=True)
        yield
