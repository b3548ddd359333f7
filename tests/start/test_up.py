"""The real `manage.py up` with its own ports and data directory: every process starts, and Ctrl-C stops
them.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).resolve().parents[2]
READY_S = 120
STOP_S = 60
PORTS = (
    "SLUICE_WEB_PORT",
    "SLUICE_TCP_PORT",
    "SLUICE_WEBSOCKET_PORT",
    "SLUICE_STOMP_PORT",
    "SLUICE_STOMP_WS_PORT",
)
OURS = ("SLUICE_", "REDIS_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE")


class UpProcess:
    """A running `manage.py up` in a session of its own, as in a terminal."""

    def __init__(self, home: Path, ports: dict[str, int], *words: str, **environment: str) -> None:
        self.home = home
        self.ports = ports
        kept = {key: value for key, value in os.environ.items() if not key.startswith(OURS)}
        self.environment = {
            **kept,
            "SLUICE_HOME": str(home),
            **{key: str(port) for key, port in ports.items()},
            **environment,
        }
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            (sys.executable, "manage.py", "up", *words),
            cwd=PROJECT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, after: str | None = None) -> str:
        """Return the first line (after the line `after`) in which the pattern is found; fail if none
        comes.
        """
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            lines = list(self.lines)
            start = lines.index(after) + 1 if after is not None else 0
            found = [line for line in lines[start:] if re.search(pattern, line)]
            if found:
                return found[0]
            if self.process.poll() is not None and not self._reader.is_alive():
                break
            threading.Event().wait(0.05)
        raise AssertionError(f"{pattern!r} was not said:\n{self.output()}{self._logs()}")

    def _logs(self) -> str:
        files = sorted((self.home / "log").glob("*.log"))
        return "".join(f"\n--- {file.name}\n{file.read_text(errors='replace')[-2000:]}" for file in files)

    def interrupt(self) -> int:
        """Send SIGINT to the foreground process group, as Ctrl-C does; return the exit code."""
        os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(STOP_S)
        self._reader.join(5)
        return code

    def command(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python in this installation."""
        return subprocess.run(
            (sys.executable, *words),
            cwd=PROJECT,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )


def free_ports() -> dict[str, int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    ports = {name: server.getsockname()[1] for name, server in zip(PORTS, sockets, strict=True)}
    for server in sockets:
        server.close()
    return ports


def processes_of(home: Path) -> dict[int, str]:
    """Return the live processes that work in this data directory or below it, with their command lines."""
    mark = f"SLUICE_HOME={home}".encode()
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            words = (directory / "environ").read_bytes().split(b"\0")
            if any(one == mark or one.startswith(mark + b"/") for one in words):
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(directory.name)] = command.decode()
        except OSError:
            continue
    return found


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    made = UpProcess(tmp_path / "home", free_ports())
    yield made
    if made.process.poll() is None:
        os.killpg(made.process.pid, signal.SIGTERM)
        made.process.wait(STOP_S)


def test_everything_starts_serves_survives_a_dead_child_and_stops_on_ctrl_c(up: UpProcess) -> None:
    up.wait_for(r"^Sluice is up\.$")
    up.wait_for(r"Ctrl-C stops everything")
    assert len(re.findall(r"Password:", up.output())) == 1

    readyz = f"http://127.0.0.1:{up.ports['SLUICE_WEB_PORT']}/readyz"
    with urllib.request.urlopen(readyz, timeout=10) as answer:
        assert answer.status == 200

    address = f"tcp://127.0.0.1:{up.ports['SLUICE_TCP_PORT']}"
    publish = ("-m", "broker_core.client", "publish", "greetings.first", '{"hello": "world"}')
    done = up.command(*publish, "--address", address)
    assert done.returncode == 0, done.stderr

    (web,) = [pid for pid, command in processes_of(up.home).items() if " -m api.web_server " in command]
    os.kill(web, signal.SIGKILL)
    up.wait_for(r"web died \(SIGKILL\); started again in 0\.5 s")
    up.wait_for(r"web is ready", after=up.wait_for(r"web died"))

    replay = ("-m", "broker_core.client", "subscribe", "greetings.>", "--bookmark", "0", "--replay-only")
    assert up.command(*replay, "--address", address).stdout == '{"hello": "world"}\n'

    assert up.interrupt() == 0, up.output()
    stopped = [line.split()[1] for line in up.lines if line.endswith("has stopped")]
    assert stopped == ["beat", "chores", "worker", "web", "broker", "redis"]
    assert processes_of(up.home) == {}


def test_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports["SLUICE_TCP_PORT"])):
        up = UpProcess(tmp_path / "home", ports)
        assert up.process.wait(READY_S) == 1
    said = up.wait_for(r"is taken by")
    assert f"Port {ports['SLUICE_TCP_PORT']} on 127.0.0.1 (transport tcp) is taken by" in said
    assert "Set SLUICE_TCP_PORT to a free port." in said
    assert "Password" not in up.output()
    assert not (tmp_path / "home" / "log").exists()


def test_a_database_or_a_console_elsewhere_that_cannot_be_used_is_named_and_nothing_is_started(
    tmp_path: Path,
) -> None:
    for given, expected in (
        (
            {"DATABASE_URL": f"sqlite:///{tmp_path}/nowhere/sluice.sqlite3"},
            "The database refused the connection: unable to open",
        ),
        ({"SLUICE_CONSOLE": "no"}, "there is no DATABASE_URL and no REDIS_URL"),
    ):
        made = UpProcess(tmp_path / "home", free_ports(), **given)
        assert made.process.wait(READY_S) == 1
        made._reader.join(5)
        assert expected in made.output()
        assert "Traceback" not in made.output()
