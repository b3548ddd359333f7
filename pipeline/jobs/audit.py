"""`audit`: checks that the log, the lake and the clients' accounts are complete and consistent.

The whole log is read, and every batch is checked by its checksum. The workers reduce each span to runs of
publisher sequences (transforms/publisher_sequences.py) and to unreadable intervals. The lake's files are
compared with the log's records by checksum. The clients' accounts that the broker recorded must add up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker_core.batch import Batch
from broker_core.errors import JournalError, OperatorError
from broker_core.names import CLIENTS_TOPIC
from pipeline.config import JobSettings
from pipeline.jobs import Reporter, add_options
from pipeline.jobs.lake import covered_intervals
from pipeline.lake_files import file_metadata
from pipeline.log_request import check_bounds
from pipeline.spark_session import check_machine, spark_context, watch_tasks
from pipeline.spark_tasks import map_items
from pipeline.transforms.accounts import ACCOUNTS, check_account_rows
from pipeline.transforms.digest import RecordDigest, digest_of
from pipeline.transforms.lake import LakeFileName, missing_intervals, parse_file_name
from pipeline.transforms.publisher_sequences import RUNS, find_problems, merge_runs, sequence_runs
from sluice_spark.arrow_reader import ReadRequest, plan_log, read_span, sequence_bounds
from sluice_spark.columns import COLUMNS
from sluice_spark.lease import pin_log
from sluice_spark.location import LogLocation
from sluice_spark.log import REMOVED, LogSnapshot
from sluice_spark.segments import SegmentSpan, open_segment, read_batches

HELP = "check the log, its publishers' sequences and the lake: gaps, repeats, damage, order, checksums"
MAX_RUNS: Final = 200_000
"""Maximum runs of one span. A publisher with random sequences has one run for each record."""
MAX_FINDINGS: Final = 10_000
SPAN_REPORT: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("why", pa.string()),
        ("nbytes", pa.int64()),
        *RUNS,
    ]
)
"""A worker's report of a span.

