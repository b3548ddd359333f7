"""The law of absence: an account that may see some clients finds no name of another client anywhere.

Every address of tests/api/doors.py is asked, by session and by token. An answer has no foreign name, and a
refusal is the same whether the foreign subject exists or not.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.choices import Permission, Role, RolloutState
from console.models import (
    Action,
    ActionRun,
    AlertRule,
    BrokerUser,
    Entitlement,
    Instance,
    PolicyDraft,
    PolicyRevision,
    StagedRollout,
)
from console.services import operators, policies
from console.services.actors import SYSTEM
from tests.api.doors import DOORS, READS, Door, send
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker, make_link
from tests.support.seed import OPERATOR, seed_history

FOREIGN = (
    "board-jfk",
    "board-",
    "delay-mailer",
    "lake-loader",
    "feed-publisher",
    "auditor",
    "zoe-trader",
    "desk-zoe",
    "zoe-group",
)
"""Clients, patterns and users outside the scope `carrier-*`."""
ASKED = [door for door in READS if not any(name in door.path for name in FOREIGN)]
"""Addresses that name no foreign client themselves."""


@pytest.fixture
def site(broker: FakeBroker, settings: Any) -> Instance:
    """Return an instance with data of foreign clients in every place that can name one."""
    instance = seed_history(settings.SLUICE_INSTANCE)
    BrokerUser.objects.create(
        instance=instance, name="zoe-trader", groups=["zoe-group"], clients=["desk-zoe*"]
    )
    Entitlement.objects.create(
        instance=instance, who=["zoe-trader", "group:zoe-group"], publish=["zoe-trader.>"], subscribe=[">"]
    )
    policies.change_instance_policy(
        OPERATOR,
        {
            "rules": [
                {
                    "name": "late-boards",
                    "scope": {"client": "board-*"},
                    "signal": "oldest_age",
                    "limit": 20_000,
                    "mode": "shadow",
                    "ladder": [{"action": "warn"}],
                }
            ]
        },
        reason="board-jfk was late",
    )
    revision = PolicyRevision.objects.filter(instance=instance).latest("number")
    changed = {**revision.document["rules"][0], "name": "desk-zoe", "protected": ["delay-mailer"]}
    document = {**revision.document, "rules": [*revision.document["rules"], changed]}
    PolicyDraft.objects.create(
        instance=instance, title="next", document=document, base=revision.number, author="maria"
    )
    StagedRollout.objects.create(
        instance=instance,
        revision=revision,
        base=PolicyRevision.objects.get(instance=instance, number=revision.number - 1),
        client="board-jfk",
        state=RolloutState.RUNNING,
        why="board-jfk decides",
    )
    AlertRule.objects.create(instance=instance, name="boards", about="stalled", client="board-*")
    Action.objects.create(
        instance=instance,
        name="tidy",
        when=[{"on": "logon", "client": "board-*"}],
        steps=[{"do": "disconnect", "client": "board-jfk"}],
        started_at=timezone.now(),
    )
    broker.links = [make_link("ny")]
    broker.answers["journals"] = {"ok": True, "result": held_segments(broker)}
    return instance


def held_segments(broker: FakeBroker) -> list[dict[str, Any]]:
    """Return the broker's segments, one held by every kind of reader of a foreign client."""
    segments: list[dict[str, Any]] = broker.do_journals({})
    segments[0]["pinned_by"] = [
        "durable subscription zoe-trader of board-jfk",
        "paused subscription desk-zoe of delay-mailer",
        "spool of board-jfk",
        "replay of auditor",
        "spool of carrier-ua",
    ]
    return segments


def scoped_session(role: Role = Role.VIEWER) -> Client:
    client = Client()
    client.force_login(person(f"otto-{role}", role, client_pattern="carrier-*"))
    return client


class TokenClient(Client):
    """A client that sends a token with every request."""

    def __init__(self, token: str, **defaults: Any) -> None:
        super().__init__(HTTP_AUTHORIZATION=f"Bearer {token}", **defaults)


