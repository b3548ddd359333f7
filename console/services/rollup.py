"""Rollup of metrics, once a minute: 10 s samples into minutes, minutes of resources into hours.

Also deletes rows past their retention.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, cast

from django.conf import settings
from django.db.models import Avg, Case, IntegerField, Max, QuerySet, Value, When

from console.models import ClientHour, ClientMinute, ClientSample, ResourceSample

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
# The reporter retries while the database is away, so samples may arrive late: the rollup waits for them.
SETTLED = timedelta(seconds=30)
MAX_MINUTES = 30
"""Maximum minutes that one call rolls up after an interruption; the next call continues."""
MAX_HOURS = 24
FORGET_AT_ONCE = 20_000
_NUMBERS = ("lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes")
_MEANS = ("messages_in", "messages_out", "bytes_in", "bytes_out")
_PEAKS = (
    "clients",
    "offlined",
    "lag_messages",
    "memory_used",
    "memory_limit",
    "disk_used",
    "disk_limit",
    "delay_p50_ms",
    "delay_p99_ms",
)
_WORST = ("live", "replaying", "draining", "offlined")


def write_rollups(now: datetime) -> int:
    """Roll up all finished minutes and hours that are missing, and return the number of rows. Idempotent.

    One call makes at most `MAX_MINUTES` minutes and `MAX_HOURS` hours. Minutes of the last 30 s wait for
    late samples.
    """
    end = (now - SETTLED).replace(second=0, microsecond=0)
    made, start = 0, _unmade(60, 10, MINUTE)
    for _ in range(MAX_MINUTES):
        if start is None or start >= end:
            break
        made += _minute(start)
        start += MINUTE
    hour = _unmade(3600, 60, HOUR)
    for _ in range(MAX_HOURS):
        if hour is None or start is None or hour + HOUR > start:
            break
        made += _write_rollup(hour, HOUR, 60, 3600)
        hour += HOUR
    return made


def _unmade(seconds: int, finer: int, step: timedelta) -> datetime | None:
    """Return the start of the first span that has samples but isn't rolled up yet, or None.

    After hours without a broker, that isn't the span that follows the newest one.

    Args:
        seconds: Length of the rows to create.
        finer: Length of the rows they are made from.
        step: Length of the span, `MINUTE` or `HOUR`.
    """
    newest = ResourceSample.objects.filter(seconds=seconds).aggregate(at=Max("at"))["at"]
    rows = ResourceSample.objects.filter(seconds=finer, **({"at__gte": newest + step} if newest else {}))
    at = rows.order_by("at").values_list("at", flat=True).first()
    if at is None:
        return None
    return (
        at.replace(second=0, microsecond=0)
        if step == MINUTE
        else at.replace(minute=0, second=0, microsecond=0)
    )


def _minute(start: datetime) -> int:
    """Roll up one minute of every client and resource, and return the number of rows.

    The resources come last, because `_unmade` takes their rows as proof that the minute is complete.
    """
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
    found = worst.annotate(
        rank=Max(rank), mean_rate=Avg("rate_out_messages"), **{name: Max(name) for name in _NUMBERS}
    )
    rows = cast("Iterable[dict[str, Any]]", found)  # a TypedDict loses no key
    clients = [
        ClientMinute(at=start, state=_WORST[row.pop("rank")], rate_out_messages=row.pop("mean_rate"), **row)
        for row in rows
    ]
    ClientMinute.objects.bulk_create(clients, batch_size=500, ignore_conflicts=True)
    return len(clients) + _write_rollup(start, MINUTE, 10, 60)


def _write_rollup(start: datetime, span: timedelta, finer: int, seconds: int) -> int:
    """Write means and peaks of every resource over a span, and return the number of rows.

    Rows of `finer` seconds are read, rows of `seconds` written.
    """
    groups = ResourceSample.objects.filter(seconds=finer, at__gte=start, at__lt=start + span).order_by()
    found = groups.values("instance_id", "member", "kind", "name").annotate(
        **{f"mean_{name}": Avg(name) for name in _MEANS}, **{f"peak_{name}": Max(name) for name in _PEAKS}
    )
    samples = [
        ResourceSample(at=start, seconds=seconds, **{_bare(key): value for key, value in row.items()})
        for row in found
    ]
    ResourceSample.objects.bulk_create(samples, batch_size=500, ignore_conflicts=True)
    return len(samples)


def _bare(key: str) -> str:
    """Return a column's name without the prefix of its aggregate."""
    return key.removeprefix("mean_").removeprefix("peak_")


def delete_old_samples(now: datetime) -> int:
    """Delete samples, minutes and hours past their retention, and return the number of rows.

    At most `FORGET_AT_ONCE` rows of a table per call, so that writers never wait long.
    """
    day = now - timedelta(hours=settings.SLUICE_SAMPLE_RETENTION_HOURS)
    weeks = now - timedelta(days=settings.SLUICE_MINUTE_RETENTION_DAYS)
    months = now - timedelta(days=settings.SLUICE_HOUR_RETENTION_DAYS)
    return sum(
        _forget(rows)
        for rows in (
            ClientSample.objects.filter(at__lt=day),
            ClientMinute.objects.filter(at__lt=weeks),
            ClientHour.objects.filter(at__lt=months),
            ResourceSample.objects.filter(seconds=10, at__lt=day),
            ResourceSample.objects.filter(seconds=60, at__lt=weeks),
            ResourceSample.objects.filter(seconds=3600, at__lt=months),
        )
    )


def _forget(rows: QuerySet[Any]) -> int:
    chosen = rows.order_by("at").values_list("pk", flat=True)[:FORGET_AT_ONCE]
    deleted = rows.model.objects.filter(pk__in=list(chosen))
    # A raw delete skips the search for related rows: no table refers to samples.
    return int(deleted._raw_delete(deleted.db) or 0)
