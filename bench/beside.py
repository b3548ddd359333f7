"""Sluice and other brokers side by side: `python -m bench.beside [--runs 3] [--peers sluice,redis,...]`.

Bodies are 100 bytes of JSON. Every client is a Python process of its own. For each broker:

* throughput to one and to ten subscribers, in batches of 512
* replay of these messages from the start
* latency of single messages at a steady rate, from when a message is due (`bench.latency`)
* the server's processor time a message during the throughput test
* the server's memory for 1,000 idle clients

All brokers take turns within a run; figures are medians of the runs. `--add` also counts the runs in the
JSON file, so that several short runs make one table. Brokers that aren't installed are named and left out.
Charts are drawn from the same file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.beside_roles import WARM_S, Figures, idle, publish, subscribe
from bench.chart import bars
from bench.contenders import CONTENDERS, FAN_OUT, LATENCY, REPLAY, Way
from bench.isolation import resident
from bench.processes import family

FAN = 10
CLIENTS = 1_000
DRAINED = 2.0
"""Factor on the publishers' time that subscribers get in addition.

A subscriber that isn't finished then is counted as it is.
"""
console = Console(stderr=True)
processes = multiprocessing.get_context("forkserver")
LIBRARIES = ("broker_core.client", "gmqtt", "hiredis", "nats", "redis", "rich.table", "rstream")
# Ten subscribers are forked, not started: importing would take longer than the measurement.
processes.set_forkserver_preload(["bench.beside_roles", "bench.chart", "bench.isolation", *LIBRARIES])
Runs = list[dict[str, Figures]]


class Role:
    """Process with a role."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        self._pipe, theirs = processes.Pipe()
        self._process = processes.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def answer(self, within: float = 20.0) -> Any:
        """Return the next message of the process. Raises RuntimeError if it ends or sends nothing in time."""
        if not self._pipe.poll(within):
            raise RuntimeError("a role is silent")
        try:
            return self._pipe.recv()
        except EOFError:
            raise RuntimeError("a role ended without an answer") from None

    def end(self) -> None:
        self._process.kill()
        self._process.join()


# Measuring.


def processor_seconds(pid: int) -> float:
    """Return user and system time of a process and all its descendants."""
    ticks = 0
    for number in family(pid):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def pass_on(
    way: Way, port: int, topic: str, seconds: float, readers: int, rate: int = 0
) -> tuple[Figures, list[Figures]]:
    """Run one publisher and several subscribers; return the final figures of each."""
    asyncio.run(way.prepare(port, topic))
    limit = seconds * (1 + DRAINED) + WARM_S + 2
    roles = [Role(subscribe, way, port, topic, False, limit, rate) for _ in range(readers)]
    try:
        for role in roles:
            role.answer()
        roles.append(Role(publish, way, port, topic, seconds, rate))
        found = [role.answer(limit + 10) for role in roles[:-1]]
        return roles[-1].answer(limit), found
    finally:
        for role in roles:
            role.end()


def replayed(way: Way, port: int, topic: str, seconds: float) -> float:
    role = Role(subscribe, way, port, topic, True, seconds * (1 + DRAINED), 0)
    try:
        role.answer()
        found = role.answer(60)
        return float(found["received"] / (found["last"] - found["asked"]))
    finally:
        role.end()


def measure_way(way: Way, port: int, pid: int, number: int, seconds: float, rate: int) -> Figures:
    topic = f"bench{number}"
    before = processor_seconds(pid)
    published, (found,) = pass_on(way, port, topic, seconds, 1)
    figures = {
        "throughput": found["received"] / (found["last"] - published["started"]),
        "lost": 1 - found["received"] / published["sent"],
        "cpu_us": (processor_seconds(pid) - before) * 1e6 / max(found["received"], 1),
    }
    if REPLAY in way.measured:
        figures["replay"] = replayed(way, port, topic, seconds)
    if FAN_OUT in way.measured:
        published, each = pass_on(way, port, f"{topic}-fan", seconds, FAN)
        last = max(found["last"] for found in each)
        figures["fan_out"] = sum(found["received"] for found in each) / (last - published["started"])
    if LATENCY in way.measured:
        _, (found,) = pass_on(way, port, f"{topic}-paced", seconds * 2, 1, rate)
        figures |= {key: found[key] for key in ("p50", "p99", "p99.9")}
    return figures


