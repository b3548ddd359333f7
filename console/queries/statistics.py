"""Figures over time of a client, a transport, a pool or the instance: from Redis by the second, else from the database."""

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
KINDS = ("client", *(str(kind) for kind in ScopeKind))
SAMPLES_KEPT = timedelta(hours=24)
_ON_ITS_WAY = timedelta(minutes=10)
"""Who asks for just as long as minutes are kept asks by a clock of its own, and a moment before it is answered."""
_CLIENT = ("lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes")
DELAYS = ("delay_p50_ms", "delay_p99_ms")
"""Of the instance, and not by the second: they are of ten."""
_RATE = {10: "rate_out_messages", 60: "rate_out_messages", 3600: "rate_max"}
"""Where rows so many seconds long have a client's rate; of an hour it is the highest."""


class TimeSeries(TypedDict):
    """Points oldest first; `at` is seconds UTC, the beginning of a step, of which the highest values are kept."""

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
    """The figures in [start, end), of a group of one `member` or of all. The step, in seconds, is made longer where there would be over MAX_POINTS points, and
    where nothing finer is kept or Redis is away. Raises OperatorError bad_range, bad_kind."""
    if of not in KINDS:
        raise OperatorError(
            "bad_kind", f"There are no statistics of {of[:50]!r}.", f"Use {', '.join(KINDS)}."
        )
    if start >= end:
        raise OperatorError(
            "bad_range", "`from` must be before `to`.", "Give moments like 2026-11-21T10:00:00Z."
        )
    least = max(step, -(-int((end - start).total_seconds()) // MAX_POINTS))
    found: Iterable[Mapping[str, Any]] | None = None
    if least < 10 and start >= now - timedelta(seconds=seconds_ring.SECONDS + 5):
        with suppress(OperatorError):
            # Redis may have started a moment ago: then the database knows more than nothing.
            found = _seconds(instance, of, name, start, end, member) or None
    if found is not None:
        source = "seconds"
    elif start >= now - SAMPLES_KEPT and least < 60:
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
    """One point a step: the highest of each number, and a state other than live if there was one."""
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
    """Hours as far as there are any, and minutes where there are none: the newest isn't over, or the lake hasn't them (yet)."""
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
    """By the second, from Redis. Raises OperatorError redis_away."""
    since, until = int(start.timestamp()), int(end.timestamp())
    if of == "client":
        return seconds_ring.read_seconds(instance.name, of, name, since, until)
    found = [
        seconds_ring.read_seconds(format_broker_name(instance.name, one), of, name, since, until)
        for one in ((member,) if member else members_of(instance.name))
    ]
    return found[0] if len(found) == 1 else list(sum_members(merge(*found, key=itemgetter("at"))))


def sum_members(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of the same moment, of several members, as one: their sum, and of delays the longest. They come in order."""
    held: dict[str, Any] | None = None
    for row in rows:
        if held is None or row["at"] != held["at"]:
            if held is not None:
                yield held
            held = dict(row)
            continue
        for key, value in row.items():
            if key in DELAYS:
                held[key] = max(filter(None, (held[key], value)), default=None)
            elif key not in ("at", "state"):
                held[key] += value
    if held is not None:
        yield held


def _rows(
    instance: Instance, of: str, name: str, start: datetime, end: datetime, seconds: int, member: str
) -> Iterable[Mapping[str, Any]]:
    if of == "client":
        model = {10: ClientSample, 60: ClientMinute, 3600: ClientHour}[seconds]
        rows = model._default_manager.filter(instance=instance, client=name, at__gte=start, at__lt=end)
        found = rows.order_by("at").values("at", "state", *_CLIENT, rate=F(_RATE[seconds]))
        return ({"rate_out_messages": row.pop("rate"), **row} for row in found.iterator(2_000))
    places = ResourceSample.objects.filter(
        instance=instance, kind=of, name=name, seconds=seconds, at__gte=start, at__lt=end
    )
    if member:
        places = places.filter(member=member)
    return sum_members(
        places.order_by("at").values("at", *seconds_ring.NUMBERS["place"], *DELAYS).iterator(2_000)
    )
