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


LINEAR_COLUMNS: Final = (
    "messages",
    "owed_messages",
    "owed_bytes",
    "memory",
    "disk",
    "taken_bytes",
    "unjournaled",
)
START_COLUMNS: Final = ("oldest_at", "unacked_at", "blocked_since")
BACKLOG_COLUMNS: Final = frozenset(
    {"messages", "owed_messages", "owed_bytes", "memory", "disk", "oldest_at", "unacked_at", "blocked_since"}
)
"""Figures that are 0 where nothing waits."""


@dataclass(slots=True)
class ClientTrace:
    """A session of a client. Columns have one value for each sample, oldest first."""

    key: TrafficRowKey
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
    is_idle: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
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
        at, columns = self.columns["at"], self.columns
        sample = np.maximum(np.searchsorted(at, moments, side="right") - 1, 0)
        is_busy = ~(self.is_idle[sample] & (moments - at[sample] > STEP_MS))
        interpolated = [np.interp(moments, at, columns[name]).astype(np.int64) for name in LINEAR_COLUMNS]
        interpolated += [self._interpolate_starts(name, sample, moments) * _MS for name in START_COLUMNS]
        interpolated = [
            column * is_busy if name in BACKLOG_COLUMNS else column
            for name, column in zip(TraceSample._fields, interpolated, strict=False)
        ]
        return [*interpolated, columns["lump_bytes"][sample]]

    def _interpolate_starts(self, name: str, sample: Ints, moments: Ints) -> Ints:
        """Interpolate a start time of an age.

        It moves on a line to the next sample if a slowly reading client explains the difference; else it
        keeps the value of the sample before. A client that caught up suddenly is assumed to have done so
        halfway.
        """
        at, column = self.columns["at"], self.columns[name]
        following = np.minimum(sample + 1, len(at) - 1)
        gap, change = at[following] - at[sample], column[following] - column[sample]
        continues = (gap > 0) & ~self.is_idle[sample] & (column[sample] > 0)
        steady = continues & (change > 0) & (change <= STEADY * gap)
        is_sudden = continues & (change > STEADY * gap) | continues & (column[following] == 0)
        elapsed = np.clip(moments - at[sample], 0, gap)
        value = column[sample] + np.where(steady, change * elapsed // np.maximum(gap, 1), 0)
        return np.where(is_sudden & (2 * elapsed > gap), column[following], value)

    def sustainable_until(self, now: int, capacity: int) -> int:
        """Return until when `capacity` bytes a step suffice for all arrivals.

        0 if not, or outside a gap of the recording.
        """
        at, matched = self.columns["at"], self.columns["matched_bytes"]
        sample = max(self.sample_index(now), 0)
        if sample + 1 >= len(at) or not self.is_idle[sample] or now - at[sample] <= STEP_MS:
            return 0
        known_until = int(at[sample + 1]) - SPELL_MS
        received = (matched[sample + 1] - matched[sample]) * STEP_MS / (at[sample + 1] - at[sample])
        return known_until if known_until > now and received + 1 <= capacity else 0

    def was_offlined_near(self, now: int, slack: int) -> bool:
        """Whether it was offlined within `slack` ms of a time."""
        return any(start - slack <= now < end + slack for start, end in self.offlined)

    def has_resumed_by(self, since: int, now: int, slack: int) -> bool:
        """Whether the offlined episode that began at about `since` was over by `now`."""
        return any(start - slack <= since < end <= now for start, end in self.offlined)

    def matched_at(self, nbytes: float) -> int:
        """Return when `nbytes` bytes had arrived for it."""
        return int(interpolate(nbytes, self.columns["matched_bytes"], self.columns["at"]))


def interpolate(x: float, xs: Ints, ys: Ints) -> float:
    """Return np.interp of one number, exact to the last bit.

    For one number, np.interp's setup would dominate.
    """
    points, values = xs.data, ys.data
    index = bisect_right(points, x) - 1
    if index < 0 or index + 1 >= len(points):
        return float(values[max(index, 0)])
    point, value = points[index], values[index]
    if x == point:
        return float(value)
    return (values[index + 1] - value) / (points[index + 1] - point) * (x - point) + value


def build_traces(samples: pa.Table, decisions: pa.Table) -> list[ClientTrace]:
    """Return a trace for each session. Recorded decisions may end sessions."""
    if samples.num_rows == 0:
        return []
    rows = samples.sort_by([("name", "ascending"), ("connected", "ascending"), ("at", "ascending")])
    numbers = {name: rows.column(name).to_numpy() for name in TrafficSample._fields}
    traces = []
    for start, stop in _sessions(rows):
        last_row = rows.slice(stop - 1, 1).to_pylist()[0]
        key = TrafficRowKey(*(last_row[name] for name in TrafficRowKey._fields))
        traces.append(ClientTrace(key, {name: column[start:stop] for name, column in numbers.items()}))
    by_client: dict[str, list[dict[str, Any]]] = {}
    for row in decisions.to_pylist():
        by_client.setdefault(row["client"], []).append(row)
    sessions: dict[str, list[ClientTrace]] = {}
    for trace in traces:
        sessions.setdefault(trace.key.name, []).append(trace)
    for name, traces_of_client in sessions.items():
        for number, trace in enumerate(traces_of_client):
            next_connected = (
                traces_of_client[number + 1].key.connected if number + 1 < len(traces_of_client) else 1 << 62
            )
            client_decisions = [
                row for row in by_client.get(name, ()) if trace.key.connected <= row["at"] < next_connected
            ]
            _apply_decisions(trace, client_decisions)
    return traces


def _sessions(rows: pa.Table) -> Iterator[tuple[int, int]]:
    """Yield the first row of each session, and the row after its last."""
    names = rows.column("name").combine_chunks().dictionary_encode().indices.to_numpy()
    connected = rows.column("connected").to_numpy()
    is_new = (np.diff(names) != 0) | (np.diff(connected) != 0)
    begins = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(names)]
    return pairwise(begins)


