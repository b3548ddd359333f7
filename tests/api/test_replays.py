"""Managed replays through the API."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from msgspec import structs
from rest_framework.test import APIClient

from broker_core.documents.replays import ReplayEntry
from console.choices import Role
from console.models import AuditEvent, Instance, ManagedReplay
from console.services import replays
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker, some_replays

LIST = "/api/v1/replays"


def entries() -> list[ReplayEntry]:
    return msgspec.convert(some_replays(), list[ReplayEntry])


def test_the_list_shows_progress_and_time_left(api: APIClient, broker: FakeBroker) -> None:
    found = api.get(LIST).data["results"]
    assert [one["name"] for one in found] == ["nightly", "audit-2026", "last-week"]
    assert (found[0]["progress"], found[0]["left_s"], found[0]["reported_at"]) == (0.607, 734.2, None)
    assert [one["name"] for one in api.get(LIST, {"state": "paused"}).data["results"]] == ["audit-2026"]
    assert api.get(f"{LIST}/nightly").data["client"] == "lake-loader"
    assert api.get(f"{LIST}/nobody").status_code == 404


def test_while_the_broker_is_away_the_list_is_what_it_last_said(api: APIClient, instance: Instance) -> None:
    replays.record_replays(instance, entries())
    found = api.get(LIST).data["results"]
    assert {one["name"] for one in found} == {"nightly", "audit-2026", "last-week"}
    assert all(one["reported_at"] for one in found)
    assert api.post(f"{LIST}/nightly/pause").data["code"] == "broker_away"


def test_one_is_made_paused_resumed_re_rated_cancelled_and_forgotten(
    api: APIClient, broker: FakeBroker
) -> None:
    made = api.post(
        LIST,
        {"name": "audit", "client": "board-jfk", "topic": "flights.>", "rate": "2X", "rate_max_gap": "10s"},
    )
    assert (made.status_code, made.data["state"], made.data["rate"]) == (201, "waiting", "2X")
    assert api.post(LIST, {"name": "audit", "client": "board-jfk", "topic": "flights.>"}).status_code == 409
    assert api.post(f"{LIST}/audit/pause").data["state"] == "paused"
    assert api.post(f"{LIST}/audit/resume").data["state"] == "running"
    assert api.patch(f"{LIST}/audit", {"rate": "500KB"}).data["rate"] == "500KB"
    assert api.patch(f"{LIST}/audit", {"rate": None}).data["rate"] is None
    assert api.post(f"{LIST}/audit/cancel").data["state"] == "cancelled"
    row = ManagedReplay.objects.get(name="audit")
    assert (row.state, row.author != "") == ("cancelled", True)
    assert api.delete(f"{LIST}/audit").status_code == 204
    assert not ManagedReplay.objects.filter(name="audit").exists()
    actions = list(
        AuditEvent.objects.filter(object="sluice-1: replay audit", result="done")
        .order_by("id")
        .values_list("action", flat=True)
    )
    assert actions == [
        f"replay.{word}" for word in ("create", "pause", "resume", "rate", "rate", "cancel", "forget")
    ]


@pytest.mark.parametrize(
    "body", [{}, {"name": "x"}, {"name": "x", "client": "y", "topic": "z", "speed": "9"}]
)
def test_what_is_missing_or_unknown_is_refused(
    api: APIClient, broker: FakeBroker, body: dict[str, str]
) -> None:
    assert api.post(LIST, body).status_code == 400


def test_a_grant_for_some_clients_shows_and_steers_theirs_alone(
    instance: Instance, broker: FakeBroker
) -> None:
    client = APIClient()
    client.force_authenticate(person("nina", Role.OPERATOR, client_pattern="aud*"))
    assert {one["name"] for one in client.get(LIST).data["results"]} == {"audit-2026", "last-week"}
    assert client.get(f"{LIST}/nightly").status_code == 404
    assert client.post(f"{LIST}/nightly/pause").status_code == 404
    assert client.post(f"{LIST}/audit-2026/resume").status_code == 200
    assert client.post(LIST, {"name": "x", "client": "board-jfk", "topic": "a"}).status_code == 403


def test_a_report_keeps_one_row_for_each_and_lets_go_of_those_the_broker_forgot(instance: Instance) -> None:
    nightly, audit, old = entries()
    replays.record_replays(instance, [nightly, audit, old], complete=True)
    replays.record_replays(instance, [structs.replace(nightly, progress=0.9), audit], complete=True)
    assert set(ManagedReplay.objects.values_list("name", "progress")) == {
        ("nightly", 0.9),
        ("audit-2026", 0.09),
    }
    assert ManagedReplay.objects.get(name="nightly").reported_at <= datetime.now(UTC)
