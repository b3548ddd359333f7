"""A broker as a process of its own, to be killed: forked from one that has imported everything, which takes most of a start."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import uvloop

from broker_core.broker import Broker, BrokerPaths
from tests.support.brokers import no_websocket, tcp_policy

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])


def start_broker(home: Path) -> tuple[BaseProcess, int]:
    """The process, and the port of its TCP transport."""
    ours, theirs = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_run, args=(home, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        return process, ours.recv()
    except EOFError:
        raise AssertionError("the broker didn't start") from None
    finally:
        ours.close()


def _run(home: Path, port: Connection) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    uvloop.run(_serve(home, port))


async def _serve(home: Path, port: Connection) -> None:
    broker = Broker(tcp_policy(), BrokerPaths.under(home, "test-1"), no_websocket)
    await broker.start()
    port.send(broker.statistics.transports[0]["port"])
    port.close()
    await asyncio.Event().wait()
