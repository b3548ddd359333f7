"""Growth, pool usage and reader lag, and the settings that follow from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

REPORT_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("slot", pa.int64()),
        ("count", pa.int64()),
        ("memory", pa.int64()),
        ("disk", pa.int64()),
    ]
)
"""A worker's report of a span. The columns depend on `kind`:

* `topic`: in the hour `slot`, records in `count`, bytes in `memory`
* `transport`: in the second `slot`, clients in `count`, and their usage
* `reader`: greatest age in ms of its oldest unsent record in `count`, and its peak usage
* `largest`: greatest memory of one client of a transport
* `away`: a client left (`count` 0) or came (1) at `slot`, ms
"""
HOUR_US: Final = 3_600_000_000
DAY_S: Final = 86_400
OTHERS: Final = "(others)"
PLOTTED: Final = 7
PERCENTS: Final = (50.0, 90.0, 99.0, 99.9)
ENOUGH_S: Final = 3_600
"""Minimum seconds of data for daily figures: a burst isn't a day's traffic."""
TREND_DAYS: Final = 3
"""Minimum whole days for a trend."""
RESERVE: Final = 1.5
"""Factor of recommendations over the observed need."""
FULL_SOON_DAYS: Final = 30

Floats = npt.NDArray[np.float64]


class DiskVolume(NamedTuple):
    """A file system with directories of this installation. `grows`: bytes a day."""

    directories: str
    used: int
    free: int
    grows: float

    @property
    def days(self) -> float | None:
        """Days until it is full; None if it doesn't grow."""
        return self.free / self.grows if self.grows > 0 else None


