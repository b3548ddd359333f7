"""`lake`: writes the journal's records to Parquet by day, each file sorted by topic and bookmark.

The work runs on Arrow in Spark's Python workers, one span of the journal a task. Only the names of files
are returned. See transforms/lake.py for the reason why a repeated run is harmless.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from broker_core.errors import OperatorError, SluiceError
from pipeline.compaction import compact, remove_leftovers
from pipeline.config import JobSettings
from pipeline.jobs import Reporter, add_options
from pipeline.lake_files import ROW_GROUP, lock_lake, unwritable_error, write_groups
from pipeline.log_request import check_bounds
from pipeline.manifest import LakeManifest, claim_directory, write_manifest
from pipeline.schemas import WRITTEN
from pipeline.spark_session import check_machine, spark_context, watch_tasks
from pipeline.spark_tasks import map_items
from pipeline.transforms.digest import RecordDigest
from pipeline.transforms.lake import (
    LakeFileName,
    day_name,
    file_name,
    log_tag,
    missing_intervals,
    parse_file_name,
    sorted_parts,
    split_by_day,
)
from pipeline.transforms.typed_columns import PREFIX, Fields, infer_fields, typed_columns
from pipeline.typed_schema import read_typed, write_typed
from sluice_spark.arrow_reader import ReadRequest, plan_log, read_span
from sluice_spark.lease import pin_log
from sluice_spark.location import LogLocation
from sluice_spark.log import REMOVED, LogGap, LogSnapshot, gap_error
from sluice_spark.segments import SegmentSpan

HELP = "write new records of the journal to Parquet files by day, sorted by topic and bookmark"
MAX_FILE_BYTES = 96 * 1024 * 1024
"""Arrow bytes that are sorted together into one file, half a segment of the usual size.

A worker needs some 450 MB for that. Whole segments needed more, and were slower because the memory was not
in the cache.
"""
SPAN_BYTES = 1 << 40
"""Task size so large that a segment is one task, and usually one file."""
MAX_NAMED = 20
SAMPLED_BODIES, SAMPLED_SPANS = 20_000, 20
"""Bodies from which the schema of typed columns is inferred, and the maximum spans they come from."""
ABANDONED_REASON = "given up"
ABANDONED = "_given_up"
"""Directory with an empty file for each skipped interval.

