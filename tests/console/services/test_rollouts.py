"""Staged rollouts: a revision for some clients, then for all, or withdrawn automatically."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from broker_core.documents.instance import RunningRevision
from broker_core.errors import OperatorError
from console.broker_addresses import BrokerAddress
from console.broker_link import BrokerAnswer
from console.choices import AlertSubject
from console.management import startup
from console.models import Alert, AlertRule, AuditEvent, Decision, Instance, StagedRollout
from console.queries import policies as read
from console.queries import system_conditions
from console.services import alerts, drafts, policies, rollouts
from console.services.actions import planner
from console.services.actors import Actor, access_of
from console.services.pending_changes import service
from tests.support.fake_broker import FakeBroker
from tests.support.html import minified


def staged(actor: Actor, **plan: Any) -> policies.PolicyChange:
    draft = drafts.create_draft(actor, "staged")
    drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 5}})
    return drafts.publish(actor, draft.pk, reason="try", rollout=rollouts.RolloutPlan(**plan))


def publish_another(actor: Actor) -> None:
    """Publish a revision for all clients, regardless of a staged revision."""
    draft = drafts.create_draft(actor, "another")
    drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 20}})
    drafts.publish(actor, draft.pk, reason="another")


def decide(instance: Instance, revision: int, number: int, **more: Any) -> None:
    for _ in range(number):
        Decision.objects.create(
            instance=instance, at=timezone.now(), client="desk-1", revision=revision, action="offline", **more
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
    assert read.policy_status(instance)["converged"]
    assert policies.policy_orders(instance.name)["staged"]["policy"]["revision"] == 2


def test_a_rollout_that_ends_before_the_brokers_answer_is_reported_as_withdrawn(
    broker: FakeBroker, actor: Actor, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers may load the staged revision and exceed its allowance before the request arrives."""
    ask = policies.ask_all_brokers

    def ask_after_the_withdrawal(*arguments: Any) -> Any:
        monkeypatch.setattr(policies, "ask_all_brokers", ask)
        rollouts.stop_if_exceeded(instance, withdrawn=2)
        return ask(*arguments)

    monkeypatch.setattr(policies, "ask_all_brokers", ask_after_the_withdrawal)
    change = staged(actor, client="desk-*", most_decisions=0)
    assert (change.revision.number, change.applied, change.problem) == (2, False, "")
    assert change.withdrawn == "0 decisions were allowed, and the next one was not carried out."


