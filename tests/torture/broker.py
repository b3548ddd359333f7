"""A broker in its own process, with a faulty disk and a jumping clock."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import socket
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import uvloop

from broker_core import broker as composition
from broker_core.broker import Broker, BrokerPaths
from broker_core.clock import SystemClock
from broker_core.config import PolicyDocument, TransportSettings, default_policy
from broker_core.errors import SluiceError
from tests.support.brokers import no_websocket
from tests.torture.faulty_files import FaultyFiles, FileFault

INSTANCE = "test-1"
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])
HOUR = 3_600 * 10**9


class JumpingClock(SystemClock):
    """A system clock that jumps forward and back by hours and days."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._off = self._next = 0

    def now_ns(self) -> int:
        now = time.time_ns()
        if now >= self._next:
            self._next = now + self._chance.randrange(1, 200) * 1_000_000
            self._off = self._chance.choice((0, 0, -HOUR, HOUR, -48 * HOUR, 48 * HOUR, -1, 10**9))
        return now + self._off


class BrokerProcess:
    """A broker process. `refused` is the error code with which it refused to start."""

    def __init__(self, process: BaseProcess, told: Connection, port: int) -> None:
        self._process, self._told = process, told
        self.port = port
        self.refused = ""
        self._stood_still = False

    async def ready(self, seconds: float = 60.0) -> bool:
        """Wait until the broker has started; return False if it ended before."""
        async with asyncio.timeout(seconds):
            while not self._told.poll():
                if self.frozen:
                    return False
                await asyncio.sleep(0.002)
        try:
            said = self._told.recv()
        except (EOFError, ConnectionResetError):
            return False
        self.refused = said
        return said == ""

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    @property
    def frozen(self) -> bool:
        """Return whether all threads of the stopped process stand still.

        Threads inside a kernel call count as still. Once True, the result stays True, although such a thread
        runs for a moment when its call ends.
        """
        with suppress(FileNotFoundError, ProcessLookupError):
            tasks = Path(f"/proc/{self._process.pid}/task").glob("*/stat")
            states = {task.read_text().rpartition(") ")[2][0] for task in tasks}
            self._stood_still = self._stood_still or ("T" in states and states <= {"T", "D"})
        return self._stood_still

    def freeze(self) -> None:
        """Stop the process with SIGSTOP."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        while self.alive and not self.frozen:
            time.sleep(0.0005)

    def kill(self) -> None:
        """Kill the process with SIGKILL and wait for its end."""
        self._process.kill()
        self._process.join()

    async def wait_exit(self, seconds: float = 60.0) -> int:
        """Wait for the process to end; return its exit code, negative for a signal."""
        async with asyncio.timeout(seconds):
            while self._process.is_alive():
                await asyncio.sleep(0.005)
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def stop(self) -> None:
        """Stop the process with SIGTERM and wait for its end."""
        self._process.terminate()
        self._process.join()


def start(home: Path, port: int, *misfortunes: FileFault, clock_seed: int | None = None) -> BrokerProcess:
    """Start a broker process with file faults and a random clock; return it without waiting for its start."""
    ours, theirs = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_run, args=(home, port, theirs, misfortunes, clock_seed), daemon=True)
    process.start()
    theirs.close()
    return BrokerProcess(process, ours, port)


def policy(port: int) -> PolicyDocument:
    """Return a policy with small segments and little memory, so that segments roll and clients are
    offlined often.
    """
    made = default_policy(INSTANCE)
    return replace(
        made,
        instance=replace(made.instance, journal_size=48 * 1024, preallocated_files=1),
        pool=replace(made.pool, message_memory_limit=256 * 1024, message_disk_limit=64 * 1024 * 1024),
        transports=(TransportSettings("tcp", "tcp", port),),
    )


def free_port() -> int:
    """Return a port on which no process listens at the moment."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _run(
    home: Path, port: int, told: Connection, misfortunes: tuple[FileFault, ...], seed: int | None
) -> None:
    quiet = os.open(home.parent / f"{home.name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    FaultyFiles(*misfortunes).install()
    if seed is not None:
        clock: Any = lambda: JumpingClock(seed)  # noqa: E731
        composition.SystemClock = clock  # type: ignore[misc]
    uvloop.run(_serve(home, port, told))


async def _serve(home: Path, port: int, told: Connection) -> None:
    try:
        broker = Broker(policy(port), BrokerPaths.in_home(home, INSTANCE), no_websocket)
        await broker.start()
    except SluiceError as problem:
        told.send(problem.code)
        raise
    told.send("")
    told.close()
    await asyncio.Event().wait()
