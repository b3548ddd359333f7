"""`backtest`: the effect of other policies on recorded slow clients.

The broker records samples of every client with waiting messages each second (`$SLUICE.traffic`). The guard
that judges clients in the broker judges the samples again, under each policy, several policies a task
(transforms/backtest.py). The recorded decisions are shown beside. Under the policy that was in force both
should agree; the result states the agreement for every policy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import time
from array import array
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from broker_core.config import PolicyDocument
from broker_core.documents.system_records import (
    DecisionEntry,
    TrafficEntry,
    TrafficRowKey,
    TrafficSample,
    unpack_samples,
)
from broker_core.errors import OperatorError
from broker_core.names import DECISIONS_TOPIC, TRAFFIC_TOPIC
from pipeline.config import JobSettings
from pipeline.jobs import Reporter, add_options
from pipeline.log_request import plan_spans
from pipeline.plots import PlotSpec
from pipeline.spark_session import check_machine, spark_context, watch_tasks
from pipeline.spark_tasks import map_items
from pipeline.transforms.agreement import compare_decisions
from pipeline.transforms.backtest import backtest_policies
from pipeline.transforms.recording import Recording
from pipeline.transforms.traces import ACTS, TRAFFIC, build_traces
from sluice_spark.arrow_reader import ReadRequest, read_span
from sluice_spark.columns import MOMENT
from sluice_spark.lease import pin_log
from sluice_spark.location import LogLocation
from sluice_spark.options import read_bound
from sluice_spark.segments import SegmentSpan

HELP = (
    "run other policies on recorded traffic: which clients they would warn, offline or disconnect, and when"
)
POLICIES: Final = "policies"
"""Directory of the lake where policies are found by name."""
MAX_POLICIES: Final = 256
RECORDED: Final = "as recorded"
DISRUPTIVE_ACTIONS: Final = frozenset(
    {"offline", "disconnect", "refuse", "cancel_subscription", "delete_durable", "discard_oldest"}
)
TASKS_PER_CORE: Final = 4
"""Tasks for each core.

The policies of a task share one reading of the recording; more tasks balance the load.
"""
SAMPLES_PER_TABLE: Final = 16_384
"""Samples of one table, about."""
BACKTEST_RESULTS: Final = pa.schema([("policy", pa.int64()), ("told", pa.string())])
STORED_SAMPLES: Final = pa.schema([("looks", pa.int64()), ("left_out", pa.int64())])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the policies, and for the part of the recording."""
    add_options(parser, "backtest")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Run the job. Raises SluiceError if a policy is missing, or the log is incomplete."""
    started_at = time.monotonic()
    policies = load_policies(settings, arguments)
    instance = settings.log.instance
    start, end = (read_bound(getattr(arguments, name), name, instance) for name in ("start", "end"))
    request = ReadRequest(
        columns=("body",),
        start=start.sequence,
        start_at=start.at,
        end=end.sequence,
        end_at=end.at,
        durable=arguments.durable,
        skip_gaps=arguments.skip_gaps,
    )
    memory = arguments.host_memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    scratch = settings.lake / f".backtest-{uuid4().hex}"
    try:
        with ExitStack() as stack:
            log, _ = stack.enter_context(pin_log(settings.log, "backtest", reporter.note, arguments.durable))
            spans = plan_spans(log, request)
            check_machine(settings)
            context = stack.enter_context(spark_context(settings, "backtest"))
            stack.enter_context(watch_tasks(context, partial(reporter.progress, unit="tasks")))
            scratch.mkdir(parents=True)
            store = partial(store_samples, scratch, log.location, request)
            stored = map_items(context, list(enumerate(spans)), store, STORED_SAMPLES)
            decisions = map_items(context, spans, partial(read_decisions, log.location, request), ACTS)
            left_out = pc.sum(stored.column("left_out")).as_py() or 0
            names = load_samples(scratch, ["name"]).column("name")
            pq.write_table(decisions, scratch / "acts.parquet")
            documents = list(enumerate(one for _, one in policies))
            tasks = min(len(documents), context.defaultParallelism * TASKS_PER_CORE)
            Random(0).shuffle(documents)  # neighbours of a grid, and every n-th of them, have similar cost
            task_shares = [documents[offset::tasks] for offset in range(tasks)]
            results = map_items(
                context, task_shares, partial(run_policies, scratch, memory), BACKTEST_RESULTS
            )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    outcomes = [json.loads(row["told"]) for row in results.sort_by("policy").to_pylist()]
    if left_out:
        reporter.note(
            f"{left_out:,} samples weren't recorded, because too many clients were slow at the same time."
        )
    return build_tables(
        [name for name, _ in policies], outcomes, names, decisions, arguments.save, reporter
    ) | {
        "log": log.location.log,
        "seconds": round(time.monotonic() - started_at, 3),
    }


# Policies.


def load_policies(settings: JobSettings, arguments: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, document) of each policy, first the named ones, then those of the grid.

    Raises OperatorError bad_setting, bad_policy.
    """
    named = [word.strip() for word in arguments.policy.split(",") if word.strip()]
    policies = [(Path(word).stem, read_policy(settings, word)) for word in named]
    policies += (
        [(name, changed) for name, changed in _grid_policies(policies[0][1], arguments.grid)]
        if policies
        else []
    )
    if not 0 < len(policies) <= MAX_POLICIES:
        raise OperatorError(
            "bad_setting", f"{len(policies)} policies were given.", f"Give 1 to {MAX_POLICIES}."
        )
    for _, document in policies:
        PolicyDocument.from_dict(document)
    return policies


