"""A group of three members against a single broker.

    python -m bench.group [--runs 3] [--records 100000] [--behind 1000000] [--seconds 5]

Three NATS servers that always sync, three brokers, publisher and subscriber run on this machine. The
publisher and the subscriber use different members. The single broker takes turns with the group. Records
have 100 bytes of JSON that compresses well; with `--random` they don't compress.

* rate: in batches of 512, from the first publish to the last record received, and the processor time of
  brokers and servers for each MB
* latency: single messages at a steady rate, from when each is due until the subscriber's application has
  it; and publish and flush of one at a time
* fail-over: a publisher that waits for each acknowledgement, with all members as its addresses; the longest
  time between two acknowledgements when its member is killed, and when the leading server is killed
* catch-up: a member is stopped while `--behind` records are published; from its start until its subscriber
  has all of them
* fully durable: rate and steady rate of a `fully_durable` subscription, in a group whose three members are
  all sync members

Figures are medians of the runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import uvloop
from rich.console import Console
from rich.table import Table

from bench import latency
from bench.processes import Process, answer, broker, role, spent
from bench.roles import print_figures

SIZE = 100
BATCH = 512
ONE_AT_A_TIME = 300
BEFORE_S, AFTER = 2.0, 20
"""Fail-over: seconds before the kill, and acknowledgements after the longest possible wait."""
console = Console(stderr=True)
Figures = dict[str, float]


class Engines:
    """Three NATS servers."""

    def __init__(self, home: Path) -> None:
        from broker_core.group.settings import NatsServerAddress, nats_config

        ports = _free_ports(6)
        self.addresses = [
            NatsServerAddress(f"engine-{one + 1}", "127.0.0.1", ports[2 * one], ports[2 * one + 1])
            for one in range(3)
        ]
        server = shutil.which("nats-server", path=str(Path(sys.executable).parent))
        if server is None:
            raise SystemExit("no nats-server: install requirements-group.txt")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for address in self.addresses:
            others = [one for one in self.addresses if one is not address]
            file = home / f"{address.name}.conf"
            file.write_text(nats_config(address, others, home / address.name))
            self.processes[address.name] = subprocess.Popen(
                [server, "-c", str(file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

    @property
    def urls(self) -> str:
        return ",".join(one.url for one in self.addresses)

    def leader(self, instance: str) -> str:
        """Return the server that leads the log of an instance; wait for one. Creates the log if needed."""
        return asyncio.run(self._leader(instance))

    async def _leader(self, instance: str) -> str:
        from broker_core.group.engine_log import LogServiceUnavailableError
        from broker_core.group.jetstream import JetStreamLog
        from broker_core.group.settings import GroupSettings

        engine = JetStreamLog(GroupSettings(instance, "bench", tuple(self.urls.split(","))))
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(LogServiceUnavailableError):
                    leader = (await engine.attach(uuid4())).leader
                    await engine.close()
                    return leader
                await asyncio.sleep(0.1)

    def kill(self) -> None:
        for one in self.processes.values():
            one.kill()
            one.wait()


class Group:
    """NATS servers, and members a, b and c with their addresses and process ids."""

    def __init__(self, stack: contextlib.ExitStack, sync_members: str = "") -> None:
        self._sync_members = sync_members
        self.home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
        self.engines = Engines(self.home)
        stack.callback(self.engines.kill)
        self.engines.leader("other")
        self._stack = stack
        self.addresses: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        for name in "abc":
            self.start(name)

    def start(self, name: str) -> None:
        addresses, pid = self._stack.enter_context(
            broker(home=str(self.home / name), group=(name, self.engines.urls, self._sync_members))
        )
        self.addresses[name], self.pids[name] = addresses["tcp"], pid

    def kill(self, name: str) -> None:
        os.kill(self.pids[name], signal.SIGKILL)

    @property
    def all(self) -> str:
        return ",".join(self.addresses.values())

    def cpu(self) -> tuple[float, float]:
        """Return the processor seconds of brokers and of NATS servers."""
        return (
            sum(map(spent, self.pids.values())),
            sum(spent(one.pid) for one in self.engines.processes.values()),
        )


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [int(one.getsockname()[1]) for one in sockets]


# The cases take the address of the publisher, and that of the subscriber.


def rate(publish_at: str, subscribe_at: str, number: int, bodies: str, fully_durable: bool = False) -> float:
    """Return records a second."""
    number -= number % BATCH
    how = ("0|1|", "fully_durable") if fully_durable else ("",)
    reading = role("sluice-subscribe", subscribe_at, number, "subscriber", *how)
    answer(reading)
    writing = role("sluice-publish", publish_at, number, BATCH, bodies)
    started, received = answer(writing)["started"], answer(reading)
    writing.wait()
    reading.wait()
    return float(number / (received["last"] - started))


def paced(
    publish_at: str, subscribe_at: str, seconds: float, messages: int, durability: str = "durable"
) -> Figures:
    with latency.role_of("subscribe", subscribe_at, durability, messages) as subscriber:
        answer(subscriber)
        with latency.role_of("publish", publish_at, seconds, messages):
            return answer(subscriber)


def flushed(address: str) -> Figures:
    with latency.role_of("closed-loop", address, ONE_AT_A_TIME) as role:
        return dict(answer(role)["flushed"])


@contextlib.contextmanager
def publishing(addresses: str) -> Iterator[Process]:
    """Run a publisher that waits for each acknowledgement; yield it when it has published for a while."""
    with latency.started("bench.group", "--role", "publish", addresses) as process:
        answer(process)
        time.sleep(BEFORE_S)
        yield process


def longest_wait(process: Process) -> float:
    """End the publisher; return its longest wait in seconds."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(answer(process)["longest"])


