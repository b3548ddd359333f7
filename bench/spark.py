"""Cost of reading a journal in Spark.

    python -m bench.spark [--records 10000000] [--runs 3] [--only scan,topics,start,lake,backtest]

A journal is made once below --directory, and reused by later runs: JSON bodies of 150 bytes, 500 topics
(one has 15 % of the records, one 0.01 %), 200 publishers, batches of --batch records. In a run every
candidate reads it once, one after the other, in one Spark session. Figures are medians of the runs, with
the CPU seconds of the JVM and its Python workers. The other tables are of whole jobs (spark_jobs.py), and
of topics among many (spark_topics.py).
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from bench.processes import cpu_of, family
from bench.spark_jobs import backtest_table, lake_table, start_table
from bench.spark_logs import INSTANCE, Published, compress, make_log
from bench.spark_topics import topics_table
from pipeline.spark_session import start_session
from sluice_spark import journal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS, PUBLISHERS = 500, 200
COMMON, RARE = "t.common", "t.rare"
COMMON_SHARE, RARE_SHARE = 0.15, 0.0001


class Cost(NamedTuple):
    """Seconds of a query: wall clock, CPU of the JVM, CPU of its Python workers."""

    wall: float
    jvm: float
    python: float

    @property
    def cpu(self) -> float:
        return self.jvm + self.python


class Data(NamedTuple):
    """Paths of the same records in three forms."""

    raw: Path
    compressed: Path
    text: Path
    records: int


# Data.


def data_in(directory: Path, records: int, batch: int) -> Data:
    """Return the test data; make them if they don't exist."""
    home = directory / f"spark-{records}-{batch}"
    made = Data(home / "raw", home / "gzip", home / "json", records)
    if not (home / "complete").exists():
        _make_journal(made.raw, records, batch)
        compress(made.raw, made.compressed)
        _make_text(made)
        (home / "complete").touch()
    return made


def _bodies(random: np.random.Generator, first: int, count: int) -> list[bytes]:
    prices, sizes = random.random(count) * 1_000, random.integers(1, 10_000, count)
    return [
        (
            b'{"id": %d, "price": %.4f, "size": %d, "side": "%s", "venue": "XNAS", "account": '
            b'"A%07d", "note": "order of the day"}'
        )
        % (first + n, price, size, b"buy" if size & 1 else b"sell", size * 37)
        for n, (price, size) in enumerate(zip(prices.tolist(), sizes.tolist(), strict=True))
    ]


def _topics(random: np.random.Generator, count: int) -> list[str]:
    names = [COMMON, RARE, *(f"orders.{n:03d}.new" for n in range(TOPICS - 2))]
    ranks = 1 / np.arange(1, TOPICS - 1)
    shares = np.concatenate(
        ([COMMON_SHARE, RARE_SHARE], ranks / ranks.sum() * (1 - COMMON_SHARE - RARE_SHARE))
    )
    return [names[n] for n in random.choice(TOPICS, count, p=shares).tolist()]


def _make_journal(directory: Path, records: int, size: int) -> None:
    random = np.random.default_rng(1)

    def publish(first: int, count: int) -> Published:
        publisher = f"publisher-{int(random.integers(PUBLISHERS)):03d}"
        return Published(publisher, _topics(random, count), _bodies(random, first, count))

    make_log(directory, records, size, publish)


def _make_text(data: Data) -> None:
    """Write the records as lines of JSON, as a consumer that writes files would."""
    from sluice_spark.arrow_reader import ReadRequest, plan_read, read_span
    from sluice_spark.location import LogLocation

    data.text.mkdir()
    location = LogLocation(data.raw, None, INSTANCE)
    request = ReadRequest()
    for number, span in enumerate(plan_read(location, request)):
        with (data.text / f"part-{number:03d}.json").open("wb") as file:
            for batch in read_span(location, span, request):
                for row in batch.to_pylist():
                    row["header"], row["body"] = row["header"].decode(), row["body"].decode()
                    file.write(orjson.dumps(row) + b"\n")


