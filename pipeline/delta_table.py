"""The lake's record files as a Delta table: a log beside them that says which files there are, for engines that read Delta.

The files are the same; nothing is written twice. The table knows each by a second name (a hard link below VERSIONS), because compaction takes
files out of their days: a reader that has looked into the table's log, and one of an earlier version, finds what it was promised for a week.
Each publication makes the table what the directory is: files
that it doesn't have are added in one commit, with their counts, after those that are gone were taken out. So a run that was killed
between its files and the commit is made up for by the next, and one that is repeated commits nothing. Readers see one version or the
next, never half of a run.
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
"""The folder of the table's names for the files. Spark and pyarrow ignore names that start with a dot."""
RETENTION_S: Final = 7 * 24 * 3_600
"""For how long a file that isn't the table's any more stays readable, from when it was taken out of its day."""
STATED: Final = ("sequence", "accepted_at")
"""Columns whose least and greatest values stand in the table's log, so that readers skip files."""


def update_delta_table(records: Path) -> int:
    """Make the table what the directory is; returns its version. Whoever calls it is the lake's one writer. OperatorError lake_unwritable."""
    try:
        if not DeltaTable.is_deltatable(str(records)):
            DeltaTable.create(str(records), SCHEMA, partition_by=[DAY])
        table = DeltaTable(str(records))
        _widen(table, records)
        known = {str(row["path"]): int(row["size_bytes"]) for row in _rows(table)}
        there = {
            _named(records, path): path.stat().st_size
            for path in sorted(records.glob(f"{DAY}=*/[!._]*.parquet"))
        }
        now = int(time.time() * 1_000)
        gone = [name for name, size in known.items() if there.get(name) != size]
        new = sorted(name for name, size in there.items() if known.get(name) != size)
        again = set(gone) & set(new)
        if again:  # one commit can't take out and add a file of the same name
            _commit(
                table,
                [RemoveAction(name, True, now, known[name], _partition(name)) for name in sorted(again)],
            )
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(name, True, now, known[name], _partition(name)) for name in gone if name not in again
        ]
        actions += [_add(records, name, there[name], now) for name in new]
        if actions:
            _commit(table, actions)
        _forget(records, there, time.time() - RETENTION_S)
        return int(DeltaTable(str(records)).version())
    except (DeltaError, OSError) as error:
        raise OperatorError(
            "lake_unwritable", f"The Delta table of {records} can't be brought up to date: {str(error).splitlines()[0]}.",
            "The files themselves are whole; run it again.", directory=str(records),
        ) from error  # fmt: skip


def _named(records: Path, path: Path) -> str:
    """The table's name of a file; its own where the file system has no hard links."""
    name = f"{VERSIONS}/{path.parent.name}/{path.name}"
    link = records / name
    try:
        if link.exists() and not link.samefile(path):
            link.unlink()  # written anew under the same name
        if not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, link)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        return f"{path.parent.name}/{path.name}"
    return name


def _forget(records: Path, there: Mapping[str, int], before: float) -> None:
    """Remove what has not been the table's since that time. A file's ctime is when it lost its name in its day."""
    for link in records.glob(f"{VERSIONS}/*/*"):
        if link.relative_to(records).as_posix() not in there and link.stat().st_ctime < before:
            link.unlink()


def _widen(table: DeltaTable, records: Path) -> None:
    """Give the table the typed columns that the lake has by now."""
    fields = read_typed(records)
    wanted = pa.schema([]) if fields is None else schema_of(fields)
    there = {field.name for field in table.schema().fields}
    new = [
        Field(field.name, PrimitiveType(_DELTA[field.type]), nullable=True)
        for field in wanted
        if field.name not in there
    ]
    if new:
        table.alter.add_columns(new)
        table.update_incremental()


def _rows(table: DeltaTable) -> list[dict[str, Any]]:
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
    """How many records a file has, and from what to what, by its footer alone."""
    meta = file.metadata
    places = {meta.schema.column(number).name: number for number in range(meta.num_columns)}
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for name in STATED:
        groups = [
            meta.row_group(number).column(places[name]).statistics for number in range(meta.num_row_groups)
        ]
        if groups and all(one is not None and one.has_min_max for one in groups):
            least[name], most[name] = (
                _said(min(one.min for one in groups)),
                _said(max(one.max for one in groups)),
            )
    return {"numRecords": meta.num_rows, "minValues": least, "maxValues": most, "nullCount": {}}


def _said(value: Any) -> Any:
    return (
        value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        if hasattr(value, "isoformat")
        else value
    )
