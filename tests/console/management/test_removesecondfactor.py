"""`manage.py removesecondfactor` removes the second factor after an operator lost the app."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django_otp.plugins.otp_totp.models import TOTPDevice

from console.models import AuditEvent, Instance

PASSWORD = "correct horse battery"


def remove(*arguments: str) -> str:
    out = io.StringIO()
    call_command("removesecondfactor", *arguments, stdout=out)
    return out.getvalue()


def test_a_sole_administrator_who_lost_the_app_logs_in_again_and_the_audit_says_why(
    operator: Any, instance: Instance
) -> None:
    operator.set_password(PASSWORD)
    operator.save()
    TOTPDevice.objects.create(user=operator, name="app", confirmed=True)
    browser, given = Client(), {"username": operator.get_username(), "password": PASSWORD}
    assert browser.post("/login/", given)["Location"].endswith("/second-factor/")
    told = remove(operator.get_username(), "--reason", "phone stolen, ticket 7")
    assert "is off" in told
    assert browser.post("/login/", given)["Location"] == "/"
    event = AuditEvent.objects.get(action="operator.second_factor_off")
    assert (event.actor_kind, event.reason) == ("system", "phone stolen, ticket 7")
    assert operator.get_username() in event.object


@pytest.mark.parametrize(
    ("name", "reason", "said"),
    [("nobody", "x", "The operator"), ("maria", "x", "no second"), ("maria", " ", "reason")],
)
def test_it_refuses_what_it_cant_do(operator: Any, name: str, reason: str, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        remove(name, "--reason", reason)
    assert not AuditEvent.objects.filter(action="operator.second_factor_off").exists()
