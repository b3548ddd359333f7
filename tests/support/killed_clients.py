"""Client programs that tests kill, each in a process of its own.

`Forker` starts them from a process that has imported everything, so that a hundred start in the time of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from broker_core.client import (
    EPOCH,
    MOST_RECENT,
    AsyncClient,
    FileBookmarkStore,
    FilePublishStore,
    bookmark_store,
)

ROOT = Path(__file__).parents[2]
TOPIC = "numbers"


async def store_bookmark_with_result(address: str, path: str) -> None:
    """Store each batch's numbers and the bookmark after it in one transaction."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(
        "CREATE TABLE IF NOT EXISTS result (row INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER)"
    )
    database.execute(
        "CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 1), bookmark TEXT)"
    )
    stored = database.execute("SELECT bookmark FROM position").fetchone()
    async with AsyncClient(address, "once") as client:
        subscription = await client.subscribe(TOPIC, bookmark=stored[0] if stored else EPOCH)
        async for batch in subscription.batches():
            database.execute("BEGIN")
            for body in batch.bodies():
                database.execute("INSERT INTO result (number) VALUES (?)", (int(body),))
            database.execute("REPLACE INTO position VALUES (1, ?)", (subscription.bookmark_after(batch),))
            database.execute("COMMIT")


async def store_bookmark_separately(address: str, path: str) -> None:
    """Write each number to a file, then mark the message as processed in a bookmark store."""
    bookmark_store.COMPACT_AT = 4_096  # so that some kills hit the rewrite of the store
    results = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    store = FileBookmarkStore(path + ".marks")
    async with AsyncClient(address, "store", bookmark_store=store) as client:
        subscription = await client.subscribe(TOPIC, bookmark=MOST_RECENT)
        async for message in subscription:
            os.write(results, message.body + b"\n")
            subscription.done(message)


async def publish_numbers(address: str, path: str) -> None:
    """Publish 1, 2, 3, … with a publish store, whose last sequence is the last number."""
    store = FilePublishStore(path)
    async with AsyncClient(address, "publisher", publish_store=store) as client:
        number = store.last_sequence
        while True:
            for _ in range(7):
                number += 1
                await client.publish(TOPIC, number)
            await asyncio.sleep(0)


PROGRAMS: dict[str, Callable[[str, str], Coroutine[Any, Any, None]]] = {
    program.__name__: program
    for program in (store_bookmark_with_result, store_bookmark_separately, publish_numbers)
}


class Forker:
    """Starts programs, one at a time, each with an address and a path."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed_clients"],
            cwd=ROOT,
            text=True,
            bufsize=1,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._running = 0

    def start(self, program: str, address: str, path: Path) -> None:
        """Start a program."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{program} {address} {path}\n")
        self._running = int(self._process.stdout.readline())

    async def kill(self) -> None:
        """Kill the program and wait for its end.

        Until then it has its files open, and a supervisor would not start the next one. Raises:
        ProcessLookupError if the program ended before.
        """
        pid, self._running = self._running, 0
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                await asyncio.sleep(0.001)

    def close(self) -> None:
        """Stop the forker and the program that it runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        if self._running:
            os.kill(self._running, signal.SIGKILL)


def _serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # exit codes of the programs are not needed
    for line in sys.stdin:
        program, address, path = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(PROGRAMS[program](address, path))
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()