async def publish_one_by_one(addresses: str) -> None:
    """Publish and wait for each acknowledgement; report the start.

    After a line of input, publish some more, report the longest wait and end.
    """
    from broker_core.client import AsyncClient, ReconnectPolicy

    quick = ReconnectPolicy(first_delay=0.02, longest_delay=0.2)
    input_line = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
    longest, remaining = 0.0, AFTER
    async with AsyncClient(addresses.split(","), "one-by-one", reconnect=quick) as client:
        await client.publish("one", b"x" * SIZE)
        await client.flush()
        print_figures(began=True)
        last = time.monotonic()
        while remaining:
            await client.publish("one", b"x" * SIZE)
            await client.flush()
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            remaining -= input_line.done()
    print_figures(longest=longest)


def fail_over(group: Group) -> dict[str, float]:
    """Return the longest waits in s.

    The killed member is started again before the leading server is killed.
    """
    found = {}
    with publishing(group.all) as process:
        group.kill("a")
        found["its member is killed"] = longest_wait(process)
    group.start("a")
    leader = group.engines.leader("bench-1")
    with publishing(group.all) as process:
        group.engines.processes[leader].kill()
        # The publisher keeps publishing, and reads its input only after the wait that it measures.
        time.sleep(1.0)
        found["the engine that leads is killed"] = longest_wait(process)
    return found


def catch_up(group: Group, number: int, bodies: str) -> float:
    """Return records a second of a member that was stopped."""
    number -= number % BATCH
    group.kill("c")
    writing = role("sluice-publish", group.addresses["a"], number, BATCH, bodies)
    answer(writing)
    writing.wait()
    began = time.monotonic()
    group.start("c")
    reading = role("sluice-subscribe", group.addresses["c"], number, "late", "0")
    answer(reading)
    last = answer(reading)["last"]
    reading.wait()
    return float(number / (last - began))


def one_run(options: argparse.Namespace) -> dict[str, Figures]:
    """Return the figures of group and single broker, by measurement."""
    number, seconds, messages = options.records, options.seconds, options.messages
    bodies = "random" if options.random else ""
    mb = (number - number % BATCH) * SIZE / 1e6
    found: dict[str, Figures] = {}
    with broker() as (addresses, pid):
        at = addresses["tcp"]
        before = spent(pid)
        found["rate"] = {"alone": rate(at, at, number, bodies)}
        found["broker's CPU, ms a MB"] = {"alone": (spent(pid) - before) * 1_000 / mb}
        if not options.rates:
            for key, value in paced(at, at, seconds, messages).items():
                found[f"{messages:,}/s, {key}, ms"] = {"alone": value}
            for key, value in flushed(at).items():
                found[f"publish and flush, {key}, ms"] = {"alone": value}
    with contextlib.ExitStack() as stack:
        group = Group(stack)
        catching = {} if options.rates else {"group": catch_up(group, options.behind, bodies)}
        at, there = group.addresses["a"], group.addresses["b"]
        brokers, engines = group.cpu()
        found["rate"]["group"] = rate(at, there, number, bodies)
        brokers, engines = group.cpu()[0] - brokers, group.cpu()[1] - engines
        found["broker's CPU, ms a MB"]["group"] = brokers * 1_000 / mb
        found["engines' CPU, ms a MB"] = {"group": engines * 1_000 / mb}
        if not options.rates:
            for key, value in paced(at, there, seconds, messages).items():
                found[f"{messages:,}/s, {key}, ms"]["group"] = value
            for key, value in flushed(at).items():
                found[f"publish and flush, {key}, ms"]["group"] = value
            found["catch-up, records/s"] = catching
            for key, value in fail_over(group).items():
                found[f"longest wait when {key}, s"] = {"group": value}
    with contextlib.ExitStack() as stack:
        found |= in_step(Group(stack, "a,b,c"), options, bodies)
    return found


def in_step(group: Group, options: argparse.Namespace, bodies: str) -> dict[str, Figures]:
    """Measure a `fully_durable` subscription whose group has three sync members."""
    at, there = group.addresses["a"], group.addresses["b"]
    found: dict[str, Figures] = {}
    # The steady rate first: members that have just started wait for each other's first status.
    for key, value in paced(at, there, options.seconds, options.messages, "fully_durable").items():
        found[f"fully durable: {options.messages:,}/s, {key}, ms"] = {"group": value}
    found["fully durable: rate"] = {"group": rate(at, there, options.records, bodies, fully_durable=True)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.group",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--behind", type=int, default=1_000_000, help="records of the catch-up")
    parser.add_argument("--random", action="store_true", help="bodies that nothing packs")
    parser.add_argument("--rates", action="store_true", help="rates and fully durable alone")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the steady rate (default 5)")
    parser.add_argument("--messages", type=int, default=500, help="a second, then (default 500)")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        uvloop.run(publish_one_by_one(options.role[1]))
        return
    runs = []
    for _ in range(options.runs):
        runs.append(one_run(options))
        console.print(runs[-1])
    table = Table(title="A group of three, and a broker by itself")
    for heading in ("", "alone", "group", "least", "most"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in runs[0]:
        sides = []
        for side in ("alone", "group"):
            values = [run[name][side] for run in runs if side in run[name]]
            sides.append(f"{statistics.median(values):,.1f}" if values else "")
        of_group = [run[name]["group"] for run in runs]
        table.add_row(name, *sides, f"{min(of_group):,.1f}", f"{max(of_group):,.1f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
