"""A staged rollout: some clients first, everybody later, or back by itself."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from broker_core.errors import OperatorError
from console.models import Decision, Instance, PolicyRollout
from console.queries import policies as read
from console.services import drafts, policies, rollouts
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker


def staged(actor: Actor, **plan: Any) -> policies.Change:
    draft = drafts.make(actor, "staged")
    drafts.edit(actor, draft.pk, {"client_policy": {"client_max_capacity": 5}})
    return drafts.publish(actor, draft.pk, reason="try", rollout=rollouts.Plan(**plan))


def decide(instance: Instance, revision: int, number: int) -> None:
    for _ in range(number):
        Decision.objects.create(
            instance=instance, at=timezone.now(), client="desk-1", revision=revision, action="offline"
        )


def test_the_broker_is_told_both_revisions_and_whom_the_new_one_is_for(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    change = staged(actor, client="desk-*", most_decisions=3)
    sent = [request for request in broker.asked if request["do"] == "apply"][-1]
    assert sent["policy"]["revision"] == 1
    assert sent["staged"]["policy"]["revision"] == 2
    assert sent["staged"]["client"] == "desk-*"
    assert (change.revision.number, change.applied) == (2, True)
    assert read.in_force(instance)["converged"]
    assert policies.orders(instance.name)["staged"]["policy"]["revision"] == 2


def test_promoting_puts_it_in_force_everywhere(broker: FakeBroker, actor: Actor, instance: Instance) -> None:
    staged(actor, share=10)
    rollouts.promote(actor, instance)
    assert policies.orders(instance.name) == {
        "policy": policies.document_in_force(instance.name),
        "staged": None,
    }
    assert [request for request in broker.asked if request["do"] == "apply"][-1]["policy"]["revision"] == 2
    assert PolicyRollout.objects.get().state == "published"


def test_too_many_decisions_bring_the_revision_before_back(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    staged(actor, client="desk-*", most_decisions=2)
    decide(instance, 2, 2)
    decide(instance, 1, 50)  # of others, by the revision that stays
    assert rollouts.check(instance) is None
    decide(instance, 2, 1)
    change = rollouts.check(instance)
    assert change is not None
    assert change.revision.number == 3
    assert change.revision.document["client_policy"]["client_max_capacity"] == 50
    assert "3 decisions" in change.revision.reason
    assert PolicyRollout.objects.get().state == "returned"
    assert rollouts.check(instance) is None


def test_stopping_gives_the_revision_before_back(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    staged(actor, share=50)
    change = rollouts.stop(actor, instance, reason="enough")
    assert change.revision.document["client_policy"]["client_max_capacity"] == 50
    assert (PolicyRollout.objects.get().state, PolicyRollout.objects.get().why) == ("stopped", "enough")
    for again in (
        lambda: rollouts.promote(actor, instance),
        lambda: rollouts.stop(actor, instance, reason=""),
    ):
        with pytest.raises(OperatorError) as caught:
            again()
        assert caught.value.code == "no_rollout"


def test_a_newer_revision_takes_the_place_of_a_staged_one(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    staged(actor, share=50)
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 20}})
    assert PolicyRollout.objects.get().state == "stopped"
    assert policies.orders(instance.name)["staged"] is None


@pytest.mark.parametrize("plan", [{}, {"client": "a", "share": 5}, {"share": 100}, {"client": "a b"}])
def test_a_plan_for_nobody_or_everybody_is_refused_and_nothing_is_published(
    broker: FakeBroker, actor: Actor, instance: Instance, plan: dict[str, Any]
) -> None:
    with pytest.raises(OperatorError) as caught:
        staged(actor, **plan)
    assert caught.value.code == "bad_rollout"
    assert policies.newest_of(instance).number == 1