FINAL_ACTIONS: Final = frozenset({"disconnect", "refuse", "cancel_subscription", "delete_durable"})


def _apply_decisions(trace: ClientTrace, decisions: Iterable[dict[str, Any]]) -> None:
    """Insert the figures of decisions among the samples, and estimate the client's capacity."""
    points = {int(at): number for number, at in enumerate(trace.columns["at"])}
    for decision in decisions:
        if decision["mode"] == "enforce" and decision["action"] in FINAL_ACTIONS and not trace.final:
            trace.final = decision["at"]
        trace.points.append(decision["at"])
        figures = _observed_figures(trace, decision)
        if figures and decision["at"] not in points:
            _insert_sample(trace, decision, figures)
            points[decision["at"]] = 0
    flags, at = trace.columns["offlined"], trace.columns["at"]
    offlined_at = 0
    starts = sorted(
        decision["at"]
        for decision in decisions
        if decision["mode"] == "enforce" and decision["action"] == "offline"
    )
    for flag, moment in zip(flags.tolist(), at.tolist(), strict=True):
        if flag and not offlined_at:
            offlined_at = max((start for start in starts if start <= moment), default=moment)
            offlined_at = offlined_at if moment - offlined_at < SPELL_MS else moment
        elif not flag and offlined_at and moment > offlined_at:
            trace.offlined.append((offlined_at, moment))
            offlined_at = 0
    if offlined_at:
        trace.offlined.append((offlined_at, int(at[-1])))
    trace.is_idle = _find_idle(trace.columns)
    _estimate_capacity(trace)


def _find_idle(columns: dict[str, Ints]) -> npt.NDArray[np.bool_]:
    """Return for each sample whether nothing waited until the next.

    An emptied backlog is recorded and ends a spell.
    """
    gap = np.diff(columns["at"], append=columns["at"][-1:])
    late = (columns["unacked_at"] > 0) & (columns["at"] - columns["unacked_at"] >= LATE_MS)
    empty = (columns["memory"] == 0) & (columns["disk"] == 0) & (columns["offlined"] == 0) & ~late
    is_idle: npt.NDArray[np.bool_] = (gap > SPELL_MS) & (empty | (gap > BUSY_MS))
    return is_idle


def _observed_figures(trace: ClientTrace, decision: dict[str, Any]) -> dict[str, int]:
    """Return the figures that a decision states of its client.

    The observed figure may have passed its limit since the last sample, and no sample follows the action.
    With several subscriptions, which one the rule checked is unknown, so the figure isn't used.
    """
    figures = {"memory": decision["memory"], "disk": decision["disk"]} if decision["memory"] >= 0 else {}
    column, observed = OBSERVED.get(decision["signal"]), decision["observed"]
    if (
        column is not None
        and observed is not None
        and int(trace.columns["subscriptions"][max(trace.sample_index(decision["at"]), 0)]) <= 1
    ):
        figures[column] = decision["at"] - observed if decision["unit"] == "ms" else observed
    return figures


def _insert_sample(trace: ClientTrace, decision: dict[str, Any], figures: dict[str, int]) -> None:
    """Insert the figures of a decision as a sample, as of the moment before it took effect."""
    now = decision["at"]
    values = {name: trace.value_at(name, now) for name in trace.columns}
    # Start times aren't linear between samples: the oldest message is that of the sample before.
    sample = max(trace.sample_index(now), 0)
    for name in ("oldest_at", "unacked_at", "blocked_since", "offlined", "lump_bytes", "subscriptions"):
        values[name] = int(trace.columns[name][sample])
    values |= {"at": now, **figures}
    index = int(np.searchsorted(trace.columns["at"], now))
    for name, column in trace.columns.items():
        trace.columns[name] = np.insert(column, index, values[name])


def _estimate_capacity(trace: ClientTrace) -> None:
    """Estimate how much the client takes while messages wait, and the memory and disk of a waiting byte."""
    columns = trace.columns
    elapsed = np.diff(columns["at"])
    close = (elapsed > 0) & (elapsed <= SPELL_MS)
    is_waiting = (
        (columns["owed_bytes"][:-1] > 0) & (columns["owed_bytes"][1:] > 0) & (columns["offlined"][:-1] == 0)
    )
    live = close & is_waiting
    elapsed_ms, acked_bytes = (
        float(elapsed[live].sum()),
        float(np.diff(columns["acknowledged_bytes"])[live].sum()),
    )
    trace.capacity = acked_bytes * 1_000 / elapsed_ms if elapsed_ms else float("inf")
    uses_memory = (columns["memory"] > 0) & (columns["offlined"] == 0) & (columns["owed_bytes"] > 0)
    if uses_memory.any():
        trace.factor = float(columns["memory"][uses_memory].sum()) / max(
            float(columns["owed_bytes"][uses_memory].sum()), 1.0
        )
    uses_disk = (columns["disk"] > 0) & (columns["owed_bytes"] > 0)
    if uses_disk.any():
        trace.disk_factor = float(columns["disk"][uses_disk].sum()) / max(
            float(columns["owed_bytes"][uses_disk].sum()), 1.0
        )
    trace.unjournaled = bool(columns["unjournaled"].any())
    messages = int(columns["matched_messages"][-1])
    trace.size = max(float(columns["matched_bytes"][-1]) / messages, 1.0) if messages else 1.0
