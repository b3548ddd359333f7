"""History of a client: samples over time, and decisions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from console.models import ClientSample, Decision, Instance
from console.queries.client_scope import visible_rows

MAX_POINTS = 2_000
"""Maximum points of an answer."""
SAMPLE_S = 10
"""Seconds between two samples."""
NUMBERS = ("lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes", "rate_out_messages")
"""Numeric fields of a sample."""


def client_samples(
    instance: Instance, client: str, start: datetime, end: datetime, step_s: int = SAMPLE_S
) -> list[dict[str, Any]]:
    """Return a client's samples from `start` to before `end`; a longer step has the worst values of its
    samples.

    The step is increased if the answer would have more than `MAX_POINTS` points.
    """
    step = max(step_s, SAMPLE_S, -(-int((end - start).total_seconds()) // MAX_POINTS))
    rows = (
        ClientSample.objects.filter(instance=instance, client=client, at__gte=start, at__lt=end)
        .order_by("at")
        .values("at", "state", *NUMBERS)
    )
    points: list[dict[str, Any]] = []
    for row in rows.iterator(2_000):
        at = int(row["at"].timestamp())
        slot = at - at % step
        if points and points[-1]["at"] == slot:
            _worsen(points[-1], row)
        else:
            points.append({**row, "at": slot})
    return points


def recent_samples(instance: Instance, client: str, now: datetime, minutes: int = 60) -> list[dict[str, Any]]:
    """Return a client's samples of the last `minutes` minutes."""
    return client_samples(instance, client, now - timedelta(minutes=minutes), now)


def last_sample_time(instance: Instance, client: str) -> datetime | None:
    """Return the moment of a client's newest stored sample, or None."""
    newest = (
        ClientSample.objects.filter(instance=instance, client=client)
        .order_by("-at")
        .values_list("at", flat=True)
    )
    return newest.first()


def decisions(
    instance: Instance,
    *,
    client: str = "",
    action: str = "",
    since: datetime | None = None,
    patterns: Sequence[str] | None = None,
) -> QuerySet[Decision]:
    """Return decisions, newest first.

    Only clients whose names match one of `patterns` are included; None means all.
    """
    found = visible_rows(Decision.objects.filter(instance=instance), patterns)
    if client:
        found = found.filter(client=client)
    if action:
        found = found.filter(action=action)
    if since is not None:
        found = found.filter(at__gte=since)
    return found.select_related("instance")


def _worsen(point: dict[str, Any], row: dict[str, Any]) -> None:
    """Merge a row into a point: the highest of each number, and a state other than live."""
    for name in NUMBERS:
        if row[name] is not None:
            point[name] = max(point[name] or 0, row[name])
    if row["state"] != "live":
        point["state"] = row["state"]
