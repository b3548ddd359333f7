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
from sluice_spark.lease import hold_lease
from sluice_spark.location import LogLocation
from sluice_spark.log import examine_log
from sluice_spark.options import read_bound
from sluice_spark.segments import SegmentSpan

HELP = (
    "try other policies on the recorded traffic: who would have been warned, offlined, disconnected, and when"
)
POLICIES: Final = "policies"
"""Directory of the lake where policies are found by name."""
MAX_POLICIES: Final = 256
RECORDED: Final = "as recorded"
HARD: Final = frozenset(
    {"offline", "disconnect", "refuse", "cancel_subscription", "delete_durable", "discard_oldest"}
)
TASKS_A_CORE: Final = 4
"""Tasks for each core.

The policies of a task share one reading of the recording; more tasks balance the load.
"""
LOOKS_OF_A_TABLE: Final = 16_384
"""Samples of one table, about."""
_TRIED: Final = pa.schema([("policy", pa.int64()), ("told", pa.string())])
_KEPT: Final = pa.schema([("looks", pa.int64()), ("left_out", pa.int64())])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the policies, and for the part of the recording."""
    add_options(parser, "backtest")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Run the job. Raises SluiceError if a policy is missing, or the log is incomplete."""
    began = time.monotonic()
    policies = load_policies(settings, arguments)
    instance = settings.log.instance
    start, end = (read_bound(getattr(arguments, name), name, instance) for name in ("start", "end"))
    log = examine_log(settings.log, arguments.durable)
    request = ReadRequest(
        columns=("body",),
        start=start.sequence,
        start_at=start.at,
        end=end.sequence,
        end_at=end.at,
        durable=arguments.durable,
        skip_gaps=arguments.skip_gaps,
    )
    spans = plan_spans(log, request)
    check_machine(settings)
    memory = arguments.host_memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    scratch = settings.lake / f".backtest-{uuid4().hex}"
    try:
        with (
            hold_lease(log.place, "backtest", log.first, reporter.note),
            spark_context(settings, "backtest") as context,
            watch_tasks(context, partial(reporter.progress, what="tasks")),
        ):
            scratch.mkdir(parents=True)
            keep = partial(store_samples, scratch, log.place, request)
            looks = map_items(context, list(enumerate(spans)), keep, _KEPT)
            acts = map_items(context, spans, partial(read_decisions, log.place, request), ACTS)
            left_out = pc.sum(looks.column("left_out")).as_py() or 0
            names = load_samples(scratch, ["name"]).column("name")
            pq.write_table(acts, scratch / "acts.parquet")
            numbered = list(enumerate(one for _, one in policies))
            tasks = min(len(numbered), context.defaultParallelism * TASKS_A_CORE)
            Random(0).shuffle(numbered)  # neighbours of a grid, and every n-th of them, have similar cost
            shares = [numbered[place::tasks] for place in range(tasks)]
            tried = map_items(context, shares, partial(run_policies, scratch, memory), _TRIED)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    found = [json.loads(row["told"]) for row in tried.sort_by("policy").to_pylist()]
    if left_out:
        reporter.note(f"{left_out:,} looks weren't recorded, for there were too many slow clients at once.")
    return build_tables([name for name, _ in policies], found, names, acts, arguments.save, reporter) | {
        "log": log.place.log,
        "seconds": round(time.monotonic() - began, 3),
    }


# Policies.


def load_policies(settings: JobSettings, arguments: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, document) of each policy, first the named ones, then those of the grid.

    Raises OperatorError bad_setting, bad_policy.
    """
    named = [word.strip() for word in arguments.policy.split(",") if word.strip()]
    found = [(Path(word).stem, read_policy(settings, word)) for word in named]
    found += [(name, changed) for name, changed in _grid(found[0][1], arguments.grid)] if found else []
    if not 0 < len(found) <= MAX_POLICIES:
        raise OperatorError(
            "bad_setting", f"{len(found)} policies are too few or too many.", f"Give 1 to {MAX_POLICIES}."
        )
    for _, document in found:
        PolicyDocument.from_dict(document)
    return found


def read_policy(settings: JobSettings, word: str) -> dict[str, Any]:
    """Read a policy from a file, or by name from the lake's directory. Raises OperatorError bad_setting."""
    path = Path(word) if "/" in word else settings.lake / POLICIES / f"{word}.json"
    path = path if path.is_file() or not Path(word).is_file() else Path(word)
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise OperatorError(
            "bad_setting",
            f"The policy {word[:200]} can't be read: {str(error).splitlines()[0]}.",
            "Write one with manage.py policy export.",
        ) from error
    if not isinstance(found, dict):
        raise OperatorError(
            "bad_setting", f"{word[:200]} isn't a policy.", "Write one with manage.py policy export."
        )
    return found


