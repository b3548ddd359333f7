"""Decisions of one cause as one incident with members, and how they lie over time. Pure.

Acts of one rule for one reason that follow one another within a few minutes are one incident, however many clients they are about; so
are the acts on one client that comes back to the same limit again and again. Many clients that log on at once are one as well: a storm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from broker_core.documents.clients import ClientEntry
from console.models import Decision

GAP: Final = timedelta(minutes=5)
"""A longer silence ends an incident."""
LEAST: Final = 3
"""Acts that make one."""
MAX_READ: Final = 2_000
STORM_LOGONS: Final = 20
"""Logons that make a storm, each within STORM_GAP_MS of the one before."""
STORM_GAP_MS: Final = 2_000
_CUT_OFF: Final = {"disconnect", "refuse", "ask_to_close"}
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


class LogonStorm(NamedTuple):
    """Clients that logged on in one go. `shared`: what all of them have in common, as pairs of a word and its value."""

    first: datetime
    last: datetime
    clients: list[str]
    restart: datetime | None
    """Of the broker, shortly before."""
    cut_off: int
    """How many of them had been cut off by a policy shortly before."""
    shared: list[tuple[str, str]]


class TimelineCell(NamedTuple):
    """A quarter of an hour in the picture."""

    x: float
    y: float
    width: float
    height: float
    severe: bool


def group_incidents(decisions: Iterable[Decision]) -> list[Incident]:
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


def logon_storms(
    clients: Iterable[ClientEntry], restarts: Sequence[datetime], decisions: Iterable[Decision], now: datetime
) -> list[LogonStorm]:
    """The newest first, of the last day, by the logons of who is connected now: what came and went again isn't seen."""
    begin = (now - SPAN).timestamp() * 1_000
    come = sorted(
        (one for one in clients if one.connected_at >= begin), key=lambda one: (one.connected_at, one.name)
    )
    groups: list[list[ClientEntry]] = []
    for one in come:
        if groups and one.connected_at - groups[-1][-1].connected_at <= STORM_GAP_MS:
            groups[-1].append(one)
        else:
            groups.append([one])
    cuts = [(one.client, one.at) for one in decisions if one.action in _CUT_OFF and one.mode != "shadow"]
    found = [_storm(group, restarts, cuts) for group in groups if len(group) >= STORM_LOGONS]
    return found[::-1]


def _storm(
    group: Sequence[ClientEntry], restarts: Sequence[datetime], cuts: Sequence[tuple[str, datetime]]
) -> LogonStorm:
    first, last = (datetime.fromtimestamp(one.connected_at / 1_000, UTC) for one in (group[0], group[-1]))
    names = [one.name for one in group]
    members = set(names)
    cut_off = len({name for name, at in cuts if name in members and first - GAP <= at <= last})
    restart = next((at for at in sorted(restarts, reverse=True) if first - GAP <= at <= last), None)
    facts = (
        ("transport", {one.transport for one in group}),
        ("address", {one.remote.rpartition(":")[0] for one in group}),
        ("user", {one.user or "" for one in group}),
    )
    shared = [(word, next(iter(values))) for word, values in facts if len(values) == 1 and values != {""}]
    return LogonStorm(first, last, names, restart, cut_off, shared)


def decision_timeline(
    decisions: Iterable[Decision], now: datetime, width: int = 960, height: int = 40
) -> list[TimelineCell]:
    """How many acts in each quarter of an hour of the last day; severe is where a client was cut off."""
    counts, severe = [0] * BINS, [False] * BINS
    for one in decisions:
        place = int(BINS * (one.at - (now - SPAN)) / SPAN)
        if 0 <= place < BINS:
            counts[place] += 1
            severe[place] |= one.action == "disconnect" and one.mode != "shadow"
    top, step = max(counts) or 1, width / BINS
    return [
        TimelineCell(round(step * place, 1), round(height - tall, 1), round(step - 2, 1), round(tall, 1), severe[place])
        for place, tall in ((place, max(4.0, height * count / top)) for place, count in enumerate(counts) if count)
    ]  # fmt: skip