Spark and pyarrow ignore names that start with "_".
"""
REPEATING = ["origin", "topic", "publisher", "epoch"]
COUNTING = ["sequence", "publisher_sequence"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the range and the lake."""
    add_options(parser, "lake")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Write the records that the lake lacks.

    Raises SluiceError if a span is incomplete; finished files remain.
    """
    started_at = time.monotonic()
    with pin_log(settings.log, "lake", reporter.note, arguments.durable) as (log, lease):
        check_bounds(log, arguments)
        check_machine(settings)
        with lock_lake(settings.records):
            remove_leftovers(settings.records)
            manifest = claim_records(settings, log)
            plan = plan_lake(settings, log, arguments)
            if not plan.spans:
                reporter.note("The lake is up to date." if log.frontier else "The log has no records yet.")
                rows: list[dict[str, Any]] = []
                type_bodies(settings, log, plan_log(log, ReadRequest(skip_gaps=True)), arguments, reporter)
            else:
                lease.advance(plan.spans[0].first)
                write_manifest(settings.records, manifest)
                type_bodies(settings, log, plan.spans, arguments, reporter)
                rows = write_spans(settings, log, plan.spans, arguments.skip_gaps, reporter)
            lease.advance(log.frontier + 1)
            if arguments.skip_gaps:
                plan = replace(plan, gaps=plan.gaps + give_up(settings, log, plan))
            for gap in plan.gaps[:MAX_NAMED]:
                reporter.note(f"Not in the lake: {gap}.")
            compacted = compact_lake(settings, log, reporter) if arguments.compact else {}
            write_manifest(settings.records, updated_manifest(manifest, settings, log, plan.gaps))
            version = update_delta(settings, arguments.delta)
    gaps = [gap.as_dict() for gap in plan.gaps]
    return summary(rows, time.monotonic() - started_at) | {
        "log": log.location.log,
        "gaps": gaps,
        **report_types(settings, rows, reporter),
        **compacted,
        **({} if version is None else {"delta_version": version}),
    }


def type_bodies(
    settings: JobSettings,
    log: LogSnapshot,
    spans: list[SegmentSpan],
    arguments: argparse.Namespace,
    reporter: Reporter,
) -> None:
    """Prepare the schema of typed columns before anything is written.

    It is inferred once, and later only extended.
    """
    stored = read_typed(settings.records)
    if not (arguments.typed or arguments.evolve) or (stored is not None and not arguments.evolve):
        return
    fields = infer_fields(sample_bodies(log, spans), stored)
    if not fields:
        reporter.note("No body is a JSON object yet. Run the job with --typed again later.")
    elif fields != stored:
        write_typed(settings.records, fields)
        new_columns = [
            f"{PREFIX}{name} {kind}" for name, kind in fields.items() if name not in (stored or {})
        ]
        reporter.note(
            f"New typed columns: {', '.join(new_columns[:MAX_NAMED]) or 'none'}"
            f"{'…' if len(new_columns) > MAX_NAMED else ''}."
        )


def sample_bodies(log: LogSnapshot, spans: list[SegmentSpan]) -> Iterator[bytes]:
    """Yield bodies from the beginning of each span, or of evenly chosen spans if there are many."""
    chosen = spans[:: max(1, -(-len(spans) // SAMPLED_SPANS))]
    for span in chosen:
        remaining = SAMPLED_BODIES // len(chosen)
        for batch in read_span(log.location, span, ReadRequest(columns=("topic", "body"), skip_gaps=True)):
            for topic, body in zip(
                *(batch.column(name).slice(0, remaining).to_pylist() for name in ("topic", "body")),
                strict=True,
            ):
                if not topic.startswith("$"):
                    yield body
            remaining -= batch.num_rows
            if remaining <= 0:
                break


def report_types(settings: JobSettings, rows: list[dict[str, Any]], reporter: Reporter) -> dict[str, Any]:
    """Report the values of bodies that no typed column could hold."""
    fields = read_typed(settings.records)
    if fields is None:
        return {}
    unfit, not_json = (sum(row[name] or 0 for row in rows) for name in ("unfit", "not_json"))
    new = sorted({name for row in rows for name in (row["new_fields"] or "").split()})
    if new:
        reporter.note(
            f"Fields without a column: {', '.join(new[:MAX_NAMED])}. --evolve adds columns for new records."
        )
    return {
        "typed_columns": len(fields),
        "unfit_values": unfit,
        "not_json": not_json,
        "new_fields": new[:MAX_NAMED],
    }


def compact_lake(settings: JobSettings, log: LogSnapshot, reporter: Reporter) -> dict[str, int]:
    """Join small files; return their numbers before and after."""

    def write(directory: Path, table: pa.Table) -> Path:
        columns = {name: table.column(name) for name in table.schema.names}
        row = write_records(log.location, settings.records, directory, columns)
        return directory / Path(row["file"]).name

    before, after = compact(
        settings.records, log.location.instance, write, partial(reporter.progress, unit="days joined")
    )
    if before:
        reporter.note(f"Compacted {before:,} small files to {after:,}.")
    return {"files_joined": before, "files_made": after}


def update_delta(settings: JobSettings, is_requested: bool) -> int | None:
    """Update the Delta table of the records; return its version, None without a table.

    An existing table is always updated, because its readers must not fall behind the files.
    """
    if not (is_requested or (settings.records / "_delta_log").is_dir()):
        return None
    from pipeline.delta_table import update_delta_table  # the workers import this module, and need no Delta

    return update_delta_table(settings.records)


@dataclass(frozen=True, slots=True)
class LakePlan:
    """Plan of a run: the spans to write, and the log's gaps."""

    spans: list[SegmentSpan]
    gaps: list[LogGap]
    """Gaps reported in the result and the manifest, in the same words by a new and by an existing lake."""


def plan_lake(settings: JobSettings, log: LogSnapshot, arguments: argparse.Namespace) -> LakePlan:
    """Plan the spans that the lake lacks. Raises JournalError bookmark_gone if the log removed some of them.

    Records removed before this lake began are reported, and no error. For a lake that followed the log they
    are.
    """
    files = covered_intervals(settings.records, log.location.instance)
    abandoned = covered_intervals(settings.records, log.location.instance, ABANDONED)
    covered = [(file.first, file.last) for file in (*files, *abandoned)]
    last = log.frontier if arguments.end is None else arguments.end
    lake_start = min([log.first, *(first for first, _ in covered)])
    missing = missing_intervals(covered, arguments.start or 1, last)
    gaps = [gap for first, stop in missing for gap in log.gaps(first, stop)]
    for gap in gaps:
        is_removed_before = gap.why == REMOVED and gap.last < lake_start and arguments.start is None
        if not is_removed_before and not arguments.skip_gaps:
            raise gap_error(gap, log)
    spans: list[SegmentSpan] = []
    for first, stop in missing:
        spans += plan_log(log, ReadRequest(start=first, end=stop, skip_gaps=True, split_bytes=SPAN_BYTES))
    return LakePlan(spans, [*gaps, *(LogGap(file.first, file.last, ABANDONED_REASON) for file in abandoned)])


