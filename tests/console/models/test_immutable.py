from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from broker_core.errors import OperatorError
from console.models import AuditEvent, Instance, PolicyRevision, Transport
from console.services import audit
from console.services.actors import Actor


@pytest.mark.parametrize("model", [PolicyRevision, AuditEvent])
@pytest.mark.parametrize(
    "attempt",
    [
        lambda row: row.save(),
        lambda row: row.delete(),
        lambda row: type(row).objects.filter(pk=row.pk).update(reason="x"),
        lambda row: type(row).objects.all().delete(),
        lambda row: type(row).objects.bulk_update([row], ["reason"]),
        lambda row: type(row)._base_manager.filter(pk=row.pk).update(reason="x"),
    ],
    ids=["save", "delete", "update", "delete all", "bulk update", "base manager"],
)
def test_what_was_recorded_cannot_be_changed(
    instance: Instance, actor: Actor, model: Any, attempt: Any
) -> None:
    audit.record(actor, "policy.change", "x")
    row = model.objects.first()
    with pytest.raises(OperatorError) as refused:
        attempt(row)
    assert refused.value.code == "immutable"
    assert model.objects.get(pk=row.pk).reason == row.reason


def test_database_refuses_a_second_transport_at_one_address(instance: Instance) -> None:
    taken = instance.transports.first()
    with pytest.raises(IntegrityError), transaction.atomic():
        Transport.objects.create(
            instance=instance, name="other", kind="tcp", host=taken.host, port=taken.port
        )


def test_database_refuses_a_second_revision_of_one_number(instance: Instance) -> None:
    first = PolicyRevision.objects.get(instance=instance)
    with pytest.raises(IntegrityError), transaction.atomic():
        PolicyRevision.objects.bulk_create(
            [PolicyRevision(instance=instance, number=first.number, document={}, author="x")]
        )
