"""Checks for every page: permissions, behaviour without a broker, and no changes by GET."""

from __future__ import annotations

from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console.models import Instance, RevisionReport
from console.queries import system_conditions
from console.queries.policies import REPORT_FRESH
from console.services import broker_reports, policies
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker
from tests.support.html import minified
from tests.support.machines import Machines

PAGES = (
    "overview",
    "standing",
    "alerts",
    "clients",
    "flow",
    "decisions",
    "policies",
    "policies_in_force",
    "drafts",
    "journals",
    "messages",
    "replication",
    "replays",
    "replays_list",
    "actions",
    "actions_new",
    "actions_firings",
    "runs",
    "settings",
    "runs_list",
)
CHANGES = (
    "policies_instance",
    "drafts_new",
    "drafts_import",
    "rollout_promote",
    "rollout_stop",
    "journals_plan",
    "pending_changes_clients",
    "pending_changes_matching",
    "runs_pipeline",
)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_a_stranger_to_log_in(client: Client, name: str, db: None) -> None:
    answer = client.get(reverse(name))
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_shown_with_a_broker(browser: Client, broker: FakeBroker, name: str) -> None:
    assert browser.get(reverse(name)).status_code == 200


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_shown_while_the_broker_is_away(browser: Client, instance: Instance, name: str) -> None:
    assert browser.get(reverse(name)).status_code == 200


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_shown_before_a_broker_ever_started(browser: Client, name: str) -> None:
    assert browser.get(reverse(name)).status_code == 200


@pytest.mark.parametrize("scene", ["", "away b", "refused c", "cut off"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_shown_with_a_group_and_links_whatever_happens_there(
    browser: Client, machines: Machines, name: str, scene: str
) -> None:
    if scene:
        machines.play(scene)
    text = browser.get(reverse(name)).content.decode()
    if "<nav" in text:
        assert ("The broker sluice-1/b doesn&#x27;t answer" in text) is (scene == "away b")


def test_what_is_said_of_a_group_on_each_page_agrees(
    browser: Client, machines: Machines, instance: Instance, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 40}}).revision
    assert newest.number == 2
    machines.take_up(2)
    machines.play("refused c")
    monkeypatch.setattr(system_conditions, "APPLY_TIMEOUT", timedelta(0))
    for one in machines.members.values():
        broker_reports.record_revision(instance, one.revision, timezone.now(), member=one.member)

    def page(path: str) -> str:
        return unescape(minified(browser.get(path)))

    for there in (True, False):
        assert "revision 2 in force on 2 of 3 members" in page("/replication/")
        assert "<bdi>c</bdi>: The broker runs revision 1" in page("/replication/")
        shown = page("/policies/")
        assert "Revision 2 in force on 2 of 3 members" in shown
        assert (
            "in force on <bdi>a</bdi>, <bdi>b</bdi></span>" in shown
            and "in force on <bdi>c</bdi></span>" in shown
        )
        assert "1, not 2" in page("/") and "1, not 2" in page("/overview/verdict/")
        told = page("/standing/")
        assert "Revision 2 isn't in force" in told and "c: The broker runs revision 1" in told
        assert ("sluice-1/b doesn't answer" in told) is not there
        machines.play("away b")
    RevisionReport.objects.filter(member="b").update(seen_at=timezone.now() - REPORT_FRESH * 2)
    told = page("/standing/")
    assert "c: The broker runs revision 1" in told and "b: The broker last reported" not in told
    assert "in force on <bdi>a</bdi></span>" in page("/policies/"), "the revision in force at b is unknown"
    assert "b</b> The broker last reported" in page("/policies/")


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_refused_by_get(browser: Client, broker: FakeBroker, name: str) -> None:
    assert browser.get(reverse(name)).status_code == 405
    assert broker.asked == []


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_refused_to_an_onlooker(onlooker: Client, broker: FakeBroker, name: str) -> None:
    assert onlooker.post(reverse(name), {"action": "remove", "age": "0s"}).status_code == 403
    assert {one["do"] for one in broker.asked} == {"status"}  # by the page's frame


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_refused_without_its_token(operator: Any, broker: FakeBroker, name: str) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(operator)
    answer = strict.post(reverse(name))
    assert answer.status_code == 403
    assert "Nothing was done" in answer.content.decode()
    assert broker.asked == []


@pytest.mark.parametrize("name", CHANGES)
def test_after_a_login_one_is_on_the_page_whose_act_found_the_session_ended(
    client: Client, broker: FakeBroker, name: str
) -> None:
    came = {"Referer": "http://testserver/clients/?q=desk"}
    login = "/login/?next=/clients/%3Fq%3Ddesk"
    assert client.post(reverse(name), headers=came)["Location"] == login
    by_script = client.post(reverse(name), headers=came | {"HX-Request": "true"})
    assert (by_script.status_code, by_script["HX-Redirect"]) == (204, login)
    elsewhere = client.post(reverse(name), headers={"Referer": "http://example.org/"})
    assert elsewhere["Location"] == "/login/?next=/"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_inline_script_or_style(browser: Client, broker: FakeBroker, name: str) -> None:
    answer = browser.get(reverse(name))
    text = answer.content.decode()
    assert "'unsafe-inline'" not in answer["Content-Security-Policy"]
    assert " style=" not in text
    assert "<style" not in text
    assert "onclick=" not in text
    for part in text.split("<script")[1:]:
        head = part.split(">", 1)[0]
        assert "src=" in head or 'type="application/json"' in head


def test_a_broker_that_is_away_is_said_on_every_page(browser: Client, instance: Instance) -> None:
    for name in ("overview", "policies", "runs"):
        assert b'data-standing="broker"' in browser.get(reverse(name)).content
    assert b'data-standing="broker"' in browser.get(reverse("standing")).content


def test_the_style_guide_is_there_under_debug_alone(
    browser: Client, broker: FakeBroker, settings: Any
) -> None:
    assert browser.get("/styleguide/").status_code == 404
    settings.DEBUG = True
    assert b"recorded only" in browser.get("/styleguide/").content


def test_an_address_that_isnt_there_is_a_page_that_leads_on(browser: Client, broker: FakeBroker) -> None:
    answer = browser.get("/no/such/page/")
    assert answer.status_code == 404
    assert b"There is no page at this address" in answer.content and b"/no/such/page/" in answer.content


def test_a_database_that_is_away_is_said_and_not_called_a_mistake(
    browser: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise OperationalError("no connection")

    monkeypatch.setattr("console.views.overview.history.decisions", gone)
    browser.raise_request_exception = False
    answer = browser.get("/")
    assert answer.status_code == 503
    assert "The database hasn’t answered since" in answer.content.decode()


def test_the_pages_name_their_instance(browser: Client, broker: FakeBroker) -> None:
    assert b"sluice-1" in browser.get("/").content


def test_logging_in_leads_to_the_overview(client: Client, operator: Any) -> None:
    answer = client.post("/login/", {"username": "maria", "password": "a-long-enough-password"})
    assert (answer.status_code, answer["Location"]) == (302, "/")


def test_a_wrong_password_is_said(client: Client, operator: Any) -> None:
    answer = client.post("/login/", {"username": "maria", "password": "wrong"})
    assert answer.status_code == 200
    assert b'role="alert"' in answer.content