# Measuring.


def measure(spark: SparkSession, action: Callable[[], object]) -> Cost:
    """Measure an action."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc.pid
    jvm, below = cpu_of(java), sum(map(cpu_of, family(java)[1:]))
    began = time.perf_counter()
    action()
    wall = time.perf_counter() - began
    return Cost(wall, cpu_of(java) - jvm, sum(map(cpu_of, family(java)[1:])) - below)


def touched(frame: DataFrame) -> list[Any]:
    """Compute an aggregate that needs every column of every row."""
    from pyspark.sql import functions as F

    lengths = [F.sum(F.length(name)) for name in ("topic", "publisher", "origin", "header", "body")]
    return frame.agg(
        F.count("*"),
        F.sum("sequence"),
        F.sum("publisher_sequence"),
        F.max("accepted_at"),
        F.max("epoch"),
        *lengths,
    ).collect()


@contextlib.contextmanager
def undecoded(spark: SparkSession, data: Data) -> Iterator[DataFrame]:
    """Yield as many rows from a source that returns one prepared Arrow batch again and again."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from sluice_spark.arrow_reader import ReadRequest, plan_read, read_span
    from sluice_spark.columns import record_schema, spark_ddl
    from sluice_spark.location import LogLocation

    location = LogLocation(data.raw, None, INSTANCE)
    spans = plan_read(location, ReadRequest())
    shares = [span.last - span.first + 1 for span in spans]
    sample = next(read_span(location, spans[0], ReadRequest()))
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, sample.schema) as stream:
        stream.write_batch(sample)
    image = buffer.getvalue().to_pybytes()

    class Share(InputPartition):
        pass

    class Ceiling(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ceiling"

        def schema(self) -> str:
            return spark_ddl(record_schema())

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [Share(share) for share in shares]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            from sluice_spark.worker_setup import tune_worker

            tune_worker()
            batch = next(iter(pa.ipc.open_stream(image)))
            remaining = int(partition.value)
            while remaining > 0:
                yield batch.slice(0, min(remaining, batch.num_rows))
                remaining -= batch.num_rows

    spark.dataSource.register(Ceiling)
    yield spark.read.format("ceiling").load()


def candidates(spark: SparkSession, data: Data) -> dict[str, Callable[[], object]]:
    """Return the actions to measure, by name."""
    last = data.records
    one_percent = {"start": last // 2, "end": last // 2 + last // 100 - 1}
    text = (
        "sequence BIGINT, accepted_at TIMESTAMP, origin STRING, epoch INT, topic STRING, publisher STRING,"
        " publisher_sequence BIGINT, header STRING, body STRING"
    )

    def raw(**wanted: Any) -> object:
        return touched(journal(spark, data.raw, instance=INSTANCE, **wanted))

    def ceiling() -> object:
        with undecoded(spark, data) as frame:
            return touched(frame)

    return {
        CEILING: ceiling,
        RAW: raw,
        GZIP: lambda: touched(journal(spark, data.compressed, instance=INSTANCE)),
        JSON: lambda: touched(spark.read.schema(text).json(str(data.text))),
        "topic with 15 %": lambda: raw(topics=COMMON),
        "topic with 0.01 %": lambda: raw(topics=RARE),
        "the same, gzip": lambda: touched(journal(spark, data.compressed, instance=INSTANCE, topics=RARE)),
        "1 % by bookmarks": lambda: raw(**one_percent),
        "one record": lambda: raw(start=last // 2, end=last // 2),
        "three columns": lambda: (
            journal(spark, data.raw, instance=INSTANCE, columns=("sequence", "topic", "publisher_sequence"))
            .selectExpr("sum(sequence)", "sum(length(topic))", "sum(publisher_sequence)")
            .collect()
        ),
    }


CEILING, RAW, GZIP, JSON = "no decoding at all", "raw, all columns", "gzip, all columns", "Spark's JSON text"
TARGETS = {
    RAW: (CEILING, 0.9, "≥ 90 % of no decoding"),
    GZIP: (RAW, 0.9, "≥ 90 % of raw"),
    "topic with 15 %": (RAW, 3, "≥ 3 × all"),
    "topic with 0.01 %": (RAW, 20, "≥ 20 × all"),
    "1 % by bookmarks": (RAW, 20, "≥ 20 × all"),
    JSON: (RAW, 1 / 3, "≤ a third of raw"),
}


TABLES = ("scan", "topics", "start", "lake", "backtest")


def scan_table(data: Data, runs: int, master: str) -> Table:
    """Run every candidate once a run, in one session; return the table."""
    spark = start_session(master, "bench", data.raw.parent / ".spark")
    acts = candidates(spark, data)
    for name in (RAW, CEILING, GZIP):
        acts[name]()  # warm-up: the JVM compiles, and files enter the page cache
    costs: dict[str, list[Cost]] = {name: [] for name in acts}
    for _ in range(runs):
        for name, action in acts.items():
            costs[name].append(measure(spark, action))
    spark.stop()
    middle = {name: statistics.median(cost.wall for cost in found) for name, found in costs.items()}
    table = Table(title=f"{data.records:,} records, {runs} runs, {master}")
    for head in ("", "wall s", "least", "most", "JVM CPU s", "Python CPU s", "M records/s", "", "wanted"):
        table.add_column(head, justify="left" if head in ("", "wanted") else "right")
    for name, found in costs.items():
        base, _, target = TARGETS.get(name, ("", 0, ""))
        walls = [cost.wall for cost in found]
        table.add_row(
            name,
            f"{middle[name]:.2f}",
            f"{min(walls):.2f}",
            f"{max(walls):.2f}",
            f"{statistics.median(cost.jvm for cost in found):.2f}",
            f"{statistics.median(cost.python for cost in found):.2f}",
            f"{data.records / middle[name] / 1e6:.2f}",
            f"{middle[base] / middle[name]:.2f} ×" if base else "",
            target,
        )
    return table


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=500, help="records of a batch")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--directory", type=Path, default=Path("/tmp/sluice-bench-spark"))
    parser.add_argument("--only", default=",".join(TABLES), help="tables, with commas between")
    parser.add_argument("--clients", type=int, default=2_000, help="of the back-test")
    parser.add_argument("--hours", type=float, default=24, help="of the back-test")
    parser.add_argument(
        "--waiting",
        type=float,
        default=0.01,
        help="share of clients for whom something waits, of the back-test",
    )
    parser.add_argument("--policies", type=int, default=32, help="of the back-test")
    arguments = parser.parse_args()
    tables = arguments.only.split(",")
    if unknown := set(tables) - set(TABLES):
        parser.error(f"there is no table {', '.join(sorted(unknown))}")
    console = Console(width=150)
    if "topics" in tables:
        console.print(topics_table(arguments.directory, arguments.records, arguments.batch, arguments.runs))
    if set(tables) - {"backtest", "start", "topics"}:
        data = data_in(arguments.directory, arguments.records, arguments.batch)
        if "scan" in tables:
            console.print(scan_table(data, arguments.runs, arguments.master))
        if "lake" in tables:
            console.print(
                lake_table(
                    data.raw, INSTANCE, data.records, arguments.runs, arguments.master, arguments.directory
                )
            )
    if "start" in tables:
        small = data_in(arguments.directory, 1_000, arguments.batch)
        console.print(start_table(small.raw, INSTANCE, arguments.runs, arguments.master, arguments.directory))
    if "backtest" in tables:
        console.print(
            backtest_table(
                arguments.clients,
                arguments.hours,
                arguments.waiting,
                arguments.policies,
                arguments.master,
                arguments.directory,
            )
        )


if __name__ == "__main__":
    main()
