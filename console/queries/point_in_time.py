"""State at a past moment, from records: samples of clients and resources, decisions, revisions.

Samples of 10 seconds are stored for a day; an idle client has one per minute. Older data has only the worst
values of each minute. Health, subscriptions and reasons for slowness are not recorded, so they are not
shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django.conf import settings

from broker_core.errors import OperatorError
from console.choices import ScopeKind
from console.live import seconds_ring
from console.models import (
    ClientMinute,
    ClientSample,
    Decision,
    Instance,
    PolicyRevision,
    ResourceSample,
    RevisionReport,
)
from console.queries.client_scope import visible_rows
from console.units.moments import parse_moment

BUSY: Final = timedelta(seconds=25)
"""Time without a sample after which a busy client counts as disconnected.

A client with waiting messages is sampled every 10 seconds.
"""
RESTING: Final = timedelta(seconds=75)
"""Time without a sample after which an idle client counts as disconnected. It is sampled once a minute."""
SAMPLE_WINDOW: Final = timedelta(minutes=15)
"""Length of the timeline before a moment."""
MAX_DECISIONS: Final = 20
"""Maximum decisions of `decisions_before`."""
MAX_ROWS: Final = 60
"""Maximum rows of a timeline."""
MAX_SAMPLES: Final = 25_000
"""Maximum samples of `client_at`: two weeks of minutes, and more than a day of 10-second samples."""
NUMBERS: Final = ("lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes")
"""Numeric fields of a sample."""


class PointInTime(NamedTuple):
    """Past moment. `minutes`: only the worst values of each minute are stored for it."""

    at: datetime
    minutes: bool

    @property
    def query(self) -> str:
        """Query string for links that keep the moment."""
        return f"?at={self.text}"

    @property
    def text(self) -> str:
        """Moment as written in URLs."""
        return self.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_point_in_time(text: str, now: datetime) -> PointInTime:
    """Return the moment in a URL; without a zone it is UTC.

    Raises OperatorError `bad_moment` for an invalid or future moment, or one older than the stored minutes.
    """
    fix = "Write at=2026-11-22T13:45:00Z, within the retention of minute samples."
    at = parse_moment(text)
    if at is None:
        raise OperatorError("bad_moment", f"{text[:40]!r} isn't a time.", fix)
    if at > now:
        raise OperatorError("bad_moment", "That time is in the future.", fix)
    if at < now - timedelta(days=settings.SLUICE_MINUTE_RETENTION_DAYS):
        raise OperatorError("bad_moment", "Data about clients from that time is no longer stored.", fix)
    return PointInTime(at, at < now - timedelta(hours=settings.SLUICE_SAMPLE_RETENTION_HOURS))


def clients_at(
    instance: Instance, when: PointInTime, patterns: Sequence[str] | None, search: str = ""
) -> list[dict[str, Any]]:
    """Return the newest sample of each client that was logged on, longest lag first."""
    rows = _samples(instance, when, patterns).filter(at__gt=when.at - RESTING, at__lte=when.at)
    if search:
        rows = rows.filter(client__icontains=search)
    newest: dict[str, dict[str, Any]] = {}
    for row in rows.order_by("at").values("client", "at", "state", *NUMBERS).iterator(2_000):
        newest[row["client"]] = row
    there = [one for one in newest.values() if when.minutes or _idle(one) or one["at"] > when.at - BUSY]
    return sorted(there, key=lambda one: (-one["lag_ms"], -one["lag_messages"], one["client"]))


class TimelinePart(NamedTuple):
    """Part of a client's timeline.

    `minutes`: for its beginning, only the worst values of each minute are stored.
    """

    since: datetime
    until: datetime
    minutes: bool

    @property
    def step_s(self) -> int:
        """Seconds of a row, in whole minutes, so that there are at most `MAX_ROWS` rows."""
        return 60 * max(1, -(-int((self.until - self.since).total_seconds()) // (60 * MAX_ROWS)))


def parse_timeline_part(when: PointInTime, since: str, until: str, now: datetime) -> TimelinePart | None:
    """Return the part of a timeline that a URL selects (`from` and `to` in seconds), ended at the moment.

    None if the URL selects no valid part.
    """
    if not (since.isdecimal() and until.isdecimal() and max(len(since), len(until)) <= 10):
        return None
    begins, ends = (datetime.fromtimestamp(int(text), UTC) for text in (since, until))
    ends = min(ends, when.at)
    begins = max(begins, now - timedelta(days=settings.SLUICE_MINUTE_RETENTION_DAYS))
    coarse = begins < now - timedelta(hours=settings.SLUICE_SAMPLE_RETENTION_HOURS)
    return TimelinePart(begins, ends, coarse) if begins < ends else None


def client_at(
    instance: Instance, when: PointInTime, name: str, shown: TimelinePart | None = None
) -> list[dict[str, Any]]:
    """Return a client's samples of a part of its timeline, newest first; by default the 15 minutes before
    the moment.
    """
    span = shown or TimelinePart(when.at - SAMPLE_WINDOW, when.at, when.minutes)
    rows = _samples(instance, PointInTime(span.until, span.minutes), None).filter(
        client=name, at__gt=span.since, at__lte=span.until
    )
    return list(rows.order_by("-at").values("client", "at", "state", *NUMBERS)[:MAX_SAMPLES])


def worst_by_step(samples: Sequence[dict[str, Any]], step_s: int = 60) -> list[dict[str, Any]]:
    """Return the worst sample of each step, newest first."""
    found: dict[int, dict[str, Any]] = {}
    for one in samples:
        minute = int(one["at"].timestamp()) // step_s
        known = found.get(minute)
        if known is None or (one["lag_ms"], one["lag_messages"]) > (known["lag_ms"], known["lag_messages"]):
            found[minute] = one
    return list(found.values())


def sample_at(when: PointInTime, samples: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the sample that is valid at the moment.

    None if the client was not logged on, or nothing was recorded.
    """
    for one in samples[:1]:
        if one["at"] > when.at - (RESTING if when.minutes or _idle(one) else BUSY):
            return one
    return None


