"""The page of durable subscriptions."""

from __future__ import annotations

from django.test import Client

from console.models import AuditEvent
from tests.console.views.test_client import apply
from tests.support.fake_broker import FakeBroker


def test_it_lists_them_furthest_behind_first_also_of_clients_that_are_away(
    browser: Client, broker: FakeBroker
) -> None:
    text = browser.get("/durables/").content.decode()
    assert 0 < text.index("auditor") < text.index("board-jfk")
    assert "902" in text and "Not connected" in text and "sluice-1|900|" in text
    found = browser.get("/durables/", {"search": "night"}).content.decode()
    assert "auditor" in found and "board-jfk" not in found


def test_one_is_deleted_as_a_pending_change_and_it_is_in_the_audit(
    browser: Client, broker: FakeBroker
) -> None:
    browser.post("/clients/auditor/durables/night/delete/")
    assert [one["name"] for one in broker.durables] == ["orders", "night"]
    assert b"lose their pin" in browser.get("/tray/").content
    said = apply(browser).content.decode()
    assert "night of auditor was deleted. 12 messages stay in the log undelivered" in said
    assert [one["name"] for one in broker.durables] == ["orders"]
    assert AuditEvent.objects.get(action="client.durable_delete").result == "done"
    browser.post("/clients/auditor/durables/night/delete/")
    assert b"has no durable subscription" in browser.get("/tray/").content


def test_an_onlooker_sees_them_and_deletes_none(onlooker: Client, broker: FakeBroker) -> None:
    assert b"Delete" not in onlooker.get("/durables/").content
    assert onlooker.post("/clients/auditor/durables/night/delete/").status_code == 403


def test_a_broker_that_is_away_is_said_to_be(browser: Client) -> None:
    answer = browser.get("/durables/")
    assert answer.status_code == 200
