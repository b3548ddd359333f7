"""Data of the overview page: current health, lag heatmap, marks on the time axis, and a forecast of disk
usage.
"""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

from django.db.models import Count, F, Max, QuerySet
from django.db.models.functions import Trunc

from broker_core.documents.clients import ClientEntry, Health
from broker_core.documents.journals import SegmentEntry
from broker_core.errors import SluiceError
from console import current_instance
from console.broker_link import is_on_this_machine
from console.models import (
    ActionRun,
    ClientHour,
    ClientMinute,
    ClientSample,
    Decision,
    Instance,
    PolicyRevision,
)
from console.queries import live
from console.queries.client_scope import visible_rows
from console.queries.clients import ClientSequence
from console.queries.system_conditions import broker_restarts

HEAT_ROWS: Final = 24
"""Maximum clients in the heatmap."""
SAMPLE_VALID_S: Final = 75
"""Seconds for which a sample is valid; an idle client is sampled once a minute."""
MAX_MARKS: Final = 40
"""Maximum marks on the time axis."""
SLOW_MS: Final = (100, 1_000, 5_000)
"""Thresholds of lag in ms for the shades of a cell.

A cell up to the first is lightest, beyond the last darkest.
"""
HISTORY_MINUTES: Final = 15
"""Length of a history for forecast.js, in its "minutes"."""


class PlotRange(NamedTuple):
    """Selectable time range of a plot.

    `unit`: truncation of the samples' times in SQL. `minutes`: whether rows of minutes are read instead of
    samples.
    """

    key: str
    label: str
    span: timedelta
    step_s: int
    unit: str
    minutes: bool


RANGES: Final = {
    one.key: one
    for one in (
        PlotRange("15m", "15 min", timedelta(minutes=15), 10, "second", minutes=False),
        PlotRange("3h", "3 h", timedelta(hours=3), 120, "minute", minutes=False),
        PlotRange("24h", "24 h", timedelta(hours=24), 900, "minute", minutes=False),
        PlotRange("7d", "7 d", timedelta(days=7), 7_200, "hour", minutes=True),
        PlotRange("14d", "14 d", timedelta(days=14), 14_400, "hour", minutes=True),
        PlotRange("90d", "90 d", timedelta(days=90), 86_400, "day", minutes=True),
    )
}
"""Selectable ranges by key."""
ATTENTION_STATES: Final = (Health.STALLED, Health.FLAPPING, Health.FALLING_BEHIND, Health.NOT_RECORDED)
"""Health states that require attention, worst first."""


class OverviewVerdict(NamedTuple):
    """Number of clients by health, and the client that needs attention most."""

    total: int
    healths: dict[Health, int]
    worst: ClientEntry | None

    @property
    def keeping_up(self) -> int:
        """Number of clients that keep up."""
        return self.healths.get(Health.KEEPS_UP, 0)

    @property
    def needing_attention(self) -> list[tuple[Health, int]]:
        """Health states that require attention and occur, with their number of clients."""
        return [(health, self.healths[health]) for health in ATTENTION_STATES if self.healths.get(health)]


def current_verdict(patterns: Sequence[str] | None) -> OverviewVerdict:
    """Return the current health of the visible clients. Raises BrokerUnavailable."""
    everyone = ClientSequence(patterns=patterns)
    first = everyone[0:1]
    healths: dict[Health, int] = {
        health: len(ClientSequence(patterns=patterns, health=health))
        for health in Health
        if health is not Health.KEEPS_UP
    }
    total = len(everyone)
    healths[Health.KEEPS_UP] = max(0, total - sum(healths.values()))
    worst = first[0] if first and first[0].health in ATTENTION_STATES else None
    return OverviewVerdict(total, healths, worst)


