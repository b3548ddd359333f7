"""A link to another site beside a plain subscriber: `python -m bench.sites [--runs 3] [--records 819200]`.

London and New York are two brokers on this machine with a link from London to New York. London publishes
records of 100 bytes.

* rate: in batches of 512, from the first publish until a subscriber has the last record: in London without
  a link, in London beside the link, and in New York through the link; and the brokers' processor time for
  each MB
* publish and flush of one message at a time: without a link, with an async link, and with a sync link, for
  which publishers wait

Figures are medians of the runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from bench import latency
from bench.processes import BIG, answer, role, spent
from bench.roles import print_figures

SIZE, BATCH = 100, 512
ONE_AT_A_TIME = 2_000
TOKEN = "the-links-own-secret"
console = Console(stderr=True)


async def site(home: Path, name: str, links_to: int, durability: str) -> None:
    """Run one site: New York if `links_to` is 0, else London with a link to that port."""
    from api.broker_websocket.listener import WebSocketListener
    from broker_core.access.credential_hashes import hash_token
    from broker_core.broker import Broker, BrokerPaths
    from broker_core.config import (
        AccessSettings,
        EntitlementSettings,
        PoolSettings,
        TransportSettings,
        UserSettings,
        default_policy,
    )
    from broker_core.config.destinations import DestinationSettings
    from broker_core.engine.maintenance import tune_interpreter

    secrets = home / "link-secrets"
    home.mkdir(parents=True, exist_ok=True)
    secrets.touch(0o600)
    secrets.write_text(f"newyork {TOKEN}\n")
    policy = replace(
        default_policy(name),
        pool=PoolSettings(message_memory_limit=BIG),
        transports=(TransportSettings("tcp", "tcp", 0),),
    )
    if links_to:
        to = DestinationSettings("newyork", (f"tcp://127.0.0.1:{links_to}",), durability=durability)
        policy = replace(policy, destinations=(to,))
    else:
        links_transport = TransportSettings("links", "tcp", 0, authentication="token", restricted=True)
        access = AccessSettings(
            (UserSettings("link", token=hash_token(TOKEN), clients=("site.*",)),),
            (EntitlementSettings(("link",), publish=(">",)),),
        )
        policy = replace(policy, transports=(*policy.transports, links_transport), access=access)
    broker = Broker(policy, BrokerPaths.in_home(home, name), WebSocketListener, link_secrets=secrets)
    await broker.start()
    tune_interpreter()
    print_figures(**{t["name"]: t["port"] for t in broker.statistics.transports})
    await asyncio.Event().wait()


@contextlib.contextmanager
def started(name: str, links_to: int = 0, durability: str = "async") -> Iterator[tuple[dict[str, int], int]]:
    """Run a fresh site; yield its ports by transport, and its process id."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as home:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.sites", "--role", home, name, str(links_to), durability],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            yield next(json.loads(line) for line in process.stdout if line.startswith("{")), process.pid
        finally:
            process.kill()
            process.wait()


def rate(publish_at: str, subscribe_at: list[str], number: int) -> list[float]:
    """Return records a second until each subscriber has the last record."""
    reading = [role("sluice-subscribe", at, number, "subscriber", "") for at in subscribe_at]
    for one in reading:
        answer(one)
    writing = role("sluice-publish", publish_at, number, BATCH)
    started_at = answer(writing)["started"]
    found = [number / (answer(one)["last"] - started_at) for one in reading]
    for one in (*reading, writing):
        one.wait()
    return found


def flushed(address: str) -> dict[str, float]:
    with latency.role_of("closed-loop", address, ONE_AT_A_TIME) as role:
        return dict(answer(role)["flushed"])


def one_run(number: int) -> dict[str, float]:
    """Return the figures by measurement."""
    number -= number % BATCH
    mb = number * SIZE / 1e6
    found: dict[str, float] = {}

    def note_flushed(case: str, address: str) -> None:
        for key, value in flushed(address).items():
            found[f"publish and flush, {case}, {key}, ms"] = value

    with started("london") as (ports, pid):
        at = f"tcp://127.0.0.1:{ports['tcp']}"
        before = spent(pid)
        (found["records/s, no link"],) = rate(at, [at], number)
        found["broker's CPU, no link, ms a MB"] = (spent(pid) - before) * 1_000 / mb
        note_flushed("no link", at)
    for durability in ("async", "sync"):
        with (
            started("newyork") as (there, there_pid),
            started("london", there["links"], durability) as (here, pid),
        ):
            at, beyond = f"tcp://127.0.0.1:{here['tcp']}", f"tcp://127.0.0.1:{there['tcp']}"
            time.sleep(1.5)  # let the link log on, so that it forwards all records that follow
            spent_here, spent_there = spent(pid), spent(there_pid)
            near, far = rate(at, [at, beyond], number)
            found[f"records/s in London, {durability}"] = near
            found[f"records/s in New York, {durability}"] = far
            found[f"London's CPU, {durability}, ms a MB"] = (spent(pid) - spent_here) * 1_000 / mb
            found[f"New York's CPU, {durability}, ms a MB"] = (spent(there_pid) - spent_there) * 1_000 / mb
            note_flushed(durability, at)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.sites",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--records", type=int, default=819_200)
    parser.add_argument("--role", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        home, name, port, durability = options.role
        uvloop.run(site(Path(home), name, int(port), durability))
        return
    runs = []
    for _ in range(options.runs):
        runs.append(one_run(options.records))
        console.print(runs[-1])
    table = Table(title="A link to another site")
    for heading in ("", "median", "least", "most"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in runs[0]:
        values = [run[name] for run in runs]
        table.add_row(name, *(f"{one:,.2f}" for one in (statistics.median(values), min(values), max(values))))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
