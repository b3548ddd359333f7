"""How much slow consumers cost the others: `python -m bench.isolation [--peers sluice,redis,...] [--modes stall,...]`.

Ten subscribers at the same steady load on every broker; 0, 1, 3 or 9 of them are slow behind a link that stalls,
trickles at 1 KB/s, or is away for ten seconds and returns (`peers/slow_link.py`). The figures are those of the healthy
ones, against the run of the same broker without slow ones, and the server's memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.peers import PEERS
from bench.peers.peer import Server

SUBSCRIBERS = 10
MODES = ("stall", "trickle", "return")
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
        raise SystemExit(f"{process.args} ended without an answer")
    return json.loads(found)


def resident(pid: int) -> int:
    """Bytes of memory of a process and all below it."""
    parents: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError, StopIteration):
            fields = dict(row.split(":", 1) for row in status.read_text().splitlines() if ":" in row)
            number = int(fields["Pid"])
            parents.setdefault(int(fields["PPid"]), []).append(number)
            sizes[number] = int(fields.get("VmRSS", "0").split()[0]) * 1024
    total, look = 0, [pid]
    while look:
        number = look.pop()
        total += sizes.get(number, 0)
        look += parents.get(number, [])
    return total


@contextlib.contextmanager
def subscribers(peer: str, server: Server, slow: int, mode: str) -> Iterator[tuple[list[Process], list[Process], list[Process]]]:
    """Healthy ones, slow ones and the slow ones' links, all subscribed."""
    healthy = [start("bench.peers.role", "subscribe", peer, server.port, f"healthy-{n}") for n in range(SUBSCRIBERS - slow)]
    links = [start("bench.peers.slow_link", server.port, mode) for _ in range(slow)]
    behind = [
        start("bench.peers.role", "subscribe", peer, line(link), f"slow-{n}") for n, link in enumerate(links)
    ]
    try:
        for process in (*healthy, *behind):
            line(process)
        yield healthy, behind, links
    finally:
        for process in (*healthy, *behind, *links):
            process.kill()
            process.wait()


def measure(peer: str, slow: int, mode: str, seconds: float, rate: int) -> Figures:
    """One run: the healthy subscribers' rate, p99 and loss, the slow ones' fate, and the server's growth."""
    with PEERS[peer].serve() as server, subscribers(peer, server, slow, mode) as (healthy, behind, links):
        before = peak = resident(server.pid)
        for link in links:
            assert link.stdin is not None
            link.stdin.write("go\n")
            link.stdin.flush()
        publisher = start("bench.peers.role", "publish", peer, server.port, seconds, rate)
        line(publisher)
        while publisher.poll() is None:
            peak = max(peak, resident(server.pid))
            time.sleep(0.2)
        time.sleep(1.0 if mode != "return" else 6.0)
        found = [ended(process) for process in healthy]
        slowed = [ended(process) for process in behind]
    figures = {
        "rate": statistics.mean(f["received"] / max(f["last"] - f["first"], 1e-9) for f in found),
        "lost": sum(rate * seconds - f["received"] for f in found) / (rate * seconds * len(found)),
        "p50_us": statistics.median(f["p50_us"] for f in found), "p99_us": statistics.median(f["p99_us"] for f in found),
        "grown_mib": (peak - before) / 2**20,
    }
    if slowed:
        figures["slow_received"] = statistics.mean(f["received"] for f in slowed) / (rate * seconds)
        figures["slow_disorder"] = sum(f["disorder"] for f in slowed)
        figures["slow_busiest"] = statistics.median(f["busiest"] for f in slowed)
    return figures


def ended(process: Process) -> Figures:
    process.terminate()
    found: Figures = line(process)
    return found


def table(peer: str, cases: dict[tuple[str, int], list[Figures]]) -> Table:
    made = Table(title=f"{PEERS[peer].name}: {PEERS[peer].options}")
    for heading in ("slow", "rate/s", "of calm", "lost", "p50 µs", "p99 µs", "of calm", "grew MiB", "the slow got", "busiest/s"):
        made.add_column(heading, justify="right")
    calm = middle(cases["calm", 0])
    for (mode, slow), runs in cases.items():
        case = middle(runs)
        made.add_row(
            f"{slow} {mode}" if slow else "none", f"{case['rate']:,.0f}", f"{case['rate'] / calm['rate']:.1%}",
            f"{case['lost']:.1%}", f"{case['p50_us']:,.0f}", f"{case['p99_us']:,.0f}",
            f"{case['p99_us'] / calm['p99_us']:.2f}", f"{case['grown_mib']:.0f}",
            f"{case['slow_received']:.0%}" if slow else "", f"{case['slow_busiest']:,.0f}" if slow else "",
        )
    return made


def middle(runs: list[Figures]) -> Figures:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.isolation", description=__doc__)
    parser.add_argument("--peers", default=",".join(PEERS), help="which brokers (default all that are installed)")
    parser.add_argument("--modes", default=",".join(MODES), help="which kinds of slow (default all)")
    parser.add_argument("--slow", default="1,3,9", help="how many of ten are slow (default 1,3,9)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rate", type=int, default=2_000, help="messages a second of 1,000 bytes (default 2,000)")
    options = parser.parse_args()
    modes, numbers = options.modes.split(","), [int(number) for number in options.slow.split(",")]
    peers = [peer for peer in options.peers.split(",") if PEERS[peer].available()]
    for peer in sorted(set(options.peers.split(",")) - set(peers)):
        console.print(f"{PEERS[peer].name} isn't installed here: left out")
    cases: dict[str, dict[tuple[str, int], list[Figures]]] = {peer: {} for peer in peers}
    for run in range(options.runs):
        for mode, slow in [("calm", 0), *((mode, number) for mode in modes for number in numbers)]:
            for peer in peers:
                figures = measure(peer, slow, mode, options.seconds, options.rate)
                cases[peer].setdefault((mode, slow), []).append(figures)
                console.print(f"run {run + 1}: {PEERS[peer].name}, {slow} {mode}: "
                              + ", ".join(f"{key} {value:,.2f}" for key, value in figures.items()))
    for peer in peers:
        Console(width=140).print(table(peer, cases[peer]))


if __name__ == "__main__":
    main()