def by_topic(rows: pa.Table, hours: float) -> pa.Table:
    """Return records and bytes of each topic, largest first.

    Daily figures need an hour of data. `change_percent_a_week` is the trend of the daily bytes.
    """
    rows = rows.filter(pc.equal(rows.column("kind"), "topic"))
    sums = rows.group_by("name").aggregate([("count", "sum"), ("memory", "sum")]).to_pylist()
    total = sum(row["memory_sum"] for row in sums) or 1
    trends = _growth_trends(rows)
    tables = [
        {
            "topic": row["name"],
            "records": row["count_sum"],
            "bytes": row["memory_sum"],
            "bytes_a_day": round(row["memory_sum"] * 24 / hours) if hours * 3_600 >= ENOUGH_S else None,
            "share_percent": round(100 * row["memory_sum"] / total, 2),
            "change_percent_a_week": trends.get(row["name"]),
        }
        for row in sums
    ]
    tables.sort(key=lambda row: (-row["bytes"], row["topic"]))
    kinds = [
        ("topic", pa.string()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("bytes_a_day", pa.int64()),
    ]
    return pa.Table.from_pylist(
        tables,
        schema=pa.schema([*kinds, ("share_percent", pa.float64()), ("change_percent_a_week", pa.float64())]),
    )


def hourly_growth(rows: pa.Table, topics: pa.Table) -> pa.Table:
    """Return bytes by hour of the largest topics and of all others together, for a plot."""
    largest = topics.column("topic").to_pylist()[:PLOTTED]
    sums: dict[tuple[int, int], int] = {}
    names = [*largest, OTHERS]
    rank = {name: number for number, name in enumerate(largest)}
    for row in rows.filter(pc.equal(rows.column("kind"), "topic")).to_pylist():
        key = (rank.get(row["name"], len(largest)), row["slot"])
        sums[key] = sums.get(key, 0) + row["memory"]
    rows = [
        {"topic": names[number], "hour": hour * HOUR_US, "bytes": size}
        for (number, hour), size in sorted(sums.items())
    ]
    moment = pa.timestamp("us", "UTC")
    return pa.Table.from_pylist(
        rows, schema=pa.schema([("topic", pa.string()), ("hour", moment), ("bytes", pa.int64())])
    )


def pool_use(
    rows: pa.Table, pools: Mapping[str, str]
) -> dict[str, tuple[npt.NDArray[np.int64], Floats, Floats]]:
    """Return for each pool: seconds with usage, ascending, their memory and their disk.

    `pools` maps a transport to its pool.
    """
    rows = rows.filter(pc.equal(rows.column("kind"), "transport"))
    if not rows.num_rows:
        return {}
    names = pa.array([pools.get(name, name) for name in rows.column("name").to_pylist()])
    table = pa.table(
        {
            "pool": names,
            "slot": rows.column("slot"),
            "memory": rows.column("memory"),
            "disk": rows.column("disk"),
        }
    )
    sums = table.group_by(["pool", "slot"]).aggregate([("memory", "sum"), ("disk", "sum")]).sort_by("slot")
    found = {}
    for name in sorted(set(names.to_pylist())):
        pool_rows = sums.filter(pc.equal(sums.column("pool"), name))
        memory, disk = (
            pool_rows.column(f"{of}_sum").to_numpy().astype(np.float64) for of in ("memory", "disk")
        )
        found[name] = (pool_rows.column("slot").to_numpy(), memory, disk)
    return found


def percentile(values: Floats, percent: float, seconds: int) -> float:
    """Return a percentile over `seconds` values. Those that aren't in `values` are 0."""
    above = math.floor(seconds * (1 - percent / 100))
    return float(np.sort(values)[::-1][above]) if above < len(values) else 0.0


def days_until_limit(limit: float, slots: npt.NDArray[np.int64], values: Floats) -> float | None:
    """Return days until the daily peak reaches a limit at its present growth; None without growth or data."""
    days = np.asarray(slots) // DAY_S
    peaks = {int(day): float(values[days == day].max()) for day in np.unique(days)}
    fit = _fit_line(peaks)
    if fit is None or fit[0] <= 0:
        return None
    slope, newest = fit
    return round(max(0.0, (limit - newest) / slope), 1)


def reader_lag(rows: pa.Table) -> list[dict[str, Any]]:
    """Return how far back each client reached, farthest first.

    That is the age of its oldest unsent record, plus the longest time that it was away before it returned.
    """
    lags, peaks = dict[str, int](), dict[str, tuple[int, int]]()
    for row in rows.filter(pc.equal(rows.column("kind"), "reader")).to_pylist():
        name, (memory, disk) = row["name"], peaks.get(row["name"], (0, 0))
        lags[name] = max(lags.get(name, 0), row["count"])
        peaks[name] = (max(memory, row["memory"]), max(disk, row["disk"]))
    absences = _absences(rows.filter(pc.equal(rows.column("kind"), "away")))
    found = [
        {
            "client": name,
            "behind_s": round(lags.get(name, 0) / 1_000, 1),
            "away_s": round(absences.get(name, 0) / 1_000, 1),
            "reaches_back_s": round((lags.get(name, 0) + absences.get(name, 0)) / 1_000, 1),
            "peak_memory": peaks.get(name, (0, 0))[0],
            "peak_disk": peaks.get(name, (0, 0))[1],
        }
        for name in lags.keys() | absences.keys()
    ]
    return sorted(found, key=lambda row: (-row["reaches_back_s"], row["client"]))


def max_share(rows: pa.Table, limits: Mapping[str, int]) -> float:
    """Return the greatest share of one client in its pool's memory, in percent. `limits`: by transport."""
    rows = rows.filter(pc.equal(rows.column("kind"), "largest")).to_pylist()
    return max(
        (100 * row["memory"] / limits[row["name"]] for row in rows if limits.get(row["name"])), default=0.0
    )


def setting_advice(
    pools: Sequence[Mapping[str, Any]],
    reach_s: float,
    covered_s: float,
    retention_s: float | None,
    volumes: Iterable[DiskVolume],
    capacity: int,
    largest: float,
) -> list[dict[str, str]]:
    """Return recommended settings: present value, recommended value and reason.

    `reach_s`: how far back the slowest reader reached; `covered_s`: seconds that the log covers;
    `retention_s`: seconds until removal, None for never; `capacity`: client_max_capacity in percent;
    `largest`: the largest client's share of its pool's memory in percent.
    """
    found = []
    for pool in pools:
        setting = f"{pool['pool']}: {pool['of']} limit"
        peak, limit = pool["peak"], pool["limit"]
        if peak > 0.8 * limit:
            enough = _round_up(peak * RESERVE)
            reason = (
                f"its peak was {_format_size(peak)}, {100 * peak / limit:.0f} % of the limit: clients were "
                "close to being acted on, or were."
            )
            found.append(_row(setting, _format_size(limit), _format_size(max(enough, limit)), reason))
        elif 0 < peak < 0.05 * limit:
            reason = (
                f"its peak was {_format_size(peak)}, {100 * peak / limit:.1f} % of the limit: the "
                "limit has no effect. Retain it only for future bursts."
            )
            found.append(_row(setting, _format_size(limit), _format_size(_round_up(peak * 4)), reason))
        if pool["days_to_limit"] is not None and pool["days_to_limit"] < FULL_SOON_DAYS:
            reason = f"its daily peak grows and is at the limit in {pool['days_to_limit']:.0f} days."
            found.append(_row(setting, _format_size(limit), _format_size(_round_up(limit * 2)), reason))
    need = _hours(reach_s * RESERVE)
    if reach_s > 0:
        reached, covered = _format_span(reach_s), _format_span(covered_s)
        reason = f"the slowest reader reached back {reached}; the log covered {covered} at the end."
        word = need if retention_s is not None and reach_s * RESERVE > retention_s else f"{need} at least"
        now = "nothing is removed" if retention_s is None else _format_span(retention_s)
        found.append(_row("journal retention", now, word, reason))
    if largest > 0.8 * capacity:
        reason = (
            f"one client used {largest:.0f} % of its pool's memory, near the {capacity} % at which "
            "it is offlined."
        )
        found.append(
            _row(
                "client_policy.client_max_capacity",
                f"{capacity} %",
                f"{min(100, max(capacity, 5 * math.ceil(largest * RESERVE / 5)))} %",
                reason,
            )
        )
    for volume in volumes:
        if volume.days is not None and volume.days < FULL_SOON_DAYS:
            reason = (
                f"{volume.directories} grow by {_format_size(volume.grows)} a day, and "
                f"{_format_size(volume.free)} are free: full in {volume.days:.1f} days."
            )
            found.append(
                _row(
                    f"disk of {volume.directories}",
                    f"{volume.days:.1f} days",
                    f"{FULL_SOON_DAYS} days",
                    reason + " Compress, archive elsewhere, or remove sooner.",
                )
            )
    return found


def _row(setting: str, now: str, recommended: str, reason: str) -> dict[str, str]:
    return {
        "setting": setting,
        "now": now,
        "recommended": recommended,
        "why": reason[:1].upper() + reason[1:],
    }


def _absences(rows: pa.Table) -> dict[str, int]:
    """Return the longest absence of each client that returned, ms."""
    found: dict[str, int] = {}
    disconnected_at: dict[str, int] = {}
    for row in rows.sort_by("slot").to_pylist():
        if row["count"] == 0:
            disconnected_at[row["name"]] = row["slot"]
        elif row["name"] in disconnected_at:
            absence = row["slot"] - disconnected_at.pop(row["name"])
            found[row["name"]] = max(found.get(row["name"], 0), absence)
    return found


def _growth_trends(rows: pa.Table) -> dict[str, float]:
    days: dict[str, dict[int, float]] = {}
    for row in rows.to_pylist():
        client_days = days.setdefault(row["name"], {})
        client_days[row["slot"] // 24] = client_days.get(row["slot"] // 24, 0.0) + row["memory"]
    # the first and the last day are incomplete
    every = sorted({day for client_days in days.values() for day in client_days})[1:-1]
    found = {}
    for name, client_days in days.items():
        fit = _fit_line({day: client_days.get(day, 0.0) for day in every})
        mean = sum(client_days.get(day, 0.0) for day in every) / len(every) if every else 0.0
        if fit is not None and mean:
            found[name] = round(100 * 7 * fit[0] / mean, 1)
    return found


def _fit_line(points: Mapping[int, float]) -> tuple[float, float] | None:
    """Return (slope a day, value at the newest day) of the line through the points."""
    if len(points) < TREND_DAYS:
        return None
    xs, ys = np.array(sorted(points), np.float64), np.array([points[day] for day in sorted(points)])
    slope, start = np.polyfit(xs - xs[-1], ys, 1)
    return float(slope), float(start)


def _round_up(size: float) -> float:
    """Round up to a multiple of 16 MiB, a usual setting."""
    return math.ceil(max(size, 1) / 2**24) * 2**24


def _format_size(size: float) -> str:
    for unit, word in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.3g} {word}"
    return f"{size:.0f} bytes"


def _format_span(seconds: float) -> str:
    for unit, word in ((DAY_S, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {word}"
    return f"{seconds:.1f} seconds"


def _hours(seconds: float) -> str:
    hours = max(1, math.ceil(seconds / 3_600))
    return f"{hours} hour{'s' if hours > 1 else ''}"
