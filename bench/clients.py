"""Cost of 10,000 clients for the broker's event loop, and of a page that lists them.

    python -m bench.clients [--clients 10000]

A real broker with its control socket runs in this process. The clients are real connections whose transport
stores nothing. Some of them have a backlog. Times are those in which the loop could do nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from broker_core.broker import Broker, BrokerPaths
from broker_core.config import TransportSettings, default_policy
from broker_core.connections.connection import Connection
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.sink import UNKNOWN
from broker_core.documents.instance import Snapshot
from broker_core.engine.maintenance import tune_interpreter
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.replies import Reply

SECONDS = 8


class Nowhere:
    """A transport that stores nothing. It accepts deliveries unless it is `stalled`."""

    protocol, remote, peer_names, is_flushed = "amps", "127.0.0.1:1", frozenset[str](), True
    window_step_bytes, is_network_limited, text_mode, receive_window = 0, False, False, UNKNOWN

    def __init__(self, stalled: bool) -> None:
        self.is_writable = not stalled
        self.written_bytes = 0

    def acked_bytes(self) -> int:
        """Return all bytes sent, as if the peer had acknowledged them immediately."""
        return self.written_bytes

    def read_progress(self) -> ReadProgress:
        """Return that nothing was read."""
        return ReadProgress(0, 0, 0)

    def send_entries(self, entries: Sequence[OutboxEntry]) -> None:
        """Count and drop the entries."""
        self.written_bytes += sum(entry.nbytes for entry in entries)

    def send_reply(self, reply: Reply) -> bool:
        """Drop the reply."""
        return True

    def on_logged_on(self) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def close(self, code: str, message: str) -> None:
        """Do nothing."""

    def close_soon(self) -> None:
        """Do nothing."""

    def drop(self) -> None:
        """Do nothing."""

    def drop_input(self) -> None:
        """Do nothing."""


def crowd(broker: Broker, number: int, behind: int) -> None:
    """Log on `number` clients with one subscription each. The first `behind` of them accept no data."""
    for index in range(number):
        connection: Connection = broker.engine.add_connection("tcp", Nowhere(index < behind))
        topic = "busy.>" if index < behind else f"quiet.{index}"
        connection.receive((json.dumps({"c": "logon", "name": f"client-{index:05d}"}),))
        connection.receive((json.dumps({"c": "subscribe", "id": "s", "topic": topic}),))
        assert connection.logged_on


async def page(broker: Broker, **asked: Any) -> dict[str, Any]:
    """Request a page over the control socket, as the console does."""

    reader, writer = await asyncio.open_unix_connection(str(broker.paths.control), limit=1 << 26)
    try:
        writer.write(json.dumps({"do": "clients_page", **asked}).encode() + b"\n")
        answer = json.loads(await reader.readline())
    finally:
        writer.close()
    assert answer["ok"], answer
    found: dict[str, Any] = answer["result"]
    return found


class Stalls:
    """Recorder of times in ms in which the loop was busy. Runs of Python's garbage collector are recorded
    separately.
    """

    def __init__(self) -> None:
        self.late: list[float] = []
        self.collected: list[float] = []
        self._began = 0.0

    async def watch(self) -> None:
        """Wake every millisecond, and record the delay."""
        gc.callbacks.append(self._collecting)
        try:
            while True:
                before, runs = time.perf_counter(), len(self.collected)
                await asyncio.sleep(0.001)
                self.late.append((time.perf_counter() - before) * 1_000 - 1 - sum(self.collected[runs:]))
        finally:
            gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.collected.append((time.perf_counter() - self._began) * 1_000)


async def measure(number: int, behind: int) -> dict[str, float]:
    """Return figures in ms, and the share of a processor core."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as home:
        policy = replace(default_policy("bench-1"), transports=(TransportSettings("tcp", "tcp", 0),))
        broker = Broker(
            policy,
            BrokerPaths.in_home(Path(home), "bench-1"),
            lambda *_: None,  # type: ignore[arg-type]
        )

        async def on_tick(snapshot: Snapshot) -> None:
            assert len(snapshot.clients) == len(broker.engine.roster.clients)

        await broker.start(on_tick)
        tune_interpreter()
        try:
            crowd(broker, number, behind)
            await asyncio.sleep(3)
            stalls = Stalls()
            watching, spent = asyncio.create_task(stalls.watch()), time.process_time()
            await asyncio.sleep(SECONDS)
            spent = (time.process_time() - spent) / SECONDS
            watching.cancel()
            pages = []
            for turn in range(9):
                started = time.perf_counter()
                found = await page(broker, sort="-lag_ms", search="client-0", offset=100 * turn, limit=100)
                pages.append((time.perf_counter() - started) * 1_000)
                assert found["total"] == min(number, 10_000)
        finally:
            await broker.stop()
    return {
        "longest_ms": max(stalls.late),
        "collector_ms": max(stalls.collected, default=0.0),
        "core": spent,
        "page_ms": statistics.median(pages),
        "page_most_ms": max(pages),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--behind", type=int, default=100)
    options = parser.parse_args()
    found = uvloop.run(measure(options.clients, options.behind))
    print(
        f"{options.clients:,} clients: the loop was busy for {found['longest_ms']:.0f} ms at a time at most "
        f"(and {found['collector_ms']:.0f} ms with Python's collector), "
        f"{100 * found['core']:.0f} % of a core; a page of 100: {found['page_ms']:.0f} ms, at "
        f"most {found['page_most_ms']:.0f} ms"
    )


if __name__ == "__main__":
    main()