def lag_heatmap(
    instance: Instance, chosen: PlotRange, now: datetime, patterns: Sequence[str] | None
) -> dict[str, Any]:
    """Return the lag of the worst clients over time, a row each.

    A row has runs of [cells, level, on disk]; level -1 is a time without samples. Only current lag is
    coloured: cells since the client's oldest waiting record was accepted show its current health. Cells of
    earlier lag, and ambiguous ones, are grey. Raises BrokerUnavailable.
    """
    end = int(now.timestamp()) // chosen.step_s * chosen.step_s + chosen.step_s
    start = end - int(chosen.span.total_seconds())
    number = (end - start) // chosen.step_s
    clients = ClientSequence(patterns=patterns)[0:HEAT_ROWS]
    names = [one.name for one in clients]
    found = _cells(instance, chosen, names, start, end)
    if chosen.unit == "day":
        _add_hours(found, instance, names, start, chosen.step_s)
    return {
        "from": start,
        "to": end,
        "cells": number,
        "rows": [
            _row(
                one,
                found.get(one.name, {}),
                number,
                max(1, SAMPLE_VALID_S // chosen.step_s),
                _open_from(one, start, chosen.step_s, now),
            )
            for one in clients
        ],
        "marks": time_marks(instance, datetime.fromtimestamp(start, UTC)),
    }


def _cells(
    instance: Instance, chosen: PlotRange, names: list[str], start: int, end: int
) -> dict[str, dict[int, tuple[int, bool]]]:
    """Return the greatest lag in ms, and whether the client had a spool, by client and cell."""
    model = ClientMinute if chosen.minutes else ClientSample
    rows = model._default_manager.filter(
        instance=instance,
        client__in=names,
        at__gte=datetime.fromtimestamp(start, UTC),
        at__lt=datetime.fromtimestamp(end, UTC),
    ).order_by()
    values: QuerySet[Any, Mapping[str, Any]]
    if chosen.unit == "second":
        values = rows.values("client", "spool_bytes", slot=F("at"), lag=F("lag_ms"), disk=F("spool_bytes"))
    else:
        cut = Trunc("at", chosen.unit, tzinfo=UTC)
        values = (
            rows.annotate(slot=cut)
            .values("client", "slot")
            .annotate(lag=Max("lag_ms"), disk=Max("spool_bytes"))
        )
    found: dict[str, dict[int, tuple[int, bool]]] = {}
    for row in values.iterator(2_000):
        cells = found.setdefault(row["client"], {})
        cell = (int(row["slot"].timestamp()) - start) // chosen.step_s
        lag, disk = cells.get(cell, (0, False))
        cells[cell] = (max(lag, row["lag"]), disk or row["disk"] > 0)
    return found


def _add_hours(
    found: dict[str, dict[int, tuple[int, bool]]],
    instance: Instance,
    names: list[str],
    start: int,
    step_s: int,
) -> None:
    """Add days whose minutes are no longer stored, from the hours that the pipeline computed.

    Without runs of the pipeline nothing is added.
    """
    rows = ClientHour.objects.filter(
        instance=instance, client__in=names, at__gte=datetime.fromtimestamp(start, UTC)
    )
    for row in rows.order_by().values("client", "at", "lag_ms", "offline_ms").iterator(2_000):
        cell = (int(row["at"].timestamp()) - start) // step_s
        cells = found.setdefault(row["client"], {})
        lag, disk = cells.get(cell, (0, False))
        cells[cell] = (max(lag, row["lag_ms"]), disk or row["offline_ms"] > 0)


def _open_from(client: ClientEntry, start: int, step_s: int, now: datetime) -> int:
    """Return the cell in which the client's oldest waiting record was accepted.

    The current lag can't have begun earlier.
    """
    return int(now.timestamp() - client.seconds_behind - start) // step_s


def _row(
    client: ClientEntry, cells: Mapping[int, tuple[int, bool]], number: int, holds: int, open_from: int
) -> dict[str, Any]:
    """Return a client's row of the heatmap."""
    levels: list[tuple[int, bool]] = []
    known: tuple[int, int, bool] | None = None
    for cell in range(number):
        if cell in cells:
            lag, disk = cells[cell]
            known = (cell, sum(lag > least for least in SLOW_MS), disk)
        # An idle client is sampled once a minute, so a sample stays valid for `holds` cells.
        levels.append((known[1], known[2]) if known is not None and cell - known[0] <= holds else (-1, False))
    if client.health in ATTENTION_STATES:
        colour = 5 if client.health is Health.STALLED else 4
        for cell in reversed(range(number)):
            if cell < number - 1 and (cell < open_from or levels[cell][0] < len(SLOW_MS) - 1):
                break
            levels[cell] = (colour, levels[cell][1])
    return {
        "name": client.name,
        "delivery": client.delivery,
        "health": client.health,
        "lag_ms": round(1_000 * client.seconds_behind),
        "runs": _runs(levels),
    }


def _runs(levels: Sequence[tuple[int, bool]]) -> list[list[int]]:
    """Return equal neighbouring cells as runs of [cells, level, on disk]."""
    runs: list[list[int]] = []
    for level, disk in levels:
        if runs and runs[-1][1:] == [level, int(disk)]:
            runs[-1][0] += 1
        else:
            runs.append([1, level, int(disk)])
    return runs


def time_marks(instance: Instance, since: datetime, client: str = "") -> list[dict[str, Any]]:
    """Return marks for a time axis, oldest first: restarts, revisions and, for one client, its decisions."""
    found: list[dict[str, Any]] = [
        {"at": at.timestamp(), "kind": "restart", "label": "restart"}
        for at in broker_restarts(instance, since)
    ]
    revisions = PolicyRevision.objects.filter(instance=instance, created_at__gte=since).order_by("-number")
    found += [
        {"at": at.timestamp(), "kind": "revision", "label": f"revision {number}"}
        for number, at in revisions.values_list("number", "created_at")[:MAX_MARKS]
    ]
    if client:
        rows = Decision.objects.filter(instance=instance, client=client, at__gte=since).order_by("-at")
        found += [
            {"at": at.timestamp(), "kind": "decision", "label": action, "mode": mode}
            for at, action, mode in rows.values_list("at", "action", "mode")[:MAX_MARKS]
        ]
    return sorted(found, key=lambda mark: mark["at"])[-MAX_MARKS:]


def events_since(
    instance: Instance, moment: datetime, patterns: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Return events since a moment, newest first: decisions by type, revisions, finished runs, restarts."""
    decided = visible_rows(Decision.objects.filter(instance=instance, at__gt=moment), patterns).order_by()
    groups = decided.values("action", "mode").annotate(last=Max("at"), number=Count("pk")).order_by("-last")
    found: list[dict[str, Any]] = [
        {
            "at": one["last"],
            "kind": "decision",
            "action": one["action"],
            "mode": one["mode"],
            "number": one["number"],
        }
        for one in groups[:MAX_MARKS]
    ]
    for revision in PolicyRevision.objects.filter(instance=instance, created_at__gt=moment).order_by(
        "-number"
    )[:10]:
        found.append(
            {
                "at": revision.created_at,
                "kind": "revision",
                "number": revision.number,
                "text": revision.reason if patterns is None else "",
            }
        )
    for run in ActionRun.objects.filter(instance=instance, ended_at__gt=moment).order_by("-ended_at")[:10]:
        found.append({"at": run.ended_at, "kind": "run", "state": run.state, "text": run.get_kind_display()})
    found += [{"at": at, "kind": "restart"} for at in broker_restarts(instance, moment)]
    return sorted(found, key=lambda one: one["at"], reverse=True)[:12]


class DiskHistory(TypedDict):
    """Past size of the log for forecast.js, which draws the forecast.

    `points` are [seconds, bytes], six for each "minute". A "minute" is a fifteenth of the covered time, in
    seconds. `limit` is the size in bytes at which the disk is full.
    """

    points: list[tuple[int, int]]
    minute: float
    limit: int


class DiskForecast(NamedTuple):
    """Disk usage of the journal in bytes.

    `full_in_s` is None if it is unknown or the journal does not grow.
    """

    used: int
    total: int
    free: int
    grows_a_day: float
    full_in_s: float | None
    history: DiskHistory | None = None


def disk_forecast(segments: Sequence[SegmentEntry], now: datetime) -> DiskForecast | None:
    """Return a forecast from the segments of the last week.

    None if there is no journal on a readable disk.
    """
    on_disk = [one for one in segments if one.state != "archived"]
    try:
        space = shutil.disk_usage(Path(on_disk[0].path).parent)
    except (OSError, IndexError):
        return None
    week = (now - timedelta(days=7)).timestamp() * 1e9
    used = sum(one.bytes for one in on_disk)
    # The current segment's file is preallocated, so its size does not show its content.
    sealed = [one for one in segments if one.state != "current" and one.last_at >= week]
    if not sealed:
        return DiskForecast(used, space.total, space.free, 0.0, None)
    span_s = max(600.0, now.timestamp() - min(one.first_at for one in sealed) / 1e9)
    grows = 86_400 * sum(one.bytes for one in sealed) / span_s
    history = DiskHistory(
        points=_growth(sealed, used, now.timestamp(), span_s),
        minute=span_s / HISTORY_MINUTES,
        limit=used + space.free,
    )
    return DiskForecast(used, space.total, space.free, grows, 86_400 * space.free / grows, history)


def _growth(sealed: Sequence[SegmentEntry], used: int, now: float, span_s: float) -> list[tuple[int, int]]:
    """Return the journal's size at even moments up to now.

    A segment's bytes are assumed to be written evenly between its first and last record.
    """
    inside = sorted(sealed, key=lambda one: one.last_at)
    ends = [one.last_at / 1e9 for one in inside]
    until = [0, *accumulate(one.bytes for one in inside)]

    def written(at: float) -> float:
        complete = bisect_right(ends, at)
        if complete == len(inside):
            return until[complete]
        first = inside[complete].first_at / 1e9
        part = (at - first) / (ends[complete] - first) if at > first else 0.0
        return until[complete] + part * inside[complete].bytes

    steps = 6 * HISTORY_MINUTES
    moments = [now - span_s * (steps - step) / steps for step in range(steps + 1)]
    return [(round(at), int(used - until[-1] + written(at))) for at in moments]


def current_disk_forecast(now: datetime) -> DiskForecast | None:
    """Return the forecast of the running broker; None while it is unavailable or if it runs on another
    machine.

    The disk of another machine can't be read from here.
    """
    try:
        return (
            disk_forecast(live.journal_segments(), now)
            if is_on_this_machine(current_instance.instance_name())
            else None
        )
    except SluiceError:
        return None
