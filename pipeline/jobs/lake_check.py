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
from pipeline.jobs.lake import GIVEN_UP, claim_records, covered_intervals
from pipeline.lake_files import file_metadata
from pipeline.log_request import check_bounds
from pipeline.transforms.digest import digest_of
from pipeline.transforms.lake import LakeFileName, missing_intervals, parse_file_name
from sluice_spark.columns import COLUMNS
from sluice_spark.log import LogSnapshot, examine_log

HELP = "check the lake's files by counts and checksums, and say how far it has all that the log holds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the range."""
    add_options(parser, "lake-check")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Check the lake. Raises OperatorError lake_damaged, other_log.

    In the result, the lake has all records from `first` to `through`.
    """
    began = time.monotonic()
    log = examine_log(settings.log)
    check_bounds(log, arguments)
    claim_records(settings, log)
    first, last = arguments.start or log.first, arguments.end or log.frontier
    instance, directory = log.place.instance, settings.records
    found = [
        (file, path)
        for path in directory.glob("day=*/*")
        if (file := parse_file_name(path.name, instance)) is not None
        and file.last >= first
        and file.first <= last
    ]
    records = 0
    for number, (file, path) in enumerate(sorted(found)):
        reporter.progress(number, len(found), "files")
        records += check_file(log, file, path, quick=arguments.quick)
    covered = [(file.first, file.last) for file, _ in found]
    given_up = [(file.first, file.last) for file in covered_intervals(directory, instance, GIVEN_UP)]
    skipped = log.skipped()
    absent = [
        part
        for gap in missing_intervals([*covered, *given_up], first, last)
        for part in skipped.gaps_between(*gap)
    ]
    return {
        "log": log.place.log,
        "first": first,
        "through": absent[0][0] - 1 if absent else last,
        "files": len(found),
        "records": records,
        "missing": [list(interval) for interval in absent[:100]],
        "seconds": round(time.monotonic() - began, 3),
    }


def check_file(log: LogSnapshot, file: LakeFileName, path: Path, *, quick: bool) -> int:
    """Check a file; return its number of records. Raises OperatorError lake_damaged."""
    try:
        opened = pq.ParquetFile(path)
        rows, facts = opened.metadata.num_rows, file_metadata(opened)
        if rows != file.last - file.first + 1 or facts["records"] != str(rows):
            raise _damaged(path, f"it holds {rows} records")
        if facts["log"] != log.place.log:
            raise _damaged(path, f"it is of the log {facts['log']}")
        if not quick and digest_of(opened.read(list(COLUMNS))) != facts["digest"]:
            raise _damaged(path, "its records' checksum doesn't fit")
    except (pa.ArrowException, OSError, KeyError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from error
    return int(rows)


def _damaged(path: Path, why: str) -> OperatorError:
    return OperatorError(
        "lake_damaged",
        f"{path.parent.name}/{path.name} isn't what was written: {why}.",
        "Remove it; while the log still has its records, the next run of `lake` writes them again.",
        file=str(path),
    )
