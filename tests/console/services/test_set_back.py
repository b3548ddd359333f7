"""An operator chooses between the policy that a broker stores and the policy of a database that lacks it."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.control.set_back import SetBack, set_back_problem
from broker_core.errors import OperatorError
from console.models import AuditEvent, PolicyRevision
from console.services import drafts, policies, rollouts
from console.services.actors import Actor
from console.services.set_back import SetBackChoice, resolve_set_back
from tests.support.fake_broker import FakeBroker


def kept_policy(number: int, capacity: int = 7) -> dict[str, Any]:
    """Return a policy that the database lacks."""
    document = policies.document_in_force("sluice-1")
    limits = {**document["client_policy"], "client_max_capacity": capacity}
    return {**document, "revision": number, "client_policy": limits}


def keep(broker: FakeBroker, number: int, staged: dict[str, Any] | None = None) -> dict[str, Any]:
    document = kept_policy(number)
    broker.kept, broker.revision = (document, staged), number
    state = SetBack(since=1_000, database_revision=1)
    broker.problems = [set_back_problem(state, number)]
    return document


def test_the_stored_policy_becomes_a_revision_of_its_own_number(broker: FakeBroker, actor: Actor) -> None:
    document = keep(broker, 40)
    change = resolve_set_back(actor, SetBackChoice.STORED, reason="ticket 7")
    assert (change.revision.number, change.applied, broker.revision) == (40, True, 40)
    assert change.revision.document == document and policies.has_policy("sluice-1", document)
    event = AuditEvent.objects.get(action="policy.resolve_stored")
    assert (event.actor, event.reason) == ("maria", "ticket 7")
    edit = policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 9}})
    assert (edit.revision.number, edit.applied) == (41, True), "the editable rows contain the stored policy"


def test_the_databases_policy_gets_a_newer_number_and_the_kept_one_stays_as_a_revision(
    broker: FakeBroker, actor: Actor
) -> None:
    document, own = keep(broker, 40), policies.document_in_force("sluice-1")
    change = resolve_set_back(actor, SetBackChoice.DATABASE)
    assert (change.revision.number, change.applied, broker.revision) == (41, True, 41)
    assert change.revision.document == {**own, "revision": 41}
    assert policies.has_policy("sluice-1", document), "the broker finds the policy, also after a restart"
    assert [one.number for one in PolicyRevision.objects.order_by("number")] == [1, 40, 41]


@pytest.mark.parametrize("choice", list(SetBackChoice))
def test_a_kept_staged_revision_is_stored_and_its_rollout_ends(
    broker: FakeBroker, actor: Actor, choice: SetBackChoice
) -> None:
    staged = kept_policy(40, capacity=8)
    document = keep(broker, 39, staged)
    change = resolve_set_back(actor, choice)
    assert change.revision.number == 41
    expected = document if choice is SetBackChoice.STORED else policies.document_in_force("sluice-1")
    assert policies.same_policy(change.revision.document, expected)
    assert policies.has_policy("sluice-1", staged)


def test_a_rollout_of_the_database_ends_with_the_revision_before_it(broker: FakeBroker, actor: Actor) -> None:
    before = policies.document_in_force("sluice-1")
    draft = drafts.create_draft(actor, "staged")
    drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 5}})
    drafts.publish(
        actor, draft.pk, reason="try", rollout=rollouts.RolloutPlan(client="desk-*", most_decisions=1)
    )
    keep(broker, 40)
    change = resolve_set_back(actor, SetBackChoice.DATABASE)
    assert policies.same_policy(change.revision.document, before), (
        "the staged revision must not apply to all clients"
    )
    assert policies.policy_orders("sluice-1")["staged"] is None


def test_a_database_with_as_many_revisions_lacks_it_all_the_same(broker: FakeBroker, actor: Actor) -> None:
    for capacity in (20, 21, 22):
        policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": capacity}})
    document = keep(broker, 2)
    assert not policies.has_policy("sluice-1", document)
    change = resolve_set_back(actor, SetBackChoice.STORED)
    assert change.revision.number == 5 and policies.has_policy("sluice-1", document)


def test_without_a_kept_policy_there_is_nothing_to_decide(broker: FakeBroker, actor: Actor) -> None:
    with pytest.raises(OperatorError) as refused:
        resolve_set_back(actor, SetBackChoice.DATABASE)
    assert refused.value.code == "policy_not_set_back" and PolicyRevision.objects.count() == 1
