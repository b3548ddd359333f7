"""The lake's record files as a Delta table.

A log beside them lists the files, for query engines that read Delta.

No file is written twice. The table refers to each file by a second name, a hard link below VERSIONS,
because compaction removes files from their days. So a reader that has read the table's log, or reads an
earlier version, finds its files for a week.

Each update makes the table match the directory. Removed files are taken out, and new files are added with
their counts, in one commit. So the next run makes up for a run that was killed between its files and the
commit, and a repeated run commits nothing. Readers see one version or the next, never half of a run.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from broker_core.errors import OperatorError
from pipeline.transforms.typed_columns import schema_of
from pipeline.typed_schema import read_typed
from sluice_spark.columns import COLUMNS

DAY: Final = "day"
SCHEMA: Final = pa.schema([*COLUMNS.items(), (DAY, pa.string())])
_DELTA: Final = {pa.bool_(): "boolean", pa.int64(): "long", pa.float64(): "double", pa.string(): "string"}
VERSIONS: Final = ".versions"
"""Directory of the table's links. Spark and pyarrow ignore names that start with a dot."""
RETENTION_S: Final = 7 * 24 * 3_600
"""Seconds that a file stays readable after it was removed from its day."""
STATS_COLUMNS: Final = ("sequence", "accepted_at")
"""Columns whose minimum and maximum are in the table's log, so that readers can skip files."""


def update_delta_table(records: Path) -> int:
    """Make the table match the directory; return its version.

    The caller must hold the lake's lock. Raises OperatorError lake_unwritable.
    """
    try:
        if not DeltaTable.is_deltatable(str(records)):
            DeltaTable.create(str(records), SCHEMA, partition_by=[DAY])
        table = DeltaTable(str(records))
        _add_columns(table, records)
        known = {str(row["path"]): int(row["size_bytes"]) for row in _count_rows(table)}
        file_sizes = {
            _parse_files(records, path): path.stat().st_size
            for path in sorted(records.glob(f"{DAY}=*/[!._]*.parquet"))
        }
        now = int(time.time() * 1_000)
        removed = [name for name, size in known.items() if file_sizes.get(name) != size]
        new = sorted(name for name, size in file_sizes.items() if known.get(name) != size)
        rewritten = set(removed) & set(new)
        if rewritten:  # one commit can't remove and add the same file name
            _commit(
                table,
                [RemoveAction(name, True, now, known[name], _partition(name)) for name in sorted(rewritten)],
            )
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(name, True, now, known[name], _partition(name))
            for name in removed
            if name not in rewritten
        ]
        actions += [_add(records, name, file_sizes[name], now) for name in new]
        if actions:
            _commit(table, actions)
        _remove_missing(records, file_sizes, time.time() - RETENTION_S)
        return int(DeltaTable(str(records)).version())
    except (DeltaError, OSError) as error:
        raise OperatorError(
            "lake_unwritable",
            f"The Delta table of {records} can't be updated: {str(error).splitlines()[0]}.",
            "The lake's files are complete. Run the job again.",
            directory=str(records),
        ) from error


def _parse_files(records: Path, path: Path) -> str:
    """Return the table's name of a file, which is a hard link.

    The file's own name if links aren't supported.
    """
    name = f"{VERSIONS}/{path.parent.name}/{path.name}"
    link = records / name
    try:
        if link.exists() and not link.samefile(path):
            link.unlink()  # the file was rewritten under the same name
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, link)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        return f"{path.parent.name}/{path.name}"
    return name


def _remove_missing(records: Path, present: Mapping[str, int], before: float) -> None:
    """Remove links that left the table before `before`.

    A file's ctime is when its name in its day was removed.
    """
    for link in records.glob(f"{VERSIONS}/*/*"):
        if link.relative_to(records).as_posix() not in present and link.stat().st_ctime < before:
            link.unlink()


def _add_columns(table: DeltaTable, records: Path) -> None:
    """Add new typed columns of the lake to the table."""
    fields = read_typed(records)
    lake_schema = pa.schema([]) if fields is None else schema_of(fields)
    table_columns = {field.name for field in table.schema().fields}
    new = [
        Field(field.name, PrimitiveType(_DELTA[field.type]), nullable=True)
        for field in lake_schema
        if field.name not in table_columns
    ]
    if new:
        table.alter.add_columns(new)
        table.update_incremental()


def _count_rows(table: DeltaTable) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        pa.table(table.get_add_actions(flatten=True)).select(["path", "size_bytes"]).to_pylist()
    )
    return found


def _commit(table: DeltaTable, actions: Sequence[AddAction | RemoveAction]) -> None:
    table.create_write_transaction(list(actions), "append", table.schema(), [DAY])
    table.update_incremental()


def _partition(name: str) -> dict[str, str | None]:
    return {DAY: name.split("/")[-2].removeprefix(f"{DAY}=")}


def _add(records: Path, name: str, size: int, now: int) -> AddAction:
    stats = json.dumps(_stats(pq.ParquetFile(records / name)))
    return AddAction(name, size, _partition(name), now, True, stats)


def _stats(file: pq.ParquetFile) -> dict[str, Any]:
    """Return a file's record count, and the minima and maxima of STATED columns, from its footer."""
    meta = file.metadata
    column_indexes = {meta.schema.column(number).name: number for number in range(meta.num_columns)}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for name in STATS_COLUMNS:
        groups = [
            meta.row_group(number).column(column_indexes[name]).statistics
            for number in range(meta.num_row_groups)
        ]
        if groups and all(one is not None and one.has_min_max for one in groups):
            least[name], greatest[name] = (
                _error_line(min(one.min for one in groups)),
                _error_line(max(one.max for one in groups)),
            )
    return {"numRecords": meta.num_rows, "minValues": least, "maxValues": greatest, "nullCount": {}}


def _error_line(value: Any) -> Any:
    return (
        value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        if hasattr(value, "isoformat")
        else value
    )
