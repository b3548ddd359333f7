"""Starting the processes of a run: brokers and roles, each a process of its own."""

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
"""A memory limit that no benchmark reaches."""


def role(*words: object) -> Process:
    """A role of `bench.roles`, started."""
    command = [sys.executable, "-m", "bench.roles", *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(process: Process) -> None:
    """Tell a role that waits for it to go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: Process) -> dict[str, Any]:
    """The next line a role prints; waits for it."""
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
    """A fresh broker, in a directory of its own unless told; its addresses by kind, and its process id.

    `journal_size` is of a segment, in bytes; 0 is the default policy's. `group`: the member's name, its engines, and sync members.
    """
    with contextlib.ExitStack() as stack:
        place = home or stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-"))
        command = [sys.executable, "-m", "bench.broker", place, str(memory_limit), str(journal_size)]
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
    """A process and all below it."""
    below: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(place.read_text().rpartition(")")[2].split()[1])
            below.setdefault(parent, []).append(int(place.parent.name))
    found, look = [], [pid]
    while look:
        found.append(number := look.pop())
        look += below.get(number, [])
    return found


def spent(pid: int) -> float:
    """Seconds of processor that a process has taken, all its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident(pid: int) -> int:
    """Bytes of memory a process has."""
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")
    )
    return int(line.split()[1]) * 1024


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and of the children it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def proportional(pid: int) -> int:
    """Bytes of memory of a process, of what it shares with others its part."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
