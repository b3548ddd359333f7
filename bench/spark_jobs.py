"""Cost of whole pipeline jobs, each a process as an operator starts it, from its start to its end.

CPU seconds are those of the run's own record: of the job, the JVM and the workers.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from rich.table import Table

from bench.processes import family, proportional
from broker_core.batch import Batch, build_batch
from broker_core.config import default_policy
from broker_core.documents.system_records import TrafficRowKey, TrafficSample, pack_samples
from broker_core.journal.appender import JournalOptions
from broker_core.journal.journal import Journal
from broker_core.names import TRAFFIC_TOPIC

MIB = 1024 * 1024
START_MS = 1_795_262_400_000
SAMPLE_INTERVAL_S = 0.1
SPELL_S = 120
"""Length of a period in which messages wait for a client of the back-test."""


class Ran(NamedTuple):
    """Result of one run of a job."""

    wall: float
    cpu: float
    peak: int
    """Peak memory in bytes of all its processes together."""
    result: dict[str, Any]


def ran(job: str, journal: Path, instance: str, master: str, lake: Path, *words: str) -> Ran:
    """Run a job in its own lake; return its result."""
    command = [sys.executable, "-m", "pipeline", job, "--journal", str(journal), "--instance", instance]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--lake", str(lake), "--home", str(lake.parent), "--master", master, "--json", *words],
        stdout=subprocess.PIPE,
        text=True,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(proportional, family(process.pid))))
        time.sleep(SAMPLE_INTERVAL_S)
    wall = time.perf_counter() - began
    assert process.stdout is not None
    outcome = json.loads(process.stdout.read().splitlines()[-1])
    if process.returncode:
        raise SystemExit(f"{job}: {outcome}")
    record = json.loads((lake / "runs" / outcome["run"] / "run.json").read_text())
    return Ran(wall, record["cpu_s"], peak, outcome)


def made_of(title: str, *heads: str) -> Table:
    """Return an empty table. The first column is text."""
    table = Table(title=title)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    return table


def start_table(journal: Path, instance: str, runs: int, master: str, directory: Path) -> Table:
    """Measure a job with hardly any work: the first one on a machine, and later ones."""
    table = made_of(
        f"start: `state` of 1,000 records, {runs} runs, {master}", "", "wall s", "CPU s", "wanted"
    )
    with tempfile.TemporaryDirectory(dir=directory) as home:
        found = [ran("state", journal, instance, master, Path(home, "lake")) for _ in range(runs + 1)]
    table.add_row("first", f"{found[0].wall:.2f}", f"{found[0].cpu:.2f}", "")
    table.add_row(
        "median of the others",
        f"{statistics.median(one.wall for one in found[1:]):.2f}",
        f"{statistics.median(one.cpu for one in found[1:]):.2f}",
        "≤ 8 CPU s",
    )
    return table


def lake_table(journal: Path, instance: str, records: int, runs: int, master: str, directory: Path) -> Table:
    """Write the whole log to an empty lake."""
    found: list[Ran] = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(dir=directory) as home:
            found.append(ran("lake", journal, instance, master, Path(home, "lake")))
    walls, peaks = [one.wall for one in found], [one.peak / MIB for one in found]
    table = made_of(
        f"lake: {records:,} records, {runs} runs, {master}",
        "",
        "wall s",
        "least",
        "CPU s",
        "M records/s",
        "of CPU, M records/s a core",
        "peak MiB",
        "wanted",
    )
    cpu = statistics.median(one.cpu for one in found)
    table.add_row(
        "lake, start included",
        f"{statistics.median(walls):.2f}",
        f"{min(walls):.2f}",
        f"{cpu:.2f}",
        f"{records / statistics.median(walls) / 1e6:.2f}",
        f"{records / cpu / 1e6:.2f}",
        f"{statistics.median(peaks):.0f}",
        "1 M records/s, < 1,500 MB",
    )
    return table


# Back-test.


def backtest_table(
    clients: int, hours: float, waiting: float, policies: int, master: str, directory: Path
) -> Table:
    """Back-test many policies on a recording in which a share of the clients has a backlog at any time."""
    home = directory / f"traffic-{clients}-{hours:g}-{waiting:g}"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        record(home / "journal", clients, round(hours * 3_600), waiting)
        (home / "complete").touch()
    policy = home / "policy.json"
    policy.write_text(json.dumps(default_policy("bench").to_dict()))
    capacities = ",".join(str(2 + number) for number in range(max(policies // 4, 1)))
    grid = (
        f"client_policy.client_max_capacity={capacities};"
        "client_policy.client_message_age_limit_ms=20000,40000,60000,90000"
    )
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        outcome = ran(
            "backtest",
            home / "journal",
            "bench",
            master,
            Path(scratch, "lake"),
            "--policy",
            str(policy),
            "--grid",
            grid,
            "--host-memory",
            str(MIB * 1024),
        )
    table = made_of(
        f"back-test: {clients:,} clients, {hours:g} hours, something waits for {waiting:.1%} of "
        "them at a time",
        "",
        "policies",
        "looks",
        "wall s",
        "CPU s",
        "peak MiB",
        "µs CPU a look and policy",
        "wanted",
    )
    tried, samples = outcome.result["policies"], outcome.result["looks"]
    table.add_row(
        "backtest",
        str(tried),
        f"{samples:,}",
        f"{outcome.wall:.1f}",
        f"{outcome.cpu:.1f}",
        f"{outcome.peak / MIB:.0f}",
        f"{outcome.cpu / tried / max(samples, 1) * 1e6:.2f}",
        "a day under 300 s",
    )
    return table


def record(directory: Path, clients: int, seconds: int, share: float) -> None:
    """Write a recording of clients that fall behind for a minute, and catch up in the next."""
    random = np.random.default_rng(1)
    log = Journal.open(directory, "bench", None, JournalOptions(preallocated=1))
    begins = random.random((clients, max(seconds // SPELL_S, 1))) < share
    rates = random.integers(1_000, 200_000, clients)
    for second in range(seconds):
        spell, into = divmod(second, SPELL_S)
        slow = np.flatnonzero(begins[:, min(spell, begins.shape[1] - 1)])
        for packed in traffic_records(slow, rates, second, into):
            raw = build_batch("$SLUICE", [TRAFFIC_TOPIC], [packed], None, 0)
            batch = Batch.parse(raw, verify=False)
            batch.stamp(
                origin=log.origin,
                epoch=log.epoch,
                first_sequence=log.next_sequence,
                accepted_at=(START_MS + second * 1_000) * 1_000_000,
            )
            log.write([batch])
        if second % 600 == 0:
            log.sync()
            log.preallocate()
    log.sync()
    log.close()


def traffic_records(slow: Any, rates: Any, second: int, into: int) -> Iterator[bytes]:
    """Yield the documents of one second, of 200 samples each."""
    now = START_MS + second * 1_000
    behind = min(into, SPELL_S - 1 - into)  # it falls behind in the first minute and catches up in the second
    for start in range(0, len(slow), 200):
        row_keys, figures = [], array("q")
        for client in slow[start : start + 200].tolist():
            rate = int(rates[client])
            matched, owed = rate * (second + 1), rate // 2 * behind
            row_keys.append(TrafficRowKey(f"client-{client:05d}", "tcp", "", START_MS, "t"))
            one = dict.fromkeys(TrafficSample._fields, 0) | {
                "at": now,
                "memory": owed * 115 // 100,
                "messages": owed // 500,
                "matched_messages": matched // 500,
                "matched_bytes": matched,
                "acknowledged_bytes": matched - owed,
                "taken_bytes": matched - owed,
                "owed_messages": owed // 500,
                "owed_bytes": owed,
                "oldest_at": now - 500 * behind if behind else 0,
                "subscriptions": 1,
            }
            figures.extend(one[name] for name in TrafficSample._fields)
        yield msgspec.json.encode(pack_samples(now, row_keys, figures, 0))
