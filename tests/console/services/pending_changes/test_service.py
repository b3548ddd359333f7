"""Pending changes are applied as previewed, with a reason, and only if the operator still has permission."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from broker_core.errors import OperatorError
from console.access.rights import EffectiveAccess, GrantedRight
from console.broker_link import BrokerUnavailable
from console.choices import PendingChangeKind, Permission, Role
from console.models import Grant, Instance, PendingChange, PolicyDraft
from console.services import access, drafts, operators, people
from console.services.actors import Actor, access_of
from console.services.pending_changes import service
from console.services.policy_effects import beyond_the_machine
from console.services.rollouts import RolloutPlan
from tests.support.fake_broker import FakeBroker


@pytest.fixture
def maria(operator: Any) -> Actor:
    return Actor("person", "maria", operator.pk, access=access_of(operator))


def done(broker: FakeBroker) -> list[str]:
    return [one["do"] for one in broker.asked if one["do"] in ("disconnect", "pause", "offline")]


def test_what_fails_stays_and_the_others_are_done(
    maria: Actor, broker: FakeBroker, instance: Instance
) -> None:
    service.add_change(maria, PendingChangeKind.PAUSE, "carrier-aa")
    service.add_change(maria, PendingChangeKind.OFFLINE, "carrier-ua")
    held = service.list_changes(maria)
    broker.clients = [one for one in broker.clients if one.name != "carrier-ua"]
    with pytest.raises(OperatorError) as caught:
        service.apply_changes(maria, "because", confirmed=True, plan=held.digest)
    assert caught.value.code == "tray_blocked" and done(broker) == []
    service.remove_change(maria, held.planned[1].item.pk)
    outcomes = service.apply_changes(
        maria, "because", confirmed=True, plan=service.list_changes(maria).digest
    )
    assert [one.done for one in outcomes] == [True] and done(broker) == ["pause"]
    assert not PendingChange.objects.exists()


def test_two_requests_that_apply_at_once_apply_a_change_once(
    maria: Actor, broker: FakeBroker, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_change(maria, PendingChangeKind.PUBLISH, "orders.eu", {"data": {"a": 1}})
    plan = service.list_changes(maria).digest
    others: list[list[service.ApplyOutcome]] = []
    permitted = access.require_permission

    def request_comes_between(*args: Any, **about: Any) -> None:
        permitted(*args, **about)
        monkeypatch.setattr(access, "require_permission", permitted)
        others.append(service.apply_changes(maria, "because", confirmed=True, plan=plan))

    monkeypatch.setattr(access, "require_permission", request_comes_between)
    (outcome,) = service.apply_changes(maria, "because", confirmed=True, plan=plan)
    assert not outcome.done and "Another request" in outcome.sentence
    ((other,),) = others
    assert other.done
    assert len([one for one in broker.asked if one["do"].startswith("publish")]) == 1
    assert not PendingChange.objects.exists()


def test_a_change_that_ends_with_an_error_is_pending_again(
    maria: Actor, broker: FakeBroker, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_change(maria, PendingChangeKind.PAUSE, "carrier-aa", {"a": 1})
    (before,) = PendingChange.objects.values("pk", "kind", "target", "parameters", "created_at")
    plan = service.list_changes(maria).digest

    def breaks(*args: Any) -> str:
        raise RuntimeError("a fault")

    kind = dataclasses.replace(service.CHANGE_KINDS[PendingChangeKind.PAUSE], do=breaks)
    monkeypatch.setitem(service.CHANGE_KINDS, PendingChangeKind.PAUSE, kind)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        service.apply_changes(maria, "because", confirmed=True, plan=plan)
    assert list(PendingChange.objects.values("pk", "kind", "target", "parameters", "created_at")) == [before]


def test_a_change_whose_process_was_killed_is_unknown_and_never_applied_again(
    maria: Actor, broker: FakeBroker, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_change(maria, PendingChangeKind.PUBLISH, "orders.eu", {"data": {"a": 1}})
    plan = service.list_changes(maria).digest
    publish = service.CHANGE_KINDS[PendingChangeKind.PUBLISH]

    def killed_after(*args: Any) -> str:
        publish.do(*args)
        raise SystemExit

    kind = dataclasses.replace(publish, do=killed_after)
    monkeypatch.setitem(service.CHANGE_KINDS, PendingChangeKind.PUBLISH, kind)  # type: ignore[arg-type]
    with monkeypatch.context() as killed, pytest.raises(SystemExit):
        killed.setattr(service, "_release_claim", lambda _: None)  # a killed process does nothing more
        service.apply_changes(maria, "because", confirmed=True, plan=plan)
    held = service.list_changes(maria)
    assert "It may have been carried out: check the audit" in held.blocked[0]
    with pytest.raises(OperatorError) as refused:
        service.apply_changes(maria, "because", confirmed=True, plan=held.digest)
    assert refused.value.code == "tray_blocked"
    # An equal change that the operator adds is another one.
    monkeypatch.setitem(service.CHANGE_KINDS, PendingChangeKind.PUBLISH, publish)  # type: ignore[arg-type]
    service.add_change(maria, PendingChangeKind.PUBLISH, "orders.eu", {"data": {"a": 2}})
    service.remove_change(maria, held.planned[0].item.pk)
    (item,) = PendingChange.objects.all()
    assert item.parameters == {"data": {"a": 2}} and item.claimed_at is None
    held = service.list_changes(maria)
    (outcome,) = service.apply_changes(maria, "because", confirmed=True, plan=held.digest)
    assert outcome.done
    assert len([one for one in broker.asked if one["do"].startswith("publish")]) == 2


def test_a_change_that_a_broker_may_have_carried_out_before_it_ended_is_never_applied_again(
    maria: Actor, broker: FakeBroker, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_change(maria, PendingChangeKind.PUBLISH, "orders.eu", {"data": {"a": 1}})
    plan = service.list_changes(maria).digest
    publish = service.CHANGE_KINDS[PendingChangeKind.PUBLISH]

    def ends_after(*args: Any) -> str:
        publish.do(*args)
        raise BrokerUnavailable("broker_failed", "The broker ended during `publish`.", "Read its log.")

    kind = dataclasses.replace(publish, do=ends_after)
    monkeypatch.setitem(service.CHANGE_KINDS, PendingChangeKind.PUBLISH, kind)  # type: ignore[arg-type]
    (outcome,) = service.apply_changes(maria, "because", confirmed=True, plan=plan)
    assert not outcome.done and "ended during" in outcome.sentence
    held = service.list_changes(maria)
    assert "It may have been carried out: check the audit" in held.blocked[0]
    with pytest.raises(OperatorError) as refused:
        service.apply_changes(maria, "because", confirmed=True, plan=held.digest)
    assert refused.value.code == "tray_blocked"
    assert len([one for one in broker.asked if one["do"].startswith("publish")]) == 1


def test_a_change_that_fails_beside_an_equal_new_one_is_pending_once(
    maria: Actor, broker: FakeBroker, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.add_change(maria, PendingChangeKind.PAUSE, "carrier-aa", {"a": 1})
    plan = service.list_changes(maria).digest

    def fails_late(*args: Any) -> str:
        service.add_change(maria, PendingChangeKind.PAUSE, "carrier-aa", {"a": 2})
        raise OperatorError("unknown_client", "The client has disconnected.", "")

    kind = dataclasses.replace(service.CHANGE_KINDS[PendingChangeKind.PAUSE], do=fails_late)
    monkeypatch.setitem(service.CHANGE_KINDS, PendingChangeKind.PAUSE, kind)  # type: ignore[arg-type]
    (outcome,) = service.apply_changes(maria, "because", confirmed=True, plan=plan)
    assert not outcome.done
    assert [one.parameters for one in PendingChange.objects.all()] == [{"a": 2}]


@pytest.mark.parametrize("circumstance", ["removed", "edited", "failed_after"])
def test_a_policy_change_whose_draft_changes_while_it_is_applied_is_never_left_empty(
    maria: Actor,
    broker: FakeBroker,
    instance: Instance,
    monkeypatch: pytest.MonkeyPatch,
    circumstance: str,
) -> None:
    draft = service.add_policy_change(maria, {"client_policy": {"client_max_capacity": 20}})
    held = service.list_changes(maria)
    publish = drafts.publish

    def publish_meanwhile(*args: Any, **more: Any) -> Any:
        if circumstance == "removed":
            PolicyDraft.objects.all().delete()
        elif circumstance == "edited":
            drafts.edit_draft(maria, draft.pk, {"client_policy": {"client_max_capacity": 30}})
        change = publish(*args, **more)
        raise RuntimeError(f"a fault after {change}")

    monkeypatch.setattr(drafts, "publish", publish_meanwhile)
    applied = lambda: service.apply_changes(maria, "because", confirmed=True, plan=held.digest)  # noqa: E731
    if circumstance == "failed_after":
        with pytest.raises(RuntimeError):
            applied()
    else:
        (outcome,) = applied()
        assert not outcome.done
    rows = [(one.draft_id, one.claimed_at) for one in PendingChange.objects.all()]
    assert rows == ([(draft.pk, None)] if circumstance == "edited" else [])


def test_whoever_lost_the_right_meanwhile_does_nothing(
    maria: Actor, broker: FakeBroker, instance: Instance
) -> None:
    service.add_change(maria, PendingChangeKind.DISCONNECT, "carrier-aa")
    nobody = dataclasses.replace(maria, access=EffectiveAccess())
    (outcome,) = service.apply_changes(
        nobody, "because", confirmed=True, plan=service.list_changes(maria).digest
    )
    assert not outcome.done and done(broker) == []
    with pytest.raises(OperatorError):
        service.add_change(nobody, PendingChangeKind.PAUSE, "carrier-aa")


def test_pending_changes_have_a_bound_and_the_same_act_is_in_it_once(
    maria: Actor, broker: FakeBroker, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_ITEMS", 2)
    for name in ("a", "a", "b"):
        service.add_change(maria, PendingChangeKind.PAUSE, name)
    with pytest.raises(OperatorError) as caught:
        service.add_change(maria, PendingChangeKind.PAUSE, "c")
    assert caught.value.code == "tray_full"
    assert PendingChange.objects.count() == 2


def test_pending_changes_are_their_owners_alone(maria: Actor, broker: FakeBroker, instance: Instance) -> None:
    service.add_change(maria, PendingChangeKind.PAUSE, "carrier-aa")
    other = dataclasses.replace(maria, user_id=10_000)
    assert service.list_changes(other).planned == [] and not service.has_changes(other)
    service.clear_changes(other)
    assert service.has_changes(maria)


def test_a_draft_made_elsewhere_outlives_pending_changes(
    maria: Actor, broker: FakeBroker, instance: Instance
) -> None:
    draft = drafts.create_draft(maria, "of the list")
    service.add_draft(maria, draft)
    service.clear_changes(maria)
    assert PolicyDraft.objects.get() == draft
    service.add_policy_change(maria, {"client_policy": {"client_max_capacity": 20}})
    service.clear_changes(maria)
    assert PolicyDraft.objects.get() == draft


def test_readers_who_are_left_without_records_need_the_tick(
    maria: Actor, broker: FakeBroker, instance: Instance
) -> None:
    broker.unrecorded = ["desk-1", "desk-2"]
    draft = drafts.create_draft(maria, "fewer topics")
    drafts.edit_draft(maria, draft.pk, {"instance": {"journaled_topics": ["orders.>"]}})
    service.add_draft(maria, drafts.draft_numbered(draft.pk))
    held = service.list_changes(maria)
    (planned,) = held.planned
    assert any("2 clients without new records" in one for one in planned.preview.warnings)
    named = [line.names for line in planned.preview.lines if line.kind == "unrecorded"]
    assert named == [["desk-1", "desk-2"]] and planned.preview.severe
    with pytest.raises(OperatorError) as caught:
        service.apply_changes(maria, "because", confirmed=False, plan=held.digest)
    assert caught.value.code == "confirm_needed"


def test_limits_that_the_machine_cant_reach_are_named() -> None:
    document = {
        "pool": {"message_memory_limit": 10, "message_disk_limit": None},
        "transports": [{"name": "tcp", "pool": {"message_disk_limit": 5_000}}],
    }
    assert beyond_the_machine(document, memory=100, disk=1_000) == [
        "transport tcp: a disk limit of 4.88 KiB exceeds this machine's disk (1000 B)."
    ]


def test_roles_without_the_right_put_nothing_in(viewer: Any, broker: FakeBroker, instance: Instance) -> None:
    onlooker = Actor("person", "vera", viewer.pk, access=access_of(viewer))
    for kind in PendingChangeKind:
        with pytest.raises(OperatorError):
            service.add_change(onlooker, kind, "carrier-aa")


def test_a_change_laid_over_a_draft_keeps_for_whom_it_is(
    maria: Actor, broker: FakeBroker, instance: Instance
) -> None:
    draft = drafts.create_draft(maria, "carefully")
    service.add_draft(maria, draft, RolloutPlan(client="desk-*", most_decisions=2))
    service.add_policy_change(maria, {"client_policy": {"client_max_capacity": 20}})
    (one,) = service.list_changes(maria).planned
    assert one.preview.title == "carefully, for desk-* first"
    service.clear_changes(maria)
    assert PolicyDraft.objects.filter(pk=draft.pk).exists()  # the draft was not created as a pending change


def test_taking_access_away_is_told_and_then_done(maria: Actor, operator: Any, instance: Instance) -> None:
    vera = people.create(maria, "vera")[0]
    people.grant(maria, vera, Role.VIEWER)
    role = Grant.objects.get(user=vera)
    token, _ = operators.create_token(
        maria, operator, "ci", scope=[Permission.VIEW], lifetime=timedelta(days=1)
    )
    service.add_change(maria, PendingChangeKind.GRANT_REVOKE, str(role.pk))
    service.add_change(maria, PendingChangeKind.TOKEN_REVOKE, str(token.pk))
    service.add_change(maria, PendingChangeKind.ACCOUNT_CLOSE, "vera")
    held = service.list_changes(maria)
    assert "vera has no other role" in str(held.planned[0].preview.lines)
    assert {one for one, _ in held.headlines} == {"1 role revoked", "1 token revoked", "1 account closed"}
    assert all(one.done for one in service.apply_changes(maria, "left", confirmed=True, plan=held.digest))
    vera.refresh_from_db()
    token.refresh_from_db()
    assert not vera.is_active and token.revoked_at is not None and not Grant.objects.filter(user=vera)


def test_access_is_taken_away_by_whoever_holds_it_everywhere(maria: Actor, instance: Instance) -> None:
    here = dataclasses.replace(
        maria, access=EffectiveAccess((GrantedRight(frozenset(Permission), instance.name),))
    )
    with pytest.raises(OperatorError) as caught:
        service.add_change(here, PendingChangeKind.ACCOUNT_CLOSE, "vera")
    assert caught.value.code == "not_allowed"
