"""Storage of brokers' reports: the running revision, samples of clients and resources, decisions.

`record_report` is called each second with a broker's snapshot. Most calls write nothing: revision and
samples are stored every 10 s, a new revision immediately. A client that stays caught up is sampled once a
minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain
from uuid import UUID

import msgspec
import redis
from django.conf import settings
from django.db import close_old_connections, connection

from broker_core.documents.clients import ClientEntry
from broker_core.documents.instance import Snapshot
from broker_core.documents.system_records import DecisionEntry
from console.broker_addresses import format_broker_name
from console.live import seconds_ring
from console.live.resource_points import resource_points
from console.models import ClientSample, Decision, Instance, ResourceSample, RevisionReport
from console.services import replays
from console.services.journal_directories import record_log

SAMPLE_MS = 10_000
CAUGHT_UP_SAMPLE_MS = 60_000


@dataclass(slots=True)
class _ReportCache:
    """Facts that this process already stored of one instance, so that most reports need no query."""

    instance_id: int
    revision: tuple[int, bool] = (-1, False)
    """Revision that is in force, and whether the database lacks it."""
    slot: int = -1
    """Newest slot of 10 s whose samples are stored, as ms since 1970."""
    caught_up_samples: dict[str, int] = field(default_factory=dict)
    """Slot (ms since 1970) of each caught-up client's last stored sample, by client name."""


# By instance and member. In practice one process reports one instance.
_report_caches: dict[tuple[str, str], _ReportCache] = {}


def record_report(snapshot: Snapshot) -> bool:
    """Store the parts of a broker's snapshot that are due.

    Returns False, and stores nothing, if the database lacks the instance.
    """
    status, at_ms = snapshot.status, snapshot.at
    key = (status.instance, status.member)
    cache = _report_caches.get(key)
    slot = at_ms - at_ms % SAMPLE_MS
    set_back = any(one.code == "policy_set_back" for one in status.problems)
    revision = (status.revision, set_back)
    if cache is not None and cache.revision == revision and cache.slot == slot:
        return True
    _fresh_connection()
    instance = Instance.objects.filter(name=status.instance).first()
    if instance is None:  # no broker has asked this database for the instance's policy
        return False
    if cache is None or cache.instance_id != instance.pk:
        cache = _report_caches[key] = _ReportCache(instance.pk)
    record_revision(instance, status.revision, _moment(at_ms), status.pid, status.member, set_back=set_back)
    if cache.slot != slot:
        if status.log:
            record_log(instance.name, UUID(status.log), status.durable_sequence, status.member)
        record_samples(instance, cache, snapshot.clients, slot)
        record_resources(instance, snapshot, slot)
        if snapshot.replays is not None:
            replays.record_replays(instance, snapshot.replays, complete=True, member=status.member)
    cache.revision, cache.slot = revision, slot
    return True


def record_revision(
    instance: Instance,
    number: int,
    now: datetime,
    pid: int | None = None,
    member: str = "",
    *,
    set_back: bool = False,
) -> RevisionReport:
    """Store which revision a broker runs.

    There is one row per revision and process. Later reports of the same revision update its `seen_at`.

    Args:
        instance: The broker's instance.
        number: Number of the revision.
        now: Time of the report.
        pid: Process id of the broker; None when the report lacks it.
        member: Name of the broker in its group, or "".
        set_back: Whether the broker runs a policy that this database lacks, although a revision may have
            its number.
    """
    rows = RevisionReport.objects.filter(instance=instance, member=member)
    newest = rows.order_by("-seen_at", "-id").first()
    known_as = (newest.number, newest.set_back) if newest is not None else None
    if newest is not None and known_as == (number, set_back) and pid in (None, newest.pid):
        newest.seen_at = max(now, newest.seen_at)
        newest.save(update_fields=["seen_at"])
        return newest
    known = newest.pid if newest is not None else 0
    return RevisionReport.objects.create(
        instance=instance,
        member=member,
        number=number,
        set_back=set_back,
        pid=known if pid is None else pid,
        reported_at=now,
        seen_at=now,
    )


