"""Statistics over time of a client, a transport, a pool or the instance.

The last 15 minutes come from Redis by the second, older data from the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from heapq import merge
from operator import itemgetter
from typing import Any, TypedDict

from django.conf import settings
from django.db.models import F

from broker_core.errors import OperatorError
from console.broker_addresses import format_broker_name
from console.broker_link import members_of
from console.choices import ScopeKind
from console.live import seconds_ring
from console.models import ClientHour, ClientMinute, ClientSample, Instance, ResourceSample

MAX_POINTS = 2_000
"""Maximum points of a series."""
KINDS = ("client", *(str(kind) for kind in ScopeKind))
"""Subjects of statistics."""
SAMPLE_RETENTION = timedelta(hours=24)
"""Retention of 10-second samples."""
_ON_ITS_WAY = timedelta(minutes=10)
"""Tolerance for the retention of minutes.

A caller that requests the whole retention uses its own clock, and its request takes a moment.
"""
_CLIENT = ("lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes")
"""Numeric columns of a client."""
DELAYS = ("delay_p50_ms", "delay_p99_ms")
"""Latency percentiles of the instance. They cover 10 seconds each, so there are none by the second."""
_RATE = {10: "rate_out_messages", 60: "rate_out_messages", 3600: "rate_max"}
"""Column of a client's rate by the rows' seconds. For an hour it is the maximum."""


class TimeSeries(TypedDict):
    """Series of points, oldest first.

    `at` is the start of a step in seconds UTC; each point has the highest values of its step.
    """

    of: str
    name: str
    source: str
    step: int
    points: list[dict[str, Any]]


def time_series(
    instance: Instance,
    of: str,
    name: str,
    start: datetime,
    end: datetime,
    step: int,
    now: datetime,
    member: str = "",
) -> TimeSeries:
    """Return the statistics in [start, end), in a group of one `member` or of all.

    `step` is in seconds. It is increased if there would be more than `MAX_POINTS` points, if no finer data
    is stored, or while Redis is unavailable. Raises OperatorError `bad_range` or `bad_kind`.
    """
    if of not in KINDS:
        raise OperatorError(
            "bad_kind", f"The type of statistics {of[:50]!r} is unknown.", f"Use {', '.join(KINDS)}."
        )
    if start >= end:
        raise OperatorError(
            "bad_range", "`from` must be before `to`.", "Use times such as 2026-11-21T10:00:00Z."
        )
    # Choose the finest stored resolution that reaches back to `start`. A coarser source increases the step.
    least = max(step, -(-int((end - start).total_seconds()) // MAX_POINTS))
    found: Iterable[Mapping[str, Any]] | None = None
    if least < 10 and start >= now - timedelta(seconds=seconds_ring.SECONDS + 5):
        with suppress(OperatorError):
            # Redis may have started a moment ago: then the database knows more than nothing.
            found = _seconds(instance, of, name, start, end, member) or None
    if found is not None:
        source = "seconds"
    elif start >= now - SAMPLE_RETENTION and least < 60:
        found, source, least = _rows(instance, of, name, start, end, 10, member), "samples", max(least, 10)
    elif start >= now - timedelta(days=settings.SLUICE_MINUTE_RETENTION_DAYS) - _ON_ITS_WAY:
        found, source, least = _rows(instance, of, name, start, end, 60, member), "minutes", max(least, 60)
    else:
        found, source, least = (
            _hours(instance, of, name, start, end, member),
            "hours",
            -(-least // 3600) * 3600,
        )
    return {"of": of, "name": name, "source": source, "step": least, "points": downsample(found, least)}


def downsample(rows: Iterable[Mapping[str, Any]], step: int) -> list[dict[str, Any]]:
    """Return one point per step: the highest of each number, and a state other than live if there was one."""
    points: list[dict[str, Any]] = []
    for row in rows:
        at = int(row["at"] if isinstance(row["at"], int) else row["at"].timestamp())
        slot = at - at % step
        if not points or points[-1]["at"] != slot:
            points.append({**row, "at": slot})
            continue
        point = points[-1]
        for key, value in row.items():
            if key == "state":
                point[key] = value if value != "live" else point[key]
            elif key != "at" and value is not None:
                known = point.get(key)
                point[key] = value if known is None else max(known, value)
    return points


def _hours(
    instance: Instance, of: str, name: str, start: datetime, end: datetime, member: str
) -> Iterator[Mapping[str, Any]]:
    """Return rows of hours, and rows of minutes where an hour is missing.

    The newest hour is not over, and the lake may lack others.
    """
    hours = list(_rows(instance, of, name, start, end, 3600, member))
    there = {row["at"] for row in hours}
    minutes = (
        row
        for row in _rows(instance, of, name, start, end, 60, member)
        if row["at"].replace(minute=0, second=0) not in there
    )
    return merge(hours, minutes, key=itemgetter("at"))


def _seconds(
    instance: Instance, of: str, name: str, start: datetime, end: datetime, member: str
) -> list[dict[str, Any]]:
    """Return rows by the second from Redis. Raises OperatorError `redis_away`."""
    since, until = int(start.timestamp()), int(end.timestamp())
    if of == "client":
        return seconds_ring.read_seconds(instance.name, of, name, since, until)
    found = [
        seconds_ring.read_seconds(format_broker_name(instance.name, one), of, name, since, until)
        for one in ((member,) if member else members_of(instance.name))
    ]
    return found[0] if len(found) == 1 else list(sum_members(merge(*found, key=itemgetter("at"))))


def sum_members(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield one row per moment for rows of several members, which must be in order of time.

    Numbers are added. For latencies the maximum is taken.
    """
    merged: dict[str, Any] | None = None
    for row in rows:
        if merged is None or row["at"] != merged["at"]:
            if merged is not None:
                yield merged
            merged = dict(row)
            continue
        for key, value in row.items():
            if key in DELAYS:
                merged[key] = max(filter(None, (merged[key], value)), default=None)
            elif key not in ("at", "state"):
                merged[key] += value
    if merged is not None:
        yield merged


def _rows(
    instance: Instance, of: str, name: str, start: datetime, end: datetime, seconds: int, member: str
) -> Iterable[Mapping[str, Any]]:
    """Return stored rows of `seconds` each, from the database."""
    if of == "client":
        model = {10: ClientSample, 60: ClientMinute, 3600: ClientHour}[seconds]
        rows = model._default_manager.filter(instance=instance, client=name, at__gte=start, at__lt=end)
        found = rows.order_by("at").values("at", "state", *_CLIENT, rate=F(_RATE[seconds]))
        return ({"rate_out_messages": row.pop("rate"), **row} for row in found.iterator(2_000))
    samples = ResourceSample.objects.filter(
        instance=instance, kind=of, name=name, seconds=seconds, at__gte=start, at__lt=end
    )
    if member:
        samples = samples.filter(member=member)
    return sum_members(
        samples.order_by("at").values("at", *seconds_ring.NUMBERS["place"], *DELAYS).iterator(2_000)
    )
