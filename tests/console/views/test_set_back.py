"""Pages while a broker stores a policy that the database lacks."""

from __future__ import annotations

from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from console.models import Instance
from console.queries import policies as read
from console.queries import system_conditions
from console.services import broker_reports, policies
from console.services.actors import Actor
from tests.console.services.test_set_back import keep
from tests.support.fake_broker import FakeBroker


def test_it_is_said_everywhere_also_where_the_numbers_are_equal(
    broker: FakeBroker, instance: Instance, actor: Actor, browser: Client, client: Client, api: APIClient
) -> None:
    keep(broker, 1)
    broker_reports.record_report(broker.snapshot())
    state = read.policy_status(instance)
    assert (state["running"], state["wanted"], state["converged"], state["set_back"]) == (1, 1, False, True)
    assert "doesn't have" in state["why"] and read.running_revisions(instance) == {}
    change = policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 9}})
    assert not change.applied and "retains revision 1" in change.problem
    found = {one.key: one for one in system_conditions.current_conditions()}
    assert found["policy_set_back policy.stored"].severe
    parts = {one["name"]: one for one in client.get("/readyz").json()["parts"]}
    assert not parts["policy sluice-1"]["ok"] and parts["policy sluice-1"]["problem"] == "policy_set_back"
    (entry,) = api.get("/api/v1/brokers").json()
    assert entry["code"] == "policy_set_back" and entry["since"] == 1_000 and "policy resolve" in entry["fix"]
    assert 'code="policy_set_back"' in client.get("/metrics").content.decode()
    page = browser.get("/policies/").content.decode()
    assert "Restore the broker’s policy" in page and "Follow the database" in page


def test_the_page_decides_by_post_alone_with_a_tick_and_the_permission(
    broker: FakeBroker, instance: Instance, browser: Client
) -> None:
    document = keep(broker, 40)
    broker_reports.record_revision(instance, 40, timezone.now(), set_back=True)
    assert browser.get("/policies/resolve/").status_code == 405
    assert browser.post("/policies/resolve/", {"choice": "both"}).status_code == 400
    browser.post("/policies/resolve/", {"choice": "database"})
    assert broker.kept is not None, "the choice needs a confirmation"
    answer = browser.post("/policies/resolve/", {"choice": "stored"}, follow=True)
    assert "Revision 40. It is in force." in answer.content.decode()
    assert broker.kept is None and policies.document_in_force("sluice-1") == document
