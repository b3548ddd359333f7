"""Decisions of one cause as one incident with members, and how they lie over time. Pure.

Acts of one rule for one reason that follow one another within a few minutes are one incident, however many clients they are about; so
are the acts on one client that comes back to the same limit again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from console.models import Decision

GAP: Final = timedelta(minutes=5)
"""A longer silence ends an incident."""
LEAST: Final = 3
"""Acts that make one."""
MOST_READ: Final = 2_000
BINS: Final = 96
SPAN: Final = timedelta(hours=24)


class Incident(NamedTuple):
    """Acts that belong together. `flapping`: all on one client."""

    action: str
    reason: str
    rule: str
    mode: str
    first: datetime
    last: datetime
    clients: dict[str, int]
    """How many acts on each, the most first."""

    @property
    def acts(self) -> int:
        """How many."""
        return sum(self.clients.values())

    @property
    def flapping(self) -> bool:
        """Whether one client came back to it again and again."""
        return len(self.clients) == 1


class Cell(NamedTuple):
    """A quarter of an hour in the picture."""

    x: float
    y: float
    width: float
    height: float
    severe: bool


def incidents(decisions: Iterable[Decision]) -> list[Incident]:
    """The newest first. An act is in one incident at most."""
    running: dict[tuple[str, str, str, str], list[Decision]] = {}
    found: list[list[Decision]] = []
    for one in sorted(decisions, key=lambda each: each.at):
        key = (one.action, one.reason, one.rule, one.mode)
        held = running.get(key)
        if held and one.at - held[-1].at <= GAP:
            held.append(one)
        else:
            running[key] = [one]
            found.append(running[key])
    made = [_incident(group) for group in found if len(group) >= LEAST]
    return sorted(made, key=lambda one: one.last, reverse=True)


def _incident(group: Sequence[Decision]) -> Incident:
    counts: dict[str, int] = {}
    for one in group:
        counts[one.client] = counts.get(one.client, 0) + 1
    clients = dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
    first = group[0]
    return Incident(first.action, first.reason, first.rule, first.mode, first.at, group[-1].at, clients)


def timeline(decisions: Iterable[Decision], now: datetime, width: int = 960, height: int = 40) -> list[Cell]:
    """How many acts in each quarter of an hour of the last day; severe is where a client was cut off."""
    counts, severe = [0] * BINS, [False] * BINS
    for one in decisions:
        place = int(BINS * (one.at - (now - SPAN)) / SPAN)
        if 0 <= place < BINS:
            counts[place] += 1
            severe[place] |= one.action == "disconnect" and one.mode != "shadow"
    top, step = max(counts) or 1, width / BINS
    return [
        Cell(round(step * place, 1), round(height - tall, 1), round(step - 2, 1), round(tall, 1), severe[place])
        for place, tall in ((place, max(4.0, height * count / top)) for place, count in enumerate(counts) if count)
    ]  # fmt: skip
