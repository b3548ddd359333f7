"""CPU seconds of a run: of this process, its JVM and its workers."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_recorded_s: dict[tuple[int, int], float] = {}
"""CPU seconds of each descendant process seen, by process id and start time."""


def record_child_cpu() -> None:
    """Record the CPU time of descendant processes.

    Spark ends a worker a minute after its last task, without waiting for it. So its CPU time can only be
    read while it lives.
    """
    _recorded_s.update(_cpu_of_descendants(os.getpid()))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the recorded descendants."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + sum(_recorded_s.values())


def _cpu_of_descendants(parent: int) -> dict[tuple[int, int], float]:
    """Return the CPU seconds of all living descendants; empty without /proc."""
    children: dict[int, list[int]] = {}
    spent: dict[int, tuple[int, float]] = {}
    try:
        tick = os.sysconf("SC_CLK_TCK")
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                figures = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            number = int(path.parent.name)
            children.setdefault(int(figures[1]), []).append(number)
            spent[number] = int(figures[19]), sum(int(one) for one in figures[11:13]) / tick
    except (OSError, ValueError):
        return {}
    found: dict[tuple[int, int], float] = {}
    pending = list(children.get(parent, ()))
    while pending:
        one = pending.pop()
        if one in spent:
            began, used = spent[one]
            found[one, began] = used
        pending += children.get(one, ())
    return found
