from __future__ import annotations

from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.utils import timezone

from broker_core.errors import OperatorError
from console.choices import Permission, Role
from console.models import AuditEvent, Grant, Instance
from console.services import audit, people
from console.services.access import is_allowed, require_permission
from console.services.actors import SYSTEM, Actor, access_of


def test_new_person_may_log_in_and_nothing_else(operator: Any, actor: Actor) -> None:
    user, password = people.create(actor, "nina")
    assert user.check_password(password)
    assert access_of(user).permissions == frozenset()
    with pytest.raises(OperatorError, match="already"):
        people.create(actor, "nina")
    with pytest.raises(OperatorError):
        people.create(actor, "no spaces please")


def test_a_role_holds_from_its_grant_to_its_revocation_and_both_are_audited(
    operator: Any, viewer: Any, actor: Actor
) -> None:
    made = people.grant(actor, viewer, Role.OPERATOR, client_pattern="desk-*")
    assert access_of(viewer).allows(Permission.ACT_ON_CLIENTS, instance="sluice-1", client="desk-7")
    assert not access_of(viewer).allows(Permission.ACT_ON_CLIENTS, instance="sluice-1", client="board-1")
    people.revoke(actor, made)
    assert not access_of(viewer).allows(Permission.ACT_ON_CLIENTS, instance="sluice-1", client="desk-7")
    events = AuditEvent.objects.filter(object="operator vera").order_by("pk")
    assert [(event.action, event.actor) for event in events] == [
        ("grant.create", "maria"),
        ("grant.revoke", "maria"),
    ]
    assert (
        events[0].after
        == events[1].before
        == {"role": "operator", "instance": "", "client_pattern": "desk-*", "topic_pattern": ""}
    )


@pytest.mark.parametrize(
    "given",
    [{"role": "king"}, {"client_pattern": "desk/1"}, {"topic_pattern": "~("}, {"instance": "nowhere"}, {}],
    ids=["role", "client pattern", "topic pattern", "instance", "twice"],
)
def test_a_grant_that_means_nothing_is_refused(
    given: dict[str, str], viewer: Any, instance: Instance, actor: Actor
) -> None:
    with pytest.raises(OperatorError):
        people.grant(actor, viewer, **{"role": Role.VIEWER, **given})
    assert Grant.objects.count() == 1


def test_the_last_administrator_stays(operator: Any, viewer: Any, actor: Actor) -> None:
    people.grant(actor, viewer, Role.ADMINISTRATOR, client_pattern="desk-*")  # cannot grant roles to others
    with pytest.raises(OperatorError, match="No account would be left"):
        people.revoke(actor, operator.grants.get())
    with pytest.raises(OperatorError, match="No account would be left"):
        people.set_active(actor, operator, False)
    operator.refresh_from_db()
    assert operator.is_active
    assert operator.grants.count() == 1
    people.grant(actor, viewer, Role.ADMINISTRATOR)
    people.set_active(actor, operator, False)


def test_a_closed_account_may_nothing(operator: Any, viewer: Any, actor: Actor) -> None:
    people.set_active(actor, viewer, False)
    assert not access_of(viewer).allows(Permission.VIEW, instance="sluice-1")


def test_the_system_may_and_an_actor_without_rights_may_not(actor: Actor) -> None:
    assert is_allowed(SYSTEM, Permission.MANAGE_ACCESS)
    with pytest.raises(OperatorError) as refused:
        require_permission(actor, Permission.PUBLISH, instance="sluice-1", topic="a.b")
    assert refused.value.details == {"permission": "publish", "instance": "sluice-1", "topic": "a.b"}


@pytest.mark.django_db
def test_the_database_itself_keeps_the_audit(actor: Actor) -> None:
    kept = audit.record(actor, "policy.change", "sluice-1")
    rows = AuditEvent.objects.filter(pk=kept.pk)
    for act in (
        lambda: rows._raw_delete("default"),
        lambda: super(type(rows), rows).update(actor="somebody else"),
    ):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            act()
    assert AuditEvent.objects.get().actor == "maria"


@pytest.mark.django_db
def test_events_are_forgotten_after_their_action_s_retention_and_not_before(
    actor: Actor, settings: Any
) -> None:
    settings.SLUICE_AUDIT_RETENTION_DAYS = {"*": 0, "login": 30, "login.failed": -1}
    audit.record(actor, "login")
    audit.record(actor, "policy.change")
    audit.record(actor, "login.failed")
    assert audit.delete_expired(timezone.now()) == 1
    assert sorted(AuditEvent.objects.values_list("action", flat=True)) == ["login", "policy.change"]
    assert AuditEvent.objects.get(action="policy.change").expires_at is None
