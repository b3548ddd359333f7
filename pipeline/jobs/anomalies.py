"""`anomalies`: clients whose behaviour changed, and the features that show it.

Each client's newest hours are compared with its own earlier hours (`transforms/features.py`), read from the
hourly history of `client-history`. MLlib computes the features' correlations over all clients. It also
groups clients by their usual behaviour, so that the result tells which other group an odd hour resembles.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker_core.errors import OperatorError
from pipeline.config import JobSettings
from pipeline.jobs import Reporter, add_options
from pipeline.plots import PlotSpec
from pipeline.schemas import CLIENT_HOURS
from pipeline.spark_session import check_machine, spark_session, watch_tasks
from pipeline.transforms.features import (
    FEATURES,
    MIN_HOURS,
    NAMES,
    Floats,
    baseline,
    distances,
    feature_row,
    inverse_correlation,
    score_features,
    to_plain,
    to_points,
    top_features,
)
from sluice_spark.columns import MOMENT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HELP = "find clients with unusual behaviour, and the features that show it"
MAX_GROUPS: Final = 4
MAX_CLIENTS_FOUND: Final = 10_000
MAX_PLOTTED: Final = 8
HOUR_US: Final = 3_600_000_000
SILENT_SHARE: Final = 0.8
"""Minimum share of earlier hours with the client present, for it to be reported as silent."""
FOUND: Final = pa.schema(
    [
        ("client", pa.string()),
        ("hour", MOMENT),
        ("score", pa.float64()),
        ("because", pa.string()),
        ("usually_like", pa.string()),
        ("now_like", pa.string()),
    ]
)


class JudgedClient(NamedTuple):
    """Scored hours of a client, with its usual values."""

    name: str
    hours: list[int]
    points: Floats
    middle: Floats
    z: Floats
    before: Floats
    """Distances of its earlier hours, from which the correlations are estimated."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add options for the hours and the threshold."""
    add_options(parser, "anomalies")