def measure(peer: str, seconds: float, rate: int) -> dict[str, Figures]:
    """Measure one fresh server with each of its protocols and libraries, the idle clients first."""
    contender = CONTENDERS[peer]
    found: dict[str, Figures] = {}
    with contender.serve() as server:
        before = resident(server.pid)
        crowd = Role(idle, peer, server.port, CLIENTS)
        try:
            crowd.answer(30)
            grown = (resident(server.pid) - before) / 2**20
        finally:
            crowd.end()
        for number, way in enumerate(contender.ways):
            name = f"{contender.name}: {way.name}"
            try:
                found[name] = measure_way(way, server.port, server.pid, number, seconds, rate)
            except RuntimeError as problem:
                console.print(f"{name}: {problem}; left out")
                continue
            if not number:
                found[name]["idle_mib"] = grown
            console.print(name, {key: round(value, 3) for key, value in found[name].items()})
    return found


# Reporting.

COLUMNS: dict[str, tuple[str, str]] = {
    "throughput": ("one to one/s", "{:,.0f}"),
    "fan_out": ("to ten, delivered/s", "{:,.0f}"),
    "replay": ("replay/s", "{:,.0f}"),
    "p50": ("p50 ms", "{:.2f}"),
    "p99": ("p99 ms", "{:.2f}"),
    "p99.9": ("p99.9 ms", "{:.2f}"),
    "cpu_us": ("server's CPU, µs a message", "{:.2f}"),
    "idle_mib": ("1,000 idle, MiB", "{:.0f}"),
    "lost": ("not arrived in time", "{:.1%}"),
}
PICTURED = {
    "throughput": "One publisher, one subscriber: messages a second",
    "fan_out": "Ten subscribers: messages delivered a second",
    "replay": "Replay from the start: messages a second",
    "p99": "5,000 single messages a second: p99 of the latency, ms",
    "cpu_us": "The server's processor time a message, µs",
    "idle_mib": "The server's memory for 1,000 idle clients, MiB",
}


def medians(runs: Runs) -> dict[str, Figures]:
    names = [f"{one.name}: {way.name}" for one in CONTENDERS.values() for way in one.ways]
    return {
        name: {
            key: statistics.median(values)
            for key in COLUMNS
            if (values := [found[name][key] for found in runs if key in found.get(name, {})])
        }
        for name in names
        if any(name in found for found in runs)
    }


def disk_of(name: str) -> str:
    return next(one.disk for one in CONTENDERS.values() if name.startswith(f"{one.name}: "))


def table(found: dict[str, Figures], runs: int) -> Table:
    made = Table(title=f"Side by side, medians of {runs} runs")
    made.add_column("")
    made.add_column("the disk")
    for heading, _ in COLUMNS.values():
        made.add_column(heading, justify="right")
    for name, figures in found.items():
        cells = [form.format(figures[key]) if key in figures else "" for key, (_, form) in COLUMNS.items()]
        made.add_row(name, disk_of(name), *cells)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.beside",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--peers", default=",".join(CONTENDERS), help="which (default all that are installed)"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of publishing, of each case (default 3)")
    parser.add_argument("--rate", type=int, default=5_000, help="single messages a second (default 5,000)")
    parser.add_argument("--json", type=Path, default=Path("var/beside.json"), help="every run's figures")
    parser.add_argument(
        "--add", action="store_true", help="to the runs in the file; with --runs 0 only tell them"
    )
    parser.add_argument(
        "--pictures", type=Path, help="a folder to draw into; docs/pictures has those of record"
    )
    options = parser.parse_args()
    peers = [peer for peer in options.peers.split(",") if CONTENDERS[peer].available()]
    for peer in options.peers.split(","):
        if peer not in peers:
            console.print(
                f"{CONTENDERS[peer].name} isn't installed here: left out ({CONTENDERS[peer].install})"
            )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    runs: Runs = json.loads(options.json.read_text()) if options.add and options.json.exists() else []
    for _ in range(options.runs):
        found: dict[str, Figures] = {}
        for peer in peers:
            found |= measure(peer, options.seconds, options.rate)
        runs.append(found)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(runs, indent=1) + "\n")
    middle = medians(runs)
    Console(width=200).print(table(middle, len(runs)))
    if options.pictures:
        for key, title in PICTURED.items():
            values = {name: figures[key] for name, figures in middle.items() if key in figures}
            picture = bars(title, values, COLUMNS[key][1])
            (options.pictures / f"beside-{key.replace('_', '-')}.svg").write_text(picture)


if __name__ == "__main__":
    main()
