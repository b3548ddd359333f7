"""`capacity`: how long disks and pools will last, and which settings the recorded load suggests.

The log is read once and reduced in the workers (`transforms/capacity.py`): bytes by topic and hour, the
clients' use of their pools each second (`$SLUICE.traffic`), and how far back readers reached. Disks are
measured as they are now.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker_core.config import PolicyDocument
from broker_core.config.document import default_policy
from broker_core.documents.system_records import ClientEvent
from broker_core.journal.segment import HEADER_SIZE
from broker_core.names import CLIENTS_TOPIC, TRAFFIC_TOPIC
from broker_core.slow_clients.rules.presets import resolve_pools
from broker_core.slow_clients.rules.rule import PoolLimits
from pipeline.config import JobSettings
from pipeline.jobs import Reporter, add_options
from pipeline.jobs.backtest import decode_samples, read_policy
from pipeline.log_request import plan_spans
from pipeline.plots import PlotSpec
from pipeline.spark_session import check_machine, spark_context, watch_tasks
from pipeline.spark_tasks import map_items
from pipeline.transforms.capacity import (
    DAY_S,
    ENOUGH_S,
    OTHERS,
    PERCENTS,
    REPORT_SCHEMA,
    DiskVolume,
    by_topic,
    days_until_limit,
    hourly_growth,
    max_share,
    percentile,
    pool_use,
    reader_lag,
    setting_advice,
)
from sluice_spark.arrow_reader import ReadRequest, read_span
from sluice_spark.columns import MOMENT
from sluice_spark.lease import pin_log
from sluice_spark.location import LogLocation
from sluice_spark.log import LogSnapshot
from sluice_spark.options import read_bound
from sluice_spark.segments import SegmentSpan, open_segment, read_batches, sidecar_summary

HELP = "report growth by topic, pool usage, reader lag, days until each limit and recommended settings"
MAX_TOPICS: Final = 20_000
"""Maximum rows (topic and hour) of one span. Smaller ones are summed as others."""
MAX_READERS: Final = 1_000
_EVENTS: Final = {"disconnect": 0, "connect": 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the part of the recording, and for the policy."""
    add_options(parser, "capacity")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Run the job. Raises SluiceError if the log is incomplete, or the policy is missing."""
    started_at = time.monotonic()
    instance = settings.log.instance
    document = (
        PolicyDocument.from_dict(read_policy(settings, arguments.policy))
        if arguments.policy
        else default_policy(instance)
    )
    memory = arguments.host_memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = resolve_pools(document, memory, None, "/nowhere")
    start, end = (read_bound(getattr(arguments, name), name, instance) for name in ("start", "end"))
    request = ReadRequest(
        columns=("accepted_at", "topic", "header", "body"),
        start=start.sequence,
        start_at=start.at,
        end=end.sequence,
        end_at=end.at,
        durable=arguments.durable,
        skip_gaps=arguments.skip_gaps,
    )
    with pin_log(settings.log, "capacity", reporter.note, arguments.durable) as (log, _):
        spans = plan_spans(log, request)
        check_machine(settings)
        with (
            spark_context(settings, "capacity") as context,
            watch_tasks(context, partial(reporter.progress, unit="tasks")),
        ):
            rows = map_items(context, spans, partial(scan_span, log.location, request), REPORT_SCHEMA)
    bounds_s = rows.filter(pc.equal(rows.column("kind"), "bounds"))
    first = (pc.min(bounds_s.column("slot")).as_py() or 0) / 1e6
    last = (pc.max(bounds_s.column("count")).as_py() or 0) / 1e6
    seconds = max(int(last - first), 1)
    log_age = LogAge(log_age_s(log), retention_s(log, arguments.retention_hours))
    return build_tables(
        rows,
        document,
        limits,
        seconds,
        log_age,
        disk_volumes(settings, log_age.covered_s, unused_preallocation(log)),
        reporter,
    ) | {
        "log": log.location.log,
        "seconds": round(time.monotonic() - started_at, 3),
    }


class LogAge(NamedTuple):
    """Time that the log's records cover."""

    covered_s: float
    """Seconds from the oldest record to the newest."""
    retention_s: float | None
    """Seconds after which records are removed; None: never."""


def log_age_s(log: LogSnapshot) -> float:
    """Return the seconds between the log's first and last record."""
    request = ReadRequest(columns=("accepted_at",), skip_gaps=True)
    ends = [log.segments[0], log.frontier]
    moments = [
        batch.column("accepted_at").cast(pa.int64())[0].as_py()
        for end in ends
        for batch in read_span(
            log.location, SegmentSpan(max(one for one in log.segments if one <= end), end, end), request
        )
    ]
    return (max(moments) - min(moments)) / 1e6 if moments else 0.0


