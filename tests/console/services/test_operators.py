from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.db.models import QuerySet
from django.test import RequestFactory
from django.utils import timezone

from broker_core.errors import OperatorError
from console.choices import Permission
from console.models import ApiToken, AuditEvent
from console.services import operators
from console.services.actors import Actor, access_of

DAY = timedelta(days=1)


@pytest.mark.django_db
def test_password_of_a_new_operator_works_and_is_not_stored() -> None:
    user, password = operators.create_operator("otto")
    request = RequestFactory().post("/login/")
    assert authenticate(request, username="otto", password=password) == user
    assert password not in user.password
    assert access_of(user).allows(Permission.MANAGE_ACCESS)
    with pytest.raises(OperatorError):
        operators.create_operator("otto")


@pytest.mark.django_db
def test_a_name_that_another_request_takes_meanwhile_is_taken(
    actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    operators.create_account(actor, "maria")
    monkeypatch.setattr(QuerySet, "exists", lambda rows: False)
    with pytest.raises(OperatorError, match="exists already"):
        operators.create_account(actor, "maria")


def test_token_is_stored_as_a_hash_and_found_by_its_text(operator: Any, actor: Actor) -> None:
    token, text = operators.create_token(
        actor, operator, "ci", lifetime=DAY, scope=[Permission.VIEW, Permission.RUN_ACTIONS]
    )
    row = ApiToken.objects.get()
    assert text.rpartition("_")[2] not in (row.digest, row.prefix)
    assert operators.find_token(text) == token
    assert AuditEvent.objects.filter(action="token.create").count() == 1


@pytest.mark.parametrize("text", ["", "slc", "slc_", "slc_x_y", "sl_x_y", "slc_" + "a" * 5000])
@pytest.mark.django_db
def test_text_that_is_no_token_is_not_found(text: str) -> None:
    assert operators.find_token(text) is None


def test_wrong_secret_is_not_found(operator: Any, actor: Actor) -> None:
    _, text = operators.create_token(actor, operator, "ci", lifetime=DAY, scope=[Permission.VIEW])
    assert operators.find_token(text[:-1] + ("a" if text[-1] != "a" else "b")) is None


def test_token_ends_when_it_expires_is_revoked_or_its_account_is_closed(operator: Any, actor: Actor) -> None:
    token, text = operators.create_token(actor, operator, "ci", lifetime=DAY, scope=[Permission.VIEW])
    assert operators.find_token(text, timezone.now() + DAY) is None
    operator.is_active = False
    operator.save()
    assert operators.find_token(text) is None
    operator.is_active = True
    operator.save()
    operators.revoke_token(actor, token)
    assert operators.find_token(text) is None


def test_viewer_gets_no_token_that_may_change(viewer: Any, actor: Actor) -> None:
    with pytest.raises(OperatorError):
        operators.create_token(
            actor, viewer, "x", lifetime=DAY, scope=[Permission.VIEW, Permission.RUN_ACTIONS]
        )


@pytest.mark.parametrize("lifetime", [timedelta(0), timedelta(days=367)])
def test_token_without_an_end_is_refused(operator: Any, actor: Actor, lifetime: timedelta) -> None:
    with pytest.raises(OperatorError):
        operators.create_token(actor, operator, "x", lifetime=lifetime, scope=[Permission.VIEW])
