"""Broker with all transports in its own process, on its production event loop, with a policy from the
test.

`python -m tests.support.transports_process HOME POLICY`, where POLICY is the JSON of a document. Prints a
line for each transport: its name and its port.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import uvloop

from broker_core.config import PolicyDocument
from broker_core.protocols import liveness

ROOT = Path(__file__).parents[2]


@contextmanager
def broker_process(
    policy: PolicyDocument,
    frame_grace_ms: int = liveness.FRAME_GRACE_MS,
    log: int | IO[str] = subprocess.DEVNULL,
) -> Iterator[dict[str, int]]:
    """Run a broker; yield the ports of its transports by name.

    `frame_grace_ms` is the time allowed for an unfinished frame. `log` receives the standard error.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-") as home:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.transports_process", home, json.dumps(policy.to_dict())],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=log,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "console.project.settings_test",
                "FRAME_GRACE_MS": str(frame_grace_ms),
            },
        )
        try:
            assert process.stdout is not None
            yield dict(_ports(process.stdout, len(policy.transports)))
        finally:
            process.terminate()
            process.wait(20)


def _ports(lines: Iterator[str], number: int) -> Iterator[tuple[str, int]]:
    for line in lines:
        if line.startswith("port "):
            _, name, port = line.split()
            yield name, int(port)
            number -= 1
            if number == 0:
                return
    raise AssertionError("the broker didn't start")


async def _run(home: Path, policy: PolicyDocument) -> None:
    from api.broker_websocket.listener import WebSocketListener
    from broker_core.broker import Broker, BrokerPaths

    paths = replace(BrokerPaths.in_home(home, policy.instance.name), control=home / "control.sock")
    broker = Broker(policy, paths, WebSocketListener)
    await broker.start()
    for transport in broker.statistics.transports:
        print("port", transport["name"], transport["port"], flush=True)
    await asyncio.Event().wait()


def _main(home: str, document: str) -> None:
    liveness.FRAME_GRACE_MS = int(os.environ["FRAME_GRACE_MS"])  # type: ignore[misc]
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    # As in runbroker: Twisted uses the loop that is current when its reactor is installed.
    from api.broker_websocket import reactor

    reactor.install(loop)
    import django

    django.setup()
    loop.run_until_complete(_run(Path(home), PolicyDocument.from_dict(json.loads(document))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