def retention_s(log: LogSnapshot, hours: float | None) -> float | None:
    """Return the retention: `hours` if given, else the age of the newest removed record at its removal."""
    if hours is not None:
        return hours * 3_600
    removals = [one for one in log.removals if one.removed_at and one.last_at]
    return (removals[-1].removed_at - removals[-1].last_at) / 1e9 if removals else None


def scan_span(location: LogLocation, request: ReadRequest, span: SegmentSpan) -> Iterator[pa.Table]:
    """Yield the reduced rows of a span. Runs in a worker."""
    topics: list[pa.Table] = []
    rows: list[dict[str, Any]] = []
    clients: dict[tuple[int, str, str], tuple[int, int]] = {}
    reach: dict[str, tuple[int, int, int]] = {}
    times: list[int] = []
    for batch in read_span(location, span, request):
        at = batch.column("accepted_at").cast(pa.int64())
        times += [pc.min(at).as_py(), pc.max(at).as_py()]
        sizes = pc.add(pc.binary_length(batch.column("body")), pc.binary_length(batch.column("header")))
        hours = pc.divide(at, 3_600_000_000)
        sizes_by_hour = pa.table({"name": batch.column("topic"), "slot": hours, "memory": sizes})
        topics.append(
            sizes_by_hour.group_by(["name", "slot"]).aggregate([("name", "count"), ("memory", "sum")])
        )
        rows += _connection_rows(_topic_bodies(batch, CLIENTS_TOPIC))
        for table in decode_samples(_topic_bodies(batch, TRAFFIC_TOPIC)):
            _add_samples(table, clients, reach)
    if times:
        rows.append({"kind": "bounds", "name": "", "slot": min(times), "count": max(times)})
    yield pa.Table.from_pylist([*rows, *_usage_rows(clients), *_reader_rows(reach)], schema=REPORT_SCHEMA)
    if topics:
        yield _topic_rows(pa.concat_tables(topics))


def _topic_bodies(batch: pa.RecordBatch, topic: str) -> list[bytes]:
    bodies: list[bytes] = batch.column("body").filter(pc.equal(batch.column("topic"), topic)).to_pylist()
    return bodies