def _grid(document: dict[str, Any], text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    axes = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        setting, equals, values = part.partition("=")
        if not equals or not values:
            raise OperatorError(
                "bad_setting", f"{part[:80]!r} isn't an axis of a grid.", "Write setting=10,20,50."
            )
        axes.append([(setting.strip(), _value(value)) for value in values.split(",")])
    for combination in itertools.product(*axes) if axes else ():
        yield " ".join(f"{name}={value}" for name, value in combination), _laid_over(document, combination)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def _laid_over(document: dict[str, Any], combination: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """Return a copy of the policy with changed settings.

    `rules.2.limit` names the limit of the third rule.
    """
    changed: dict[str, Any] = json.loads(json.dumps(document))
    for setting, value in combination:
        *way, last = setting.split(".")
        place: Any = changed
        try:
            for step in way:
                place = place[int(step)] if isinstance(place, list) else place[step]
            known = last in place if isinstance(place, dict) else place[int(last)] is not None
        except (KeyError, IndexError, ValueError, TypeError):
            known = False
        if not known:
            raise OperatorError(
                "bad_setting",
                f"The policy has no setting {setting[:80]!r}.",
                "Name it as the exported file does.",
            )
        place[int(last) if isinstance(place, list) else last] = value
    return changed


# Work in the workers.


def store_samples(
    scratch: Path, place: LogLocation, request: ReadRequest, share: tuple[int, SegmentSpan]
) -> Iterator[pa.Table]:
    """Write the samples of a span to a file; yield how many there are.

    A day's samples don't fit the JVM's memory.
    """
    number, span = share
    looks = left_out = 0
    with pq.ParquetWriter(scratch / f"looks-{number:06d}.parquet", TRAFFIC, compression="zstd") as file:
        for table in read_samples(place, request, span):
            file.write_table(table.select(TRAFFIC.names).cast(TRAFFIC))
            looks += table.num_rows
            left_out += pc.sum(table.column("left_out")).as_py()
    yield pa.table({"looks": [looks], "left_out": [left_out]}, schema=_KEPT)


def load_samples(scratch: Path, columns: list[str]) -> pa.Table:
    """Read all samples that `store_samples` wrote."""
    files = sorted(scratch.glob("looks-*.parquet"))
    empty = TRAFFIC.empty_table().select(columns)
    return pa.concat_tables([empty, *(pq.ParquetFile(one).read(columns) for one in files)])


def read_samples(place: LogLocation, request: ReadRequest, span: SegmentSpan) -> Iterator[pa.Table]:
    """Yield the samples of a span."""
    yield from decode_samples(_bodies(place, request, TRAFFIC_TOPIC, span))


def decode_samples(bodies: Iterable[bytes]) -> Iterator[pa.Table]:
    """Decode traffic records to tables of about LOOKS_OF_A_TABLE samples. Undecodable records are skipped."""
    whose: list[TrafficRowKey] = []
    columns = [array("q") for _ in TrafficSample._fields]
    left_out: list[int] = []
    for body in bodies:
        try:
            entry = msgspec.json.decode(body, type=TrafficEntry)
            found, figures = unpack_samples(entry)
        except (msgspec.DecodeError, ValueError):
            continue
        if not found:
            continue
        whose += found
        for column, values in zip(columns, figures, strict=True):
            column.extend(values)
        left_out += [entry.left_out] + [0] * (len(found) - 1)
        if len(whose) >= LOOKS_OF_A_TABLE:
            yield _looks(whose, columns, left_out)
            whose, columns, left_out = [], [array("q") for _ in TrafficSample._fields], []
    if whose:
        yield _looks(whose, columns, left_out)


def _looks(whose: list[TrafficRowKey], columns: list[array[int]], left_out: list[int]) -> pa.Table:
    table: dict[str, Any] = dict(zip(TrafficRowKey._fields, map(list, zip(*whose, strict=True)), strict=True))
    table |= {
        name: np.frombuffer(column, np.int64)
        for name, column in zip(TrafficSample._fields, columns, strict=True)
    }
    return pa.table({**table, "left_out": left_out}).select([*TRAFFIC.names, "left_out"])


def read_decisions(place: LogLocation, request: ReadRequest, span: SegmentSpan) -> Iterator[pa.Table]:
    """Yield the recorded decisions of a span."""
    rows = []
    for body in _bodies(place, request, DECISIONS_TOPIC, span):
        try:
            told = msgspec.json.decode(body, type=DecisionEntry)
        except msgspec.DecodeError:
            continue
        newest = told.samples[-1] if told.samples and len(told.samples[-1]) >= 3 else (0, -1, -1)
        rows.append(
            {name: getattr(told, name) for name in ACTS.names if name not in ("memory", "disk")}
            | {"memory": newest[1], "disk": newest[2]}
        )
    yield pa.Table.from_pylist(rows, schema=ACTS)


def _bodies(place: LogLocation, request: ReadRequest, topic: str, span: SegmentSpan) -> Iterator[bytes]:
    for batch in read_span(place, span, replace(request, topics=(topic,))):
        yield from batch.column("body").to_pylist()


def run_policies(scratch: Path, memory: int, share: list[tuple[int, dict[str, Any]]]) -> Iterator[pa.Table]:
    """Run some policies on the whole recording."""
    documents = [PolicyDocument.from_dict(document) for _, document in share]
    for (number, _), tried in zip(
        share, backtest_policies(documents, memory, _recorded_in(scratch)), strict=True
    ):
        yield pa.table({"policy": [number], "told": [json.dumps(tried.as_dict())]}, schema=_TRIED)


@lru_cache(maxsize=1)
def _recorded_in(scratch: Path) -> Recording:
    """Return the recording, cached for all tasks of a worker."""
    acts = pq.read_table(scratch / "acts.parquet")
    return Recording(build_traces(load_samples(scratch, TRAFFIC.names), acts))


# Results.


def build_tables(
    names: list[str],
    found: list[dict[str, Any]],
    looks: pa.ChunkedArray,
    acts: pa.Table,
    save: str,
    reporter: Reporter,
) -> dict[str, Any]:
    """Report the tables, and return the result. `looks`: client names of the samples."""
    recorded = acts.to_pylist()
    policies, pools, all_acts = [], [], [{"policy": RECORDED, **row} for row in recorded]
    for name, one in zip(names, found, strict=True):
        like = compare_decisions(recorded, one["acts"])
        peaks = one["peaks"].values()
        kinds = {
            act: {row["client"] for row in one["acts"] if row["action"] == act and row["mode"] == "enforce"}
            for act in ("warn", "offline", "disconnect")
        }
        hard = {row["client"] for row in one["acts"] if row["action"] in HARD and row["mode"] == "enforce"}
        policies.append(
            {
                "policy": name,
                "warned": len(kinds["warn"]),
                "offlined": len(kinds["offline"]),
                "disconnected": len(kinds["disconnect"]),
                "acted_on": len(hard),
                "decisions": len(one["acts"]),
                "offlined_s": round(sum(one["offlined_ms"].values()) / 1_000, 1),
                "lost": one["lost"],
                "peak_memory": max((peak[0] for peak in peaks), default=0),
                "peak_disk": max((peak[1] for peak in peaks), default=0),
                "as_recorded_percent": like.percent,
                "within_1s_percent": like.in_time_percent,
                "carried_on": one["parted"],
                "not_judged": "; ".join(one["unjudged"]),
                "saves": bool(save) and save not in hard,
            }
        )
        pools += [
            {"policy": name, "pool": pool or "the instance's", "peak_memory": peak[0], "peak_disk": peak[1]}
            for pool, peak in one["peaks"].items()
        ]
        all_acts += [{"policy": name, **row} for row in one["acts"]]
    table = pa.Table.from_pylist(policies)
    reporter.table(
        "policies",
        table,
        "What each policy would have done",
        [PlotSpec("Clients offlined or disconnected", "policy", ("offlined", "disconnected"), "bars")],
    )
    reporter.table(
        "acts",
        _timed(all_acts),
        "Every decision, as recorded and under each policy",
        [PlotSpec("Decisions so far", "at", ("so_far",), by="policy")],
    )
    if pools:
        reporter.table("pools", pa.Table.from_pylist(pools), "Peaks of the pools")
    clients = pc.count_distinct(looks).as_py()
    told = {
        "policies": len(names),
        "clients": clients,
        "looks": len(looks),
        "recorded_decisions": len(recorded),
    }
    for row in policies:
        if row["not_judged"]:
            reporter.note(f"Of {row['policy']} isn't judged: {row['not_judged']}.")
    if not len(looks):
        reporter.note("Nothing of slow clients is recorded there: no policy had anything to act on.")
    if save:
        saving = sorted(
            (row for row in policies if row["saves"]), key=lambda row: (row["peak_memory"], row["peak_disk"])
        )
        told |= {"saves": saving[0]["policy"] if saving else None, "of_them_save": len(saving)}
        reporter.note(
            (
                f"{saving[0]['policy']} is the cheapest of {len(saving)} that do nothing hard to "
                f"{save}: peak memory {saving[0]['peak_memory']:,} bytes."
            )
            if saving
            else f"None of them saves {save}."
        )
    return told


def _timed(rows: list[dict[str, Any]]) -> pa.Table:
    counts: dict[str, int] = {}
    made = []
    for row in sorted(rows, key=lambda one: int(one["at"])):
        counts[row["policy"]] = counts.get(row["policy"], 0) + 1
        made.append(row | {"so_far": counts[row["policy"]]})
    table = pa.Table.from_pylist(
        made, schema=pa.schema([("policy", pa.string()), *ACTS, ("so_far", pa.int64())])
    )
    at = pc.multiply(table.column("at"), 1_000).cast(MOMENT)
    return table.set_column(table.schema.get_field_index("at"), "at", at)
