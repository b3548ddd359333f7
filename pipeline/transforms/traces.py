"""Traces: what was recorded of each slow client, session by session, and what it would take and get at any moment. Pure.

A trace is made of the looks of `$SLUICE.traffic`, and of what the decisions of the time observed. Beyond what was recorded
of a client (a policy other than the one in force leaves it live where it was offlined, or the other way round) it is
carried on: what comes is as recorded; what it takes is what it was seen to take while something waited for it.
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
"""One row a look. Moments are ms UTC."""
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
"""One row a decision, recorded or predicted. `memory` and `disk` are the client's at that moment; -1: not told."""
OBSERVED: Final = {
    "outbound_bytes": "memory", "outbound_messages": "messages", "spool_bytes": "disk", "backlog_bytes": "owed_bytes",
    "backlog_messages": "owed_messages", "oldest_age": "oldest_at", "write_blocked": "blocked_since",
}  # fmt: skip
"""The figure of a look that a decision on a signal has observed; ages as the moment that they count from."""
SPELL_MS: Final = 5_000
"""Looks farther apart belong to two spells if nothing waited at the first: in between nothing did."""
BUSY_MS: Final = 30_000
"""Where something waited then, the broker had no time to look, or left it out: for so long it is taken to have gone on as before."""
STEP_MS: Final = 500
"""The guard looks at each client once a second; crossings are found within half of that."""
LATE_MS: Final = 1_000
"""What is on its way for less isn't recorded (`engine.system_records`)."""
STEADY: Final = 2
"""So many times as fast as time passes the oldest message of a client becomes a younger one that reads steadily."""
_MS: Final = 1_000_000

Ints = npt.NDArray[np.int64]


class TraceSample(NamedTuple):
    """What a client was at one moment. Moments are ns."""

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
"""Figures that are nothing where nothing waits."""


@dataclass(slots=True)
class ClientTrace:
    """One session of a client. Columns have one value a look, oldest first."""

    who: TrafficRowKey
    columns: dict[str, Ints]
    points: list[int] = field(default_factory=list)
    """When something was decided about it, ms."""
    final: int = 0
    """When a decision of the time ended it, ms; 0: none did."""
    offlined: list[tuple[int, int]] = field(default_factory=list)
    """From when to when it was offlined, ms; an end that nobody saw is the last look."""
    capacity: float = 0.0
    """Bytes of bodies a second that it was seen to take while something waited; inf when nothing ever was late."""
    factor: float = 1.15
    """Bytes of memory for a byte of a body that waits."""
    disk_factor: float = 0.0
    """Bytes of disk for one; 0: never seen, then a spool copies."""
    size: float = 1.0
    """Mean bytes of a body."""
    rests: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Of each look, whether nothing waited from it to the next."""
    unjournaled: bool = False
    """Whether anything ever waited for it that no journal has."""

    @property
    def started_at(self) -> int:
        return int(self.columns["at"][0])

    @property
    def ended_at(self) -> int:
        return int(self.columns["at"][-1])

    def sample_index(self, now: int) -> int:
        """The newest look not after a moment; -1 before the first."""
        return bisect_right(self.columns["at"].data, now) - 1

    def value_at(self, column: str, now: int) -> int:
        """Between two looks on the line between them; the last look's value afterwards."""
        return int(interpolate(now, self.columns["at"], self.columns[column]))

    def samples_at(self, moments: Ints) -> list[TraceSample]:
        """What it was at these moments."""
        return list(map(TraceSample, *(column.tolist() for column in self.columns_at(moments))))

    def columns_at(self, moments: Ints) -> list[Ints]:
        """The same by column, in the order of `TraceSample`: on the line between two looks, or as at the look before. Nothing between two spells."""
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
        """Since when: as at the look before, and on the line to the next one where that is what a client that reads slowly makes of it.
        One that has caught up all at once did so half way, for nobody knows when."""
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
        """Until when so much room a step is enough for what comes, where nothing is recorded at this moment; else 0."""
        at, matched = self.columns["at"], self.columns["matched_bytes"]
        place = max(self.sample_index(now), 0)
        if place + 1 >= len(at) or not self.rests[place] or now - at[place] <= STEP_MS:
            return 0
        until = int(at[place + 1]) - SPELL_MS
        came = (matched[place + 1] - matched[place]) * STEP_MS / (at[place + 1] - at[place])
        return until if until > now and came + 1 <= room else 0

    def was_offlined_near(self, now: int, slack: int) -> bool:
        """Whether it was within `slack` ms of a moment."""
        return any(start - slack <= now < end + slack for start, end in self.offlined)

    def is_resumed(self, since: int, now: int, slack: int) -> bool:
        """Whether the episode that began at about `since` was over by now."""
        return any(start - slack <= since < end <= now for start, end in self.offlined)

    def matched_at(self, nbytes: float) -> int:
        """When so many bytes had come for it."""
        return int(interpolate(nbytes, self.columns["matched_bytes"], self.columns["at"]))


