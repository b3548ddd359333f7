"""The real console as a process of its own: tests/support/console_server.py on a free port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def running_console(*words: str, **settings: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a console process until the block ends; yield its address and its process.

    `words` are its arguments, and SLUICE_… variables its settings. Its standard input is a pipe. It has a
    home of its own: in the home of the tests it would take over the socket of their Redis, and remove it when
    it ends.
    """
    port = free_port()
    command = [sys.executable, "-m", "tests.support.console_server", str(port), *words]
    inherited = {name: value for name, value in os.environ.items() if name != "SLUICE_TEST_WORKER"}
    environment: Mapping[str, str] = inherited | settings
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE)
    try:
        await_port(port, process)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.communicate(timeout=20)


def free_port() -> int:
    """Return a port on which no process listens at the moment."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens on the port.

    Raises AssertionError if the console's process ends first, or after a minute.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended immediately; run it manually to see the reason"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server did not listen within a minute")
