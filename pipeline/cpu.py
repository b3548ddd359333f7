"""CPU seconds of a run: of this process, its JVM and its workers."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_spent: dict[tuple[int, int], float] = {}
"""CPU seconds of each descendant process seen, by process id and start time."""


def record_child_cpu() -> None:
    """Record the CPU time of descendant processes.

    Spark ends a worker a minute after its last task, without waiting for it. So its CPU time can only be
    read while it lives.
    """
    _spent.update(_below(os.getpid()))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the recorded descendants."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + sum(_spent.values())


def _below(parent: int) -> dict[tuple[int, int], float]:
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
    left = list(children.get(parent, ()))
    while left:
        one = left.pop()
        if one in spent:
            began, used = spent[one]
            found[one, began] = used
        left += children.get(one, ())
    return found
