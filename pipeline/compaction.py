"""Compaction of a lake: many small record files become one or a few files a day.

A day is rebuilt beside the original, in a hidden directory: joined files are written, the others are
hard-linked. After a sync the two directories are exchanged in one step. So a reader that lists the lake
sees each record once at any moment. A killed run leaves the day either old or new. Open files stay
readable. A reader that listed the day before the exchange and opens a file afterwards gets an error, never
other data.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from broker_core.errors import OperatorError
from pipeline.lake_files import file_metadata, sync_directory, unwritable_error
from pipeline.transforms.digest import digest_of
from pipeline.transforms.lake import LakeFileName, parse_file_name
from sluice_spark.columns import COLUMNS

TARGET_BYTES: Final = 256 * 1024 * 1024
"""Approximate Arrow bytes of a joined file. Making one takes three times as much memory."""
MAX_FILES: Final = 1_000
"""Maximum files joined into one."""
HIDDEN: Final = ".compact-"
_AT_FDCWD, _EXCHANGE = -100, 2

Write = Callable[[Path, pa.Table], Path]
"""Function that writes records, in sequence order, as a lake file into a directory, and returns its path."""


class SmallFile(NamedTuple):
    """A file that may be joined with its neighbours."""

    file: LakeFileName
    path: Path
    nbytes: int


def plan_compaction(files: Sequence[SmallFile], target: int = TARGET_BYTES) -> list[list[SmallFile]]:
    """Return the groups of a day's files to join.

    Neighbours without a gap, of one log, up to `target` bytes together.

    A file larger than all others of its group together is left alone. Otherwise each run would write the
    day again.
    """
    found: list[list[SmallFile]] = []
    for one in sorted(files):
        last = found[-1] if found else []
        joins = bool(last) and (
            last[-1].file.last + 1 == one.file.first
            and last[-1].file.tag == one.file.tag
            and len(last) < MAX_FILES
            and sum(each.nbytes for each in last) + one.nbytes <= target
        )
        if joins:
            last.append(one)
        else:
            found.append([one])
    return [
        group
        for group in found
        if len(group) > 1 and 2 * max(each.nbytes for each in group) <= sum(each.nbytes for each in group)
    ]


def compact(
    records: Path, instance: str, write: Write, progress: Callable[[int, int], None]
) -> tuple[int, int]:
    """Join small files; return how many files were joined, and how many they became.

    The caller must hold the lake's lock. Raises OperatorError lake_damaged for a damaged file,
    lake_unwritable.
    """
    remove_leftovers(records)
    days = [
        (day, chosen)
        for day in sorted(records.glob("day=*"))
        if (chosen := plan_compaction(list(_files(day, instance))))
    ]
    before = after = 0
    try:
        for number, (day, chosen) in enumerate(days):
            progress(number, len(days))
            _compact_group(records, day, chosen, write)
            before, after = before + sum(map(len, chosen)), after + len(chosen)
    except OSError as error:
        raise unwritable_error(records, error) from error
    return before, after


def remove_leftovers(records: Path) -> None:
    """Remove directories of killed runs: unfinished days, and days that were replaced."""
    for leftover in records.glob(f"{HIDDEN}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _files(day: Path, instance: str) -> Iterator[SmallFile]:
    for path in day.iterdir():
        file = parse_file_name(path.name, instance)
        if file is not None:
            try:
                meta = pq.read_metadata(path)
            except (pa.ArrowException, OSError) as error:
                raise _damaged_file_error(path, str(error).splitlines()[0]) from error
            yield SmallFile(
                file, path, sum(meta.row_group(one).total_byte_size for one in range(meta.num_row_groups))
            )


def _compact_group(records: Path, day: Path, chosen: Sequence[Sequence[SmallFile]], write: Write) -> None:
    """Rebuild a day with its groups of files joined, and exchange it with the old directory."""
    made = records / f"{HIDDEN}{day.name}-{uuid4().hex}"
    made.mkdir()
    try:
        merged_paths = {one.path for group in chosen for one in group}
        for group in chosen:
            write(made, _merge_sorted(group))
        for path in day.iterdir():
            if path not in merged_paths:
                os.link(path, made / path.name)
        # The new day must be on disk before the exchange makes it visible.
        sync_directory(made)
        _exchange(made, day)
        sync_directory(records)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _merge_sorted(group: Sequence[SmallFile]) -> pa.Table:
    """Return the records of a group in sequence order, after checking each file against its checksum."""
    parts = []
    for one in group:
        try:
            parquet = pq.ParquetFile(one.path)
            table, noted = parquet.read(list(COLUMNS)), file_metadata(parquet)["digest"]
        except (pa.ArrowException, OSError, KeyError) as error:
            raise _damaged_file_error(one.path, str(error).splitlines()[0]) from error
        is_complete = table.num_rows == one.file.last - one.file.first + 1
        if not is_complete or noted != digest_of(table):
            raise _damaged_file_error(one.path, "the number or checksum of its records is wrong")
        parts.append(table.replace_schema_metadata(None).sort_by("sequence"))
    return pa.concat_tables(parts).combine_chunks()


def _exchange(made: Path, day: Path) -> None:
    """Exchange the names of two directories in one step.

    Needs Linux 3.15 and support of the file system, which network file systems often lack.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(made), _AT_FDCWD, os.fsencode(day), _EXCHANGE):
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise OperatorError(
                "lake_unwritable",
                f"The file system of {day.parent} can't exchange two directories in one step, "
                "which compaction needs.",
                "Put the lake on a native file system of Linux (ext4, xfs, btrfs).",
                directory=str(day.parent),
            )
        raise OSError(number, os.strerror(number))


def _damaged_file_error(path: Path, reason: str) -> OperatorError:
    return OperatorError(
        "lake_damaged",
        f"{path.parent.name}/{path.name} is damaged: {reason}.",
        "Remove it; while the log still has its records, the next run of `lake` writes them again.",
        file=str(path),
    )
