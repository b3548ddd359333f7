"""Effect of slow consumers on others.

    python -m bench.isolation [--peers sluice,redis,...] [--modes stall,...]

Ten subscribers have the same steady load on every broker. 0, 1, 3 or 9 of them are slow, behind a link that
stalls, trickles at 1 KB/s, or is interrupted for ten seconds (`peers/slow_link.py`). Figures are those of
the healthy subscribers, and the server's memory.

Every case has a fresh broker. Its first WARM_S seconds don't count; then the slow subscribers become slow.
Calm cases come before, between and after the modes of each run (for brokers other than Sluice only before).
The figures of a run are compared with the median of its own calm cases. The table shows medians of the
runs, and for the p99 relative to calm also minimum and maximum.

All modes, with all peers in one case, take about 20 minutes: `python -m bench.isolation`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import processes
from bench.peers import PEERS
from bench.peers.peer import Server
from bench.peers.slow_link import AWAY_S

SUBSCRIBERS = 10
WARM_S = 3.0
MODES = ("stall", "trickle", "return")
OWN = "sluice"
CALM = ("calm", 0)
Case = tuple[str, int]
console = Console(stderr=True)
Process = subprocess.Popen[str]
Figures = dict[str, float]


def start(module: str, *words: object) -> Process:
    command = [sys.executable, "-m", module, *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: Process) -> Any:
    assert process.stdout is not None
    found = process.stdout.readline()
    if not found:
        raise SystemExit(f"{process.args!r} ended without an answer")
    return json.loads(found)


def resident(pid: int) -> int:
    """Return bytes of memory of a process and all its descendants."""
    total = 0
    for number in processes.family(pid):
        with contextlib.suppress(OSError, StopIteration):  # an ended process, or a kernel thread
            total += processes.resident(number)
    return total


@contextlib.contextmanager
def subscribers(
    peer: str, server: Server, slow: int, mode: str, skip: int
) -> Iterator[tuple[list[Process], list[Process], list[Process]]]:
    """Start subscribers; yield the healthy ones, the slow ones and the slow ones' links, all subscribed."""

    def subscriber(port: int, name: str) -> Process:
        return start("bench.peers.role", "subscribe", peer, port, name, skip)

    healthy = [subscriber(server.port, f"healthy-{n}") for n in range(SUBSCRIBERS - slow)]
    links = [start("bench.peers.slow_link", server.port, mode) for _ in range(slow)]
    behind = [subscriber(line(link), f"slow-{n}") for n, link in enumerate(links)]
    for process in (*links, *behind):
        # Slow subscribers would be on other machines, so their own work after the return must not slow the
        # broker here.
        os.setpriority(os.PRIO_PROCESS, process.pid, 19)
    try:
        for process in (*healthy, *behind):
            line(process)
        yield healthy, behind, links
    finally:
        for process in (*healthy, *behind, *links):
            process.kill()
            process.wait()


def measure(peer: str, slow: int, mode: str, seconds: float, rate: int) -> Figures:
    """Measure one case.

    The figures are rate, p99 and loss of the healthy subscribers, the slow ones' state, and the server's
    growth.
    """
    if mode == "return":
        seconds = max(seconds, AWAY_S + 4)  # the slow subscribers return during the measurement
    skip = int(WARM_S * rate)
    with (
        PEERS[peer].serve() as server,
        subscribers(peer, server, slow, mode, skip) as (healthy, behind, links),
    ):
        publisher = start("bench.peers.role", "publish", peer, server.port, WARM_S + seconds, rate)
        line(publisher)
        time.sleep(WARM_S)
        before = peak = resident(server.pid)
        for link in links:
            assert link.stdin is not None
            link.stdin.write("go\n")
            link.stdin.flush()
        while publisher.poll() is None:
            peak = max(peak, resident(server.pid))
            time.sleep(0.2)
        time.sleep(1.0 if mode != "return" else 5.0)
        found = [ended(process) for process in healthy]
        slowed = [ended(process) for process in behind]
    figures = {
        "rate": statistics.mean(f["received"] / max(f["last"] - f["first"], 1e-9) for f in found),
        "lost": sum(rate * seconds - f["received"] for f in found) / (rate * seconds * len(found)),
        "p50_us": statistics.median(f["p50_us"] for f in found),
        "p99_us": statistics.median(f["p99_us"] for f in found),
        "grown_mib": (peak - before) / 2**20,
    }
    if slowed:
        figures["slow_received"] = statistics.mean(f["received"] for f in slowed) / (rate * seconds)
        figures["slow_disorder"] = sum(f["disorder"] for f in slowed)
    if mode == "return":
        figures["slow_drained"] = statistics.median(f["drained"] for f in slowed)
    return figures


