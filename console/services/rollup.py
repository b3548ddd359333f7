"""Turns samples of ten seconds into minutes, and forgets what has been kept long enough. Run each minute."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Avg, Case, IntegerField, Max, QuerySet, Value, When

from console.models import ClientMinute, ClientSample, PlaceSample

MINUTE = timedelta(minutes=1)
# Samples of a minute may arrive late (the reporter tries again while the database is away), so it is rolled up a bit after.
SETTLED = timedelta(seconds=30)
MOST_MINUTES = 30
"""Minutes made up for in one call after nobody rolled up for a while; the next call takes the next."""
FORGET_AT_ONCE = 20_000
_NUMBERS = ("lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes")
_MEANS = ("messages_in", "messages_out", "bytes_in", "bytes_out")
_PEAKS = ("clients", "offlined", "lag_messages", "memory_used", "memory_limit", "disk_used", "disk_limit")
_WORST = ("live", "replaying", "draining", "offlined")


def roll_up(now: datetime) -> int:
    """Make the minutes that are over and aren't made yet; returns how many rows. Calling it twice does no harm."""
    end = (now - SETTLED).replace(second=0, microsecond=0)
    newest = PlaceSample.objects.filter(seconds=60).aggregate(at=Max("at"))["at"]
    oldest = PlaceSample.objects.filter(seconds=10).order_by("at").values_list("at", flat=True).first()
    if oldest is None:
        return 0
    start = (newest + MINUTE) if newest else oldest.replace(second=0, microsecond=0)
    made = 0
    for _ in range(MOST_MINUTES):
        if start >= end:
            break
        made += _minute(start)
        start += MINUTE
    return made


def _minute(start: datetime) -> int:
    """One minute of every client and place, the places last: their rows say that the minute is made."""
    rank = Case(
        *(When(state=state, then=Value(number)) for number, state in enumerate(_WORST)),
        default=Value(0),
        output_field=IntegerField(),
    )
    worst = (
        ClientSample.objects.filter(at__gte=start, at__lt=start + MINUTE)
        .order_by()
        .values("instance_id", "client")
    )
    clients = [
        ClientMinute(at=start, state=_WORST[row.pop("rank")], **row)
        for row in worst.annotate(rank=Max(rank), **{f"{name}": Max(name) for name in _NUMBERS})
    ]
    ClientMinute.objects.bulk_create(clients, batch_size=500, ignore_conflicts=True)
    groups = PlaceSample.objects.filter(seconds=10, at__gte=start, at__lt=start + MINUTE).order_by()
    found = groups.values("instance_id", "kind", "name").annotate(
        **{f"mean_{name}": Avg(name) for name in _MEANS}, **{f"peak_{name}": Max(name) for name in _PEAKS}
    )
    places = [
        PlaceSample(at=start, seconds=60, **{_bare(key): value for key, value in row.items()})
        for row in found
    ]
    PlaceSample.objects.bulk_create(places, batch_size=500, ignore_conflicts=True)
    return len(clients) + len(places)


def _bare(key: str) -> str:
    return key.removeprefix("mean_").removeprefix("peak_")


def forget_old(now: datetime) -> int:
    """Delete samples and minutes past their retention, some at a time so that writers never wait long."""
    day = now - timedelta(hours=settings.SLUICE_SAMPLE_RETENTION_HOURS)
    weeks = now - timedelta(days=settings.SLUICE_MINUTE_RETENTION_DAYS)
    return sum(
        _forget(rows)
        for rows in (
            ClientSample.objects.filter(at__lt=day),
            ClientMinute.objects.filter(at__lt=weeks),
            PlaceSample.objects.filter(seconds=10, at__lt=day),
            PlaceSample.objects.filter(seconds=60, at__lt=weeks),
        )
    )


def _forget(rows: QuerySet[Any]) -> int:
    chosen = rows.order_by("at").values_list("pk", flat=True)[:FORGET_AT_ONCE]
    deleted = rows.model.objects.filter(pk__in=list(chosen))
    return int(
        deleted._raw_delete(deleted.db) or 0
    )  # nothing points at samples: no need to look for what does
