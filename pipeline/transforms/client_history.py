"""From the events of one client to its hours: lag and offline episodes.

The broker publishes an event when a client connects, disconnects, is offlined and returns, and every 10 seconds a
sample of each client that isn't idle; an offlined client never is. So a client is offlined from an event that says so
to its next event, whatever that one says. Only when the next event is a new connection, the end isn't known (the
broker was restarted): then the episode lasts as long as samples can be apart.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.schemas import CLIENT_HOURS

HOUR_MS = 3_600_000
UNSEEN_MS = 30_000
"""The longest a client is taken to have stayed offlined without a further event: three samples."""

Ints = npt.NDArray[np.int64]


def hours_of(events: pa.Table) -> pa.Table:
    """One row of CLIENT_HOURS per hour in which the client had an event or was offlined.

    `events` holds one client's rows with the columns client, at (ms UTC), event, state, lag_messages, lag_bytes,
    lag_ms, sequence; in any order.
    """
    events = events.sort_by([("at", "ascending"), ("sequence", "ascending")]).combine_chunks()
    at = events.column("at").to_numpy()
    kinds = np.array(events.column("event").to_pylist(), object)
    offlined = _offlined(kinds, np.array(events.column("state").to_pylist(), object))
    hours = at // HOUR_MS
    away = offline_ms_by_hour(*offline_intervals(at, kinds, offlined))
    starts = Counter(hours[offlined & ~np.concatenate(([False], offlined[:-1]))].tolist())
    lags = {row.pop("hour"): row for row in _lags(events, hours)}
    connects, disconnects = (Counter(hours[kinds == kind].tolist()) for kind in ("connect", "disconnect"))
    client = events.column("client")[0].as_py()
    nothing = dict.fromkeys(("samples", "lag_messages_max", "lag_bytes_max", "lag_ms_max"), 0)
    rows = [
        nothing
        | {"lag_messages_mean": 0.0}
        | lags.get(hour, {})
        | {
            "client": client,
            "hour": hour * HOUR_MS * 1_000,
            "offline_ms": away.get(hour, 0),
            "offline_episodes": starts[hour],
            "connects": connects[hour],
            "disconnects": disconnects[hour],
        }
        for hour in sorted(lags.keys() | away.keys())
    ]
    return pa.Table.from_pylist(rows, schema=CLIENT_HOURS)


def _offlined(kinds: npt.NDArray[Any], states: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """After which events the client is offlined."""
    away = (states == "offlined") | (
        states == "draining"
    )  # while it drains, its backlog is still in its spool
    said: npt.NDArray[np.bool_] = (kinds == "offline_start") | ((kinds == "sample") & away)
    return said


def _lags(events: pa.Table, hours: Ints) -> list[dict[str, Any]]:
    table = events.append_column("hour", pa.array(hours))
    grouped = table.group_by("hour").aggregate(
        [
            ("at", "count"),
            ("lag_messages", "max"),
            ("lag_messages", "mean"),
            ("lag_bytes", "max"),
            ("lag_ms", "max"),
        ]
    )
    rows: list[dict[str, Any]] = grouped.rename_columns(
        {"at_count": "samples"} | {name: name for name in grouped.column_names if name != "at_count"}
    ).to_pylist()
    return [{key: value if value is not None else 0 for key, value in row.items()} for row in rows]


def offline_intervals(
    at: Ints, kinds: npt.NDArray[Any], offlined: npt.NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """(starts, ends) in ms between each event that says offlined and the one that follows it. What comes after the
    last event isn't known yet and counts in the next run."""
    starts, ends = at[:-1], at[1:]
    ends = np.where(kinds[1:] == "connect", np.minimum(ends, starts + UNSEEN_MS), ends)
    return starts[offlined[:-1]], ends[offlined[:-1]]


def offline_ms_by_hour(starts: Ints, ends: Ints) -> dict[int, int]:
    """Milliseconds of the intervals in each hour they touch."""
    found: Counter[int] = Counter()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        while start < end:
            hour = start // HOUR_MS
            stop = min(end, (hour + 1) * HOUR_MS)
            found[hour] += stop - start
            start = stop
    return dict(found)


def merge_hours(before: pa.Table, fresh: pa.Table, from_us: int) -> pa.Table:
    """What was known of the hours before `from_us`, and what is known now of those from it on; by client and hour."""
    edge = pa.scalar(from_us, pa.int64()).cast(CLIENT_HOURS.field("hour").type)
    kept = before.filter(pc.less(before.column("hour"), edge))
    new = fresh.filter(pc.greater_equal(fresh.column("hour"), edge))
    return pa.concat_tables([kept, new]).sort_by([("client", "ascending"), ("hour", "ascending")])
