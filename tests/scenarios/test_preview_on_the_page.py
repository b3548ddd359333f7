"""A draft through the page, the API and a real broker: its preview comes true, and must be confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client
from rest_framework.test import APIClient

from broker_core.config import PolicyDocument
from console.models import Instance, PolicyDraft
from console.services import drafts, policies
from console.services.actors import Actor
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.brokers import tcp_policy, until
from tests.support.raw import RawClient
from tests.support.rules import rule
from tests.support.stalled import StalledSubscriber


@pytest.fixture
def browser(operator: Any) -> Client:
    """Return a test client that is logged on as the operator."""
    client = Client()
    client.force_login(operator)
    return client


STALLED = ("desk-1", "desk-2", "desk-3")
RULE = rule("disconnect", 20)


@pytest.fixture
def real(db: None, instance: Instance, tmp_path: Path) -> Iterator[BrokerThread]:
    """Run the installation's broker with three stalled clients."""
    document = {**tcp_policy().to_dict(), "rules": [{**RULE, "mode": "shadow"}]}
    document["instance"]["name"] = instance.name
    policies.publish(Actor("system", "test"), document, reason="real", instance_name=instance.name)
    policy = PolicyDocument.from_dict(policies.document_in_force(instance.name))
    socket = Path(django_settings.SLUICE_RUN_DIRECTORY) / f"{instance.name}.sock"
    with broker_thread(tmp_path, policy, socket) as running:
        clients = running.run(stall(running.broker))
        yield running
        assert len(clients) == len(STALLED) + 1


async def stall(broker: Any) -> list[Any]:
    stalled = [await StalledSubscriber.connect(broker, name, "t") for name in STALLED]
    feed = await RawClient.connect(broker, "feed")
    for _ in range(15):
        await feed.publish("t", [b"x" * 1_000] * 20)
    clients = broker.engine.roster.clients
    await until(lambda: all(clients[name].account.waiting.messages for name in STALLED))
    await until(lambda: len(broker.engine.decisions.recent) == len(STALLED))  # recorded in shadow
    return [*stalled, feed]


def client_actions(running: BrokerThread) -> set[tuple[str, str, str]]:
    async def look() -> set[tuple[str, str, str]]:
        await asyncio.sleep(2)
        recent = running.broker.engine.decisions.recent
        return {(one.client, one.action, one.mode) for one in recent if one.revision > 2}

    found: set[tuple[str, str, str]] = running.run(look())
    return found


def draft_with(actor: Actor, **settings: Any) -> PolicyDraft:
    draft = drafts.create_draft(actor, "tighter")
    return drafts.edit_draft(actor, draft.pk, {"rules": [{**RULE, **settings}]})


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_what_the_page_and_the_api_say_is_what_happens(
    real: BrokerThread, browser: Client, api: APIClient, actor: Actor, mode: str
) -> None:
    """The case `enforce` promotes the rule, which is in shadow before."""
    draft = draft_with(actor, mode=mode, limit=20 if mode == "enforce" else 21)
    effect = api.post(f"/api/v1/drafts/{draft.pk}/preview").data["effect"]
    said = {(one["client"], one["action"], one["mode"]) for one in effect["acted_on"]}
    assert said == {(name, "disconnect", mode) for name in STALLED}
    assert (effect["enforced_in_all"], effect["acted_on_in_all"]) == (3 if mode == "enforce" else 0, 3)

    page = browser.post(
        f"/policies/drafts/{draft.pk}/preview/", headers={"HX-Request": "true"}
    ).content.decode()
    assert ("3 clients disconnected." in page) == (mode == "enforce")
    assert ('<span class="tag shadow">recorded only' in page) == (mode == "shadow")

    browser.post(f"/policies/drafts/{draft.pk}/plan/", {"whom": "all"})
    shown = browser.get("/tray/").content.decode()
    assert ('name="confirmed" required' in shown) == (mode == "enforce")
    plan = shown.partition('name="plan" value="')[2].partition('"')[0]
    browser.post("/tray/apply/", {"reason": "now", "plan": plan})
    assert policies.newest_revision(draft.instance).number == (2 if mode == "enforce" else 3), (
        "the change needs a confirmation"
    )
    if mode == "enforce":
        browser.post("/tray/apply/", {"reason": "now", "plan": plan, "confirmed": "on"})
    assert client_actions(real) == said


def test_a_rollout_with_a_brake_says_on_the_page_that_more_would_match(
    real: BrokerThread, browser: Client, actor: Actor
) -> None:
    draft = draft_with(actor, mode="enforce")
    form = {"whom": "client", "client": "desk-*", "most_decisions": "1"}
    page = browser.post(
        f"/policies/drafts/{draft.pk}/preview/", form, headers={"HX-Request": "true"}
    ).content.decode()
    told = (
        "1 client disconnected, 2 decisions exceed the allowance: Sluice withdraws the revision immediately."
    )
    assert told in page
    browser.post(f"/policies/drafts/{draft.pk}/plan/", form)
    shown = browser.get("/tray/").content.decode()
    assert 'name="confirmed" required' in shown and told in shown


async def subscribe_to_the_log(broker: Any) -> RawClient:
    client = await RawClient.connect(broker, "reader")
    client.send_command({"c": "subscribe", "id": "s", "topic": "prices.a", "bookmark": "0"})
    await client.read_until("processed")
    return client


def test_readers_of_topics_that_are_no_longer_journaled_are_named_on_the_page_and_need_the_tick(
    real: BrokerThread, browser: Client, actor: Actor
) -> None:
    reader = real.run(subscribe_to_the_log(real.broker))
    draft = drafts.create_draft(actor, "fewer topics")
    drafts.edit_draft(actor, draft.pk, {"instance": {"journaled_topics": ["orders.>"]}})
    page = browser.post(
        f"/policies/drafts/{draft.pk}/preview/", headers={"HX-Request": "true"}
    ).content.decode()
    assert "1 client without new records" in page and "reader" in page
    browser.post(f"/policies/drafts/{draft.pk}/plan/", {"whom": "all"})
    shown = browser.get("/tray/").content.decode()
    assert 'name="confirmed" required' in shown and "1 client without new records" in shown
    plan = shown.partition('name="plan" value="')[2].partition('"')[0]
    browser.post("/tray/apply/", {"reason": "now", "plan": plan})
    assert policies.newest_revision(draft.instance).number == 2, "the change needs a confirmation"
    browser.post("/tray/apply/", {"reason": "now", "plan": plan, "confirmed": "on"})
    notice = real.run(reader.read_until("notice"))
    assert (notice["code"], notice["details"]["topic"]) == ("no_longer_journaled", "prices.a")