def ended(process: Process) -> Figures:
    process.terminate()
    found: Figures = line(process)
    return found


Run = dict[Case, list[Figures]]
"""Figures of one run. A calm case has several."""


def table(peer: str, runs: list[Run]) -> Table:
    """Return the table of a peer."""
    made = Table(title=f"{PEERS[peer].name}: {PEERS[peer].options}")
    for heading in (
        "slow",
        "rate/s",
        "of calm",
        "lost",
        "p50 µs",
        "p99 µs",
        "of calm (least to most)",
        "grew MiB",
        "the slow got",
        "disorder",
        "drained/s",
    ):
        made.add_column(heading, justify="right")
    for case in runs[0]:
        mode, slow = case
        found = middle([figures for run in runs for figures in run[case]])
        rates, delays = of_calm(runs, case, "rate"), of_calm(runs, case, "p99_us")
        made.add_row(
            f"{slow} {mode}" if slow else "none",
            f"{found['rate']:,.0f}",
            f"{statistics.median(rates):.1%}",
            f"{found['lost']:.1%}",
            f"{found['p50_us']:,.0f}",
            f"{found['p99_us']:,.0f}",
            f"{statistics.median(delays):.2f} ({delays[0]:.2f} to {delays[-1]:.2f})",
            f"{found['grown_mib']:.0f}",
            f"{found['slow_received']:.0%}" if slow else "",
            f"{found['slow_disorder']:.0f}" if slow else "",
            f"{found['slow_drained']:,.0f}" if mode == "return" else "",
        )
    return made


def of_calm(runs: list[Run], case: Case, key: str) -> list[float]:
    """Return a figure of each run relative to the median of that run's calm cases, ascending.

    For the calm case itself, all its figures.
    """
    calm = [middle(run[CALM])[key] for run in runs]
    return sorted(figures[key] / base for run, base in zip(runs, calm, strict=True) for figures in run[case])


def middle(found: list[Figures]) -> Figures:
    return {key: statistics.median(figures[key] for figures in found) for key in found[0]}


def plan(modes: list[str], numbers: list[int]) -> list[Case]:
    """Return the cases of one run in order, with calm cases around every mode."""
    return [CALM] + [case for mode in modes for case in (*((mode, number) for number in numbers), CALM)]


def one_run(peers: list[str], plans: dict[str, list[Case]], seconds: float, rate: int) -> dict[str, Run]:
    """Run the cases of all peers, taking turns."""
    found: dict[str, Run] = {peer: {} for peer in peers}
    for index in range(max(map(len, plans.values()))):
        for peer in (peer for peer in peers if index < len(plans[peer])):
            mode, slow = plans[peer][index]
            figures = measure(peer, slow, mode, seconds, rate)
            found[peer].setdefault((mode, slow), []).append(figures)
            console.print(
                f"{PEERS[peer].name}, {slow} {mode}: "
                + ", ".join(f"{key} {value:,.2f}" for key, value in figures.items())
            )
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.isolation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="which brokers (default all that are installed)"
    )
    parser.add_argument("--modes", default=",".join(MODES), help="which kinds of slow (default all)")
    parser.add_argument("--slow", default="1,3,9", help="how many of ten are slow (default 1,3,9)")
    parser.add_argument(
        "--peer-modes", default="stall", help="the same for brokers other than Sluice (default stall)"
    )
    parser.add_argument("--peer-slow", default="3", help="the same for brokers other than Sluice (default 3)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="that count in a case (default 8; of returning ones 14)"
    )
    parser.add_argument(
        "--rate", type=int, default=2_000, help="messages a second of 1,000 bytes (default 2,000)"
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    peers = [peer for peer in options.peers.split(",") if PEERS[peer].available()]
    for peer in sorted(set(options.peers.split(",")) - set(peers)):
        console.print(f"{PEERS[peer].name} isn't installed here: left out")

    def plan_of(modes: str, slow: str) -> list[Case]:
        return plan(modes.split(","), [int(number) for number in slow.split(",")])

    plans = {
        peer: plan_of(options.modes, options.slow)
        if peer == OWN
        else plan_of(options.peer_modes, options.peer_slow)[:-1]
        for peer in peers
    }
    runs = []
    for number in range(options.runs):
        console.print(f"run {number + 1}")
        runs.append(one_run(peers, plans, options.seconds, options.rate))
    for peer in peers:
        Console(width=150).print(table(peer, [run[peer] for run in runs]))


if __name__ == "__main__":
    main()
