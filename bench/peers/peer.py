"""Interface of a measured broker: a server, a publisher and a subscriber."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

TOPIC = "bench"
STARTED_WITHIN_S = 60.0


class Received(Protocol):
    """Callback of a subscriber, with the bodies that arrived together."""

    def __call__(self, bodies: Sequence[bytes]) -> None: ...


@dataclass(frozen=True)
class Server:
    """A running server: its port, and the process whose memory counts."""

    port: int
    pid: int


class Peer(Protocol):
    """A measured broker. `options` describes its slow consumer settings in one line."""

    name: str
    options: str

    def available(self) -> bool:
        """Return whether the server and client of this peer are installed."""
        ...

    def serve(self) -> contextlib.AbstractContextManager[Server]:
        """Run a fresh server, ready for connections."""
        ...

    def publish(self, port: int, batches: Iterator[list[bytes]]) -> None:
        """Publish each batch when the iterator yields it."""
        ...

    def subscribe(self, port: int, name: str, ready: Callable[[], None], received: Received) -> None:
        """Subscribe, call `ready`, and pass on all messages until the process is killed."""
        ...


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def installed(program: str) -> str | None:
    """Return the path of a program. Also searches directories of root and of wheels."""
    search_path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    return shutil.which(program, path=f"{search_path}:/usr/sbin:/sbin:/usr/lib/rabbitmq/bin")


@contextlib.contextmanager
def running(
    command: Callable[[Path], list[str]], port: int, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """Run a server process in a temporary directory; yield it when it accepts connections."""
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as home:
        words = command(Path(home))
        with (Path(home) / "out.log").open("wb") as out:
            process = subprocess.Popen(
                words, stdout=out, stderr=out, cwd=home, env=environment, start_new_session=True
            )
            try:
                wait_for(port, process)
                yield Server(port, process.pid)
            finally:
                subprocess.run(["pkill", "-KILL", "-g", str(process.pid)], check=False)
                process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the port accepts connections.

    Raises RuntimeError if the process ends, or after a time limit.
    """
    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"{process.args!r} doesn't listen on {port}")
