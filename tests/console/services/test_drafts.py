"""Drafts from creation through preview to publication; no edit is lost."""

from __future__ import annotations

import pytest

from broker_core.errors import OperatorError
from console.models import AuditEvent, Instance, PolicyDraft, StagedRollout
from console.queries import policies as read
from console.services import drafts, policies, rollouts
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker


def test_a_draft_changes_nothing_until_it_is_published(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    draft = drafts.create_draft(actor, "smaller")
    drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 5}})
    assert policies.document_in_force(instance.name)["client_policy"]["client_max_capacity"] == 50
    change = drafts.publish(actor, draft.pk, reason="they asked")
    assert (change.revision.number, change.applied) == (2, True)
    assert change.revision.document["client_policy"]["client_max_capacity"] == 5
    assert change.revision.reason == "they asked"
    assert not PolicyDraft.objects.exists()
    actions = set(AuditEvent.objects.values_list("action", flat=True))
    assert {"draft.create", "draft.change", "policy.publish"} <= actions


def test_a_preview_says_what_differs_whom_it_touches_and_who_is_acted_on(
    broker: FakeBroker, actor: Actor
) -> None:
    draft = drafts.create_draft(actor, "tiny")
    drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 5}})
    preview = drafts.preview(drafts.draft_numbered(draft.pk))
    assert [(one.path, one.before, one.after) for one in preview.differences] == [
        ("client_policy.client_max_capacity", "50 %", "5 %")
    ]
    assert preview.problems == []
    assert preview.effect is not None
    assert preview.effect.touched_in_all == len(broker.clients)
    assert preview.effect.acted_on[0].client == "board-jfk"


def test_a_draft_may_be_wrong_and_says_so_before_it_is_published(broker: FakeBroker, actor: Actor) -> None:
    draft = drafts.create_draft(actor, "wrong")
    drafts.edit_draft(
        actor, draft.pk, {"client_policy": {"client_max_capacity": 500}, "qpid": [{"topic": "a", "depth": 0}]}
    )
    preview = drafts.preview(drafts.draft_numbered(draft.pk))
    assert len(preview.problems) == 2
    assert preview.effect is None
    with pytest.raises(OperatorError) as caught:
        drafts.publish(actor, draft.pk, reason="")
    assert caught.value.code == "bad_policy"
    assert PolicyDraft.objects.filter(pk=draft.pk).exists()


def test_what_contradicts_itself_is_refused_everywhere(broker: FakeBroker, actor: Actor) -> None:
    never = {"activemq": [{"topic": ">", "abort_slow_consumer_strategy": True, "max_slow_duration": -1}]}
    draft = drafts.create_draft(actor, "never")
    drafts.edit_draft(actor, draft.pk, never)
    assert "no client is ever aborted" in drafts.preview(drafts.draft_numbered(draft.pk)).problems[0]
    for save in (
        lambda: drafts.publish(actor, draft.pk, reason=""),
        lambda: policies.change_instance_policy(actor, never),
    ):
        with pytest.raises(OperatorError, match="no client is ever aborted"):
            save()


def test_what_is_unwise_is_flagged_and_saved(broker: FakeBroker, actor: Actor) -> None:
    change = policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 100}})
    assert change.revision.number == 2
    assert "whole pool" in change.findings[0].sentence


def test_without_its_broker_a_preview_has_the_differences_alone(instance: Instance, actor: Actor) -> None:
    draft = drafts.create_draft(actor, "away")
    preview = drafts.preview(draft)
    assert preview.effect is None
    assert "can't be reached" in preview.away


def test_two_who_edit_one_draft_dont_overwrite_each_other(broker: FakeBroker, actor: Actor) -> None:
    draft = drafts.create_draft(actor, "ours")
    drafts.edit_draft(actor, draft.pk, {"pool": {"message_memory_limit": 1_000_000}}, expected_version=1)
    with pytest.raises(OperatorError) as caught:
        drafts.edit_draft(actor, draft.pk, {"pool": {"message_memory_limit": 2_000_000}}, expected_version=1)
    assert caught.value.code == "draft_changed"


@pytest.mark.parametrize("staged", [None, rollouts.RolloutPlan(share=10, most_decisions=1)])
def test_an_edit_while_the_draft_is_being_published_is_kept_and_nothing_is_published(
    broker: FakeBroker, actor: Actor, instance: Instance, staged: rollouts.RolloutPlan | None
) -> None:
    draft = drafts.create_draft(actor, "smaller")
    read_at = drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 5}}).version

    def edit_meanwhile(_instance: Instance, _document: object) -> None:
        """Edit the draft while publication waits for brokers, which takes seconds if one does not answer."""
        drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 7}})

    with pytest.raises(OperatorError) as caught:
        drafts.publish(
            actor, draft.pk, reason="", expected_version=read_at, rollout=staged, guard=edit_meanwhile
        )
    assert caught.value.code == "draft_changed"
    assert policies.newest_revision(instance).number == 1
    assert not StagedRollout.objects.exists()
    kept = drafts.draft_numbered(draft.pk)
    assert (kept.document["client_policy"]["client_max_capacity"], kept.base) == (7, 1)
    drafts.publish(actor, draft.pk, reason="", expected_version=kept.version)
    assert not PolicyDraft.objects.exists()


def test_a_draft_that_changes_nothing_is_gone_when_it_is_published(broker: FakeBroker, actor: Actor) -> None:
    draft = drafts.create_draft(actor, "the same")
    assert drafts.publish(actor, draft.pk, reason="").revision.number == 1
    assert not PolicyDraft.objects.exists()


def test_a_draft_of_an_older_revision_isnt_published_over_a_newer_one(
    broker: FakeBroker, actor: Actor
) -> None:
    draft = drafts.create_draft(actor, "late")
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 40}})
    with pytest.raises(OperatorError) as caught:
        drafts.publish(actor, draft.pk, reason="")
    assert caught.value.code == "revision_changed"
    assert PolicyDraft.objects.filter(pk=draft.pk).exists()


def test_a_draft_cant_rename_the_instance_or_hold_unknown_parts(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    draft = drafts.create_draft(actor, "x")
    drafts.edit_draft(actor, draft.pk, {"instance": {"name": "another"}})
    assert drafts.draft_numbered(draft.pk).document["instance"]["name"] == instance.name
    with pytest.raises(OperatorError, match="policys"):
        drafts.edit_draft(actor, draft.pk, {"policys": {}})


def test_transports_are_added_changed_and_taken_away_by_name(
    broker: FakeBroker, actor: Actor, instance: Instance
) -> None:
    draft = drafts.create_draft(actor, "transports")
    drafts.edit_draft(
        actor,
        draft.pk,
        {
            "transports": {
                "tcp": {"pool": {"message_memory_limit": 1_000_000}},
                "websocket": None,
                "risk": {"kind": "tcp", "port": 9_107},
            }
        },
    )
    change = drafts.publish(actor, draft.pk, reason="")
    made = {transport["name"]: transport for transport in change.revision.document["transports"]}
    assert made["tcp"]["pool"]["message_memory_limit"] == 1_000_000
    assert made["risk"]["port"] == 9_107
    assert made["websocket"]["enabled"] is False  # the clients' history refers to the transport


def test_there_is_an_end_to_drafts(broker: FakeBroker, actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MAX_DRAFTS", 1)
    drafts.create_draft(actor, "one")
    with pytest.raises(OperatorError) as caught:
        drafts.create_draft(actor, "two")
    assert caught.value.code == "too_many_drafts"
    newest = read.newest_revision(read.instance_named())
    assert newest is not None and newest.number == 1
