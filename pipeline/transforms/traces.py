"""Traces of slow clients: recorded figures, session by session, and interpolated figures at any time. Pure.

A trace is made of samples of `$SLUICE.traffic`, and of the figures in recorded decisions. Under another
policy a client can be live where it was offlined, or the reverse. It is then simulated: arrivals are as
recorded, and it takes what it took while messages waited.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker_core.documents.system_records import TrafficRowKey, TrafficSample

TRAFFIC: Final = pa.schema(
    [(name, pa.string()) for name in ("name", "transport", "user", "topic")]
    + [("connected", pa.int64())]
    + [(name, pa.int64()) for name in TrafficSample._fields]
)
"""Samples, one a row. Times are ms UTC."""
ACTS: Final = pa.schema(
    [
        ("at", pa.int64()),
        ("client", pa.string()),
        ("action", pa.string()),
        ("reason", pa.string()),
        ("rule", pa.string()),
        ("mode", pa.string()),
        ("signal", pa.string()),
        ("observed", pa.int64()),
        ("limit", pa.int64()),
        ("unit", pa.string()),
        ("revision", pa.int64()),
        ("lost", pa.int64()),
        ("memory", pa.int64()),
        ("disk", pa.int64()),
    ]
)
"""Decisions, one a row, recorded or predicted.

`memory` and `disk` are the client's at that time; -1: unknown.
"""
OBSERVED: Final = {
    "outbound_bytes": "memory",
    "outbound_messages": "messages",
    "spool_bytes": "disk",
    "backlog_bytes": "owed_bytes",
    "backlog_messages": "owed_messages",
    "oldest_age": "oldest_at",
    "write_blocked": "blocked_since",
}
"""Figure of a sample that a decision on a signal observes. Ages are stored as their start times."""
SPELL_MS: Final = 5_000
"""Samples farther apart belong to two spells if nothing waited at the first. Nothing waited in between."""
BUSY_MS: Final = 30_000
"""If messages waited, the broker was too busy to sample or left it out.

The client continues for this time.
"""
STEP_MS: Final = 500
"""Step of the simulation.

The guard checks each client once a second; crossings are found within half of that.
"""
LATE_MS: Final = 1_000
"""Messages in flight for less time aren't recorded (`engine.system_records`)."""
STEADY: Final = 2
"""Maximum speed at which the oldest message of a steady reader gets younger, as a multiple of time."""
_MS: Final = 1_000_000

Ints = npt.NDArray[np.int64]


class TraceSample(NamedTuple):
    """Figures of a client at one time. Times are ns."""

    messages: int
    owed_messages: int
    owed_bytes: int
    memory: int
    disk: int
    taken_bytes: int
    unjournaled: int
    oldest_at: int
    unacked_at: int
    blocked_since: int
    lump_bytes: int


BETWEEN: Final = ("messages", "owed_messages", "owed_bytes", "memory", "disk", "taken_bytes", "unjournaled")
MOMENTS: Final = ("oldest_at", "unacked_at", "blocked_since")
WAITING: Final = frozenset(
    {"messages", "owed_messages", "owed_bytes", "memory", "disk", "oldest_at", "unacked_at", "blocked_since"}
)
"""Figures that are 0 where nothing waits."""