def _connection_rows(bodies: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for body in bodies:
        if b'connect"' not in body:
            continue
        try:
            event = msgspec.json.decode(body, type=ClientEvent)
        except msgspec.DecodeError:
            continue
        if event.event in _EVENTS:
            yield {"kind": "away", "name": event.client, "slot": event.at, "count": _EVENTS[event.event]}


def _add_samples(
    table: pa.Table,
    clients: dict[tuple[int, str, str], tuple[int, int]],
    reach: dict[str, tuple[int, int, int]],
) -> None:
    names = ("name", "transport", "at", "memory", "disk", "oldest_at")
    for name, transport, at, memory, disk, oldest in zip(
        *(table.column(one).to_pylist() for one in names), strict=True
    ):
        key = (at // 1_000, transport, name)
        usage = clients.get(key, (0, 0))  # two samples may fall into one second
        clients[key] = (max(usage[0], memory), max(usage[1], disk))
        lag = reach.get(name, (0, 0, 0))
        reach[name] = (max(lag[0], at - oldest if oldest else 0), max(lag[1], memory), max(lag[2], disk))


def _usage_rows(clients: dict[tuple[int, str, str], tuple[int, int]]) -> Iterator[dict[str, Any]]:
    sums: dict[tuple[int, str], list[int]] = {}
    for (second, transport, _), (memory, disk) in clients.items():
        total = sums.setdefault((second, transport), [0, 0, 0])
        total[0], total[1], total[2] = total[0] + 1, total[1] + memory, total[2] + disk
    largest: dict[str, int] = {}
    for (_, transport, _), (memory, _) in clients.items():
        largest[transport] = max(largest.get(transport, 0), memory)
    for transport, memory in largest.items():
        yield {"kind": "largest", "name": transport, "slot": 0, "memory": memory}
    for (second, transport), (count, memory, disk) in sums.items():
        yield {
            "kind": "transport",
            "name": transport,
            "slot": second,
            "count": count,
            "memory": memory,
            "disk": disk,
        }


def _reader_rows(reach: dict[str, tuple[int, int, int]]) -> Iterator[dict[str, Any]]:
    for name, (age, memory, disk) in reach.items():
        yield {"kind": "reader", "name": name, "slot": 0, "count": age, "memory": memory, "disk": disk}


def _topic_rows(tables: pa.Table) -> pa.Table:
    sums = tables.group_by(["name", "slot"]).aggregate([("name_count", "sum"), ("memory_sum", "sum")])
    sums = sums.sort_by([("memory_sum_sum", "descending")])
    largest, remainder = sums.slice(0, MAX_TOPICS), sums.slice(MAX_TOPICS)
    rows = largest.rename_columns(["name", "slot", "count", "memory"])
    if remainder.num_rows:
        others = remainder.group_by("slot").aggregate([("name_count_sum", "sum"), ("memory_sum_sum", "sum")])
        others = others.rename_columns(["slot", "count", "memory"])
        others = others.append_column("name", pa.array([OTHERS] * others.num_rows))
        rows = pa.concat_tables([rows, others.select(rows.column_names)])
    count = rows.num_rows
    rows = rows.append_column("kind", pa.array(["topic"] * count)).append_column(
        "disk", pa.array([0] * count)
    )
    return rows.select(REPORT_SCHEMA.names).cast(REPORT_SCHEMA)


def unused_preallocation(log: LogSnapshot) -> int:
    """Return the unwritten bytes of the active segment, a preallocated file. Raises JournalError."""
    if not log.segments or sidecar_summary(log.location, log.segments[-1]) is not None:
        return 0
    source = open_segment(log.location, log.segments[-1])
    span = SegmentSpan(log.segments[-1], log.segments[-1], log.frontier)
    filled = HEADER_SIZE + sum(
        batch.nbytes for batch in read_batches(log.location, span, source, skip_gaps=True)
    )
    return max(source.length - filled, 0)


def disk_volumes(settings: JobSettings, log_seconds: float, unwritten: int) -> list[DiskVolume]:
    """Return the file systems of journal, archive and lake, with their growth.

    Growth is the size of the log's files, less `unwritten` bytes, over `log_seconds`; of the lake, over its
    days. Below one hour it is 0.
    """
    volumes: dict[int, list[Any]] = {}
    for role, directory in (
        ("journal", settings.log.directory),
        ("archive", settings.log.archive),
        ("lake", settings.lake),
    ):
        if directory is None or not directory.is_dir():
            continue
        pattern = "records/day=*/*" if role == "lake" else f"{settings.log.instance}.*.journal*"
        paths = list(directory.glob(pattern))
        covered_s = (
            max(log_seconds, _covered_s({path.parent.name for path in paths}))
            if role == "lake"
            else log_seconds
        )
        used = sum(map(_file_bytes, paths))
        volume = volumes.setdefault(directory.stat().st_dev, [[], 0, shutil.disk_usage(directory).free, 0.0])
        volume[0].append(role)
        volume[1] += used
        filled = max(used - unwritten, 0) if role == "journal" else used
        volume[3] += filled * DAY_S / covered_s if covered_s >= ENOUGH_S else 0.0
    return [DiskVolume(", ".join(names), used, free, grows) for names, used, free, grows in volumes.values()]


def _covered_s(names: set[str]) -> float:
    """Return the seconds from a lake's first day (`day=2026-11-21`) to the end of its last."""
    days: list[date] = []
    for name in names:
        with suppress(ValueError):  # not a directory of the lake
            days.append(date.fromisoformat(name.removeprefix("day=")))
    return ((max(days) - min(days)).days + 1) * DAY_S if len(days) > 1 else 0.0


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512  # the active segment is preallocated
    except OSError:
        return 0  # moved meanwhile


def build_tables(
    rows: pa.Table,
    document: PolicyDocument,
    limits: dict[str, PoolLimits],
    seconds: int,
    log_age: LogAge,
    disks: list[DiskVolume],
    reporter: Reporter,
) -> dict[str, Any]:
    """Report the tables, and return the result."""
    topics = by_topic(rows, seconds / 3_600)
    use = pool_use(rows, {transport: one.name for transport, one in limits.items()})
    pools = _pools(use, {one.name: one for one in limits.values()}, seconds)
    reach = reader_lag(rows)
    farthest = reach[0]["reaches_back_s"] if reach else 0.0
    largest = max_share(rows, {transport: one.memory for transport, one in limits.items()})
    found = setting_advice(
        pools, farthest, *log_age, disks, document.client_policy.client_max_capacity or 100, largest
    )
    names = ("setting", "now", "recommended", "why")
    reporter.table(
        "advice",
        pa.table(
            {name: [row[name] for row in found] for name in names},
            schema=pa.schema([(name, pa.string()) for name in names]),
        ),
        "Recommended settings",
    )
    reporter.table("disks", _disks(disks), "Disks: usage, growth and days until full")
    reporter.table("pools", pa.Table.from_pylist(pools, schema=_POOLS), "Pool usage by clients")
    reporter.table(
        "use",
        _pool_use_plots(use),
        "Peak pool usage by minute",
        [
            PlotSpec("Memory of the pools", "minute", ("memory",), by="pool", unit="bytes"),
            PlotSpec("Disk of the pools", "minute", ("disk",), by="pool", unit="bytes"),
        ],
    )
    reporter.table(
        "readers",
        pa.Table.from_pylist(reach[:MAX_READERS], schema=_READERS),
        "Oldest record read by each client",
        [PlotSpec("Age of the oldest record read", "client", ("reaches_back_s",), "bars", unit="s")],
    )
    reporter.table(
        "topics",
        topics,
        "Growth by topic",
        [PlotSpec("Bytes a day", "topic", ("bytes_a_day",), "bars", unit="bytes")],
    )
    reporter.table(
        "growth",
        hourly_growth(rows, topics),
        "Bytes by hour",
        [PlotSpec("Bytes by hour", "hour", ("bytes",), by="topic", unit="bytes")],
    )
    if seconds < ENOUGH_S:
        reporter.note(f"The log covers {seconds} s of the range: too little to estimate the growth of a day.")
    for row in found:
        reporter.note(f"{row['setting']}: {row['recommended']} (now {row['now']}). {row['why']}")
    return {
        "records": pc.sum(topics.column("records")).as_py() or 0,
        "bytes": pc.sum(topics.column("bytes")).as_py() or 0,
        "topics": topics.num_rows,
        "covers_s": seconds,
        "bytes_a_day": pc.sum(topics.column("bytes_a_day")).as_py(),
        "reaches_back_s": farthest,
        "log_held_s": round(log_age.covered_s, 1),
        "retention_s": None if log_age.retention_s is None else round(log_age.retention_s, 1),
        "disk_days": min((round(one.days, 1) for one in disks if one.days is not None), default=None),
        "recommendations": len(found),
    }


_POOLS: Final = pa.schema(
    [("pool", pa.string()), ("of", pa.string())]
    + [(f"p{percent:g}".replace(".", "_"), pa.int64()) for percent in PERCENTS]
    + [
        ("peak", pa.int64()),
        ("limit", pa.int64()),
        ("peak_percent", pa.float64()),
        ("days_to_limit", pa.float64()),
    ]
)
_READERS: Final = pa.schema(
    [
        ("client", pa.string()),
        *((name, pa.float64()) for name in ("behind_s", "away_s", "reaches_back_s")),
        *((name, pa.int64()) for name in ("peak_memory", "peak_disk")),
    ]
)


def _pools(use: dict[str, Any], limits: dict[str, PoolLimits], seconds: int) -> list[dict[str, Any]]:
    """Return memory and disk usage of each pool: percentiles, peak, limit and days to the limit."""
    rows = []
    for name in sorted(use.keys() | limits.keys()):
        slots, *parts = use.get(name, (np.zeros(0, np.int64), np.zeros(0), np.zeros(0)))
        for of, values in zip(("memory", "disk"), parts, strict=True):
            bound = limits.get(name)
            limit = getattr(bound, of) if bound is not None else None
            peak = int(values.max()) if len(values) else 0
            percents = {
                f"p{one:g}".replace(".", "_"): int(percentile(values, one, seconds)) for one in PERCENTS
            }
            rows.append(
                {
                    "pool": name,
                    "of": of,
                    **percents,
                    "peak": peak,
                    "limit": limit or 0,
                    "peak_percent": round(100 * peak / limit, 2) if limit else None,
                    "days_to_limit": days_until_limit(limit, slots, values)
                    if limit and len(values)
                    else None,
                }
            )
    return rows


def _pool_use_plots(use: dict[str, Any]) -> pa.Table:
    """Return the peak usage of each pool by minute."""
    rows: list[dict[str, Any]] = []
    for name, (slots, memory, disk) in use.items():
        minutes = slots // 60
        for minute in np.unique(minutes).tolist():
            chosen = minutes == minute
            rows.append(
                {
                    "pool": name,
                    "minute": minute * 60_000_000,
                    "memory": int(memory[chosen].max()),
                    "disk": int(disk[chosen].max()),
                }
            )
    return pa.Table.from_pylist(
        rows,
        schema=pa.schema(
            [("pool", pa.string()), ("minute", MOMENT), ("memory", pa.int64()), ("disk", pa.int64())]
        ),
    )


def _disks(disks: list[DiskVolume]) -> pa.Table:
    rows = [
        {
            "places": one.directories,
            "used": one.used,
            "free": one.free,
            "grows_a_day": round(one.grows),
            "days_to_full": None if one.days is None else round(one.days, 1),
        }
        for one in disks
    ]
    kinds = [(name, pa.int64()) for name in ("used", "free", "grows_a_day")]
    return pa.Table.from_pylist(
        rows, schema=pa.schema([("places", pa.string()), *kinds, ("days_to_full", pa.float64())])
    )