def covered_intervals(directory: Path, instance: str, folder: str = "day=*") -> list[LakeFileName]:
    """Return the intervals of the lake's files, by their names.

    With ABANDONED, the intervals that an operator gave up.
    """
    names = (path.name for path in directory.glob(f"{folder}/*"))
    return [file for name in names if (file := parse_file_name(name, instance)) is not None]


def give_up(settings: JobSettings, log: LogSnapshot, plan: LakePlan) -> list[LogGap]:
    """Record the intervals that --skip-gaps skipped, and return the new ones.

    Later runs then don't need --skip-gaps for them, and still report new gaps.
    """
    directory, instance = settings.records, log.location.instance
    edges = [*((span.first, span.last) for span in plan.spans), *((gap.first, gap.last) for gap in plan.gaps)]
    if not edges:
        return []
    covered = [
        (f.first, f.last)
        for f in (*covered_intervals(directory, instance), *covered_intervals(directory, instance, ABANDONED))
    ]
    skipped = log.skipped_sequences()
    missing = missing_intervals(covered, min(edges)[0], max(last for _, last in edges))
    skipped_intervals = [part for gap in missing for part in skipped.gaps_between(*gap)]
    (directory / ABANDONED).mkdir(exist_ok=True)
    assert log.location.log is not None, "a log with records was claimed"
    for first, last in skipped_intervals:
        (directory / ABANDONED / file_name(instance, first, last, log_tag(log.location.log))).touch()
    gap_intervals = {(gap.first, gap.last) for gap in plan.gaps}
    return [
        LogGap(first, last, ABANDONED_REASON)
        for first, last in skipped_intervals
        if (first, last) not in gap_intervals
    ]


def claim_records(settings: JobSettings, log: LogSnapshot) -> LakeManifest:
    """Return the manifest of this log's records. Raises OperatorError other_log."""
    instance, directory = log.location.instance, settings.records
    tags = [file.tag for file in covered_intervals(directory, instance)]
    return claim_directory(directory, log, tags)


def updated_manifest(
    manifest: LakeManifest, settings: JobSettings, log: LogSnapshot, gaps: list[LogGap]
) -> LakeManifest:
    """Return the manifest after a run."""
    files = covered_intervals(settings.records, log.location.instance)
    return msgspec.structs.replace(
        manifest,
        gaps=[gap.as_dict() for gap in sorted(gaps)],
        first=min((file.first for file in files), default=0),
        last=max((file.last for file in files), default=0),
        files=len(files),
        records=sum(file.last - file.first + 1 for file in files),
    )


def write_spans(
    settings: JobSettings, log: LogSnapshot, spans: list[SegmentSpan], skip_gaps: bool, reporter: Reporter
) -> list[dict[str, Any]]:
    """Have the workers write spans; return a row for each file. Raises the first SluiceError."""
    reporter.note(f"{sum(s.last - s.first + 1 for s in spans):,} records in {len(spans)} spans of segments.")
    report = partial(reporter.progress, unit="spans")
    work = partial(write_span_task, log.location, settings.records, skip_gaps)
    with spark_context(settings, "lake") as context, watch_tasks(context, report):
        rows: list[dict[str, Any]] = map_items(context, spans, work, WRITTEN).to_pylist()
    raise_first(rows)
    return rows


def write_span_task(
    location: LogLocation, directory: Path, skip_gaps: bool, span: SegmentSpan
) -> Iterator[pa.Table]:
    """Write a span in a task."""
    rows = try_write_span(location, directory, span, skip_gaps)
    yield pa.Table.from_pylist(rows, schema=WRITTEN)


