"""Topic patterns that are invalid or match nothing are rejected by name wherever an operator enters one."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from console.models import Grant, Instance, PolicyRevision
from console.services import drafts, policy_import
from console.services.actors import Actor
from tests.console.views.test_drafts import RULE, send, stored
from tests.support.control_plane import OWN
from tests.support.fake_broker import FakeBroker

REFUSED = ("~", "~$", "~^$", "~$SLUICE.clients", "~(", "$>", ">.a", "a.>.b", "a..b", "a*")
TAKEN = (">", "*", "$", "$SLUICE.>", "~.", r"~\$.*", "~a|b")
PLACES: dict[str, Any] = {
    "may publish to": lambda pattern: {"access": {"entitlements": [{"who": ["*"], "publish": [pattern]}]}},
    "may subscribe to": lambda pattern: {
        "access": {"entitlements": [{"who": ["*"], "subscribe": [pattern]}]}
    },
    "journaled": lambda pattern: {"instance": {"journaled_topics": [pattern]}},
    "unjournaled": lambda pattern: {"instance": {"unjournaled_topics": [pattern]}},
    "sync": lambda pattern: {"instance": {"sync_topics": [pattern], "sync_members": ["a", "b"]}},
    "a rule's": lambda pattern: {
        "rules": [
            {
                "name": "behind",
                "signal": "oldest_age",
                "limit": 5000,
                "scope": {"topic": pattern},
                "ladder": [{"action": "warn"}],
            }
        ]
    },
    "ActiveMQ's": lambda pattern: {"activemq": [{"topic": pattern, "prefetch": 10}]},
    "Qpid's": lambda pattern: {"qpid": [{"topic": pattern, "depth": 1000}]},
}
"""Where a policy has patterns, as a change of it."""


@pytest.mark.parametrize("place", PLACES)
def test_a_policy(api: APIClient, broker: FakeBroker, instance: Instance, place: str) -> None:
    for pattern in REFUSED:
        answer = api.patch("/api/v1/policies", PLACES[place](pattern), headers={"If-Match": "*"})
        assert (answer.status_code, answer.data.get("code")) == (400, "bad_policy"), (pattern, answer.data)
        assert "isn't a topic pattern" in str(answer.data), pattern
    assert PolicyRevision.objects.count() == 1
    for pattern in TAKEN:
        answer = api.patch("/api/v1/policies", PLACES[place](pattern), headers={"If-Match": "*"})
        assert answer.status_code == 200, (pattern, answer.data)


@pytest.mark.parametrize(
    ("form", "field", "rest"),
    [
        ("entitlements/new/", "publish", {"who": "*"}),
        ("entitlements/new/", "subscribe", {"who": "*"}),
        ("limits/", "journaled_topics", {"journal_size": "128MiB", "preallocated_files": "2"}),
        ("limits/", "unjournaled_topics", {"journal_size": "128MiB", "preallocated_files": "2"}),
        ("limits/", "sync_topics", {"journal_size": "128MiB", "preallocated_files": "2"}),
        ("rules/new/", "topic", RULE),
        ("activemq/new/", "topic", {"prefetch": "10"}),
        ("qpid/new/", "topic", {"depth": "1000"}),
    ],
)
def test_a_form_of_a_draft(
    operator: Any, broker: FakeBroker, actor: Actor, form: str, field: str, rest: dict[str, str]
) -> None:
    browser, draft = Client(), drafts.create_draft(actor, "odd")
    browser.force_login(operator)
    before = stored(draft)
    for pattern in REFUSED:
        answer = send(browser, draft, form, **{**rest, field: pattern})
        assert answer.status_code == 422, pattern
        assert "a topic pattern" in answer.content.decode(), pattern
    assert stored(draft) == before
    for pattern in TAKEN:
        answer = send(browser, draft, form, **{**rest, field: pattern})
        assert answer.status_code == 302, (pattern, answer.content.decode())
    assert all(pattern in str(stored(draft)) for pattern in TAKEN[-1:])


def test_a_grant(api: APIClient, viewer: Any) -> None:
    for pattern in REFUSED:
        answer = api.post("/api/v1/people/vera/grants", {"role": "operator", "topic_pattern": pattern, **OWN})
        assert answer.status_code == 400, (pattern, answer.data)
        assert "isn't a topic pattern" in str(answer.data), pattern
    for pattern in TAKEN:
        answer = api.post("/api/v1/people/vera/grants", {"role": "operator", "topic_pattern": pattern, **OWN})
        assert answer.status_code == 201, (pattern, answer.data)
    assert Grant.objects.exclude(topic_pattern="").count() == len(TAKEN)


@pytest.mark.parametrize("pattern", ["~", "~$", "a..b", "$&gt;", "&gt;.a"])
def test_another_brokers_configuration(pattern: str) -> None:
    entries = (
        f'<policyEntry topic="{pattern}" topicPrefetch="6"/><policyEntry topic="fine" topicPrefetch="5"/>'
    )
    imported = policy_import.import_policy("activemq", f"<x>{entries}</x>")
    assert [one["topic"] for one in imported.document["activemq"]] == ["fine"]
    assert "topicPrefetch=6" in str(imported.skipped)
