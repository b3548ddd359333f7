"""Cost of one topic among many: only the reading, in this process, without Spark and its JVM.

The log has --records records over 10,000 topics (Zipf). One topic has 0.01 % of the records, one has
eighteen. Figures are CPU seconds of planning and reading every column, compared with reading all records of
the log.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
from rich.table import Table

from bench.spark_logs import INSTANCE, Published, compress, make_log
from sluice_spark.arrow_reader import ReadRequest, plan_read, read_spans
from sluice_spark.location import LogLocation
from sluice_spark.tasks import merge_spans

TOPICS = 10_000
RARE, RARE_SHARE = "t.rare", 0.0001
EIGHTEEN = "t.eighteen"


def log_in(directory: Path, records: int, size: int) -> Path:
    """Return the directory of the test logs, with `raw` and `gzip`; make them if they don't exist."""
    home = directory / f"topics-{records}-{size}"
    if not (home / "complete").exists():
        _make(home / "raw", records, size)
        compress(home / "raw", home / "gzip")
        (home / "complete").touch()
    return home


def _make(directory: Path, records: int, size: int) -> None:
    random = np.random.default_rng(1)
    names = np.array([f"orders.{n:05d}.new" for n in range(TOPICS - 2)])
    shares = 1 / np.arange(1, TOPICS - 1)
    shares /= shares.sum()
    eighteen = set((np.arange(18) * records // 18 + records // 40).tolist())

    def publish(first: int, count: int) -> Published:
        topics = random.choice(names, count, p=shares).astype(object)
        topics[random.random(count) < RARE_SHARE] = RARE
        for at in eighteen.intersection(range(first, first + count)):
            topics[at - first] = EIGHTEEN
        bodies = [b'{"id": %d, "note": "%s"}' % (first + n, b"x" * 120) for n in range(count)]
        return Published("publisher", topics.tolist(), bodies)

    make_log(directory, records, size, publish)


def cost(directory: Path, request: ReadRequest) -> tuple[float, int]:
    """Return (CPU seconds, records) of planning and reading."""
    began, rows = time.process_time(), 0
    location = LogLocation(directory, None, INSTANCE)
    for part in merge_spans(plan_read(location, request), request.split_bytes):
        for batch in read_spans(location, part.spans, request):
            rows += batch.num_rows
    return time.process_time() - began, rows


def topics_table(directory: Path, records: int, size: int, runs: int) -> Table:
    """Read each selection once a run, one after the other; return the table."""
    home = log_in(directory, records, size)
    everything, rare, eighteen = ReadRequest(), ReadRequest(topics=(RARE,)), ReadRequest(topics=(EIGHTEEN,))
    table = Table(title=f"{records:,} records of {TOPICS:,} topics in batches of {size}, {runs} runs, no JVM")
    for head in ("", "records", "CPU s", "least", "of all records", "wanted"):
        table.add_column(head, justify="right" if head else "left")
    for form in ("raw", "gzip"):
        requests = {
            f"{form}, all": everything,
            f"{form}, topic with 0.01 %": rare,
            f"{form}, a pattern, 0.01 %": ReadRequest(topics=("t.rare.>", RARE)),
            f"{form}, topic of 18 records": eighteen,
        }
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in requests}
        for _ in range(runs):
            for name, request in requests.items():
                found[name].append(cost(home / form, request))
        all_seconds = statistics.median(seconds for seconds, _ in found[f"{form}, all"])
        for name, costs in found.items():
            middle = statistics.median(seconds for seconds, _ in costs)
            table.add_row(
                name,
                f"{costs[0][1]:,}",
                f"{middle:.4f}",
                f"{min(costs)[0]:.4f}",
                f"1/{all_seconds / middle:.1f}",
                "" if middle == all_seconds else "≤ 1/20",
            )
    sidecars = sum(path.stat().st_size for path in (home / "raw").glob("*.index.gz"))
    table.caption = (
        f"sidecars: {sidecars:,} bytes of {sum(p.stat().st_size for p in (home / 'raw').glob('*.journal')):,}"
    )
    return table
