"""The state at a moment that is over, from what was recorded: samples of clients and places, decisions, revisions.

Samples are each ten seconds and kept a day; of a client at rest each minute. After that the worst of each minute is left. What wasn't
recorded (health, subscriptions, the reason why somebody was slow) isn't guessed.
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

BUSY: Final = timedelta(seconds=25)
"""A client for which something waits is sampled each ten seconds: one without a sample for so long had left."""
RESTING: Final = timedelta(seconds=75)
"""A client at rest is sampled each minute."""
AROUND: Final = timedelta(minutes=15)
MAX_DECISIONS: Final = 20
MAX_ROWS: Final = 60
MAX_SAMPLES: Final = 25_000
"""Two weeks of minutes, and more than a day of ten seconds."""
NUMBERS: Final = ("lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes")


class PointInTime(NamedTuple):
    """A moment that is over. `minutes`: only the worst of each minute is left of it."""

    at: datetime
    minutes: bool

    @property
    def query(self) -> str:
        """For links that stay in it."""
        return f"?at={self.text}"

    @property
    def text(self) -> str:
        """As addresses have it."""
        return self.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_point_in_time(text: str, now: datetime) -> PointInTime:
    """What an address asks for; without a zone it is UTC. Raises OperatorError bad_moment."""
    fix = "Write at=2026-11-22T13:45:00Z, at most as long ago as minutes are kept."
    try:
        at = datetime.fromisoformat(text.strip())
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise OperatorError("bad_moment", f"{text[:40]!r} isn't a time.", fix) from None
    if at > now:
        raise OperatorError("bad_moment", "That time is in the future.", fix)
    if at < now - timedelta(days=settings.SLUICE_MINUTE_RETENTION_DAYS):
        raise OperatorError("bad_moment", "Nothing about clients is kept from that time any more.", fix)
    return PointInTime(at, at < now - timedelta(hours=settings.SLUICE_SAMPLE_RETENTION_HOURS))


def clients_at(
    instance: Instance, when: PointInTime, patterns: Sequence[str] | None, search: str = ""
) -> list[dict[str, Any]]:
    """The clients that were logged on, the longest lag first: the newest sample of each."""
    rows = _samples(instance, when, patterns).filter(at__gt=when.at - RESTING, at__lte=when.at)
    if search:
        rows = rows.filter(client__icontains=search)
    newest: dict[str, dict[str, Any]] = {}
    for row in rows.order_by("at").values("client", "at", "state", *NUMBERS).iterator(2_000):
        newest[row["client"]] = row
    there = [one for one in newest.values() if when.minutes or _idle(one) or one["at"] > when.at - BUSY]
    return sorted(there, key=lambda one: (-one["lag_ms"], -one["lag_messages"], one["client"]))


class TimelinePart(NamedTuple):
    """A part of the time until a moment, in rows of so many seconds. `minutes`: only the worst of each is left of its beginning."""

    since: datetime
    until: datetime
    minutes: bool

    @property
    def step_s(self) -> int:
        """Whole minutes, so that there are no more than MOST_ROWS."""
        return 60 * max(1, -(-int((self.until - self.since).total_seconds()) // (60 * MAX_ROWS)))


def parse_timeline_part(when: PointInTime, since: str, until: str, now: datetime) -> TimelinePart | None:
    """The part that an address shows of a timeline (`from`, `to` in seconds), up to the moment; None when it has none."""
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
    """A client's samples of the quarter of an hour until then, or of a part of its time, the newest first."""
    span = shown or TimelinePart(when.at - AROUND, when.at, when.minutes)
    rows = _samples(instance, PointInTime(span.until, span.minutes), None).filter(
        client=name, at__gt=span.since, at__lte=span.until
    )
    return list(rows.order_by("-at").values("client", "at", "state", *NUMBERS)[:MAX_SAMPLES])


def worst_by_step(samples: Sequence[dict[str, Any]], step_s: int = 60) -> list[dict[str, Any]]:
    """The worst of each minute, or of a longer step, the newest first."""
    found: dict[int, dict[str, Any]] = {}
    for one in samples:
        minute = int(one["at"].timestamp()) // step_s
        known = found.get(minute)
        if known is None or (one["lag_ms"], one["lag_messages"]) > (known["lag_ms"], known["lag_messages"]):
            found[minute] = one
    return list(found.values())


def sample_at(when: PointInTime, samples: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The sample that holds at the moment; None: it wasn't logged on, or nothing was recorded."""
    for one in samples[:1]:
        if one["at"] > when.at - (RESTING if when.minutes or _idle(one) else BUSY):
            return one
    return None


def count_by_delivery(rows: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """How many were in each delivery state that asks to be said."""
    count = Counter(one["state"] for one in rows)
    return [
        (state, count[state]) for state in ("offlined", "draining", "replaying", "paused") if count[state]
    ]


def resources_at(instance: Instance, when: PointInTime) -> dict[str, list[ResourceSample]]:
    """The instance, transports and pools as they were last recorded; nothing where the broker didn't report. Of a group members'
    figures are added, but for pools: each has its own."""
    step = 60 if when.minutes else 10
    rows = ResourceSample.objects.filter(
        instance=instance, seconds=step, at__gt=when.at - timedelta(seconds=3 * step), at__lte=when.at
    )
    newest = {(one.kind, one.name, one.member): one for one in rows.order_by("at")}
    found: dict[str, list[ResourceSample]] = {str(kind): [] for kind in ScopeKind}
    for (kind, name, _), one in sorted(newest.items()):
        same = found[kind]
        if kind != ScopeKind.POOL and same and same[-1].name == name:  # another member's
            for number in seconds_ring.NUMBERS["place"]:
                setattr(same[-1], number, getattr(same[-1], number) + getattr(one, number))
        else:
            same.append(one)
    return found


def decisions_before(
    instance: Instance, when: PointInTime, patterns: Sequence[str] | None, name: str = ""
) -> list[Decision]:
    """The newest until then."""
    rows = visible_rows(Decision.objects.filter(instance=instance, at__lte=when.at), patterns)
    return list((rows.filter(client=name) if name else rows).select_related("instance")[:MAX_DECISIONS])


class PolicyAtTime(NamedTuple):
    """Which revision was wanted then, and which the broker ran; None where that isn't known."""

    wanted: PolicyRevision | None
    running: PolicyRevision | None


def policy_at(instance: Instance, when: PointInTime) -> PolicyAtTime:
    """Of revisions, which are kept for good, and of what the broker reported."""
    revisions = PolicyRevision.objects.filter(instance=instance)
    reports = RevisionReport.objects.filter(instance=instance, reported_at__lte=when.at, seen_at__gte=when.at)
    report = reports.order_by("-reported_at").first()
    known = report is not None and not report.set_back  # else that number names another policy here
    running = revisions.filter(number=report.number).first() if report is not None and known else None
    return PolicyAtTime(revisions.filter(created_at__lte=when.at).order_by("-number").first(), running)


def revisions_before(instance: Instance, when: PointInTime, most: int) -> list[PolicyRevision]:
    """Those that were there, the newest first."""
    return list(
        PolicyRevision.objects.filter(instance=instance, created_at__lte=when.at).order_by("-number")[:most]
    )


def _samples(instance: Instance, when: PointInTime, patterns: Sequence[str] | None) -> Any:
    model = ClientMinute if when.minutes else ClientSample
    return visible_rows(model._default_manager.filter(instance=instance), patterns)


def _idle(row: dict[str, Any]) -> bool:
    """As samples are taken: at rest is live with nothing waiting."""
    return bool(row["state"] == "live" and not any(row[name] for name in NUMBERS if name != "lag_bytes"))
