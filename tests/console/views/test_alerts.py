"""The alerts page: creation, visibility by permission, and deletion as a pending change."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.choices import Role
from console.models import AlertRule, AuditEvent, Instance
from console.services import alerts
from tests.console.views.test_client import apply
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker

FORM = {"name": "Desks stand still", "about": "stalled", "client": "", "for_s": "0"}


def test_a_rule_is_made_its_alert_is_shown_and_it_is_deleted_as_a_pending_change(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    assert browser.post("/alerts/new/", FORM).status_code == 302
    alerts.evaluate_alerts(timezone.now())
    text = browser.get("/alerts/").content.decode()
    assert "1 alert is open" in text and "board-jfk is stalled." in text
    assert "Alert: Desks stand still" in browser.get("/policies/").content.decode()
    rule = AlertRule.objects.get()
    browser.post(f"/alerts/{rule.pk}/delete/")
    assert (
        AlertRule.objects.exists()
        and "Delete the alert Desks stand still" in browser.get("/tray/").content.decode()
    )
    apply(browser, "not used")
    assert not AlertRule.objects.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "required"),
        ({"client": "a b"}, "pattern of client names"),
        ({"for_s": "100000"}, "At most one day"),
        ({"webhook": "http://169.254.169.254/"}, "declared host"),
        ({"emails": "nobody"}, "an e-mail address"),
        ({"emails": "a@b.org\r\nBcc: x@y.org"}, "an e-mail address"),
        ({"emails": ", ".join(f"a{n}@b.org" for n in range(11))}, "At most 10"),
        ({"about": "everything"}, "valid choice"),
    ],
)
def test_a_rule_that_couldnt_be_told_isnt_made(
    browser: Client, instance: Instance, settings: Any, change: dict[str, str], words: str
) -> None:
    settings.SLUICE_SMTP_URL = "smtp://127.0.0.1:25"
    answer = browser.post("/alerts/new/", {**FORM, **change})
    assert answer.status_code == 422 and words in answer.content.decode()
    assert not AlertRule.objects.exists()


def test_mail_needs_a_server_and_a_name_is_there_once(
    browser: Client, instance: Instance, settings: Any
) -> None:
    settings.SLUICE_SMTP_URL = ""
    assert b"Set SLUICE_SMTP_URL first" in browser.post("/alerts/new/", {**FORM, "emails": "a@b.org"}).content
    browser.post("/alerts/new/", FORM)
    assert b"An alert with this name exists already" in browser.post("/alerts/new/", FORM).content


def test_whoever_sees_some_clients_reads_of_those_alone(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    browser.post("/alerts/new/", FORM)
    alerts.evaluate_alerts(timezone.now())
    desk = Client()
    desk.force_login(person("desk", Role.VIEWER, client_pattern="desk-*"))
    text = desk.get("/alerts/").content.decode()
    assert "board-jfk" not in text and "Only clients that you aren’t allowed to see." in text
    assert "board-jfk" not in desk.get("/standing/").content.decode()


def test_of_a_webhook_only_its_host_is_shown(
    browser: Client, broker: FakeBroker, instance: Instance, settings: Any
) -> None:
    settings.SLUICE_WEBHOOK_HOSTS = ["hooks.example.org"]
    browser.post("/alerts/new/", {**FORM, "webhook": "https://hooks.example.org/a-secret-word"})
    alerts.evaluate_alerts(timezone.now())
    text = browser.get("/alerts/").content.decode()
    assert text.count("hooks.example.org") == 2 and "a-secret-word" not in text
    assert "a-secret-word" not in str(AuditEvent.objects.values_list("after", flat=True))
