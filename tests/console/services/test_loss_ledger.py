"""The control plane stores losses that brokers report and deletes them together with old decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from broker_core.delivery.account import DiscardCause
from broker_core.delivery.loss_ledger import LossLedger, tally_entries
from console.models import Decision, Instance, LossRecord
from console.queries import ledger as read
from console.services import loss_ledger
from tests.support.broker_simulation import outbox_entry

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def entered(at: datetime, client: str = "c", rule: str = "limit") -> list[dict[str, object]]:
    """Return the entries of a broker's ledger after one discarded delivery."""
    made = LossLedger()
    made.record_loss(
        int(at.timestamp()) * 10**9,
        client,
        "s",
        "t.>",
        DiscardCause.DISCARDED,
        rule,
        tally_entries([outbox_entry(9, sequence=5, count=3)]),
    )
    return [loss.to_entry("sluice-1") for loss in made.close_intervals()]


def test_an_interval_is_stored_as_the_broker_tells_it() -> None:
    instance = Instance.objects.create(name="sluice-1")
    assert loss_ledger.record_losses(entered(NOW), "sluice-1") == 1
    loss = LossRecord.objects.get()
    assert (loss.instance, loss.at, loss.client, loss.messages, loss.bytes) == (instance, NOW, "c", 3, 3)
    assert (loss.first, loss.last, loss.cause, loss.rule) == (
        "sluice-1|5|",
        "sluice-1|7|",
        "discarded",
        "limit",
    )


def test_they_are_found_by_client_rule_and_time_within_a_scope() -> None:
    instance = Instance.objects.create(name="sluice-1")
    for client, rule, hours in (("desk-1", "a", 0), ("desk-2", "b", 1), ("web-1", "a", 2)):
        loss_ledger.record_losses(entered(NOW - timedelta(hours=hours), client, rule), "sluice-1")
    assert [one.client for one in read.losses(instance)] == ["desk-1", "desk-2", "web-1"]
    assert [one.client for one in read.losses(instance, rule="a", patterns=["desk-*"])] == ["desk-1"]
    assert [one.client for one in read.losses(instance, since=NOW - timedelta(minutes=90))] == [
        "desk-1",
        "desk-2",
    ]


def test_decisions_and_losses_are_forgotten_after_thirty_days() -> None:
    instance = Instance.objects.create(name="sluice-1")
    for days in (29, 31):
        at = NOW - timedelta(days=days)
        loss_ledger.record_losses(entered(at), "sluice-1")
        Decision.objects.create(instance=instance, at=at, client="c", action="offline", reason="r")
    assert loss_ledger.delete_old(NOW) == 2
    assert (LossRecord.objects.count(), Decision.objects.count()) == (1, 1)
