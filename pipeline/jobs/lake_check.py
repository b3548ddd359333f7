"""`lake-check`: checks that the lake's record files are intact, and how far the lake covers the log.

Journal removal runs it before it removes only what the lake has. Needs neither Spark nor Java.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from broker_core.errors import OperatorError
from pipeline.config import JobSettings
from pipeline.jobs import Reporter, add_options
from pipeline.jobs.lake import ABANDONED, claim_records, covered_intervals
from pipeline.lake_files import file_metadata
from pipeline.log_request import check_bounds
from pipeline.transforms.digest import digest_of
from pipeline.transforms.lake import LakeFileName, missing_intervals, parse_file_name
from sluice_spark.columns import COLUMNS
from sluice_spark.log import LogSnapshot, examine_log

HELP = "check counts and checksums of the lake's files, and report how much of the log the lake has"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the range."""
    add_options(parser, "lake-check")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Check the lake. Raises OperatorError lake_damaged, other_log.

    In the result, the lake has all records from `first` to `through`.
    """
    started_at = time.monotonic()
    log = examine_log(settings.log)
    check_bounds(log, arguments)
    claim_records(settings, log)
    first, last = arguments.start or log.first, arguments.end or log.frontier
    instance, directory = log.location.instance, settings.records
    files = [
        (file, path)
        for path in directory.glob("day=*/*")
        if (file := parse_file_name(path.name, instance)) is not None
        and file.last >= first
        and file.first <= last
    ]
    records = 0
    for number, (file, path) in enumerate(sorted(files)):
        reporter.progress(number, len(files), "files")
        records += check_file(log, file, path, quick=arguments.quick)
    covered = [(file.first, file.last) for file, _ in files]
    abandoned = [(file.first, file.last) for file in covered_intervals(directory, instance, ABANDONED)]
    skipped = log.skipped_sequences()
    missing = [
        part
        for gap in missing_intervals([*covered, *abandoned], first, last)
        for part in skipped.gaps_between(*gap)
    ]
    return {
        "log": log.location.log,
        "first": first,
        "through": missing[0][0] - 1 if missing else last,
        "files": len(files),
        "records": records,
        "missing": [list(interval) for interval in missing[:100]],
        "seconds": round(time.monotonic() - started_at, 3),
    }


def check_file(log: LogSnapshot, file: LakeFileName, path: Path, *, quick: bool) -> int:
    """Check a file; return its number of records. Raises OperatorError lake_damaged."""
    try:
        parquet = pq.ParquetFile(path)
        rows, metadata = parquet.metadata.num_rows, file_metadata(parquet)
        if rows != file.last - file.first + 1 or metadata["records"] != str(rows):
            raise _damaged_file_error(path, f"it has {rows} records")
        if metadata["log"] != log.location.log:
            raise _damaged_file_error(path, f"it belongs to log {metadata['log']}")
        if not quick and digest_of(parquet.read(list(COLUMNS))) != metadata["digest"]:
            raise _damaged_file_error(path, "the checksum of its records is wrong")
    except (pa.ArrowException, OSError, KeyError) as error:
        raise _damaged_file_error(path, str(error).splitlines()[0]) from error
    return int(rows)


def _damaged_file_error(path: Path, reason: str) -> OperatorError:
    return OperatorError(
        "lake_damaged",
        f"{path.parent.name}/{path.name} is damaged: {reason}.",
        "Remove it; while the log still has its records, the next run of `lake` writes them again.",
        file=str(path),
    )