A row for each run, and a row of kind `damage` for each unreadable interval of the log.
"""
DAMAGE: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("why", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("records", pa.int64()),
    ]
)
FILES: Final = pa.schema([("file", pa.string()), ("records", pa.int64()), ("verdict", pa.string())])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the range."""
    add_options(parser, "audit")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Run the audit.

    Findings are the result, and raise nothing. With --strict they raise OperatorError audit_failed.
    """
    started_at = time.monotonic()
    with pin_log(settings.log, "audit", reporter.note) as (log, lease):
        check_bounds(log, arguments)
        check_machine(settings)
        # Gaps are findings here, so the workers must read on behind them.
        request = ReadRequest(start=arguments.start, end=arguments.end, skip_gaps=True)
        first, last = sequence_bounds(log, request)
        spans = plan_log(log, request)
        lease.advance(first)
        with (
            spark_context(settings, "audit") as context,
            watch_tasks(context, partial(reporter.progress, unit="tasks")),
        ):
            span_reports = map_items(context, spans, partial(scan_span, log.location), SPAN_REPORT)
            accounts = map_items(context, spans, partial(check_accounts, log.location), ACCOUNTS)
            files = compare_lake(settings, log, first, last, reporter)
    runs = merge_runs(span_reports.filter(pc.equal(span_reports.column("kind"), "run")).select(RUNS.names))
    publishers, findings = find_problems(runs)
    damage = find_damage(log, span_reports, first, last)
    totals = {
        name: pc.sum(publishers.column(name)).as_py() or 0
        for name in ("records", "unnumbered", "missing", "repeated", "out_of_order")
    }
    differing = [row for row in files if row["verdict"] not in ("the same", "no longer in the log")]
    unreadable = sum(row["records"] for row in damage if row["kind"] != REMOVED)
    reporter.table(
        "damage", pa.Table.from_pylist(damage, schema=DAMAGE), "Unreadable and missing records of the log"
    )
    reporter.table(
        "publishers",
        publishers.sort_by([("missing", "descending"), ("records", "descending")]),
        "Publishers and their sequences",
    )
    reporter.table(
        "findings", findings.slice(0, MAX_FINDINGS), "Missing, repeated and out-of-order sequences"
    )
    wrong_accounts = accounts.filter(pc.is_valid(accounts.column("client")))
    reporter.table(
        "accounts",
        wrong_accounts.drop_columns(["checked"]).slice(0, MAX_FINDINGS),
        "Inconsistent client accounts",
    )
    reporter.table("lake", pa.Table.from_pylist(files, schema=FILES), "Lake files compared with the log")
    result = {
        "log": log.location.log,
        "first": first,
        "last": last,
        "records": totals["records"],
        "bytes": pc.sum(span_reports.column("nbytes")).as_py() or 0,
        "publishers": publishers.num_rows,
        "unnumbered": totals["unnumbered"],
        "numbers_missing": totals["missing"],
        "repeated": totals["repeated"],
        "out_of_order": totals["out_of_order"],
        "unreadable": unreadable,
        "lake_files": len(files),
        "lake_unlike": len(differing),
        "accounts": pc.sum(accounts.column("checked")).as_py() or 0,
        "accounts_wrong": wrong_accounts.num_rows,
        "cut": "cut" in span_reports.column("kind").to_pylist(),
        "findings": unreadable
        + totals["repeated"]
        + totals["out_of_order"]
        + len(differing)
        + wrong_accounts.num_rows,
        "seconds": round(time.monotonic() - started_at, 3),
    }
    reporter.note(audit_sentence(result))
    if arguments.strict and result["findings"]:
        raise OperatorError(
            "audit_failed", audit_sentence(result), "See the tables of an audit without --strict."
        )
    return result


def audit_sentence(result: dict[str, Any]) -> str:
    """Return the findings as a sentence."""
    problems = [
        f"{result[name]:,} {words}"
        for name, words in (
            ("unreadable", "records are unreadable or missing"),
            ("repeated", "records are repeated"),
            ("out_of_order", "records are out of their publisher's order"),
            ("lake_unlike", "files of the lake differ from the log"),
            ("accounts_wrong", "client accounts are inconsistent"),
        )
        if result[name]
    ]
    missing = result["numbers_missing"]
    missing_sentence = (
        f" {missing:,} publisher sequences aren't in the log: unjournaled, refused or lost."
        if missing
        else ""
    )
    return (
        f"{result['records']:,} records of {result['publishers']:,} publishers: "
        f"{'; '.join(problems) or 'no problems'}.{missing_sentence}"
    )


def scan_span(location: LogLocation, span: SegmentSpan) -> Iterator[pa.Table]:
    """Yield runs and unreadable intervals of a span. Runs in a worker."""
    next_sequence, size = span.first, 0

    def count_bytes(batch: Batch) -> None:
        nonlocal size
        size += batch.nbytes

    tables: list[pa.Table] = []
    request = ReadRequest(columns=("sequence", "publisher", "publisher_sequence"), skip_gaps=True)
    missing: list[tuple[int, int]] = []
    for batch in read_span(location, span, request, count_bytes):
        sequences = batch.column("sequence").to_numpy()
        breaks = (sequences[1:] - sequences[:-1] != 1).nonzero()[0].tolist()
        if sequences[0] > next_sequence:
            missing.append((next_sequence, int(sequences[0]) - 1))
        missing += [(int(sequences[n]) + 1, int(sequences[n + 1]) - 1) for n in breaks]
        next_sequence = int(sequences[-1]) + 1
        tables.append(sequence_runs(batch))
    if next_sequence <= span.last:
        missing.append((next_sequence, span.last))
    runs = merge_runs(pa.concat_tables(tables)) if tables else RUNS.empty_table()
    if runs.num_rows > MAX_RUNS:
        yield _report_table("cut", "", 0, runs.slice(0, 1).set_column(4, "records", pa.array([0])))
        runs = runs.slice(0, MAX_RUNS)
    if missing:
        reason = _unreadable_reason(location, span)
        rows = [
            {"publisher": "", "sequence": one, "first": one, "last": last, "records": last - one + 1}
            for one, last in missing
        ]
        yield _report_table("damage", reason, 0, pa.Table.from_pylist(rows, schema=RUNS))
    if runs.num_rows:
        yield _report_table("run", "", size, runs)


def check_accounts(location: LogLocation, span: SegmentSpan) -> Iterator[pa.Table]:
    """Yield the errors in the accounts that a span records. Runs in a worker."""
    request = ReadRequest(columns=("sequence", "body"), topics=(CLIENTS_TOPIC,), skip_gaps=True)
    records = (
        pair
        for batch in read_span(location, span, request)
        for pair in zip(batch.column("sequence").to_pylist(), batch.column("body").to_pylist(), strict=True)
    )
    yield pa.Table.from_pylist(list(check_account_rows(records)), schema=ACCOUNTS)


def _report_table(kind: str, reason: str, nbytes: int, runs: pa.Table) -> pa.Table:
    rows = runs.num_rows
    sizes = [nbytes] + [0] * (rows - 1)
    return pa.table(
        {
            "kind": [kind] * rows,
            "why": [reason] * rows,
            "nbytes": sizes,
            **{name: runs.column(name) for name in RUNS.names},
        }
    ).cast(SPAN_REPORT)


def _unreadable_reason(location: LogLocation, span: SegmentSpan) -> str:
    """Return the reason why a span isn't readable."""
    try:
        for _ in read_batches(location, span, open_segment(location, span.segment)):
            pass
    except JournalError as error:
        return error.sentence
    return "its records can't be read"