def count_by_delivery(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the number of clients in each delivery state other than live, where not zero."""
    count = Counter(one["state"] for one in rows)
    return [
        (state, count[state]) for state in ("offlined", "draining", "replaying", "paused") if count[state]
    ]


def resources_at(instance: Instance, when: PointInTime) -> dict[str, list[ResourceSample]]:
    """Return the newest samples of the instance, transports and pools at the moment.

    Empty where the broker did not report. In a group the figures of all members are added, except those of
    pools: each member has its own pools.
    """
    step = 60 if when.minutes else 10
    rows = ResourceSample.objects.filter(
        instance=instance, seconds=step, at__gt=when.at - timedelta(seconds=3 * step), at__lte=when.at
    )
    newest = {(one.kind, one.name, one.member): one for one in rows.order_by("at")}
    found: dict[str, list[ResourceSample]] = {str(kind): [] for kind in ScopeKind}
    for (kind, name, _), one in sorted(newest.items()):
        same = found[kind]
        if kind != ScopeKind.POOL and same and same[-1].name == name:  # sample of another member
            for number in seconds_ring.NUMBERS["place"]:
                setattr(same[-1], number, getattr(same[-1], number) + getattr(one, number))
        else:
            same.append(one)
    return found


def decisions_before(
    instance: Instance, when: PointInTime, patterns: Sequence[str] | None, name: str = ""
) -> list[Decision]:
    """Return at most `MAX_DECISIONS` decisions up to the moment, newest first; `name` restricts them to one
    client.
    """
    rows = visible_rows(Decision.objects.filter(instance=instance, at__lte=when.at), patterns)
    return list((rows.filter(client=name) if name else rows).select_related("instance")[:MAX_DECISIONS])


class PolicyAtTime(NamedTuple):
    """Revision that should have been in force, and revision that the broker ran; None where unknown."""

    expected: PolicyRevision | None
    running: PolicyRevision | None


def policy_at(instance: Instance, when: PointInTime) -> PolicyAtTime:
    """Return the policy at the moment, from the revisions, which are stored forever, and the brokers'
    reports.
    """
    revisions = PolicyRevision.objects.filter(instance=instance)
    reports = RevisionReport.objects.filter(instance=instance, reported_at__lte=when.at, seen_at__gte=when.at)
    report = reports.order_by("-reported_at").first()
    # after a restored database the number means another policy here
    known = report is not None and not report.set_back
    running = revisions.filter(number=report.number).first() if report is not None and known else None
    return PolicyAtTime(revisions.filter(created_at__lte=when.at).order_by("-number").first(), running)


def revisions_before(instance: Instance, when: PointInTime, limit: int) -> list[PolicyRevision]:
    """Return at most `limit` revisions that existed at the moment, newest first."""
    return list(
        PolicyRevision.objects.filter(instance=instance, created_at__lte=when.at).order_by("-number")[:limit]
    )


def _samples(instance: Instance, when: PointInTime, patterns: Sequence[str] | None) -> Any:
    model = ClientMinute if when.minutes else ClientSample
    return visible_rows(model._default_manager.filter(instance=instance), patterns)


def _idle(row: dict[str, Any]) -> bool:
    """Return whether a sample is of an idle client: live, with no waiting messages (bytes alone don't
    count).
    """
    return bool(row["state"] == "live" and not any(row[name] for name in NUMBERS if name != "lag_bytes"))