def interpolate(x: float, xs: Ints, ys: Ints) -> float:
    """np.interp of one number, to the last bit: for one, most of what that takes is its beginning."""
    known, values = xs.data, ys.data
    place = bisect_right(known, x) - 1
    if place < 0 or place + 1 >= len(known):
        return float(values[max(place, 0)])
    before, value = known[place], values[place]
    if x == before:
        return float(value)
    return (values[place + 1] - value) / (known[place + 1] - before) * (x - before) + value


def build_traces(looks: pa.Table, acts: pa.Table) -> list[ClientTrace]:
    """One a session, those that end it among the decisions noted."""
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
    """The first row of each client's session, and the one after its last."""
    names = rows.column("name").combine_chunks().dictionary_encode().indices.to_numpy()
    connected = rows.column("connected").to_numpy()
    other = (np.diff(names) != 0) | (np.diff(connected) != 0)
    begins = [0, *(np.flatnonzero(other) + 1).tolist(), len(names)]
    return pairwise(begins)


FINAL: Final = frozenset({"disconnect", "refuse", "cancel_subscription", "delete_durable"})


def _complete(trace: ClientTrace, acts: Iterable[dict[str, Any]]) -> None:
    """Put what decisions observed among the looks, and learn what the client takes."""
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
    """A look at which nothing waits any more ends a spell, and is recorded."""
    gap = np.diff(of["at"], append=of["at"][-1:])
    late = (of["unacked_at"] > 0) & (of["at"] - of["unacked_at"] >= LATE_MS)
    empty = (of["memory"] == 0) & (of["disk"] == 0) & (of["offlined"] == 0) & ~late
    rests: npt.NDArray[np.bool_] = (gap > SPELL_MS) & (empty | (gap > BUSY_MS))
    return rests


def _observed(trace: ClientTrace, act: dict[str, Any]) -> dict[str, int]:
    """The figures that a decision tells of its client: what was observed may have passed its limit since the last look, and after the act there is
    none. Of a client of several subscriptions nobody knows which one a rule looked at."""
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
    """What a decision saw: the moment before it took effect."""
    now = act["at"]
    values = {name: trace.value_at(name, now) for name in trace.columns}
    # Ages don't grow on a line between looks: the oldest message is what it was at the look before.
    before = max(trace.sample_index(now), 0)
    for name in ("oldest_at", "unacked_at", "blocked_since", "offlined", "lump_bytes", "subscriptions"):
        values[name] = int(trace.columns[name][before])
    values |= {"at": now, **known}
    place = int(np.searchsorted(trace.columns["at"], now))
    for name, column in trace.columns.items():
        trace.columns[name] = np.insert(column, place, values[name])


def _learn(trace: ClientTrace) -> None:
    """What it takes while something waits, and what a waiting byte costs."""
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
