"""Groups of related decisions (incidents), storms of logons, and decisions over time. Pure functions.

Decisions of one rule with the same reason and at most 5 minutes between two of them form one incident,
for any number of clients. So do repeated decisions on one client that reaches the same limit again and
again. Many clients that log on at almost the same time form a logon storm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from broker_core.documents.clients import ClientEntry
from console.models import Decision

GAP: Final = timedelta(minutes=5)
"""Maximum time between two decisions of an incident."""
MIN_DECISIONS: Final = 3
"""Minimum number of decisions of an incident."""
MAX_READ: Final = 2_000
"""Maximum number of decisions that callers load."""
STORM_LOGONS: Final = 20
"""Minimum number of logons of a storm, each within `STORM_GAP_MS` of the previous one."""
STORM_GAP_MS: Final = 2_000
"""Maximum milliseconds between two logons of a storm."""
_CUT_OFF: Final = {"disconnect", "refuse", "ask_to_close"}
"""Actions that close a connection or refuse it."""
BINS: Final = 96
"""Number of cells of the timeline."""
SPAN: Final = timedelta(hours=24)
"""Time range of the timeline and of logon storms."""


class Incident(NamedTuple):
    """Decisions with equal action, reason, rule and mode, at most `GAP` apart."""

    action: str
    reason: str
    rule: str
    mode: str
    first: datetime
    last: datetime
    clients: dict[str, int]
    """Number of decisions by client, highest first."""

    @property
    def acts(self) -> int:
        """Total number of decisions."""
        return sum(self.clients.values())

    @property
    def flapping(self) -> bool:
        """Whether all decisions concern one client that repeatedly reached the limit."""
        return len(self.clients) == 1


class LogonStorm(NamedTuple):
    """Clients that logged on at almost the same time.

    `shared`: common properties as pairs of name and value.
    """

    first: datetime
    last: datetime
    clients: list[str]
    restart: datetime | None
    """Moment of a broker restart shortly before; None without one."""
    cut_off: int
    """Number of these clients that a policy disconnected shortly before."""
    shared: list[tuple[str, str]]


class TimelineCell(NamedTuple):
    """Rectangle of the timeline for a quarter of an hour. `severe`: a client was disconnected."""

    x: float
    y: float
    width: float
    height: float
    severe: bool


def group_incidents(decisions: Iterable[Decision]) -> list[Incident]:
    """Return the incidents among decisions, newest first. A decision belongs to at most one."""
    running: dict[tuple[str, str, str, str], list[Decision]] = {}
    found: list[list[Decision]] = []
    for one in sorted(decisions, key=lambda each: each.at):
        key = (one.action, one.reason, one.rule, one.mode)
        current = running.get(key)
        if current and one.at - current[-1].at <= GAP:
            current.append(one)
        else:
            running[key] = [one]
            found.append(running[key])
    made = [_incident(group) for group in found if len(group) >= MIN_DECISIONS]
    return sorted(made, key=lambda one: one.last, reverse=True)


def _incident(group: Sequence[Decision]) -> Incident:
    """Return decisions as an incident."""
    counts: dict[str, int] = {}
    for one in group:
        counts[one.client] = counts.get(one.client, 0) + 1
    clients = dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
    first = group[0]
    return Incident(first.action, first.reason, first.rule, first.mode, first.at, group[-1].at, clients)


def logon_storms(
    clients: Iterable[ClientEntry], restarts: Sequence[datetime], decisions: Iterable[Decision], now: datetime
) -> list[LogonStorm]:
    """Return the logon storms of the last 24 hours, newest first.

    They are computed from the logon times of connected clients. Clients that have disconnected since are
    not counted.
    """
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
    """Return clients as a storm, with a preceding restart and their common properties."""
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
    """Return cells for the number of decisions in each quarter of an hour of the last 24 hours."""
    counts, severe = [0] * BINS, [False] * BINS
    for one in decisions:
        slot = int(BINS * (one.at - (now - SPAN)) / SPAN)
        if 0 <= slot < BINS:
            counts[slot] += 1
            severe[slot] |= one.action == "disconnect" and one.mode != "shadow"
    top, step = max(counts) or 1, width / BINS
    return [
        TimelineCell(
            round(step * slot, 1), round(height - tall, 1), round(step - 2, 1), round(tall, 1), severe[slot]
        )
        for slot, tall in (
            (slot, max(4.0, height * count / top)) for slot, count in enumerate(counts) if count
        )
    ]
