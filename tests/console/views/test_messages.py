"""The messages page: readable topics, display of bodies, and publishing as a pending change."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from console.choices import Role
from console.models import AuditEvent
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker


@pytest.fixture
def desk(broker: FakeBroker) -> Client:
    """Return a client for an operator who may read and publish only topics of flights."""
    client = Client()
    client.force_login(person("desk", Role.OPERATOR, topic_pattern="flights.>"))
    return client


def apply(browser: Client, reason: str = "ticket 7") -> str:
    context = browser.get("/tray/").context
    plan = context["pending"].digest
    browser.post("/tray/apply/", {"reason": reason, "plan": plan})
    return str(plan)


def test_messages_are_shown_with_where_a_replay_would_begin(browser: Client, broker: FakeBroker) -> None:
    text = browser.get("/messages/?topic=orders.fix").content.decode()
    assert "MsgType" in text and "DESK7" in text
    (row,) = browser.get("/messages/?topic=notes.>").context["rows"]
    assert row.message.headers == {"content-type": "text/plain", "priority": "4"}
    assert row.begin == f"sluice-1|{broker.durable - 2}|"
    assert (
        f"bookmark=sluice-1%7C{broker.durable - 2}%7C"
        in browser.get("/messages/?topic=notes.>").content.decode()
    )


def test_the_form_of_a_replay_takes_topic_and_bookmark_from_the_address(
    browser: Client, broker: FakeBroker
) -> None:
    text = browser.get("/replays/?topic=flights.UA&bookmark=sluice-1%7C7%7C").content.decode()
    assert 'value="flights.UA"' in text and 'value="sluice-1|7|"' in text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("start=nonsense", "Enter a bookmark"),
        ("end=yesterday", "Enter a time"),
        ("before=%5Ba%3Ab%5D", "Enter a bookmark"),
        ("topic=" + "x" * 2_000, "at most 1024"),
    ],
)
def test_what_cant_be_read_is_said_and_the_broker_isnt_asked_for_it(
    browser: Client, broker: FakeBroker, query: str, words: str
) -> None:
    answer = browser.get(f"/messages/?{query}")
    assert answer.status_code == 422 and words in answer.content.decode()


@pytest.mark.parametrize(
    "start", ["15m", "2026-11-22 13:45", "2026-11-22T13:45:00+01:00", "0", "sluice-1|7|", "20261122T134500Z"]
)
def test_a_start_is_a_bookmark_or_a_moment(browser: Client, broker: FakeBroker, start: str) -> None:
    answer = browser.get("/messages/", {"start": start})
    assert answer.status_code == 200
    asked = [one for one in broker.asked if one["do"] == "browse" and one["limit"] == 50]
    assert asked[-1]["bookmark"].endswith("Z") or asked[-1]["bookmark"] == start


@pytest.mark.parametrize(
    "text",
    ["2026-11-22T13:45:00+01:00", "2026-11-22 12:45", "2026-11-22T07:45-05:00", "2026-11-22 12:45:00 UTC"],
)
def test_the_offset_of_a_time_counts_on_every_page_and_form(
    browser: Client, broker: FakeBroker, text: str
) -> None:
    browser.get("/messages/", {"start": text, "end": text})
    asked = [one for one in broker.asked if one["do"] == "browse" and one["limit"] == 50][-1]
    assert asked["bookmark"] == "20261122T124500.000000Z"
    assert asked["to_ns"] == int(datetime(2026, 11, 22, 12, 45, tzinfo=UTC).timestamp()) * 10**9
    form = {"name": "r", "client": "board-jfk", "topic": "flights.>", "bookmark": text}
    browser.post("/replays/new/", form)
    created = [one for one in broker.asked if one["do"] == "replay_create"]
    assert created[-1]["bookmark"] == "20261122T124500.000000Z"
    page = browser.get("/audit/", {"since": text}).content.decode()
    assert 'value="2026-11-22T12:45:00"' in page
    for kept in ("0", "sluice-1|7|", "20261122T124500Z"):
        browser.post("/replays/new/", {**form, "bookmark": kept})
        made = [one for one in broker.asked if one["do"] == "replay_create"]
        assert made[-1]["bookmark"] == kept


def test_whoever_may_read_some_topics_reads_those_and_no_others(desk: Client, broker: FakeBroker) -> None:
    answer = desk.get("/messages/")
    assert answer.context["topic"] == "flights.>"
    assert {row.message.topic.partition(".")[0] for row in answer.context["rows"]} == {"flights"}
    assert "orders.fix" not in answer.content.decode()
    for path in ("/messages/?topic=orders.fix", "/messages/?topic=%3E", "/messages/follow/?topic=orders.fix"):
        assert desk.get(path).status_code == 403, path
    assert desk.get("/messages/follow/?topic=flights.UA").status_code == 200
    refused = desk.post("/messages/publish/", {"topic": "orders.fix", "format": "json", "body": "1"})
    assert refused.status_code == 403


def test_following_without_a_topic_or_with_a_bad_one_is_refused(browser: Client, broker: FakeBroker) -> None:
    assert browser.get("/messages/follow/").status_code == 422
    broker.answers["browse"] = {
        "ok": False,
        "error": {"code": "bad_pattern", "message": "No.", "fix": "", "details": {}},
    }
    answer = browser.get("/messages/follow/?topic=a..b&after=sluice-1%7C1%7C")
    assert answer.status_code == 200 and "data-problem" in answer.content.decode()


@pytest.mark.parametrize(
    ("kind", "body", "published"),
    [
        ("json", '{"a": 1}', {"data": {"a": 1}}),
        ("text", "hallo", {"body": "aGFsbG8="}),
        ("fix", "35=D|55=IBM|", {"body": "MzU9RAE1NT1JQk0B"}),
        ("hex", "68 61", {"body": "aGE="}),
    ],
)
def test_a_message_is_published_as_a_pending_change_with_a_reason(
    browser: Client, broker: FakeBroker, kind: str, body: str, published: dict[str, Any]
) -> None:
    browser.post("/messages/publish/", {"topic": "flights.ZZ", "format": kind, "body": body})
    assert not [one for one in broker.asked if one["do"].startswith("publish")]
    told = browser.get("/tray/").content.decode()
    assert "flights.ZZ" in told and "receive it, if it matches their filters" in told
    apply(browser)
    (asked,) = [one for one in broker.asked if one["do"].startswith("publish")]
    assert {key: asked[key] for key in published} == published
    event = AuditEvent.objects.get(action="message.publish")
    assert event.reason == "ticket 7" and body not in json.dumps(event.after)


@pytest.mark.parametrize(("kind", "body"), [("json", "{"), ("hex", "abc"), ("nothing", "1")])
def test_a_body_that_isnt_what_it_says_stays_in_the_form(
    browser: Client, broker: FakeBroker, kind: str, body: str
) -> None:
    answer = browser.post("/messages/publish/", {"topic": "flights.ZZ", "format": kind, "body": body})
    assert answer.status_code == 422 and browser.get("/tray/").context["pending"] is None


@pytest.mark.parametrize("topic", ["$SLUICE.clients", "a..b", "a.*"])
def test_a_topic_that_cant_be_published_to_blocks_pending_changes(
    browser: Client, broker: FakeBroker, topic: str
) -> None:
    browser.post("/messages/publish/", {"topic": topic, "format": "json", "body": "1"})
    assert browser.get("/tray/").context["pending"].blocked