def read_policy(settings: JobSettings, name: str) -> dict[str, Any]:
    """Read a policy from a file, or by name from the lake's directory. Raises OperatorError bad_setting."""
    path = Path(name) if "/" in name else settings.lake / POLICIES / f"{name}.json"
    path = path if path.is_file() or not Path(name).is_file() else Path(name)
    try:
        policy = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise OperatorError(
            "bad_setting",
            f"The policy {name[:200]} can't be read: {str(error).splitlines()[0]}.",
            "Write one with manage.py policy export.",
        ) from error
    if not isinstance(policy, dict):
        raise OperatorError(
            "bad_setting", f"{name[:200]} isn't a policy.", "Write one with manage.py policy export."
        )
    return policy


def _grid_policies(document: dict[str, Any], text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    axes = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        setting, equals, values = part.partition("=")
        if not equals or not values:
            raise OperatorError(
                "bad_setting", f"{part[:80]!r} isn't an axis of a grid.", "Write setting=10,20,50."
            )
        axes.append([(setting.strip(), _parse_value(value)) for value in values.split(",")])
    for combination in itertools.product(*axes) if axes else ():
        yield (
            " ".join(f"{name}={value}" for name, value in combination),
            _apply_settings(document, combination),
        )


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def _apply_settings(document: dict[str, Any], combination: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return a copy of the policy with changed settings.

    `rules.2.limit` names the limit of the third rule.
    """
    changed: dict[str, Any] = json.loads(json.dumps(document))
    for setting, value in combination:
        *path, last = setting.split(".")
        node: Any = changed
        try:
            for step in path:
                node = node[int(step)] if isinstance(node, list) else node[step]
            is_known = last in node if isinstance(node, dict) else node[int(last)] is not None
        except (KeyError, IndexError, ValueError, TypeError):
            is_known = False
        if not is_known:
            raise OperatorError(
                "bad_setting",
                f"The policy has no setting {setting[:80]!r}.",
                "Use the names of the exported file.",
            )
        node[int(last) if isinstance(node, list) else last] = value
    return changed


# Work in the workers.


def store_samples(
    scratch: Path, location: LogLocation, request: ReadRequest, share: tuple[int, SegmentSpan]
) -> Iterator[pa.Table]:
    """Write the samples of a span to a file; yield how many there are.

    A day's samples don't fit the JVM's memory.
    """
    number, span = share
    samples = left_out = 0
    with pq.ParquetWriter(scratch / f"looks-{number:06d}.parquet", TRAFFIC, compression="zstd") as file:
        for table in read_samples(location, request, span):
            file.write_table(table.select(TRAFFIC.names).cast(TRAFFIC))
            samples += table.num_rows
            left_out += pc.sum(table.column("left_out")).as_py()
    yield pa.table({"looks": [samples], "left_out": [left_out]}, schema=STORED_SAMPLES)


def load_samples(scratch: Path, columns: list[str]) -> pa.Table:
    """Read all samples that `store_samples` wrote."""
    files = sorted(scratch.glob("looks-*.parquet"))
    empty = TRAFFIC.empty_table().select(columns)
    return pa.concat_tables([empty, *(pq.ParquetFile(one).read(columns) for one in files)])


def read_samples(location: LogLocation, request: ReadRequest, span: SegmentSpan) -> Iterator[pa.Table]:
    """Yield the samples of a span."""
    yield from decode_samples(_read_bodies(location, request, TRAFFIC_TOPIC, span))


def decode_samples(bodies: Iterable[bytes]) -> Iterator[pa.Table]:
    """Decode traffic records to tables of about LOOKS_OF_A_TABLE samples. Undecodable records are skipped."""
    keys: list[TrafficRowKey] = []
    columns = [array("q") for _ in TrafficSample._fields]
    left_out: list[int] = []
    for body in bodies:
        try:
            entry = msgspec.json.decode(body, type=TrafficEntry)
            row_keys, figures = unpack_samples(entry)
        except (msgspec.DecodeError, ValueError):
            continue
        if not row_keys:
            continue
        keys += row_keys
        for column, values in zip(columns, figures, strict=True):
            column.extend(values)
        left_out += [entry.left_out] + [0] * (len(row_keys) - 1)
        if len(keys) >= SAMPLES_PER_TABLE:
            yield _samples_table(keys, columns, left_out)
            keys, columns, left_out = [], [array("q") for _ in TrafficSample._fields], []
    if keys:
        yield _samples_table(keys, columns, left_out)


def _samples_table(keys: list[TrafficRowKey], columns: list[array[int]], left_out: list[int]) -> pa.Table:
    table: dict[str, Any] = dict(zip(TrafficRowKey._fields, map(list, zip(*keys, strict=True)), strict=True))
    table |= {
        name: np.frombuffer(column, np.int64)
        for name, column in zip(TrafficSample._fields, columns, strict=True)
    }
    return pa.table({**table, "left_out": left_out}).select([*TRAFFIC.names, "left_out"])


def read_decisions(location: LogLocation, request: ReadRequest, span: SegmentSpan) -> Iterator[pa.Table]:
    """Yield the recorded decisions of a span."""
    rows = []
    for body in _read_bodies(location, request, DECISIONS_TOPIC, span):
        try:
            decision = msgspec.json.decode(body, type=DecisionEntry)
        except msgspec.DecodeError:
            continue
        newest = decision.samples[-1] if decision.samples and len(decision.samples[-1]) >= 3 else (0, -1, -1)
        rows.append(
            {name: getattr(decision, name) for name in ACTS.names if name not in ("memory", "disk")}
            | {"memory": newest[1], "disk": newest[2]}
        )
    yield pa.Table.from_pylist(rows, schema=ACTS)


def _read_bodies(
    location: LogLocation, request: ReadRequest, topic: str, span: SegmentSpan
) -> Iterator[bytes]:
    for batch in read_span(location, span, replace(request, topics=(topic,))):
        yield from batch.column("body").to_pylist()


def run_policies(scratch: Path, memory: int, share: list[tuple[int, dict[str, Any]]]) -> Iterator[pa.Table]:
    """Run some policies on the whole recording."""
    documents = [PolicyDocument.from_dict(document) for _, document in share]
    for (number, _), result in zip(
        share, backtest_policies(documents, memory, _load_recording(scratch)), strict=True
    ):
        yield pa.table({"policy": [number], "told": [json.dumps(result.as_dict())]}, schema=BACKTEST_RESULTS)


@lru_cache(maxsize=1)
def _load_recording(scratch: Path) -> Recording:
    """Return the recording, cached for all tasks of a worker."""
    decisions = pq.read_table(scratch / "acts.parquet")
    return Recording(build_traces(load_samples(scratch, TRAFFIC.names), decisions))


# Results.


def build_tables(
    names: list[str],
    outcomes: list[dict[str, Any]],
    sample_names: pa.ChunkedArray,
    decisions: pa.Table,
    save: str,
    reporter: Reporter,
) -> dict[str, Any]:
    """Report the tables, and return the result. `sample_names`: client names of the samples."""
    recorded = decisions.to_pylist()
    policies, pools, all_decisions = [], [], [{"policy": RECORDED, **row} for row in recorded]
    for name, outcome in zip(names, outcomes, strict=True):
        agreement = compare_decisions(recorded, outcome["acts"])
        peaks = outcome["peaks"].values()
        clients_by_action = {
            action: {
                row["client"]
                for row in outcome["acts"]
                if row["action"] == action and row["mode"] == "enforce"
            }
            for action in ("warn", "offline", "disconnect")
        }
        disrupted = {
            row["client"]
            for row in outcome["acts"]
            if row["action"] in DISRUPTIVE_ACTIONS and row["mode"] == "enforce"
        }
        policies.append(
            {
                "policy": name,
                "warned": len(clients_by_action["warn"]),
                "offlined": len(clients_by_action["offline"]),
                "disconnected": len(clients_by_action["disconnect"]),
                "acted_on": len(disrupted),
                "decisions": len(outcome["acts"]),
                "offlined_s": round(sum(outcome["offlined_ms"].values()) / 1_000, 1),
                "lost": outcome["lost"],
                "peak_memory": max((peak[0] for peak in peaks), default=0),
                "peak_disk": max((peak[1] for peak in peaks), default=0),
                "as_recorded_percent": agreement.percent,
                "within_1s_percent": agreement.in_time_percent,
                "carried_on": outcome["parted"],
                "not_judged": "; ".join(outcome["unjudged"]),
                "saves": bool(save) and save not in disrupted,
            }
        )
        pools += [
            {"policy": name, "pool": pool or "the instance's", "peak_memory": peak[0], "peak_disk": peak[1]}
            for pool, peak in outcome["peaks"].items()
        ]
        all_decisions += [{"policy": name, **row} for row in outcome["acts"]]
    table = pa.Table.from_pylist(policies)
    reporter.table(
        "policies",
        table,
        "Effects of each policy",
        [PlotSpec("Clients offlined or disconnected", "policy", ("offlined", "disconnected"), "bars")],
    )
    reporter.table(
        "acts",
        _number_decisions(all_decisions),
        "Recorded decisions and decisions of each policy",
        [PlotSpec("Decisions so far", "at", ("so_far",), by="policy")],
    )
    if pools:
        reporter.table("pools", pa.Table.from_pylist(pools), "Peak usage of the pools")
    clients = pc.count_distinct(sample_names).as_py()
    result = {
        "policies": len(names),
        "clients": clients,
        "looks": len(sample_names),
        "recorded_decisions": len(recorded),
    }
    for row in policies:
        if row["not_judged"]:
            reporter.note(f"The back-test of {row['policy']} leaves out {row['not_judged']}.")
    if not len(sample_names):
        reporter.note("The range has no samples of slow clients, so no policy made a decision.")
    if save:
        saving = sorted(
            (row for row in policies if row["saves"]), key=lambda row: (row["peak_memory"], row["peak_disk"])
        )
        result |= {"saves": saving[0]["policy"] if saving else None, "of_them_save": len(saving)}
        reporter.note(
            (
                f"{saving[0]['policy']} is the cheapest of {len(saving)} policies without disruptive actions "
                f"on {save}: peak memory {saving[0]['peak_memory']:,} bytes."
            )
            if saving
            else f"No policy saves {save}."
        )
    return result


def _number_decisions(rows: list[dict[str, Any]]) -> pa.Table:
    counts: dict[str, int] = {}
    numbered = []
    for row in sorted(rows, key=lambda decision: int(decision["at"])):
        counts[row["policy"]] = counts.get(row["policy"], 0) + 1
        numbered.append(row | {"so_far": counts[row["policy"]]})
    table = pa.Table.from_pylist(
        numbered, schema=pa.schema([("policy", pa.string()), *ACTS, ("so_far", pa.int64())])
    )
    at = pc.multiply(table.column("at"), 1_000).cast(MOMENT)
    return table.set_column(table.schema.get_field_index("at"), "at", at)
