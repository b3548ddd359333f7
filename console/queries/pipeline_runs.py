"""Stored runs of the pipeline: `lake/runs/<id>/run.json`, tables as Parquet, plots as SVG.

Files are read with pyarrow. Names from a URL are only compared with existing names, never used as paths
unchecked.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from django.conf import settings

from broker_core.safe_text import to_csv
from console import current_instance

MAX_LISTED = 500
"""Maximum runs in a list."""
MAX_RECORD = 16 * 1024 * 1024
"""Maximum bytes of a run.json file."""
SHOWN = 200
"""Rows of a table on a page. The files have all rows."""
MAX_CELL = 300
"""Maximum characters of a cell on a page."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """Table of a run, as far as a page shows it."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[Any]]
    total: int
    cut: bool
    plots: list[dict[str, str]]


def runs_directory() -> Path:
    """Return the directory of stored runs."""
    return Path(settings.SLUICE_LAKE_DIRECTORY) / "runs"


def stored_runs(job: str = "") -> list[dict[str, Any]]:
    """Return the newest runs of the current instance first, optionally of one job."""
    shelf = runs_directory()
    names = sorted((one.name for one in shelf.iterdir()), reverse=True) if shelf.is_dir() else []
    chosen = (name for name in names if not name.startswith(".") and (not job or f"-{job}-" in name))
    return list(islice((run for name in chosen if (run := stored_run(name)) is not None), MAX_LISTED))


def stored_run(identity: str) -> dict[str, Any] | None:
    """Return the record of a run; None if the current instance has no run with that identity."""
    found = _read_record(identity)
    return found if found is not None and found.get("instance") == current_instance.instance_name() else None


def _read_record(identity: str) -> dict[str, Any] | None:
    """Return the record of a run of any instance, or None if there is no run with that identity."""
    try:
        path = runs_directory() / identity / "run.json"
        if path.parent.parent != runs_directory() or path.stat().st_size > MAX_RECORD:
            return None
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("id") == identity else None


def contains_messages(run: dict[str, Any], table: str = "") -> bool:
    """Return whether a run's tables, or one of them, contain message bodies."""
    found = [one for one in run["tables"] if not table or one["name"] == table]
    return any("body" in column for one in found for column in one["columns"])


def run_tables(run: dict[str, Any]) -> list[StoredTable]:
    """Return a run's tables with their first rows."""
    found = []
    for one in run["tables"]:
        path = table_path(run, one["name"])
        rows = _first_rows(path) if path is not None else []
        plots = [
            {"file": name.removesuffix(".svg"), "says": says}
            for name, says in zip(one["plots"], one["captions"], strict=True)
        ]
        found.append(
            StoredTable(one["name"], one["title"], one["columns"], rows, one["rows"], one["cut"], plots)
        )
    return found


def table_path(run: dict[str, Any], table: str) -> Path | None:
    """Return the file of a run's table, or None if the run has no such table."""
    known = [one["name"] for one in run["tables"]]
    path = runs_directory() / run["id"] / f"{table}.parquet"
    return path if table in known and path.is_file() else None


def run_plot(run: dict[str, Any], name: str) -> bytes | None:
    """Return a plot as SVG, or None if the run has no such plot."""
    wide = name.removesuffix(".narrow")
    if f"{wide}.svg" not in [plot for one in run["tables"] for plot in one["plots"]]:
        return None
    try:
        return runs_directory().joinpath(run["id"], f"{name}.svg").read_bytes()
    except OSError:
        return None


def run_document(run: dict[str, Any]) -> bytes | None:
    """Return the HTML document of a run, or None if it has none."""
    if not run.get("page"):
        return None
    try:
        return runs_directory().joinpath(run["id"], "page.html").read_bytes()
    except OSError:
        return None


def table_as_csv(path: Path) -> Iterator[str]:
    """Yield a table as CSV in portions.

    Texts that a spreadsheet would interpret as a formula get a leading apostrophe.
    """
    file = pq.ParquetFile(path)
    yield to_csv([file.schema_arrow.names])
    for batch in file.iter_batches(batch_size=5_000):
        yield to_csv([_plain(value) for value in row.values()] for row in batch.to_pylist())


def _first_rows(path: Path) -> list[list[Any]]:
    try:
        batch = next(pq.ParquetFile(path).iter_batches(batch_size=SHOWN), None)
    except (OSError, pa.ArrowInvalid):
        return []
    rows = batch.to_pylist() if batch is not None else []
    return [[_short(_plain(value)) for value in row.values()] for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"base64:{base64.b64encode(value).decode()}"
    return value.isoformat(timespec="milliseconds") if hasattr(value, "isoformat") else value


def _short(value: Any) -> Any:
    return f"{value[:MAX_CELL]}…" if isinstance(value, str) and len(value) > MAX_CELL else value
