"""`state`: the last record of every key at a time; with a second time, the changes between both.

A key is a topic, or a topic and a field of JSON bodies. The workers reduce each span to the last record of
each key.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson
import pyarrow as pa

from broker_core.errors import OperatorError
from pipeline.config import JobSettings
from pipeline.jobs import Reporter, add_options
from pipeline.log_request import check_bounds_order, plan_spans
from pipeline.spark_session import check_machine, spark_context, watch_tasks
from pipeline.spark_tasks import map_items
from sluice_spark.arrow_reader import ReadRequest, plan_log, read_span, sequence_bounds
from sluice_spark.columns import MOMENT
from sluice_spark.lease import pin_log
from sluice_spark.location import LogLocation
from sluice_spark.options import RangeBound, read_bound
from sluice_spark.segments import SegmentSpan

HELP = "report the last record of each key at a time, or the changes between two times"
MAX_KEYS: Final = 1_000_000
STATE: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.string()),
        ("sequence", pa.int64()),
        ("accepted_at", MOMENT),
        ("publisher", pa.string()),
        ("body", pa.binary()),
    ]
)
CHANGES: Final = pa.schema(
    [("change", pa.string()), *STATE, ("sequence_before", pa.int64()), ("body_before", pa.binary())]
)
_COLUMNS = ("sequence", "accepted_at", "topic", "publisher", "body")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for times, topics and key."""
    add_options(parser, "state")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Compute the state. Raises SluiceError if the log is incomplete, because the state would be wrong."""
    started_at = time.monotonic()
    if arguments.key and not arguments.key.startswith("/"):
        raise OperatorError("bad_setting", f"key is {arguments.key[:80]!r}.", "Give a field like /order/id.")
    instance = settings.log.instance
    at, since = (read_bound(getattr(arguments, name), name, instance) for name in ("at", "since"))
    topics = tuple(word.strip() for word in arguments.topics.split(",") if word.strip())
    with pin_log(settings.log, "state", reporter.note, arguments.durable) as (log, _):
        request = ReadRequest(
            columns=_COLUMNS,
            topics=topics,
            start=1 if log.first == 1 else None,
            end=at.sequence,
            end_at=at.at,
            skip_gaps=arguments.skip_gaps,
            durable=arguments.durable,
        )
        # `start=1` above makes a removed record an error. A log that begins later is read from its beginning.
        spans = plan_spans(log, request)
        earlier = replace(request, start=None, end=since.sequence, end_at=since.at)
        if since != RangeBound():
            sequence_bounds(log, earlier)
            check_bounds_order(since, at, log)
        check_machine(settings)
        if log.first > 1:
            reporter.note(
                f"The log begins with record {log.first}. Keys that were last written before "
                "it aren't in the state."
            )
        work = partial(last_of_span, log.location, request, arguments.key)
        with (
            spark_context(settings, "state") as context,
            watch_tasks(context, partial(reporter.progress, unit="tasks")),
        ):
            now = latest_by_key(map_items(context, spans, work, STATE))
            before: pa.Table | None = None
            if since != RangeBound():
                work = partial(last_of_span, log.location, earlier, arguments.key)
                before = latest_by_key(map_items(context, plan_log(log, earlier), work, STATE))
    result: dict[str, Any] = {
        "log": log.location.log,
        "keys": now.num_rows,
        "at": arguments.at or f"{instance}|{log.frontier}|",
    }
    if before is None:
        reporter.table("state", now, f"Last record of each key at {result['at']}")
    else:
        changes = diff_states(before, now)
        reporter.table("changes", changes, f"Changes from {arguments.since} to {result['at']}")
        kinds = changes.column("change").to_pylist()
        result |= {
            "since": arguments.since,
            "new": kinds.count("new"),
            "changed": kinds.count("changed"),
            "rewritten": kinds.count("rewritten"),
            "untouched": now.num_rows - len(kinds),
        }
    return result | {"seconds": round(time.monotonic() - started_at, 3)}


def last_of_span(
    location: LogLocation, request: ReadRequest, field: str, span: SegmentSpan
) -> Iterator[pa.Table]:
    """Yield the last record of each key in a span. Runs in a worker."""
    latest = STATE.empty_table()
    for batch in read_span(location, span, request):
        table = pa.Table.from_batches([batch])
        keys = keys_of(batch, field) if field else pa.array([""] * batch.num_rows)
        latest = latest_by_key(
            pa.concat_tables([latest, table.append_column("key", keys).select(STATE.names).cast(STATE)])
        )
        if latest.num_rows > MAX_KEYS:
            raise _too_many_keys_error()
    yield latest


def keys_of(batch: pa.RecordBatch, field: str) -> pa.Array:
    """Return the field of each body as text; "" for bodies without it, or that aren't JSON."""
    parts = [part.replace("~1", "/").replace("~0", "~") for part in field.split("/")[1:]]
    return pa.array([_key(body.as_buffer(), parts) for body in batch.column("body")], pa.string())


def _key(body: Any, parts: list[str]) -> str:
    try:
        value = orjson.loads(memoryview(body))
    except orjson.JSONDecodeError:
        return ""
    for part in parts:
        if not isinstance(value, dict) or part not in value:
            return ""
        value = value[part]
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def latest_by_key(rows: pa.Table) -> pa.Table:
    """Return the row with the highest sequence of each topic and key, sorted.

    Raises OperatorError too_many_keys.
    """
    if rows.num_rows == 0:
        return rows
    sorted_rows = rows.sort_by([("sequence", "ascending")])
    numbered = sorted_rows.select(["topic", "key"]).append_column("row", pa.array(range(rows.num_rows)))
    last = numbered.group_by(["topic", "key"]).aggregate([("row", "max")]).column("row_max")
    if len(last) > MAX_KEYS:
        raise _too_many_keys_error()
    return sorted_rows.take(last).sort_by([("topic", "ascending"), ("key", "ascending")]).combine_chunks()


def diff_states(before: pa.Table, now: pa.Table) -> pa.Table:
    """Return keys that are new, changed, or rewritten with the same body.

    Each row has the present and the earlier sequence and body.
    """
    earlier = {
        (row["topic"], row["key"]): row
        for row in before.select(["topic", "key", "sequence", "body"]).to_pylist()
    }
    rows = []
    for row in now.to_pylist():
        previous = earlier.get((row["topic"], row["key"]))
        if previous is not None and previous["sequence"] == row["sequence"]:
            continue
        change = "new" if previous is None else "rewritten" if previous["body"] == row["body"] else "changed"
        old = (
            {"sequence_before": previous["sequence"], "body_before": previous["body"]}
            if previous is not None
            else {}
        )
        rows.append({"change": change, **row, **old})
    return pa.Table.from_pylist(rows, schema=CHANGES)


def _too_many_keys_error() -> OperatorError:
    return OperatorError(
        "too_many_keys",
        f"There are more than {MAX_KEYS:,} keys.",
        "Choose topics with --topics, or another --key.",
    )