def try_write_span(
    location: LogLocation, directory: Path, span: SegmentSpan, skip_gaps: bool
) -> list[dict[str, Any]]:
    """Write a span; return a row for each file.

    A failure of the journal is also a row, so that the operator gets that error, not a Java stack. Other
    exceptions are left to Spark, which repeats the task on a cluster.
    """
    rows: list[dict[str, Any]] = []
    try:
        for row in write_span(location, directory, span, skip_gaps):
            rows.append(row)
    except SluiceError as error:
        rows.append({"error": json.dumps(error.as_dict())})
    except OSError as error:
        rows.append({"error": json.dumps(unwritable_error(directory, error).as_dict())})
    return rows


def write_span(
    location: LogLocation, directory: Path, span: SegmentSpan, skip_gaps: bool = False
) -> Iterator[dict[str, Any]]:
    """Write a span to the lake; yield a row when each file is in place."""
    pending: list[pa.RecordBatch] = []
    day, size, expected = 0, 0, span.first
    for batch in read_span(location, span, ReadRequest(skip_gaps=skip_gaps)):
        for part_day, part in split_by_day(batch):
            first = part.column("sequence")[0].as_py()
            if pending and (part_day != day or first != expected or size >= MAX_FILE_BYTES):
                yield write_file(location, directory, day, pending)
                pending, size = [], 0
            pending.append(part)
            day, size, expected = part_day, size + part.nbytes, first + part.num_rows
    if pending:
        yield write_file(location, directory, day, pending)


def write_file(
    location: LogLocation, directory: Path, day: int, parts: list[pa.RecordBatch]
) -> dict[str, Any]:
    """Sort and write the records of one file. Empties `parts`, to free memory.

    The footer has the number of records, their log and their checksum.
    """
    table = pa.Table.from_batches(parts)
    parts.clear()
    columns = {name: table.column(name) for name in table.schema.names}
    del table
    return write_records(location, directory, directory / day_name(day), columns)


def write_records(
    location: LogLocation, records: Path, folder: Path, columns: dict[str, pa.ChunkedArray]
) -> dict[str, Any]:
    """Write columns in sequence order as a file in `folder`, with the lake's typed columns.

    Empties `columns`.
    """
    digest = RecordDigest()
    for part in pa.table(columns).to_batches():
        digest.add(part)
    del part
    first, last = columns["sequence"][0].as_py(), columns["sequence"][-1].as_py()
    assert location.log is not None, "a log with records was claimed"
    path = folder / file_name(location.instance, first, last, log_tag(location.log))
    metadata = {"log": location.log, "records": str(digest.records), "digest": digest.text()}
    fields = read_typed(records)
    typed_writer = TypedColumnWriter(fields)
    groups = sorted_parts(columns, ROW_GROUP)
    size = write_groups(
        groups if fields is None else map(typed_writer.add_typed_columns, groups),
        path,
        REPEATING,
        metadata,
        COUNTING,
    )
    name = f"{path.parent.name}/{path.name}"
    row = {"file": name, "first": first, "last": last, "records": digest.records, "bytes": size}
    return row | typed_writer.to_row()


class TypedColumnWriter:
    """Writer of typed columns, with counts of values that don't fit."""

    def __init__(self, fields: Fields | None) -> None:
        self._fields = fields
        self._unfit = self._not_json = 0
        self._new: set[str] = set()

    def add_typed_columns(self, table: pa.Table) -> pa.Table:
        """Return the table with its typed columns."""
        assert self._fields is not None
        made = typed_columns(table.column("topic").cast(pa.string()), table.column("body"), self._fields)
        self._unfit, self._not_json = self._unfit + made.unfit, self._not_json + made.not_json
        self._new |= made.new_fields
        for field, column in zip(made.columns.schema, made.columns.columns, strict=True):
            table = table.append_column(field, column)
        return table

    def to_row(self) -> dict[str, Any]:
        """Return the counts as columns of WRITTEN; empty without typed columns."""
        new = " ".join(sorted(self._new)[:MAX_NAMED])
        return (
            {}
            if self._fields is None
            else {"unfit": self._unfit, "not_json": self._not_json, "new_fields": new}
        )


def raise_first(rows: list[dict[str, Any]]) -> None:
    """Raise the first error that a worker reported."""
    for row in rows:
        if row["error"] is not None:
            error = json.loads(row["error"])
            raise OperatorError.from_dict(error["code"], error["message"], error["fix"], error["details"])


def summary(rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Return the result of a run."""
    records = sum(row["records"] for row in rows)
    return {
        "files": len(rows),
        "records": records,
        "bytes": sum(row["bytes"] for row in rows),
        "first": min((row["first"] for row in rows), default=None),
        "last": max((row["last"] for row in rows), default=None),
        "seconds": round(seconds, 3),
    }