def record_samples(instance: Instance, cache: _ReportCache, clients: Sequence[ClientEntry], slot: int) -> int:
    """Store a sample of each client, and return how many.

    A client that was caught up at its last stored sample and still is gets one only every
    `CAUGHT_UP_SAMPLE_MS`.

    Args:
        instance: The broker's instance.
        cache: Facts stored before; the times of caught-up clients' samples in it are updated.
        clients: Clients of the broker's snapshot.
        slot: Time of the samples in ms since 1970, rounded down to `SAMPLE_MS`.
    """
    rows, caught_up = [], {}
    for client in clients:
        stored = cache.caught_up_samples.get(client.name) if client.is_caught_up else None
        if stored is not None and slot - stored < CAUGHT_UP_SAMPLE_MS:
            caught_up[client.name] = stored
            continue
        if client.is_caught_up:
            caught_up[client.name] = slot
        rows.append(_sample(instance, client, slot))
    cache.caught_up_samples = caught_up
    ClientSample.objects.bulk_create(rows, ignore_conflicts=True, batch_size=500)
    return len(rows)


def record_resources(instance: Instance, snapshot: Snapshot, slot: int) -> None:
    """Store a sample of the instance, each transport and each pool. `slot` is in ms since 1970."""
    rows = [
        ResourceSample(
            instance=instance, member=snapshot.status.member, kind=kind, at=_moment(slot), **asdict(point)
        )
        for kind, point in resource_points(snapshot)
    ]
    ResourceSample.objects.bulk_create(rows, ignore_conflicts=True, batch_size=500)


def record_second(snapshot: Snapshot) -> None:
    """Write this second's figures into Redis.

    Does nothing while Redis is away: the database has the samples, only the last minutes' charts get a gap.
    """
    status, second = snapshot.status, snapshot.at // 1000
    clients = (("client", client) for client in snapshot.clients)
    with suppress(redis.RedisError):
        if not status.member:
            seconds_ring.write_second(status.instance, second, chain(clients, resource_points(snapshot)))
            return
        # A client has one history, whichever member it is connected to. Each member has its own resources.
        seconds_ring.write_second(status.instance, second, clients)
        seconds_ring.write_second(
            format_broker_name(status.instance, status.member), second, resource_points(snapshot)
        )


def record_decisions(
    decisions: Sequence[DecisionEntry], instance_name: str | None = None, member: str = ""
) -> int:
    """Store a broker's decisions, and return how many.

    Raises:
        Instance.DoesNotExist: the database lacks the instance. The caller must keep the decisions.
    """
    if not decisions:
        return 0
    _fresh_connection()
    instance = Instance.objects.get(name=instance_name or settings.SLUICE_INSTANCE)
    rows = [_decision(instance, member, decision) for decision in decisions]
    Decision.objects.bulk_create(rows, batch_size=500)
    return len(rows)


def _fresh_connection() -> None:
    """Close dead database connections before use.

    Callers are threads that live for weeks, without the requests at whose end Django closes such connections.
    """
    if not connection.in_atomic_block:
        close_old_connections()


def _sample(instance: Instance, client: ClientEntry, slot: int) -> ClientSample:
    return ClientSample(
        instance=instance,
        client=client.name,
        at=_moment(slot),
        state=client.delivery.value,
        lag_messages=client.lag_messages,
        lag_bytes=client.lag_bytes,
        lag_ms=client.lag_ms,
        outbox_bytes=client.outbox_bytes,
        spool_bytes=client.spool_bytes,
        rate_out_messages=client.rate_out_messages,
    )


def _decision(instance: Instance, member: str, decision: DecisionEntry) -> Decision:
    texts = ("client", "transport", "pool", "action", "reason", "rule", "mode", "signal", "unit", "sentence")
    return Decision(
        instance=instance,
        member=member,
        at=_moment(decision.at),
        revision=decision.revision,
        observed=decision.observed,
        limit=decision.limit,
        details=msgspec.to_builtins(decision),
        **{name: getattr(decision, name) for name in texts},
    )


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
