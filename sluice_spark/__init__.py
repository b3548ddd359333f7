"""Sluice journals as a Spark data source, `format("sluice")`.

The source reads the files of a journal, so their directory must be mounted where Spark runs. No broker is
needed.

options        the options of `spark.read` and `spark.readStream`, and how they are written
source         the batch source; plans on the driver, reads in the workers
stream         the same log as a stream of micro-batches
partition      the partition of both sources, and its reader in a Spark task
arrow_reader   plans the spans of a request, and reads spans to Arrow: in order and complete, or with an error
tasks          divides spans into tasks of about equal size
log            a snapshot of a log: identity, segments, durable frontier, gaps
segments       finds and reads segment files beside a running broker, without its lock
arrow_builder  builds one Arrow batch from many record batches
columns        the schema
lease          keeps the log from being removed while it is read

Importing this package registers the source with the active Spark session, if there is one. Spark also finds
the source without an import, through the module `pyspark_sluice`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from sluice_spark import fallbacks

fallbacks.install_fallbacks()  # must precede the imports below, which need the packages

from sluice_spark.arrow_reader import check_log  # noqa: E402
from sluice_spark.log import LogGap, examine_log  # noqa: E402
from sluice_spark.options import read_options  # noqa: E402
from sluice_spark.worker_setup import show_fix_in_errors  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["gaps", "journal", "register"]


def register(spark: SparkSession) -> None:
    """Register `format("sluice")` with a session. A repeated call does nothing."""
    if spark in _known:
        return
    from sluice_spark.source import SluiceSource

    spark.dataSource.register(SluiceSource)
    _known.add(spark)


_known: WeakSet[SparkSession] = WeakSet()
"""Sessions that have the source."""


def journal(
    spark: SparkSession,
    path: str | Path,
    *,
    archive: str | Path | None = None,
    instance: str | None = None,
    topics: str | Sequence[str] = (),
    columns: Sequence[str] = (),
    start: str | int | None = None,
    end: str | int | None = None,
    filter: str = "",
    message_type: str = "json",
    gaps: str = "error",
    durable: int | None = None,
    partition_mb: int | None = None,
) -> DataFrame:
    """Return a journal's records, as present now, as a DataFrame.

    Call it again for other records, and to see records that arrived later. Filters and column selections on
    the DataFrame are correct, but read no less.

    Args:
        spark: the session; the source is registered with it.
        path: the journal's directory.
        archive: the archive directory; by default `archive` beside the journal's directory, if that exists.
        instance: the instance's name; needed only if the directory has several journals.
        topics: topic patterns as in subscriptions; none selects all topics.
        columns: columns in their order; none selects all.
        start, end: first and last record: a sequence, a bookmark or a time.
        filter: filter expression in the broker's language over bodies of type `message_type`.
        message_type: type of the bodies that `filter` reads.
        gaps: "error" raises if the log lacks a selected record, "note" reads on.
        durable: the durable frontier, if the caller knows it better than the broker's file.
        partition_mb: approximate MiB that one Spark task reads.

    Raises:
        SluiceError: the options are invalid, or the log lacks a selected record. Its text includes the fix.
    """
    values: dict[str, object] = {
        "path": path,
        "archive": archive,
        "instance": instance,
        "topics": _text(topics),
        "columns": _text(columns),
        "start": start,
        "end": end,
        "filter": filter,
        "message_type": message_type,
        "gaps": gaps,
        "durable": durable,
        "partition_mb": partition_mb,
    }
    options = {name: str(value) for name, value in values.items() if value not in (None, "")}
    with show_fix_in_errors():
        read = read_options(options)
        check_log(examine_log(read.location, read.request.durable), read.request)
    register(spark)
    return spark.read.format("sluice").options(**options).load()


def gaps(path: str | Path, *, archive: str | Path | None = None, instance: str | None = None) -> list[LogGap]:
    """Return the intervals that the log lacks, removed or missing, oldest first. Raises SluiceError."""
    values = {"path": path, "archive": archive, "instance": instance}
    with show_fix_in_errors():
        read = read_options({name: str(value) for name, value in values.items() if value is not None})
        log = examine_log(read.location)
        return log.gaps(1, log.frontier)


def _text(words: str | Sequence[str]) -> str:
    """Return a list of words as the text of an option."""
    return words if isinstance(words, str) else json.dumps(list(words)) if words else ""


def _register_active_session() -> None:
    """Register the source with the active session, so that a notebook can use it right after the import."""
    # without Spark imported there is no session, and importing it takes long
    sql = sys.modules.get("pyspark.sql")
    active = None if sql is None else sql.SparkSession.getActiveSession()
    if active is not None:
        register(active)


_register_active_session()