def run(settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
    """Run the job. Raises OperatorError no_history without hourly history, bad_range."""
    started_at = time.monotonic()
    if not 0 < arguments.recent < 24 * arguments.days <= 24 * 400:
        raise OperatorError(
            "bad_range", "--recent must be less than the hours of --days.", "Give --recent and --days."
        )
    hours = load_hours(settings, arguments.days)
    newest = pc.max(hours.column("hour").cast(pa.int64())).as_py() // HOUR_US
    check_machine(settings)
    clients, silent, too_new = judge_clients(hours, newest - arguments.recent)
    with (
        spark_session(settings, "anomalies") as spark,
        watch_tasks(spark.sparkContext, partial(reporter.progress, unit="tasks")),
    ):
        inverted = inverse_correlation(correlations(spark, clients))
        names, groups = cluster_clients(spark, clients)
    judged, features, scores = build_tables(clients, inverted, names, groups, arguments.threshold)
    judged += [
        {
            "client": name,
            "hour": None,
            "score": None,
            "because": "it disappeared: it was active before, and isn't in the newest hours",
        }
        for name in silent
    ]
    report(judged, features, scores, groups, reporter)
    odd = len({row["client"] for row in judged})
    reporter.note(f"{odd} of {len(clients) + len(silent)} clients behave unusually.")
    if too_new:
        reporter.note(f"{too_new} clients have fewer than {MIN_HOURS} earlier hours, too few to judge them.")
    return {
        "clients": len(clients),
        "odd_clients": odd,
        "odd_hours": sum(row["hour"] is not None for row in judged),
        "silent": len(silent),
        "too_new": too_new,
        "groups": len(groups),
        "seconds": round(time.monotonic() - started_at, 3),
    }


def load_hours(settings: JobSettings, days: int) -> pa.Table:
    """Read the newest days of the hourly history. Raises OperatorError no_history."""
    files = sorted(settings.client_history.glob(f"day=*/{settings.log.instance}.parquet"))[-days:]
    tables = [pq.ParquetFile(path).read() for path in files]
    hours = pa.concat_tables(tables) if tables else CLIENT_HOURS.empty_table()
    if not hours.num_rows:
        raise OperatorError(
            "no_history",
            f"{settings.client_history} has no hourly history of clients.",
            "Run client-history first.",
        )
    return hours


def judge_clients(hours: pa.Table, edge: int) -> tuple[list[JudgedClient], list[str], int]:
    """Return the clients to score, the silent ones, and the number of clients that are too new.

    Hours after `edge` are scored. The very last hour is incomplete, and isn't scored.
    """
    points, micros = to_points(hours), hours.column("hour").cast(pa.int64()).to_numpy() // HOUR_US
    last = int(micros.max())
    codes = pc.dictionary_encode(hours.column("client").combine_chunks())
    order = np.lexsort((micros, codes.indices.to_numpy()))
    edges = np.flatnonzero(np.diff(codes.indices.to_numpy()[order])) + 1
    clients, silent, too_new = [], [], 0
    for rows in np.split(order, edges):
        name = codes.dictionary[int(codes.indices[int(rows[0])].as_py())].as_py()
        before = rows[micros[rows] <= edge]
        now = rows[(micros[rows] > edge) & (micros[rows] < last)]
        if len(before) < MIN_HOURS:
            too_new += 1
            continue
        if not len(rows[micros[rows] > edge]):
            known = edge - int(micros[before].min()) + 1
            if len(before) >= SILENT_SHARE * known and int(micros[before].max()) == edge:
                silent.append(name)
            continue
        middle, spread = baseline(points[before])
        clients.append(
            JudgedClient(
                name,
                micros[now].tolist(),
                points[now],
                middle,
                distances(points[now], middle, spread),
                distances(points[before], middle, spread),
            )
        )
    return clients, sorted(silent), too_new


def correlations(spark: SparkSession, clients: list[JudgedClient]) -> Floats:
    """Return MLlib's correlations of the features' distances over all earlier hours."""
    from pyspark.ml.stat import Correlation

    rows = np.concatenate([one.before for one in clients]) if clients else np.zeros((0, len(NAMES)))
    if len(rows) < 2 * len(NAMES):
        return np.eye(len(NAMES))
    found: Floats = Correlation.corr(to_vectors(spark, rows), "features").collect()[0][0].toArray()
    return found


def to_vectors(spark: SparkSession, rows: Floats) -> Any:
    """Return rows as a vector column of MLlib."""
    from pyspark.ml.feature import VectorAssembler

    table = pa.table({name: rows[:, number] for number, name in enumerate(NAMES)})
    return VectorAssembler(inputCols=list(NAMES), outputCol="features").transform(
        spark.createDataFrame(table)
    )


def cluster_clients(spark: SparkSession, clients: list[JudgedClient]) -> tuple[list[int], Floats]:
    """Cluster clients by their usual values with BisectingKMeans; return (cluster of each, centres)."""
    from pyspark.ml.clustering import BisectingKMeans

    if not clients:
        return [], np.zeros((0, len(NAMES)))
    middles = np.array([one.middle for one in clients])
    if len(clients) < 2:
        return [0], middles
    model = BisectingKMeans(k=min(MAX_GROUPS, len(clients)), seed=1, minDivisibleClusterSize=2.0).fit(
        to_vectors(spark, middles)
    )
    centres = np.array(model.clusterCenters())
    order = np.lexsort((centres[:, 0], -centres[:, 2]))
    centres = centres[order]
    return [nearest_centre(one.middle, centres) for one in clients], centres


def nearest_centre(point: Floats, centres: Floats) -> int:
    """Return the cluster whose centre is nearest to a point."""
    return int(((centres - point) ** 2).sum(axis=1).argmin())


def build_tables(
    clients: list[JudgedClient], inverted: Floats, groups: list[int], centres: Floats, threshold: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return (odd hours, their features, scores of all hours)."""
    found: list[dict[str, Any]] = []
    features: list[dict[str, Any]] = []
    scores: list[dict[str, Any]] = []
    for one, group in zip(clients, groups, strict=True):
        marks, shares = score_features(one.z, inverted)
        for index, hour in enumerate(one.hours):
            at, score = hour * HOUR_US, round(float(marks[index]), 2)
            scores.append({"client": one.name, "hour": at, "score": score})
            if score < threshold:
                continue
            reason = top_features(one.points[index], one.middle, one.z[index], shares[index])
            now = nearest_centre(one.points[index], centres)
            found.append(
                {
                    "client": one.name,
                    "hour": at,
                    "score": score,
                    "because": reason,
                    "usually_like": f"group {group + 1}",
                    "now_like": f"group {now + 1}",
                }
            )
            features += [
                {"client": one.name, "hour": at, **feature_row(feature, value, middle, z, share)}
                for feature, value, middle, z, share in zip(
                    FEATURES, one.points[index], one.middle, one.z[index], shares[index], strict=True
                )
            ]
    found.sort(key=lambda row: float(row["score"]), reverse=True)
    return found, features, scores


def report(
    found: list[dict[str, Any]],
    features: list[dict[str, Any]],
    scores: list[dict[str, Any]],
    centres: Floats,
    reporter: Reporter,
) -> None:
    """Report tables and plots."""
    reporter.table(
        "odd",
        pa.Table.from_pylist(found[:MAX_CLIENTS_FOUND], schema=FOUND),
        "Unusual hours by client",
    )
    kinds = [
        ("feature", pa.string()),
        *((name, pa.float64()) for name in ("value", "usually", "variations_off", "share_percent")),
    ]
    key_fields = [("client", pa.string()), ("hour", MOMENT)]
    reporter.table(
        "features",
        pa.Table.from_pylist(features[:MAX_CLIENTS_FOUND], schema=pa.schema([*key_fields, *kinds])),
        "Features of the unusual hours",
    )
    worst: dict[str, float] = {}
    for row in scores:
        worst[row["client"]] = max(worst.get(row["client"], 0.0), row["score"])
    names = sorted(worst, key=lambda name: (-worst[name], name))[:MAX_PLOTTED]
    shown = sorted(
        (row for row in scores if row["client"] in names),
        key=lambda row: (names.index(row["client"]), row["hour"]),
    )
    reporter.table(
        "scores",
        pa.Table.from_pylist(shown, schema=pa.schema([*key_fields, ("score", pa.float64())])),
        "Anomaly scores of the most unusual clients",
        [PlotSpec("Anomaly score", "hour", ("score",), by="client")],
    )
    columns: dict[str, Any] = {"group": [f"group {number + 1}" for number in range(len(centres))]}
    plain_centres = to_plain(centres)
    columns |= {
        feature.name: [round(float(value), 3) for value in plain_centres[:, number]]
        for number, feature in enumerate(FEATURES)
    }
    reporter.table(
        "groups",
        pa.table(
            columns, schema=pa.schema([("group", pa.string()), *((name, pa.float64()) for name in NAMES)])
        ),
        "Groups of clients with similar behaviour",
    )