def scoped_token(**defaults: Any) -> Client:
    user = person("tom", Role.OPERATOR, client_pattern="carrier-*")
    _, token = operators.create_token(
        SYSTEM, user, "walk", lifetime=timedelta(days=1), scope=(Permission.VIEW, Permission.ACT_ON_CLIENTS)
    )
    return TokenClient(token, **defaults)


def foreign_names(answer: Any) -> set[str]:
    body = b"".join(answer) if answer.streaming else answer.content
    text = body.decode(errors="replace") + repr(answer.headers)
    return {name for name in FOREIGN if name in text}


def kept_addresses(instance: Instance) -> list[Door]:
    """Return addresses of stored rows, which tests/api/doors.py names only by example."""
    draft = PolicyDraft.objects.get(instance=instance)
    newest = PolicyRevision.objects.filter(instance=instance).latest("number").number
    return [
        Door("GET", f"/api/v1/drafts/{draft.pk}", Permission.VIEW),
        Door("POST", f"/api/v1/drafts/{draft.pk}/preview", Permission.VIEW, {}, looks=True),
        Door("GET", f"/api/v1/policies/revisions/{newest}", Permission.VIEW),
        Door("GET", f"/policies/drafts/{draft.pk}/", Permission.VIEW),
        Door("POST", f"/policies/drafts/{draft.pk}/preview/", Permission.VIEW, {}, looks=True),
        *(
            Door("GET", f"{page}?at={timezone.now():%Y-%m-%dT%H:%M:%S}", Permission.VIEW)
            for page in ("/", "/policies/", "/clients/")
        ),
        *(Door("GET", f"/api/v1/runs/{run.pk}", Permission.VIEW) for run in ActionRun.objects.all()),
    ]


@pytest.mark.parametrize("kind", ["session", "token"])
def test_no_answer_names_a_client_out_of_scope(kind: str, site: Instance) -> None:
    client = scoped_session() if kind == "session" else scoped_token()
    asked = ASKED + kept_addresses(site)
    named = {str(door): foreign_names(send(client, door)) for door in asked}
    assert {door: names for door, names in named.items() if names} == {}


def test_the_data_is_there_for_an_account_without_a_scope(site: Instance) -> None:
    """The law would hold for an empty site, too."""
    client = Client()
    client.force_login(person("maria", Role.ADMINISTRATOR))
    seen = {str(door): foreign_names(send(client, door)) for door in ASKED + kept_addresses(site)}
    assert set().union(*seen.values()) == set(FOREIGN)
    for address in (
        "GET /metrics",
        "GET /api/v1/policies",
        "GET /api/v1/journals",
        "GET /api/v1/rollouts",
        "GET /api/v1/actions",
        "GET /alerts/",
        "GET /policies/",
    ):
        assert seen[address], address


def test_a_stranger_on_this_machine_reads_no_names(site: Instance) -> None:
    open_to_all = [door for door in ASKED if not door.path.startswith("/api/")]
    named = {str(door): foreign_names(send(Client(), door)) for door in open_to_all}
    assert {door: names for door, names in named.items() if names} == {}


def test_refusals_do_not_tell_whether_a_foreign_subject_exists(site: Instance) -> None:
    """Each address that names a client or a replay answers alike for a foreign and for an unknown one."""
    client = scoped_session(Role.OPERATOR)
    subjects = {"board-jfk": "nobody-here", "nightly": "never-made", "last-week": "no-weeks"}
    compared = 0
    for door in DOORS:
        for known, unknown in subjects.items():
            if known not in door.path:
                continue
            answers = [send(client, door, door.path.replace(known, name)) for name in (known, unknown)]
            bodies = [
                re.sub(r'csrfmiddlewaretoken" value="[^"]*"', "", one.content.decode()).replace(name, "NAME")
                for one, name in zip(answers, (known, unknown), strict=True)
            ]
            assert answers[0].status_code == answers[1].status_code, door
            assert re.sub(r"[0-9a-f]{32}", "ID", bodies[0]) == re.sub(r"[0-9a-f]{32}", "ID", bodies[1]), door
            assert not {name for name in foreign_names(answers[0]) if name not in known}, door
            compared += 1
    assert compared > 15