def find_damage(log: LogSnapshot, span_reports: pa.Table, first: int, last: int) -> list[dict[str, Any]]:
    """Return the missing or unreadable intervals from first to last, with reasons, oldest first."""
    gaps = [
        {"kind": gap.why, "why": str(gap), "first": gap.first, "last": gap.last}
        for gap in log.gaps(first, last)
    ]
    gap_intervals = sorted((gap.first, gap.last) for gap in log.gaps(first, last))
    damaged = (
        span_reports.filter(pc.equal(span_reports.column("kind"), "damage"))
        .select(["why", "first", "last"])
        .to_pylist()
    )
    unreadable = [
        {"kind": "unreadable", "why": row["why"], "first": begin, "last": end}
        for row in damaged
        for begin, end in missing_intervals(gap_intervals, row["first"], row["last"])
    ]
    rows = sorted([*gaps, *unreadable], key=lambda row: int(row["first"]))[:MAX_FINDINGS]
    return [row | {"records": row["last"] - row["first"] + 1} for row in rows]


def compare_lake(
    settings: JobSettings, log: LogSnapshot, first: int, last: int, reporter: Reporter
) -> list[dict[str, Any]]:
    """Compare each record file of the lake with the log; return a row for each."""
    instance = log.location.instance
    files: list[tuple[LakeFileName, Any]] = sorted(
        (file, path)
        for path in settings.records.glob("day=*/*")
        if (file := parse_file_name(path.name, instance)) is not None
        and file.last >= first
        and file.first <= last
    )
    rows: list[dict[str, Any]] = []
    for number, (file, path) in enumerate(files):
        reporter.progress(number, len(files), "files of the lake")
        name = f"{path.parent.name}/{path.name}"
        rows.append(
            {"file": name, "records": file.last - file.first + 1, "verdict": _compare_file(log, file, path)}
        )
    if covered_intervals(settings.records, instance):
        return rows
    reporter.note("The lake to compare with doesn't exist.")
    return rows


def _compare_file(log: LogSnapshot, file: LakeFileName, path: Any) -> str:
    """Return the result of comparing a lake file with the log's records."""
    if log.gaps(file.first, file.last):
        return "no longer in the log"
    if file.last > log.frontier:
        return "has records that the log lacks"
    log_digest = RecordDigest()
    try:
        for span in plan_log(log, ReadRequest(start=file.first, end=file.last)):
            for batch in read_span(log.location, span, ReadRequest()):
                log_digest.add(batch)
    except JournalError as error:
        return f"the log can't be read: {error.sentence}"
    try:
        parquet = pq.ParquetFile(path)
        stored_digest = file_metadata(parquet)["digest"]
        file_digest = digest_of(parquet.read(list(COLUMNS)))
    except (pa.ArrowException, OSError, KeyError) as error:
        return f"can't be read: {str(error).splitlines()[0]}"[:300]
    if stored_digest != file_digest:
        return "damaged since it was written"
    return "the same" if file_digest == log_digest.text() else "differs from the log"
