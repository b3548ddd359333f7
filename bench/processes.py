"""Processes of a benchmark run: brokers and roles."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Process = subprocess.Popen[str]
BIG = 1 << 34
"""Memory limit that no benchmark reaches."""


def role(*words: object) -> Process:
    """Start a role of `bench.roles`."""
    command = [sys.executable, "-m", "bench.roles", *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(process: Process) -> None:
    """Signal a waiting role to continue."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: Process) -> dict[str, Any]:
    """Wait for the next line of a role and return it."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args!r} ended without an answer")
    found: dict[str, Any] = json.loads(line)
    return found


@contextlib.contextmanager
def broker(
    memory_limit: int = BIG,
    home: str | None = None,
    journal_size: int = 0,
    group: tuple[str, ...] = (),
    instance: str = "bench-1",
) -> Iterator[tuple[dict[str, str], int]]:
    """Run a fresh broker; yield its addresses by kind, and its process id.

    `home`: its directory, by default a temporary one; `journal_size`: size of a segment in bytes, 0 for the
    default policy's; `group`: the member's name, NATS URLs, and sync members.
    """
    with contextlib.ExitStack() as stack:
        directory = home or stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-"))
        command = [sys.executable, "-m", "bench.broker", directory, str(memory_limit), str(journal_size)]
        command += [instance, *group]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    ports = json.loads(line)
                    break
            yield (
                {
                    "tcp": f"tcp://127.0.0.1:{ports['tcp']}",
                    "websocket": f"ws://127.0.0.1:{ports['websocket']}/",
                    "stomp": f"stomp://127.0.0.1:{ports['stomp']}",
                },
                process.pid,
            )
        finally:
            process.kill()
            process.wait()


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    below: dict[int, list[int]] = {}
    for stat_file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat_file.read_text().rpartition(")")[2].split()[1])
            below.setdefault(parent, []).append(int(stat_file.parent.name))
    found, unvisited = [], [pid]
    while unvisited:
        found.append(number := unvisited.pop())
        unvisited += below.get(number, [])
    return found


def spent(pid: int) -> float:
    """Return the processor seconds of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return int(line.split()[1]) * 1024


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process and of the children it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def proportional(pid: int) -> int:
    """Return the proportional memory of a process in bytes, with its part of shared pages."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
