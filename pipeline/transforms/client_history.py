"""Hourly history of a client from its events: lag, rates, states, decisions.

The broker publishes an event when a client connects, disconnects, is offlined and returns. It publishes a
sample when delivery or lag changed, every 10 seconds while messages wait, and every ten minutes otherwise.
So an event describes the client until its next event. Means are over time, not over events, because a slow
client has more of them. Only if the next event is a new connection, the end is unknown, since the broker
was restarted. Then the event holds for the longest time between samples.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.schemas import CLIENT_HOURS

HOUR_MS = 3_600_000
UNSEEN_MS = 30_000
"""Maximum time that an event holds if the end is unknown: three samples."""
EVENTS: Final = pa.schema(
    [
        *((name, pa.int64()) for name in ("sequence", "at")),
        *((name, pa.string()) for name in ("client", "event", "state", "transport", "action", "mode")),
        *(
            (name, pa.int64())
            for name in (
                "lag_messages",
                "lag_bytes",
                "lag_ms",
                "outbox_bytes",
                "spool_bytes",
                "delivered_messages",
                "delivered_bytes",
                "lost",
            )
        ),
    ]
)
"""Events and decisions of a client, in any order. `at` is ms UTC. A decision has an action and no event."""
MADE: Final = pa.schema([*CLIENT_HOURS, ("last_at", pa.int64()), ("open", pa.int64())])
"""Hours of one client.