@dataclass(slots=True)
class ClientTrace:
    """A session of a client. Columns have one value for each sample, oldest first."""

    who: TrafficRowKey
    columns: dict[str, Ints]
    points: list[int] = field(default_factory=list)
    """Times of decisions about it, ms."""
    final: int = 0
    """Time of the recorded decision that ended it, ms; 0: none."""
    offlined: list[tuple[int, int]] = field(default_factory=list)
    """Intervals in which it was offlined, ms. An unknown end is the last sample."""
    capacity: float = 0.0
    """Bytes of bodies a second that it took while messages waited; inf if none ever waited."""
    factor: float = 1.15
    """Bytes of memory for each waiting byte of a body."""
    disk_factor: float = 0.0
    """Bytes of disk for each; 0: unknown, then a spool copies."""
    size: float = 1.0
    """Mean bytes of a body."""
    rests: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """For each sample, whether nothing waited from it to the next."""
    unjournaled: bool = False
    """Whether unjournaled messages ever waited."""

    @property
    def started_at(self) -> int:
        return int(self.columns["at"][0])

    @property
    def ended_at(self) -> int:
        return int(self.columns["at"][-1])

    def sample_index(self, now: int) -> int:
        """Return the newest sample not after a time; -1 before the first."""
        return bisect_right(self.columns["at"].data, now) - 1

    def value_at(self, column: str, now: int) -> int:
        """Interpolate a column between two samples. After the last sample its value holds."""
        return int(interpolate(now, self.columns["at"], self.columns[column]))

    def samples_at(self, moments: Ints) -> list[TraceSample]:
        """Return interpolated samples at these times."""
        return list(map(TraceSample, *(column.tolist() for column in self.columns_at(moments))))

    def columns_at(self, moments: Ints) -> list[Ints]:
        """Return interpolated columns in the order of `TraceSample`.

        Some are linear between two samples; others keep the value of the sample before. Between two spells
        they are 0.
        """
        at, of = self.columns["at"], self.columns
        place = np.maximum(np.searchsorted(at, moments, side="right") - 1, 0)
        there = ~(self.rests[place] & (moments - at[place] > STEP_MS))
        made = [np.interp(moments, at, of[name]).astype(np.int64) for name in BETWEEN]
        made += [self._moments(name, place, moments) * _MS for name in MOMENTS]
        made = [
            column * there if name in WAITING else column
            for name, column in zip(TraceSample._fields, made, strict=False)
        ]
        return [*made, of["lump_bytes"][place]]

    def _moments(self, name: str, place: Ints, moments: Ints) -> Ints:
        """Interpolate a start time of an age.

        It moves on a line to the next sample if a slowly reading client explains the difference; else it
        keeps the value of the sample before. A client that caught up suddenly is assumed to have done so
        halfway.
        """
        at, column = self.columns["at"], self.columns[name]
        following = np.minimum(place + 1, len(at) - 1)
        gap, moved = at[following] - at[place], column[following] - column[place]
        goes_on = (gap > 0) & ~self.rests[place] & (column[place] > 0)
        steady = goes_on & (moved > 0) & (moved <= STEADY * gap)
        at_once = goes_on & (moved > STEADY * gap) | goes_on & (column[following] == 0)
        passed = np.clip(moments - at[place], 0, gap)
        known = column[place] + np.where(steady, moved * passed // np.maximum(gap, 1), 0)
        return np.where(at_once & (2 * passed > gap), column[following], known)

    def takes_all_until(self, now: int, room: int) -> int:
        """Return until when `room` bytes a step suffice for all arrivals.

        0 if not, or outside a gap of the recording.
        """
        at, matched = self.columns["at"], self.columns["matched_bytes"]
        place = max(self.sample_index(now), 0)
        if place + 1 >= len(at) or not self.rests[place] or now - at[place] <= STEP_MS:
            return 0
        until = int(at[place + 1]) - SPELL_MS
        came = (matched[place + 1] - matched[place]) * STEP_MS / (at[place + 1] - at[place])
        return until if until > now and came + 1 <= room else 0

    def was_offlined_near(self, now: int, slack: int) -> bool:
        """Whether it was offlined within `slack` ms of a time."""
        return any(start - slack <= now < end + slack for start, end in self.offlined)

    def is_resumed(self, since: int, now: int, slack: int) -> bool:
        """Whether the offlined episode that began at about `since` was over by `now`."""
        return any(start - slack <= since < end <= now for start, end in self.offlined)

    def matched_at(self, nbytes: float) -> int:
        """Return when `nbytes` bytes had arrived for it."""
        return int(interpolate(nbytes, self.columns["matched_bytes"], self.columns["at"]))


def interpolate(x: float, xs: Ints, ys: Ints) -> float:
    """Return np.interp of one number, exact to the last bit.

    For one number, np.interp's setup would dominate.
    """
    known, values = xs.data, ys.data
    place = bisect_right(known, x) - 1
    if place < 0 or place + 1 >= len(known):
        return float(values[max(place, 0)])
    before, value = known[place], values[place]
    if x == before:
        return float(value)
    return (values[place + 1] - value) / (known[place + 1] - before) * (x - before) + value


def build_traces(looks: pa.Table, acts: pa.Table) -> list[ClientTrace]:
    """Return a trace for each session. Recorded decisions may end sessions."""
    if looks.num_rows == 0:
        return []
    rows = looks.sort_by([("name", "ascending"), ("connected", "ascending"), ("at", "ascending")])
    numbers = {name: rows.column(name).to_numpy() for name in TrafficSample._fields}
    found = []
    for start, stop in _sessions(rows):
        whose = rows.slice(stop - 1, 1).to_pylist()[0]
        who = TrafficRowKey(*(whose[name] for name in TrafficRowKey._fields))
        found.append(ClientTrace(who, {name: column[start:stop] for name, column in numbers.items()}))
    by_client: dict[str, list[dict[str, Any]]] = {}
    for row in acts.to_pylist():
        by_client.setdefault(row["client"], []).append(row)
    sessions: dict[str, list[ClientTrace]] = {}
    for trace in found:
        sessions.setdefault(trace.who.name, []).append(trace)
    for name, own in sessions.items():
        for number, trace in enumerate(own):
            until = own[number + 1].who.connected if number + 1 < len(own) else 1 << 62
            mine = [row for row in by_client.get(name, ()) if trace.who.connected <= row["at"] < until]
            _complete(trace, mine)
    return found


def _sessions(rows: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield the first row of each session, and the row after its last."""
    names = rows.column("name").combine_chunks().dictionary_encode().indices.to_numpy()
    connected = rows.column("connected").to_numpy()
    other = (np.diff(names) != 0) | (np.diff(connected) != 0)
    begins = [0, *(np.flatnonzero(other) + 1).tolist(), len(names)]
    return pairwise(begins)


FINAL: Final = frozenset({"disconnect", "refuse", "cancel_subscription", "delete_durable"})


def _complete(trace: ClientTrace, acts: Iterable[dict[str, Any]]) -> None:
    """Insert the figures of decisions among the samples, and estimate the client's capacity."""
    points = {int(at): number for number, at in enumerate(trace.columns["at"])}
    for act in acts:
        if act["mode"] == "enforce" and act["action"] in FINAL and not trace.final:
            trace.final = act["at"]
        trace.points.append(act["at"])
        known = _observed(trace, act)
        if known and act["at"] not in points:
            _insert(trace, act, known)
            points[act["at"]] = 0
    flags, at = trace.columns["offlined"], trace.columns["at"]
    since = 0
    starts = sorted(act["at"] for act in acts if act["mode"] == "enforce" and act["action"] == "offline")
    for flag, moment in zip(flags.tolist(), at.tolist(), strict=True):
        if flag and not since:
            since = max((start for start in starts if start <= moment), default=moment)
            since = since if moment - since < SPELL_MS else moment
        elif not flag and since and moment > since:
            trace.offlined.append((since, moment))
            since = 0
    if since:
        trace.offlined.append((since, int(at[-1])))
    trace.rests = _rests(trace.columns)
    _learn(trace)


def _rests(of: dict[str, Ints]) -> npt.NDArray[np.bool_]:
    """Return for each sample whether nothing waited until the next.

    An emptied backlog is recorded and ends a spell.
    """
    gap = np.diff(of["at"], append=of["at"][-1:])
    late = (of["unacked_at"] > 0) & (of["at"] - of["unacked_at"] >= LATE_MS)
    empty = (of["memory"] == 0) & (of["disk"] == 0) & (of["offlined"] == 0) & ~late
    rests: npt.NDArray[np.bool_] = (gap > SPELL_MS) & (empty | (gap > BUSY_MS))
    return rests


def _observed(trace: ClientTrace, act: dict[str, Any]) -> dict[str, int]:
    """Return the figures that a decision states of its client.

    The observed figure may have passed its limit since the last sample, and no sample follows the action.
    With several subscriptions, which one the rule checked is unknown, so the figure isn't used.
    """
    known = {"memory": act["memory"], "disk": act["disk"]} if act["memory"] >= 0 else {}
    column, seen = OBSERVED.get(act["signal"]), act["observed"]
    if (
        column is not None
        and seen is not None
        and int(trace.columns["subscriptions"][max(trace.sample_index(act["at"]), 0)]) <= 1
    ):
        known[column] = act["at"] - seen if act["unit"] == "ms" else seen
    return known


def _insert(trace: ClientTrace, act: dict[str, Any], known: dict[str, int]) -> None:
    """Insert the figures of a decision as a sample, as of the moment before it took effect."""
    now = act["at"]
    values = {name: trace.value_at(name, now) for name in trace.columns}
    # Start times aren't linear between samples: the oldest message is that of the sample before.
    before = max(trace.sample_index(now), 0)
    for name in ("oldest_at", "unacked_at", "blocked_since", "offlined", "lump_bytes", "subscriptions"):
        values[name] = int(trace.columns[name][before])
    values |= {"at": now, **known}
    place = int(np.searchsorted(trace.columns["at"], now))
    for name, column in trace.columns.items():
        trace.columns[name] = np.insert(column, place, values[name])


def _learn(trace: ClientTrace) -> None:
    """Estimate how much the client takes while messages wait, and the memory and disk of a waiting byte."""
    of = trace.columns
    gone = np.diff(of["at"])
    close = (gone > 0) & (gone <= SPELL_MS)
    waits = (of["owed_bytes"][:-1] > 0) & (of["owed_bytes"][1:] > 0) & (of["offlined"][:-1] == 0)
    live = close & waits
    spent, taken = float(gone[live].sum()), float(np.diff(of["acknowledged_bytes"])[live].sum())
    trace.capacity = taken * 1_000 / spent if spent else float("inf")
    holds = (of["memory"] > 0) & (of["offlined"] == 0) & (of["owed_bytes"] > 0)
    if holds.any():
        trace.factor = float(of["memory"][holds].sum()) / max(float(of["owed_bytes"][holds].sum()), 1.0)
    spooled = (of["disk"] > 0) & (of["owed_bytes"] > 0)
    if spooled.any():
        trace.disk_factor = float(of["disk"][spooled].sum()) / max(
            float(of["owed_bytes"][spooled].sum()), 1.0
        )
    trace.unjournaled = bool(of["unjournaled"].any())
    messages = int(of["matched_messages"][-1])
    trace.size = max(float(of["matched_bytes"][-1]) / messages, 1.0) if messages else 1.0
