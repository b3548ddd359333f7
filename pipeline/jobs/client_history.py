"""`client-history`: lag, rates, states and decisions of each client by hour.

They come from the broker's events about its clients. Files are
`client_history/day=<day>/<instance>.parquet`. The newest stored hour was incomplete when it was written, so
a run starts with that hour and replaces it. Older hours remain, also when their journal was removed.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker_core.bookmark import format_moment
from broker_core.names import CLIENTS_TOPIC, DECISIONS_TOPIC
from pipeline.config import JobSettings
from pipeline.jobs import Reporter, add_options
from pipeline.lake_files import lock_lake, write_parquet
from pipeline.manifest import claim_directory, write_manifest
from pipeline.plots import PlotSpec
from pipeline.schemas import CLIENT_HOURS
from pipeline.spark_session import check_machine, spark_session, watch_tasks
from pipeline.transforms.client_history import EVENTS, HOUR_MS, MADE, close_open_hours, hours_of, merge_hours
from pipeline.transforms.lake import DAY_US, day_name
from sluice_spark import journal
from sluice_spark.arrow_reader import ReadRequest, plan_log
from sluice_spark.columns import spark_ddl
from sluice_spark.lease import pin_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HELP = "write lag, rates, states and decisions of each client by hour, for the console's long time ranges"
HOUR_US = HOUR_MS * 1_000
LEAD_MS = 60_000
"""Time before the first hour from which a run reads, to learn which clients entered that hour offlined."""
EVENT = spark_ddl(pa.schema([field for field in EVENTS if field.name != "sequence"])).replace(
    "`lag_ms` bigint", "`lag_ms` double"
)
WORST = 200
_SUMS = (
    "connected_ms",
    "delivered_messages",
    "delivered_bytes",
    "offline_episodes",
    "offline_ms",
    "connects",
    "disconnects",
    "warned",
    "offlined",
    "disconnected",
    "lost_messages",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the range."""
    add_options(parser, "client-history")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Compute the hours from the newest stored one on. Raises SluiceError if the journal is incomplete."""
    started_at = time.monotonic()
    with (
        pin_log(settings.log, "client-history", reporter.note, arguments.durable) as (log, lease),
        lock_lake(settings.client_history),
    ):
        check_machine(settings)
        manifest = claim_directory(settings.client_history, log, [])
        newest = None if arguments.all else newest_hour(settings.client_history, settings.log.instance)
        request = request_from(newest, arguments)
        spans = plan_log(log, request)
        if not spans:
            reporter.note("The journal has no new records.")
            return {"hours": 0, "clients": 0, "unreadable": 0, "files": 0, "seconds": 0.0}
        lease.advance(spans[0].first)
        report = partial(reporter.progress, unit="tasks")
        with (
            spark_session(settings, "client-history") as spark,
            watch_tasks(spark.sparkContext, report),
        ):
            write_manifest(settings.client_history, manifest)
            new_hours = collect_hours(spark, settings, request)
        files = write_hours(settings.client_history, settings.log.instance, new_hours, newest)
    named = new_hours.filter(pc.is_valid(new_hours.column("client")))
    report_hours(named, reporter)
    unreadable = (
        pc.sum(new_hours.filter(pc.is_null(new_hours.column("client"))).column("samples")).as_py() or 0
    )
    clients = pc.count_distinct(named.column("client")).as_py()
    if unreadable:
        reporter.note(f"{unreadable} events on {CLIENTS_TOPIC} couldn't be read and were skipped.")
    return {
        "hours": named.num_rows,
        "clients": clients,
        "unreadable": unreadable,
        "files": files,
        "seconds": round(time.monotonic() - started_at, 3),
    }


def request_from(newest_us: int | None, arguments: argparse.Namespace) -> ReadRequest:
    """Return the request that reads the hours from `newest_us` on."""
    return ReadRequest(
        columns=("sequence", "body"),
        topics=(CLIENTS_TOPIC, DECISIONS_TOPIC),
        start_at=None if newest_us is None else newest_us * 1_000 - LEAD_MS * 1_000_000,
        durable=arguments.durable,
        skip_gaps=arguments.skip_gaps,
    )


def collect_hours(spark: SparkSession, settings: JobSettings, request: ReadRequest) -> pa.Table:
    """Return the hours of all clients. A row without a client counts unreadable events."""
    from pyspark.sql import functions as F

    location = settings.log
    frame = journal(
        spark,
        location.directory,
        archive=location.archive,
        instance=location.instance,
        columns=request.columns or (),
        topics=request.topics,
        start=None if request.start_at is None else format_moment(request.start_at),
        durable=request.durable,
        gaps="note" if request.skip_gaps else "error",
    )
    event = F.from_json(F.col("body").cast("string"), EVENT).alias("event")
    events = frame.select("sequence", event).select("sequence", "event.*")
    events = events.withColumn("client", F.when(F.col("at").isNotNull(), F.col("client")))
    events = events.withColumn("lag_ms", F.col("lag_ms").cast("bigint"))
    return close_open_hours(
        events.groupBy("client").applyInArrow(client_hours, spark_ddl(MADE)).toArrow().cast(MADE)
    )


def client_hours(events: pa.Table) -> pa.Table:
    """Return the hours of one group of Spark: a client's events, or the unreadable ones."""
    if events.column("client")[0].as_py() is None:
        row = {"samples": events.num_rows, "connected_ms": 0, "lag_messages_mean": 0.0}
        return pa.Table.from_pylist([row], schema=MADE)
    return hours_of(events)


