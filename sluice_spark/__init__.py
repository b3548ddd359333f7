"""Sluice journals as a Spark data source, `format("sluice")`.

The source reads the files of a journal, so their directory must be mounted where Spark runs. It needs no broker.

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

fallbacks.install_fallbacks()  # before anything that needs them is imported

from sluice_spark.arrow_reader import check_log  # noqa: E402
from sluice_spark.log import LogGap, examine_log  # noqa: E402
from sluice_spark.options import read_options  # noqa: E402
from sluice_spark.worker_setup import show_fix_in_errors  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["gaps", "journal", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("sluice")` known to a session. Once more does no harm, and costs nothing."""
    if spark in _known:
        return
    from sluice_spark.source import SluiceSource

    spark.dataSource.register(SluiceSource)
    _known.add(spark)


_known: WeakSet[SparkSession] = WeakSet()
"""Sessions that know it."""


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
    """A journal's records as a DataFrame of what stands there now. What is wrong is raised here, as SluiceError.

    Call it again for another choice of records, and after new ones have come. Filters and columns of the DataFrame
    itself are right but don't save any reading.
    """
    given: dict[str, object] = {
        "path": path, "archive": archive, "instance": instance, "topics": _text(topics), "columns": _text(columns),
        "start": start, "end": end, "filter": filter, "message_type": message_type, "gaps": gaps, "durable": durable,
        "partition_mb": partition_mb,
    }  # fmt: skip
    options = {name: str(value) for name, value in given.items() if value not in (None, "")}
    with show_fix_in_errors():
        asked = read_options(options)
        check_log(examine_log(asked.place, asked.request.durable), asked.request)
    register(spark)
    return spark.read.format("sluice").options(**options).load()


def gaps(path: str | Path, *, archive: str | Path | None = None, instance: str | None = None) -> list[LogGap]:
    """What the log lacks of all that was ever in it, removed or missing, oldest first."""
    given = {"path": path, "archive": archive, "instance": instance}
    with show_fix_in_errors():
        asked = read_options({name: str(value) for name, value in given.items() if value is not None})
        log = examine_log(asked.place)
        return log.gaps(1, log.frontier)


def _text(words: str | Sequence[str]) -> str:
    """A list as an option's text."""
    return words if isinstance(words, str) else json.dumps(list(words)) if words else ""


def _register_here() -> None:
    """With the session there is: what is imported in a notebook works in its next line."""
    sql = sys.modules.get("pyspark.sql")  # who hasn't imported Spark has no session, and need not wait for it
    active = None if sql is None else sql.SparkSession.getActiveSession()
    if active is not None:
        register(active)


_register_here()
