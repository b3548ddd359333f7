"""A broker in its own process, for tests that kill it.

It is forked from a process that has imported everything, which saves most of the start.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import uvloop

from broker_core import logs
from broker_core.broker import Broker, BrokerPaths
from broker_core.config import PolicyDocument
from tests.support.brokers import no_websocket, tcp_policy
from tests.support.failpoints import Failpoint, Failpoints

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])


def start_broker(
    home: Path,
    *failpoints: Failpoint,
    log_unread: bool = False,
    open_files: int = 0,
    policy: PolicyDocument | None = None,
    link_secrets: Path | None = None,
) -> tuple[BaseProcess, int]:
    """Start a broker process; return it and the port of its TCP transport.

    `failpoints` apply to its disk. `log_unread`: it logs into a full pipe. `open_files`: limit of open files.
    `policy`: replaces TCP alone. `link_secrets`: secrets of its links.
    """
    ours, theirs = SERVER.Pipe(duplex=False)
    process = SERVER.Process(
        target=_run,
        args=(home, theirs, failpoints, log_unread, open_files, policy, link_secrets),
        daemon=True,
    )
    process.start()
    theirs.close()
    try:
        return process, ours.recv()
    except EOFError:
        raise AssertionError("the broker didn't start") from None
    finally:
        ours.close()


def full_pipe() -> tuple[int, int]:
    """Return (read end, write end) of a pipe that is full."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x")
    os.set_blocking(writing, True)
    return reading, writing


def _run(
    home: Path,
    port: Connection,
    failpoints: tuple[Failpoint, ...],
    log_unread: bool,
    open_files: int,
    policy: PolicyDocument | None,
    link_secrets: Path | None,
) -> None:
    if open_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    output = full_pipe()[1] if log_unread else os.open(os.devnull, os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if log_unread:
        logs.install_logging()
    uvloop.run(_serve(home, port, failpoints, policy or tcp_policy(), link_secrets))


async def _serve(
    home: Path,
    port: Connection,
    failpoints: tuple[Failpoint, ...],
    policy: PolicyDocument,
    link_secrets: Path | None,
) -> None:
    paths = BrokerPaths.in_home(home, policy.instance.name)
    files = Failpoints(*failpoints)
    broker = Broker(policy, paths, no_websocket, files=files, link_secrets=link_secrets)
    await broker.start()
    port.send(broker.statistics.transports[0]["port"])
    port.close()
    await asyncio.Event().wait()
