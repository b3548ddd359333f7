"""CPU seconds of a run: of this process, and of the JVM and the workers below it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_spent: dict[tuple[int, int], float] = {}
"""Of each process below that was seen, by its number and when it began."""


def record_child_cpu() -> None:
    """Note what the processes below have used. Spark ends a worker a minute after its last task, and nobody waits for it: what
    it used can be asked only while it lives."""
    _spent.update(_below(os.getpid()))


def cpu_seconds() -> float:
    """CPU seconds of this process, and of those below it that were noted."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + sum(_spent.values())


def _below(parent: int) -> dict[tuple[int, int], float]:
    """CPU seconds of all descendants that live; none where there is no /proc."""
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
