"""Records of runs: `lake/runs/<id>/run.json` with parameters, result and output.

Beside it tables as Parquet and plots as SVG.

The job's own process writes the record, whether the command line, the console, a schedule or spark-submit
started it. So the console shows all runs. A run that failed before the lake existed leaves no record: a
misspelt directory isn't created.
"""

from __future__ import annotations

import argparse
import getpass
import os
import re
import shutil
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa

from broker_core.errors import SluiceError
from pipeline.config import JobSettings
from pipeline.cpu import cpu_seconds
from pipeline.jobs import Reporter
from pipeline.lake_files import write_parquet
from pipeline.plots import NARROW, PlotSpec, draw_svg

FOLDER: Final = "runs"
MAX_RUNS: Final = 500
"""Maximum runs. Older ones are removed when a new one is stored."""
MAX_ROWS: Final = 1_000_000
"""Maximum rows of one stored table."""
MAX_LINES: Final = 1_000
PAGE: Final = "page.html"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_PLAIN = (str, int, float, bool, type(None))
_TRUNCATED_NOTE = frozenset({"json", "name", "home", "journal", "archive", "lake", "master", "instance"})


def narrow_plot_name(plot: str) -> str:
    """Return the file name of a plot's telephone version."""
    return f"{plot.removesuffix('.svg')}.narrow.svg"


class StoredTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a result. `rows`: stored rows; with `cut` the table had more."""

    name: str
    title: str
    columns: list[str]
    rows: int
    cut: bool = False
    plots: list[str] = []
    """Names of the SVG files; `captions` has their titles."""
    captions: list[str] = []


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a run."""

    version: int = 1
    id: str
    job: str
    instance: str
    log: str | None = None
    state: str
    """"succeeded" or "failed"."""
    by: str
    """User and host that started the run, or the value of SLUICE_ACTOR."""
    master: str
    started_at: int
    """ms UTC, as `ended_at`."""
    ended_at: int
    cpu_s: float
    """CPU seconds of the process, its JVM and its workers."""
    parameters: dict[str, Any]
    result: dict[str, Any]
    error: dict[str, Any] | None = None
    tables: list[StoredTable] = []
    lines: list[str] = []
    """Notes that the run printed."""
    page: bool = False
    """Whether the run has a document, PAGE."""


@dataclass(slots=True)
class _RecordedTable:
    stored: StoredTable
    table: pa.Table
    plots: Sequence[PlotSpec]


@dataclass(slots=True)
class RecordingReporter:
    """Reporter that forwards everything to another one and stores it in the run's record."""

    to: Reporter
    job: str
    arguments: argparse.Namespace
    began: float = field(default_factory=time.time)
    lines: list[str] = field(default_factory=list)
    tables: list[_RecordedTable] = field(default_factory=list)
    id: str = ""
    html: str = ""

    def __post_init__(self) -> None:
        self.id = f"{datetime.fromtimestamp(self.began, UTC):%Y%m%dT%H%M%SZ}-{self.job}-{uuid4().hex[:8]}"

    def progress(self, done: int, total: int, unit: str) -> None:
        self.to.progress(done, total, unit)

    def note(self, sentence: str) -> None:
        if len(self.lines) < MAX_LINES:
            self.lines.append(sentence)
        self.to.note(sentence)

    def table(self, name: str, table: pa.Table, title: str, plots: Sequence[PlotSpec] = ()) -> None:
        """Add a table to the result.

        Raises ValueError if the name can't be a file name, or is used already.
        """
        if not _NAME.fullmatch(name) or any(name == one.stored.name for one in self.tables):
            raise ValueError(f"{name!r} can't be a table's name: small letters, digits and _, each once")
        cut = table.num_rows > MAX_ROWS
        stored = StoredTable(
            name=name,
            title=title,
            columns=table.schema.names,
            rows=min(table.num_rows, MAX_ROWS),
            cut=cut,
            plots=[f"{name}.{number}.svg" for number in range(len(plots))],
            captions=[plot.title for plot in plots],
        )
        self.tables.append(_RecordedTable(stored, table.slice(0, MAX_ROWS), plots))
        self.to.table(name, table, title, plots)

    def page(self, html: str) -> None:
        """Set the run's document; a second one replaces the first."""
        self.html = html
        self.to.page(html)

    def store_run(
        self, settings: JobSettings, result: dict[str, Any], error: SluiceError | None = None
    ) -> bool:
        """Write the record; return whether it was written.

        A failure before the lake exists is not recorded. An OSError is noted, and doesn't fail the run.
        """
        if error is not None and not settings.lake.is_dir():
            return False
        run = StoredRun(
            id=self.id,
            job=self.job,
            instance=settings.log.instance,
            log=result.get("log"),
            state="failed" if error else "succeeded",
            by=os.environ.get("SLUICE_ACTOR") or _user_name(),
            master=settings.master,
            started_at=int(self.began * 1000),
            ended_at=int(time.time() * 1000),
            cpu_s=round(cpu_seconds(), 2),
            parameters={
                key: value
                for key, value in vars(self.arguments).items()
                if key not in _TRUNCATED_NOTE and isinstance(value, _PLAIN) and value not in (None, False, "")
            },
            result=result,
            error=error.as_dict() if error else None,
            tables=[one.stored for one in self.tables] if not error else [],
            lines=self.lines,
            page=bool(self.html) and not error,
        )
        shelf = settings.lake / FOLDER
        try:
            _write(shelf, run, self.tables if not error else [], self.html)
            _remove_old_runs(shelf)
        except OSError as problem:
            self.to.note(f"The run couldn't be recorded in {shelf}: {problem.strerror or problem}.")
            return False
        return True


def _write(shelf: Path, run: StoredRun, tables: Sequence[_RecordedTable], html: str) -> None:
    """Write the run's directory atomically: under another name, then renamed."""
    making = shelf / f".making-{run.id}"
    making.mkdir(parents=True)
    try:
        for one in tables:
            write_parquet(one.table, making / f"{one.stored.name}.parquet", [])
            for name, plot in zip(one.stored.plots, one.plots, strict=True):
                (making / name).write_text(draw_svg(plot, one.table), "utf-8")
                (making / narrow_plot_name(name)).write_text(draw_svg(plot, one.table, NARROW), "utf-8")
        if run.page:
            (making / PAGE).write_text(html, "utf-8")
        (making / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
        making.rename(shelf / run.id)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _remove_old_runs(shelf: Path) -> None:
    names = sorted(path.name for path in shelf.iterdir() if not path.name.startswith("."))
    for name in names[:-MAX_RUNS]:
        shutil.rmtree(shelf / name, ignore_errors=True)


def _user_name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user} on {socket.gethostname()}"