def report_hours(hours: pa.Table, reporter: Reporter) -> None:
    """Report this run's hours by transport, and the clients with the most offlined time."""
    sums = [(name, "sum") for name in _SUMS]
    by_hour = hours.group_by(["transport", "hour"]).aggregate([("client", "count_distinct"), *sums])
    by_hour = _rename_columns(by_hour).rename_columns({"client_count_distinct": "clients"})
    reporter.table(
        "transports",
        by_hour.sort_by([("hour", "ascending"), ("transport", "ascending")]),
        "By transport and hour",
        [
            PlotSpec("Delivered messages", "hour", ("delivered_messages",), by="transport"),
            PlotSpec("Time offlined, all clients", "hour", ("offline_ms",), by="transport", unit="ms"),
        ],
    )
    peaks = [(name, "max") for name in ("lag_messages_max", "lag_ms_max", "rate_max")]
    worst = _rename_columns(hours.group_by(["client", "transport"]).aggregate([*sums, *peaks]))
    worst = worst.sort_by(
        [("offline_ms", "descending"), ("lag_ms_max", "descending"), ("client", "ascending")]
    )
    reporter.table(
        "clients",
        worst.slice(0, WORST),
        "Clients with the most problems",
        [PlotSpec("Time offlined", "client", ("offline_ms",), "bars", unit="ms")],
    )


def _rename_columns(table: pa.Table) -> pa.Table:
    """Remove the aggregates' suffixes from column names."""
    return table.rename_columns(
        [name.removesuffix("_sum").replace("_max_max", "_max") for name in table.column_names]
    )


def newest_hour(directory: Path, instance: str) -> int | None:
    """Return the newest stored hour in microseconds; None if there is none."""
    for path in sorted(directory.glob(f"day=*/{instance}.parquet"), reverse=True):
        newest = pc.max(pq.ParquetFile(path).read(["hour"]).column("hour").cast(pa.int64())).as_py()
        if newest is not None:
            return int(newest)
    return None


def write_hours(directory: Path, instance: str, fresh: pa.Table, newest_us: int | None) -> int:
    """Replace the files of the changed days; return their number."""
    fresh = fresh.filter(pc.is_valid(fresh.column("client")))
    if fresh.num_rows == 0:
        return 0
    hours = fresh.column("hour").cast(pa.int64()).to_numpy()
    # Without a start, the journal may have only part of its oldest hour, of which the earlier file has
    # more.
    from_us = int(hours.min()) if newest_us is None else newest_us
    days = sorted({int(day) for day in hours[hours >= from_us] // DAY_US})
    for day in days:
        path = directory / day_name(day) / f"{instance}.parquet"
        of_day = fresh.filter(pa.array(hours // DAY_US == day))
        before = pq.ParquetFile(path).read() if path.exists() else CLIENT_HOURS.empty_table()
        write_parquet(merge_hours(before, of_day, from_us), path, ["client", "transport"])
    return len(days)