def test_a_revision_that_another_has_replaced_is_reported_so(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    first = policies.newest_revision(instance)
    publish_another(actor)
    change = policies.apply_at_broker(first)
    assert (change.applied, change.problem, change.withdrawn) == (False, "Revision 2 has replaced it.", "")


@pytest.mark.parametrize(("runs", "applied"), [(1, True), (0, False)])
def test_a_member_that_withdrew_the_revision_has_applied_it_and_others_are_named(
    broker: FakeBroker,
    actor: Actor,
    instance: Instance,
    monkeypatch: pytest.MonkeyPatch,
    runs: int,
    applied: bool,
) -> None:
    staged(actor, client="desk-*", most_decisions=3)
    replies = [
        BrokerAnswer(BrokerAddress("test-1", "a"), RunningRevision(revision=1, withdrawn=2)),
        BrokerAnswer(BrokerAddress("test-1", "b"), RunningRevision(revision=1 + runs)),
    ]
    monkeypatch.setattr(policies, "ask_all_brokers", lambda *_: replies)
    change = policies.apply_at_broker(policies.newest_revision(instance))
    assert change.applied is applied
    assert change.problem == ("" if applied else "The broker b runs revision 1.")
    assert change.withdrawn == "The broker a used up the decisions that the rollout allows."


def test_promoting_puts_it_in_force_everywhere(broker: FakeBroker, actor: Actor, instance: Instance) -> None:
    staged(actor, share=10)
    rollouts.promote(actor, instance)
    assert policies.policy_orders(instance.name) == {
        "policy": policies.document_in_force(instance.name),
        "staged": None,
    }
    assert [request for request in broker.asked if request["do"] == "apply"][-1]["policy"]["revision"] == 2
    assert StagedRollout.objects.get().state == "published"


def test_too_many_decisions_bring_the_revision_before_back(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    staged(actor, client="desk-*", most_decisions=2)
    decide(instance, 2, 2)
    decide(instance, 1, 50)  # decisions on other clients, under the base revision
    assert rollouts.stop_if_exceeded(instance) is None
    decide(instance, 2, 1)
    change = rollouts.stop_if_exceeded(instance)
    assert change is not None
    assert change.revision.number == 3
    assert change.revision.document["client_policy"]["client_max_capacity"] == 50
    assert "2 decisions were allowed, and 3 carried out" in change.revision.reason
    assert StagedRollout.objects.get().state == "returned"
    assert rollouts.stop_if_exceeded(instance) is None


def test_what_was_recorded_only_or_no_revision_decided_uses_up_nothing(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    staged(actor, client="desk-*", most_decisions=0)
    decide(instance, 2, 3, mode="shadow")
    decide(instance, 2, 1, mode="enforce", reason="spool_failed")
    assert rollouts.stop_if_exceeded(instance) is None


def test_a_held_decision_brings_the_revision_before_back_and_says_whose_it_was(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    staged(actor, client="desk-*", most_decisions=1)
    decide(instance, 2, 1, mode="enforce")
    decide(instance, 2, 1, mode="shadow", rule="age", details={"held_at": 1})
    change = rollouts.stop_if_exceeded(instance)
    assert change is not None
    assert change.revision.reason == (
        "Withdrawal of staged revision 2: 1 decision was allowed. The next one, on client desk-1 "
        "by age, was not carried out."
    )


def test_a_member_that_used_its_part_is_named_with_its_part_on_the_page_and_in_the_audit(
    broker: FakeBroker, actor: Actor, instance: Instance, operator: Any
) -> None:
    staged(actor, client="desk-*", most_decisions=5)
    rollout = StagedRollout.objects.get()
    rollout.allowances = {"a": 3, "b": 2}
    rollout.save()
    browser = Client()
    browser.force_login(operator)
    page = minified(browser.get("/policies/"))
    assert "Each member has a share of them: a 3, b 2." in page
    decide(instance, 2, 2, mode="enforce", member="b")
    decide(instance, 2, 1, mode="shadow", rule="age", member="b", details={"held_at": 2})
    assert rollouts.stop_if_exceeded(instance) is not None
    why = (
        "Member b used its share of 2 of the 5 decisions allowed. The next one, on client "
        "desk-1 by age, was not carried out."
    )
    assert AuditEvent.objects.get(action="rollout.returned").reason == why
    page = minified(browser.get("/policies/"))
    assert why in page


def test_the_reason_of_a_return_claims_nothing_about_acts_that_are_not_reported_yet(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    """Disconnecting takes time, so the broker reports the withheld decision before the executed ones."""
    staged(actor, client="desk-*", most_decisions=2)
    change = rollouts.stop_if_exceeded(instance, withdrawn=2)
    assert change is not None
    assert change.revision.reason.endswith("2 decisions were allowed, and the next one was not carried out.")


@pytest.mark.parametrize("meanwhile", ["publish", "promote"])
def test_a_return_never_undoes_what_an_operator_put_in_force_meanwhile(
    broker: FakeBroker, actor: Actor, instance: Instance, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    staged(actor, client="desk-*", most_decisions=0)
    decide(instance, 2, 1)
    count = rollouts.count_decisions

    def count_while_somebody_acts(rollout: StagedRollout) -> int:
        if meanwhile == "promote":
            rollouts.promote(actor, instance)
        else:
            publish_another(actor)
        return count(rollout)

    monkeypatch.setattr(rollouts, "count_decisions", count_while_somebody_acts)
    assert rollouts.stop_if_exceeded(instance) is None
    in_force = policies.document_in_force(instance.name)
    assert in_force["client_policy"]["client_max_capacity"] == (5 if meanwhile == "promote" else 20)
    assert StagedRollout.objects.get().state == ("published" if meanwhile == "promote" else "stopped")


@pytest.mark.parametrize(
    ("most", "members", "parts"),
    [
        (5, ("c", "a", "b"), {"a": 2, "b": 2, "c": 1}),
        (1, ("a", "b", "c"), {"a": 1, "b": 0, "c": 0}),
        (0, ("a", "b"), {"a": 0, "b": 0}),
        (3, ("",), {"": 3}),
    ],
)
def test_members_share_one_allowance(most: int, members: tuple[str, ...], parts: dict[str, int]) -> None:
    assert rollouts.share_out(most, members) == parts
    assert sum(parts.values()) == most


def test_brokers_are_told_their_parts_and_what_they_have_used_of_them(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    staged(actor, client="desk-*", most_decisions=3)
    sent = [request for request in broker.asked if request["do"] == "apply"][-1]
    assert sent["staged"]["allowances"] == {"": 3}
    decide(instance, 2, 2, mode="enforce")
    assert policies.policy_orders(instance.name)["staged"]["made"] == {"": 2}


def test_a_withdrawn_revision_is_announced_and_is_not_what_one_rolls_back_to(
    broker: FakeBroker, operator: Any, instance: Instance
) -> None:
    actor = Actor("person", "maria", operator.pk, access=access_of(operator))
    staged(actor, client="desk-*", most_decisions=1)
    decide(instance, 2, 2)
    rollouts.stop_if_exceeded(instance)
    assert [one.number for one in read.revisions(instance) if one.withdrawn] == [2]
    (told,) = [one for one in system_conditions.current_conditions() if one.key == "rollout"]
    assert told.word == "Staged revision 2 was withdrawn"
    assert "1 decision was allowed, and 2 carried out" in told.sentence
    with pytest.raises(OperatorError) as caught:
        service.add_rollback(actor, 2)
    assert caught.value.code == "revision_withdrawn"
    service.add_rollback(actor, 1)
    publish_another(actor)
    assert [one for one in system_conditions.current_conditions() if one.key == "rollout"] == []


def test_a_return_opens_the_alert_about_what_stands_at_the_top(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    rule = AlertRule.objects.create(
        instance=instance, name="top", about=AlertSubject.SYSTEM_CONDITION, for_s=0
    )
    staged(actor, client="desk-*", most_decisions=1)
    assert rollouts.stop_if_exceeded(instance, withdrawn=7) is None, "the revision belongs to another rollout"
    assert rollouts.stop_if_exceeded(instance, withdrawn=2) is not None, (
        "a broker has withdrawn the revision already"
    )
    alerts.evaluate_alerts(timezone.now())
    assert "Staged revision 2 was withdrawn" in Alert.objects.get(rule=rule).members


def test_stopping_gives_the_revision_before_back(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    staged(actor, share=50)
    change = rollouts.stop(actor, instance, reason="enough")
    assert change.revision.document["client_policy"]["client_max_capacity"] == 50
    assert (StagedRollout.objects.get().state, StagedRollout.objects.get().why) == ("stopped", "enough")
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
    publish_another(actor)
    assert StagedRollout.objects.get().state == "stopped"
    assert policies.policy_orders(instance.name)["staged"] is None


@pytest.mark.parametrize("plan", [{}, {"client": "a", "share": 5}, {"share": 100}, {"client": "a b"}])
def test_a_plan_for_nobody_or_everybody_is_refused_and_nothing_is_published(
    broker: FakeBroker, actor: Actor, instance: Instance, plan: dict[str, Any]
) -> None:
    with pytest.raises(OperatorError) as caught:
        staged(actor, **plan)
    assert caught.value.code == "bad_rollout"
    assert policies.newest_revision(instance).number == 1


@pytest.mark.parametrize("whole", [False, True])
def test_a_partial_change_does_not_put_the_staged_revision_in_force_everywhere(
    broker: FakeBroker, actor: Actor, instance: Instance, whole: bool
) -> None:
    staged(actor, client="desk-*", most_decisions=1)
    with pytest.raises(OperatorError) as refused:
        if whole:
            policies.change_instance_policy(actor, {"client_policy": {"client_message_age_limit_ms": 5}})
        else:
            policies.change_transport(actor, "websocket", {"enabled": False})
    assert (refused.value.code, refused.value.details["revision"]) == ("rollout_running", 2)
    orders = policies.policy_orders(instance.name)
    assert (orders["policy"]["revision"], orders["staged"]["policy"]["revision"]) == (1, 2)
    assert StagedRollout.objects.get().state == "running"
    rollouts.stop(actor, instance, reason="first")
    assert policies.change_transport(actor, "websocket", {"enabled": False}).revision.number == 4


def test_a_port_of_the_environment_stops_a_rollout_and_never_promotes_it(
    broker: FakeBroker, actor: Actor, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(actor, client="desk-*", most_decisions=1)
    monkeypatch.setenv("SLUICE_TCP_PORT", "9107")
    document = startup.policy_in_force()
    assert [one.port for one in document.transports if one.name == "tcp"] == [9107]
    assert document.client_policy.client_max_capacity == 50
    assert StagedRollout.objects.get().state == "stopped"


def test_the_plan_of_a_step_that_changes_the_policy_says_whom_it_acts_on(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 5}})
    steps = [{"do": "transport", "name": "tcp", "enabled": "no"}, {"do": "revision", "number": "2"}]
    made = planner.plan_steps(instance, steps, {})
    assert all("1 client" in one["sentence"] for one in made["steps"]), made["steps"]
    assert made["steps"][0]["sentence"].startswith("switch the transport tcp: enabled no. ")
    broker.__exit__()
    away = planner.plan_steps(instance, steps, {})
    assert away["hash"] == made["hash"]
