"""A broker as a process of its own, to be killed: `python -m tests.support.broker_process HOME`. Prints its port."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import uvloop

from broker_core.runtime.broker import Broker, BrokerPaths
from tests.support.brokers import no_websocket, tcp_policy

ROOT = Path(__file__).parents[2]


def start_broker(home: Path) -> tuple[subprocess.Popen[str], int]:
    """The process, and the port of its TCP transport."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.broker_process", str(home)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip().isdigit():
            return process, int(line)
    raise AssertionError("the broker didn't start")


async def main(home: Path) -> None:
    broker = Broker(tcp_policy(), BrokerPaths.under(home, "test-1"), no_websocket)
    await broker.start()
    print(broker.statistics.transports[0]["port"], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1])))
