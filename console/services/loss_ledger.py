"""Storage of brokers' loss ledgers, and deletion of entries past their retention."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import close_old_connections, connection

from broker_core.documents.system_records import LossEntry
from console.models import Decision, Instance, LossRecord

FORGET_AT_ONCE = 20_000


def record_losses(losses: Sequence[LossEntry], instance_name: str, member: str = "") -> int:
    """Store a broker's losses (client, cause, interval of sequences), and return how many.

    Raises:
        Instance.DoesNotExist: the database lacks the instance. The caller must keep the losses.
    """
    if not losses:
        return 0
    if not connection.in_atomic_block:
        close_old_connections()  # the caller is a thread that lives for weeks, outside of requests
    instance = Instance.objects.get(name=instance_name)
    LossRecord.objects.bulk_create([_loss(instance, member, loss) for loss in losses], batch_size=500)
    return len(losses)


def _loss(instance: Instance, member: str, loss: LossEntry) -> LossRecord:
    return LossRecord(
        instance=instance,
        member=member,
        at=datetime.fromtimestamp(loss.at / 1_000, UTC),
        client=loss.client,
        subscription=loss.subscription,
        topic=loss.topic,
        cause=loss.cause,
        rule=loss.rule,
        messages=loss.messages,
        bytes=loss.bytes,
        unjournaled=loss.unjournaled,
        first=loss.first,
        last=loss.last,
        exact=loss.exact,
    )


def delete_old(now: datetime) -> int:
    """Delete decisions and losses older than SLUICE_DECISION_RETENTION_DAYS, and return how many.

    At most `FORGET_AT_ONCE` rows of a table per call.
    """
    oldest = now - timedelta(days=settings.SLUICE_DECISION_RETENTION_DAYS)
    deleted = 0
    for model in (Decision, LossRecord):
        rows = model.objects.filter(at__lt=oldest)
        chosen = list(rows.order_by("at").values_list("pk", flat=True)[:FORGET_AT_ONCE])
        deleted += model.objects.filter(pk__in=chosen).delete()[0]
    return deleted
