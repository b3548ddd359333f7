"""`lake`: the journal's records to Parquet, by day, each file sorted by topic and bookmark.

The work is done on Arrow inside Spark's Python workers, one span of the journal a task; only the names of the files
go back. See transforms/lake.py for what makes a repeated run harmless.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker_core.errors import OperatorError, SluiceError
from pipeline.config import LogPlace, Settings
from pipeline.jobs import Reporter, add_reading_arguments
from pipeline.lakefiles import one_writer, write_parquet
from pipeline.reading import Request, plan, read_span
from pipeline.schemas import WRITTEN, spark_ddl
from pipeline.segments import Span, durable_sequence, first_sequences
from pipeline.session import spark_session, watched
from pipeline.sources import settle_worker
from pipeline.transforms.lake import (
    Interval,
    day_name,
    file_name,
    interval_of,
    missing,
    sort_records,
    stretches,
)

HELP = "write what is new in the journal to Parquet files, by day and sorted by topic and bookmark"
MAX_FILE_BYTES = 256 * 1024 * 1024
"""Raw bytes that are sorted at once and make one file. A worker needs about three times as much memory."""
GIVEN_UP = "_given_up"
"""Holds an empty file per interval that was skipped; Spark and pyarrow ignore names that start with "_"."""
REPEATING = ["origin", "topic", "publisher", "epoch"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Bounds of the run."""
    parser.add_argument("--start", type=int, help="first sequence (default: the oldest record there is)")
    parser.add_argument("--end", type=int, help="last sequence (default: the durable frontier)")
    add_reading_arguments(parser)


def run(settings: Settings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Write what the lake doesn't hold yet. SluiceError when a span isn't whole; what was finished stays."""
    began = time.monotonic()
    with one_writer(settings.records):
        spans = plan_lake(settings, arguments)
        if not spans:
            reporter.note("The lake is up to date.")
            return summary([], time.monotonic() - began) | {"gaps": []}
        reporter.note(
            f"{sum(s.last - s.first + 1 for s in spans):,} records in {len(spans)} spans of segments."
        )
        work = worker(settings.log, settings.records, spans, arguments.skip_gaps)
        report = partial(reporter.progress, what="spans")
        with spark_session(settings, "lake") as spark, watched(spark, report):
            numbers = spark.range(0, len(spans), 1, len(spans))
            rows = numbers.mapInArrow(work, spark_ddl(WRITTEN)).toArrow().to_pylist()
        raise_first(rows)
        gaps = accept_gaps(settings, spans) if arguments.skip_gaps else []
    return summary(rows, time.monotonic() - began) | {"gaps": gaps}


def plan_lake(settings: Settings, arguments: argparse.Namespace) -> list[Span]:
    """The spans the lake doesn't cover yet. JournalError bookmark_gone when some of them left the journal unread."""
    place = settings.log
    durable = durable_sequence(place) if arguments.durable is None else arguments.durable
    segments = first_sequences(place)
    covered = held(settings.records, place.instance)
    last = durable if arguments.end is None else min(arguments.end, durable)
    oldest = min([*segments[:1], *(first for first, _ in covered)], default=1)
    spans: list[Span] = []
    for first, stop in missing(covered, arguments.start or oldest, last):
        spans += plan(place, Request(start=first, end=stop, durable=durable, skip_gaps=arguments.skip_gaps))
    return spans


def held(directory: Path, instance: str) -> list[Interval]:
    """The intervals of sequences the lake's files hold, and those an operator gave up."""
    names = (path.name for pattern in ("day=*/*", f"{GIVEN_UP}/*") for path in directory.glob(pattern))
    return [interval for name in names if (interval := interval_of(name, instance)) is not None]


def accept_gaps(settings: Settings, spans: list[Span]) -> list[Interval]:
    """Note what --skip-gaps skipped, so that later runs needn't skip, and report new gaps again."""
    directory, instance = settings.records, settings.log.instance
    gaps = missing(held(directory, instance), spans[0].first, spans[-1].last)
    (directory / GIVEN_UP).mkdir(exist_ok=True)
    for first, last in gaps:
        (directory / GIVEN_UP / file_name(instance, first, last)).touch()
    return gaps


def worker(
    place: LogPlace, directory: Path, spans: list[Span], skip_gaps: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark's workers run: numbers of spans in, rows of WRITTEN out."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = written_or_error(place, directory, spans[number], skip_gaps)
                yield pa.RecordBatch.from_pylist(rows, schema=WRITTEN)

    return work


def written_or_error(place: LogPlace, directory: Path, span: Span, skip_gaps: bool) -> list[dict[str, Any]]:
    """A row per file. A failure of the journal is a row as well, so that it reaches the operator as itself rather
    than as a stack of Java; other exceptions are left to Spark, which tries the task again on a cluster."""
    rows: list[dict[str, Any]] = []
    try:
        for row in write_span(place, directory, span, skip_gaps):
            rows.append(row)
    except SluiceError as error:
        rows.append({"error": json.dumps(error.as_dict())})
    return rows


def write_span(
    place: LogPlace, directory: Path, span: Span, skip_gaps: bool = False
) -> Iterator[dict[str, Any]]:
    """Put one span into the lake; yields each file when it stands."""
    kept: list[pa.RecordBatch] = []
    day, size, expected = 0, 0, span.first
    for batch in read_span(place, span, Request(skip_gaps=skip_gaps)):
        for stretch_day, part in stretches(batch):
            first = part.column("sequence")[0].as_py()
            if kept and (stretch_day != day or first != expected or size >= MAX_FILE_BYTES):
                yield write_file(place.instance, directory, day, kept)
                kept, size = [], 0
            kept.append(part)
            day, size, expected = stretch_day, size + part.nbytes, first + part.num_rows
    if kept:
        yield write_file(place.instance, directory, day, kept)


def write_file(instance: str, directory: Path, day: int, parts: list[pa.RecordBatch]) -> dict[str, Any]:
    """Sort and write one file's records."""
    table = pa.Table.from_batches(parts)
    first, last = table.column("sequence")[0].as_py(), table.column("sequence")[-1].as_py()
    path = directory / day_name(day) / file_name(instance, first, last)
    size = write_parquet(sort_records(table), path, REPEATING)
    name = f"{path.parent.name}/{path.name}"
    return {"file": name, "first": first, "last": last, "records": table.num_rows, "bytes": size}


def raise_first(rows: list[dict[str, Any]]) -> None:
    """Raise the first failure a worker reported."""
    for row in rows:
        if row["error"] is not None:
            told = json.loads(row["error"])
            raise OperatorError.received(told["code"], told["message"], told["fix"], told["details"])


def summary(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The result of a run."""
    records = sum(row["records"] for row in rows)
    return {
        "files": len(rows),
        "records": records,
        "bytes": sum(row["bytes"] for row in rows),
        "first": min((row["first"] for row in rows), default=None),
        "last": max((row["last"] for row in rows), default=None),
        "seconds": round(seconds, 3),
    }
