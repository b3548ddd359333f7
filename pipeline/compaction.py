"""Small record files of a lake put together: what many short runs left becomes a file of a day each, or as many as are large.

A day is made anew beside itself, in a hidden directory: the joined files are written, the others linked. When all of it is on the disk the
two directories change places in one step. So whoever lists the lake sees each record once at any moment, and a run that was killed leaves the day as it was,
or as it is to be. What a reader has open stays readable; one that listed the day before and opens a file after the exchange gets an error, never other data.
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
"""Of Arrow data in a joined file, about; it takes three times as much memory to make one."""
MAX_FILES: Final = 1_000
"""Joined at once."""
HIDDEN: Final = ".compact-"
_AT_FDCWD, _EXCHANGE = -100, 2

Write = Callable[[Path, pa.Table], Path]
"""Writes records in the order of their sequences as a file of the lake into a directory; returns its path."""


class SmallFile(NamedTuple):
    """One file that may be joined with its neighbours."""

    file: LakeFileName
    path: Path
    nbytes: int


def plan_compaction(files: Sequence[SmallFile], target: int = TARGET_BYTES) -> list[list[SmallFile]]:
    """Which files of a day become one: neighbours without a gap, of one log, up to the target together. A file that is larger than all it would
    be joined with is left alone until there are more of those: else each run would write the day again."""
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
    """Join what is small; returns how many files there were of it, and how many they became. Whoever calls it is the lake's one writer.

    OperatorError lake_damaged for a file that isn't what was written, lake_unwritable.
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
            _make_anew(records, day, chosen, write)
            before, after = before + sum(map(len, chosen)), after + len(chosen)
    except OSError as error:
        raise unwritable_error(records, error) from error
    return before, after


def remove_leftovers(records: Path) -> None:
    """Take away what a killed run left: a day that was being made, or one that has been replaced."""
    for left in records.glob(f"{HIDDEN}*"):
        shutil.rmtree(left, ignore_errors=True)


def _files(day: Path, instance: str) -> Iterator[SmallFile]:
    for path in day.iterdir():
        file = parse_file_name(path.name, instance)
        if file is not None:
            try:
                meta = pq.read_metadata(path)
            except (pa.ArrowException, OSError) as error:
                raise _damaged(path, str(error).splitlines()[0]) from error
            yield SmallFile(
                file, path, sum(meta.row_group(one).total_byte_size for one in range(meta.num_row_groups))
            )


def _make_anew(records: Path, day: Path, chosen: Sequence[Sequence[SmallFile]], write: Write) -> None:
    made = records / f"{HIDDEN}{day.name}-{uuid4().hex}"
    made.mkdir()
    try:
        joined = {one.path for group in chosen for one in group}
        for group in chosen:
            write(made, _together(group))
        for path in day.iterdir():
            if path not in joined:
                os.link(path, made / path.name)
        sync_directory(made)
        _exchange(made, day)
        sync_directory(records)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _together(group: Sequence[SmallFile]) -> pa.Table:
    """The records of a group in the order of their sequences, each file compared with its own checksum first."""
    parts = []
    for one in group:
        try:
            opened = pq.ParquetFile(one.path)
            table, noted = opened.read(list(COLUMNS)), file_metadata(opened)["digest"]
        except (pa.ArrowException, OSError, KeyError) as error:
            raise _damaged(one.path, str(error).splitlines()[0]) from error
        whole = table.num_rows == one.file.last - one.file.first + 1
        if not whole or noted != digest_of(table):
            raise _damaged(one.path, "its records' number or checksum doesn't fit")
        parts.append(table.replace_schema_metadata(None).sort_by("sequence"))
    return pa.concat_tables(parts).combine_chunks()


def _exchange(made: Path, day: Path) -> None:
    """Two directories change names in one step (Linux 3.15; most file systems, network ones often not)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(made), _AT_FDCWD, os.fsencode(day), _EXCHANGE):
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise OperatorError(
                "lake_unwritable", f"The file system of {day.parent} can't exchange two directories in one step, which compaction needs.",
                "Have the lake on a file system of Linux itself (ext4, xfs, btrfs).", directory=str(day.parent),
            )  # fmt: skip
        raise OSError(number, os.strerror(number))


def _damaged(path: Path, why: str) -> OperatorError:
    return OperatorError(
        "lake_damaged", f"{path.parent.name}/{path.name} isn't what was written: {why}.",
        "Remove it; while the log still has its records, the next run of `lake` writes them again.", file=str(path),
    )  # fmt: skip