Its last row has the time of its last event and whether it was connected. Means are still sums.
"""
_STATES: Final = {"draining": "draining_ms", "replaying": "replaying_ms", "paused": "paused_ms"}
_PEAKS: Final = ("lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes")
_ACTS: Final = {"warn": "warned", "offline": "offlined", "disconnect": "disconnected"}
_ZERO: Final[dict[str, Any]] = {
    field.name: 0.0 if pa.types.is_floating(field.type) else 0
    for field in MADE
    if field.name not in ("client", "transport", "hour", "last_at", "open")
}

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Texts = npt.NDArray[Any]
Key = tuple[str, int]
"""Transport and hour."""


def hours_of(events: pa.Table) -> pa.Table:
    """Return a row of MADE for each transport and hour with an event, or with a state other than live."""
    events = events.sort_by([("at", "ascending"), ("sequence", "ascending")]).combine_chunks()
    decided = pc.is_valid(events.column("action"))
    events_only, acts = events.filter(pc.invert(decided)), events.filter(decided)
    rows = _HourRows()
    if events_only.num_rows:
        _add_event(events_only, acts, rows)
    _count_acts(events_only, acts, rows)
    client = events.column("client")[0].as_py()
    made = [
        {"client": client, "transport": transport, "hour": hour * HOUR_MS * 1_000, **row}
        for (transport, hour), row in sorted(rows.found.items(), key=lambda one: (one[0][1], one[0][0]))
    ]
    if made and events_only.num_rows:
        made[-1] |= {
            "last_at": events_only.column("at")[-1].as_py(),
            "open": int(events_only.column("event")[-1].as_py() != "disconnect"),
        }
    return pa.Table.from_pylist(made, schema=MADE)


def close_open_hours(made: pa.Table) -> pa.Table:
    """Complete all clients' hours.

    A connected client stays so to the end of its hour, or to the newest event.
    """
    newest = pc.max(made.column("last_at")).as_py() or 0
    connected = made.column("connected_ms").to_numpy().copy()
    last = pc.fill_null(made.column("last_at"), 0).to_numpy()
    ends = (last // HOUR_MS + 1) * HOUR_MS
    still = pc.fill_null(made.column("open"), 0).to_numpy() == 1
    connected[still] += np.minimum(ends, newest)[still] - last[still]
    names = [field.name for field in CLIENT_HOURS]
    sums = made.column("lag_messages_mean").to_numpy()
    means = np.divide(sums, connected, out=np.zeros(len(sums)), where=connected > 0)
    table = made.select(names)
    table = table.set_column(names.index("connected_ms"), "connected_ms", pa.array(connected))
    return table.set_column(names.index("lag_messages_mean"), "lag_messages_mean", pa.array(means)).cast(
        CLIENT_HOURS
    )


class _HourRows:
    """Figures by transport and hour."""

    def __init__(self) -> None:
        self.found: dict[Key, dict[str, Any]] = {}

    def of(self, transport: str, hour: int) -> dict[str, Any]:
        return self.found.setdefault((transport, hour), dict(_ZERO))

    def add(
        self, name: str, transports: Texts, hours: Ints, amounts: npt.NDArray[Any], how: str = "sum"
    ) -> None:
        """Add amounts to each transport and hour, or with `how="max"` keep the greatest."""
        if not len(hours):
            return
        table = pa.table({"transport": pa.array(transports, pa.string()), "hour": hours, "amount": amounts})
        for row in table.group_by(["transport", "hour"]).aggregate([("amount", how)]).to_pylist():
            hour_row, amount = self.of(row["transport"], row["hour"]), row[f"amount_{how}"] or 0
            hour_row[name] = hour_row[name] + amount if how == "sum" else max(hour_row[name], amount)


def _add_event(events: pa.Table, acts: pa.Table, rows: _HourRows) -> None:
    """Add the figures of all events of a client to its hours."""
    at = events.column("at").to_numpy()
    kinds, states = _texts(events, "event"), _texts(events, "state")
    sessions = np.cumsum(kinds == "connect")
    transports = _transports(events, acts, sessions)
    hours = at // HOUR_MS
    rows.add("samples", transports, hours, np.ones(len(at), np.int64))
    for kind, name in (("connect", "connects"), ("disconnect", "disconnects")):
        rows.add(
            name,
            transports[kinds == kind],
            hours[kinds == kind],
            np.ones(int((kinds == kind).sum()), np.int64),
        )
    for name in _PEAKS:
        rows.add(f"{name}_max", transports, hours, _numbers(events, name), "max")
    on_spool = np.isin(states, ("offlined", "draining")) & (kinds != "disconnect")
    begins = on_spool & ~np.concatenate(([False], on_spool[:-1] & (sessions[1:] == sessions[:-1])))
    rows.add("offline_episodes", transports[begins], hours[begins], np.ones(int(begins.sum()), np.int64))
    starts, ends = _event_spans(at, kinds)
    # A client whose first event isn't its connection was connected when its hour began.
    if kinds[0] != "connect":
        starts, ends = np.append(starts, hours[0] * HOUR_MS), np.append(ends, at[0])
    which, part_hours, spans = split_by_hour(starts, ends)
    event_indexes = np.append(np.arange(len(at)), 0)[which]
    lead = which == len(at)
    rows.add("connected_ms", transports[event_indexes], part_hours, spans)
    lags = np.where(lead, 0, _numbers(events, "lag_messages")[event_indexes])
    rows.add("lag_messages_mean", transports[event_indexes], part_hours, (lags * spans).astype(np.float64))
    for states_counted, name in (
        ({"offlined", "draining"}, "offline_ms"),
        *(({one}, name) for one, name in _STATES.items()),
    ):
        chosen = np.isin(states[event_indexes], list(states_counted)) & ~lead
        rows.add(name, transports[event_indexes][chosen], part_hours[chosen], spans[chosen])
    _deliveries(events, at, sessions, transports, rows)


def _event_spans(at: Ints, kinds: Texts) -> tuple[Ints, Ints]:
    """Return (starts, ends) in ms of the time that each event describes; none for a disconnection.

    The time after the last event is unknown, and counts in the next run.
    """
    ends = np.append(at[1:], at[-1])
    reborn = np.append(kinds[1:] == "connect", False)
    ends = np.where(reborn, np.minimum(ends, at + UNSEEN_MS), ends)
    return at, np.where(kinds == "disconnect", at, ends)


def split_by_hour(starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """Split intervals at full hours; return (index of the interval, hour, ms) of each part."""
    which, nothing = np.arange(len(starts)), np.zeros(0, np.int64)
    parts = [(nothing, nothing, nothing)]
    while (some := starts < ends).any():
        which, starts, ends = which[some], starts[some], ends[some]
        hours = starts // HOUR_MS
        stops = np.minimum(ends, (hours + 1) * HOUR_MS)
        parts.append((which, hours, stops - starts))
        starts = stops
    indexes, hours, spans = (np.concatenate(part) for part in zip(*parts, strict=True))
    return indexes, hours, spans


def _deliveries(events: pa.Table, at: Ints, sessions: Ints, transports: Texts, rows: _HourRows) -> None:
    """Divide deliveries between two events among the hours, by time.

    The first interval begins with the logon, if that was recorded.
    """
    known = pc.is_valid(events.column("delivered_messages")).to_numpy(zero_copy_only=False)
    known |= _texts(events, "event") == "connect"
    known_indexes = np.flatnonzero(known)
    if len(known_indexes) < 2:
        return
    before, after = known_indexes[:-1], known_indexes[1:]
    same = (sessions[before] == sessions[after]) & (at[after] > at[before])
    before, after = before[same], after[same]
    elapsed = at[after] - at[before]
    which, hours, spans = split_by_hour(at[before], at[after])
    for name in ("delivered_messages", "delivered_bytes"):
        counts = _numbers(events, name)
        grown = np.maximum(counts[after] - counts[before], 0)
        shares = grown[which] * (spans / elapsed[which]) if len(which) else np.zeros(0)
        rows.add(name, transports[after][which], hours, shares)
        if name == "delivered_messages":
            rates = grown * 1_000.0 / np.maximum(elapsed, 1_000)
            rows.add("rate_max", transports[after][which], hours, rates[which], "max")
    for row in rows.found.values():
        for name in ("delivered_messages", "delivered_bytes"):
            row[name] = round(row[name])


def _transports(events: pa.Table, acts: pa.Table, sessions: Ints) -> Texts:
    """Return the transport of each event.

    A session has one, named in its connection, samples and decisions.
    """
    event_transports = _texts(events, "transport")
    found = {
        int(number): name for number, name in zip(sessions[::-1], event_transports[::-1], strict=True) if name
    }
    starts = events.column("at").to_numpy()
    for moment, name in zip(acts.column("at").to_pylist(), acts.column("transport").to_pylist(), strict=True):
        index = max(int(np.searchsorted(starts, moment, side="right")) - 1, 0)
        if name:
            found.setdefault(int(sessions[index]), name)
    return np.array([found.get(int(number), "") for number in sessions], object)


def _count_acts(events: pa.Table, acts: pa.Table, rows: _HourRows) -> None:
    for decision in acts.select(["at", "transport", "action", "mode", "lost"]).to_pylist():
        row = rows.of(decision["transport"] or "", decision["at"] // HOUR_MS)
        if decision["mode"] == "enforce":
            row[_ACTS.get(decision["action"], "other_acts")] += 1
            row["lost_messages"] += decision["lost"] or 0
        else:
            row["shadow_acts"] += 1


def _texts(table: pa.Table, name: str) -> Texts:
    return np.array([value or "" for value in table.column(name).to_pylist()], object)


def _numbers(table: pa.Table, name: str) -> Ints:
    found: Ints = pc.fill_null(table.column(name), 0).to_numpy()
    return found


def merge_hours(before: pa.Table, fresh: pa.Table, from_us: int) -> pa.Table:
    """Return the stored hours before `from_us` and the fresh hours from it on, by client and hour."""
    edge = pa.scalar(from_us, pa.int64()).cast(CLIENT_HOURS.field("hour").type)
    earlier = before.filter(pc.less(before.column("hour"), edge))
    new = fresh.filter(pc.greater_equal(fresh.column("hour"), edge))
    order = [("client", "ascending"), ("hour", "ascending"), ("transport", "ascending")]
    return pa.concat_tables([earlier, new]).sort_by(order)
