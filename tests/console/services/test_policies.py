from __future__ import annotations

import pytest
from django.conf import settings

from broker_core.config import PolicyDocument, default_policy
from broker_core.errors import OperatorError
from console.models import Action, AuditEvent, Instance, PolicyRevision, RevisionReport
from console.queries import policies as read
from console.services import policies
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker


@pytest.mark.django_db
def test_new_instance_gets_the_default_policy_and_a_weekly_archive() -> None:
    document = policies.document_in_force("fresh")
    assert PolicyDocument.from_dict(document) == default_policy("fresh")
    assert policies.document_in_force("fresh") == document
    assert Action.objects.get(instance__name="fresh").steps == [{"do": "archive", "age": "7d"}]


def test_change_makes_a_revision_that_the_broker_takes_up(broker: FakeBroker, actor: Actor) -> None:
    change = policies.change_transport(
        actor, "tcp", {"pool": {"message_memory_limit": 1_000_000}}, reason="smaller"
    )
    assert (change.revision.number, change.applied, change.problem) == (2, True, "")
    sent = [request["policy"] for request in broker.asked if request["do"] == "apply"]
    assert sent == [change.revision.document]
    assert sent[0]["transports"][0]["pool"]["message_memory_limit"] == 1_000_000
    assert RevisionReport.objects.get().number == 2
    state = read.policy_status(change.revision.instance)
    assert state["converged"] and state["why"] == ""


def test_change_is_audited_with_before_after_author_and_reason(broker: FakeBroker, actor: Actor) -> None:
    change = policies.change_instance_policy(
        actor, {"client_policy": {"client_max_capacity": 30}}, reason="fair"
    )
    event = AuditEvent.objects.filter(action="policy.change").get()
    assert (event.actor, event.source, event.request_id, event.reason) == ("maria", "127.0.0.1", "r1", "fair")
    assert event.before["client_policy"]["client_max_capacity"] == 50
    assert event.after["client_policy"]["client_max_capacity"] == 30
    assert (change.revision.author, change.revision.reason) == ("maria", "fair")


def test_change_while_the_broker_is_away_waits_for_its_return(instance: Instance, actor: Actor) -> None:
    change = policies.change_transport(actor, "tcp", {"enabled": False})
    assert not change.applied
    assert "can't be reached" in change.problem
    assert policies.document_in_force(instance.name)["revision"] == 2


def test_broker_that_runs_another_revision_is_told_again(broker: FakeBroker, actor: Actor) -> None:
    policies.change_transport(actor, "tcp", {"port": 9107})
    RevisionReport.objects.update(number=1)
    assert [told.applied for told in policies.reconcile()] == [True]
    assert policies.reconcile() == []


def test_change_that_changes_nothing_makes_no_revision(broker: FakeBroker, actor: Actor) -> None:
    change = policies.change_transport(actor, "tcp", {"port": settings.SLUICE_TCP_PORT})
    assert change.revision.number == 1
    assert PolicyRevision.objects.count() == 1


def test_edit_of_an_older_revision_is_refused(broker: FakeBroker, actor: Actor) -> None:
    policies.change_transport(actor, "tcp", {"port": 9107}, expected_revision=1)
    with pytest.raises(OperatorError) as refused:
        policies.change_transport(actor, "tcp", {"port": 9207}, expected_revision=1)
    assert refused.value.code == "revision_changed"
    assert PolicyRevision.objects.count() == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 70_000},
        {"pool": {"message_memory_limit": 0}},
        {"client_policy": {"client_max_capacity": 101}},
        {"pool": {"no_such_setting": 1}},
        {"kind": "stomp"},
        {"port": 9008},
        {"pool": {"message_disk_path": "relative"}},
        {"pool": 7},
    ],
    ids=["port", "memory", "capacity", "unknown", "kind", "taken port", "path", "shape"],
)
def test_bad_setting_is_refused_and_nothing_is_kept(
    broker: FakeBroker, actor: Actor, changes: dict[str, object]
) -> None:
    with pytest.raises(OperatorError) as refused:
        policies.change_transport(actor, "tcp", changes)
    assert refused.value.code == "bad_policy"
    assert refused.value.details["problems"]
    assert PolicyRevision.objects.count() == 1
    assert read.desired_document(Instance.objects.get(), 1) == policies.document_in_force("sluice-1")


def test_unknown_transport_is_named(broker: FakeBroker, actor: Actor) -> None:
    with pytest.raises(OperatorError) as refused:
        policies.change_transport(actor, "udp", {"port": 1})
    assert refused.value.code == "unknown_transport"
