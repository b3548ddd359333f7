"""CPU seconds of a run: of this process, and of the JVM and the workers below it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_spent_below = 0.0


def note_cpu_below() -> None:
    """Add what the processes below have used, before they are ended: afterwards nobody can ask."""
    global _spent_below
    _spent_below += _below(os.getpid())


def cpu_seconds() -> float:
    """CPU seconds of this process, and of those below it that were noted."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + _spent_below


def _below(parent: int) -> float:
    """CPU seconds of all descendants that live, with those of their children that have ended; 0 where there is no /proc."""
    children: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    try:
        tick = os.sysconf("SC_CLK_TCK")
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                figures = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            number = int(path.parent.name)
            children.setdefault(int(figures[1]), []).append(number)
            spent[number] = sum(int(one) for one in figures[11:15]) / tick
    except (OSError, ValueError):
        return 0.0
    total, left = 0.0, list(children.get(parent, ()))
    while left:
        one = left.pop()
        total += spent.get(one, 0.0)
        left += children.get(one, ())
    return total
