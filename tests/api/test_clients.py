from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone
from rest_framework.test import APIClient

from broker_core.documents.system_records import DecisionEntry
from broker_core.errors import ClientError, OperatorError
from console.models import AuditEvent, ClientSample, Instance
from console.services import broker_reports
from tests.support.fake_broker import FakeBroker


def test_clients_are_listed_with_lag_state_and_revision(api: APIClient, broker: FakeBroker) -> None:
    answer = api.get("/api/v1/clients", {"sort": "-lag_messages", "page_size": 2})
    assert answer.data["count"] == 18
    slowest = answer.data["results"][0]
    assert slowest["name"] == "board-jfk"
    assert {
        "lag_messages",
        "lag_bytes",
        "lag_ms",
        "delivery",
        "offlined_since",
        "spool_bytes",
        "revision",
    } <= set(slowest)
    assert len(answer.data["results"]) == 2


def test_list_is_filtered_on_the_server(api: APIClient, broker: FakeBroker) -> None:
    assert api.get("/api/v1/clients", {"delivery": "draining"}).data["count"] == 1
    assert api.get("/api/v1/clients", {"search": "carrier-a"}).data["count"] == 2
    assert api.get("/api/v1/clients", {"sort": "shoe_size"}).status_code == 400


def test_one_client_comes_with_its_subscriptions(api: APIClient, broker: FakeBroker) -> None:
    assert api.get("/api/v1/clients/board-jfk").data["subscriptions"][0]["topic"] == "flights.>"
    missing = api.get("/api/v1/clients/nobody")
    assert (missing.status_code, missing.data["code"]) == (404, "unknown_client")


def test_disconnect_needs_a_reason_and_is_audited(api: APIClient, broker: FakeBroker) -> None:
    assert api.post("/api/v1/clients/board-jfk/disconnect", {}).status_code == 400
    answer = api.post("/api/v1/clients/board-jfk/disconnect", {"reason": "maintenance"})
    assert answer.status_code == 200
    assert broker.asked[-1] == {"do": "disconnect", "name": "board-jfk", "reason": "maintenance"}
    assert api.post("/api/v1/clients/board-jfk/disconnect", {"reason": "again"}).status_code == 404
    events = AuditEvent.objects.filter(action="client.disconnect")
    assert sorted(events.values_list("result", flat=True)) == ["done", "failed"]


def test_a_database_that_takes_no_record_of_an_act_does_not_say_that_nothing_was_done(
    api: APIClient, broker: FakeBroker
) -> None:
    """If the disk fills after the check, the broker executes the request before the audit write fails."""
    api.raise_request_exception = False

    def full(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("INSERT") and AuditEvent._meta.db_table in sql:
            raise OperationalError("database or disk is full")
        return execute(sql, *rest)

    with connection.execute_wrapper(full):
        answer = api.post("/api/v1/clients/carrier-aa/offline", {}).json()
    assert broker.asked[-1] == {"do": "offline", "name": "carrier-aa"}
    assert answer["code"] == "database_away" and "may have been carried out" in answer["fix"]


def test_nothing_changes_on_a_get(api: APIClient, broker: FakeBroker) -> None:
    assert api.get("/api/v1/clients/board-jfk/disconnect").status_code == 405
    assert len(broker.clients) == 18


def test_broker_that_is_away_is_a_503_with_what_to_do(api: APIClient, instance: Instance) -> None:
    answer = api.get("/api/v1/clients")
    assert (answer.status_code, answer.data["code"]) == (503, "broker_away")
    assert answer.data["fix"]
    assert answer["Retry-After"]


def test_a_broker_that_fails_at_it_is_a_500(api: APIClient, broker: FakeBroker) -> None:
    failed = OperatorError("internal_error", "The broker failed: KeyError('x').", "See the broker's log.")
    broker.answers["client"] = {"ok": False, "error": failed.as_dict()}
    answer = api.get("/api/v1/clients/board-jfk")
    assert (answer.status_code, answer.data["code"], answer["Retry-After"]) == (500, "internal_error", "1")


def test_a_broker_that_dies_while_it_is_asked_is_a_502(
    api: APIClient, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(request: dict[str, Any]) -> None:
        raise ConnectionAbortedError

    monkeypatch.setattr(broker, "do_client", die)
    answer = api.get("/api/v1/clients/board-jfk")
    assert (answer.status_code, answer.data["code"], answer["Retry-After"]) == (502, "broker_failed", "5")


def test_a_code_that_no_request_should_meet_is_a_500(api: APIClient, broker: FakeBroker) -> None:
    broker.answers["client"] = {
        "ok": False,
        "error": ClientError("slow_client_disk", "The client was slow.").as_dict(),
    }
    answer = api.get("/api/v1/clients/board-jfk")
    assert (answer.status_code, answer.data["code"]) == (500, "slow_client_disk")


def test_history_of_a_client(api: APIClient, instance: Instance) -> None:
    now = timezone.now().replace(microsecond=0)
    for number in range(6):
        ClientSample.objects.create(
            instance=instance,
            client="one",
            at=now - timedelta(seconds=10 * (number + 1)),
            state="live",
            lag_messages=number,
        )
    points = api.get("/api/v1/clients/one/history").data
    assert [point["lag_messages"] for point in points] == [5, 4, 3, 2, 1, 0]
    wrong = api.get("/api/v1/clients/one/history", {"start": now.isoformat(), "end": now.isoformat()})
    assert wrong.status_code == 400


def test_decisions_are_filtered_by_client(api: APIClient, instance: Instance) -> None:
    at = int(timezone.now().timestamp() * 1000)
    broker_reports.record_decisions(
        [
            DecisionEntry(at=at, client=name, action="offline", reason="slow_client_pool_memory")
            for name in ("a", "b")
        ]
    )
    found = api.get("/api/v1/decisions", {"client": "b"}).data
    assert [one["client"] for one in found["results"]] == ["b"]


def test_status_says_what_is_in_force(api: APIClient, broker: FakeBroker) -> None:
    answer = api.get("/api/v1/status").data
    assert answer["pools"][0]["name"] == "instance"
    assert answer["in_force"]["wanted"] == 1


def test_an_operator_pauses_resumes_and_offlines(api: APIClient, broker: FakeBroker) -> None:
    assert (
        api.post(
            "/api/v1/clients/board-jfk/pause", {"reason": "release", "subscription": "sub-1"}
        ).status_code
        == 200
    )
    assert broker.asked[-1] == {"do": "pause", "name": "board-jfk", "subscription": "sub-1"}
    assert api.post("/api/v1/clients/board-jfk/resume", {}).data == {
        "name": "board-jfk",
        "subscriptions": ["sub-1"],
    }
    assert api.post("/api/v1/clients/carrier-aa/offline", {}).data == {
        "name": "carrier-aa",
        "state": "offlined",
    }
    refused = api.post("/api/v1/clients/carrier-aa/offline", {})
    assert refused.data["code"] == "not_live" and refused.status_code == 409
    events = AuditEvent.objects.filter(
        action__in=["client.pause", "client.resume", "client.offline"]
    ).order_by("at")
    assert list(events.values_list("action", "result", "reason")) == [
        ("client.pause", "done", "release"),
        ("client.resume", "done", ""),
        ("client.offline", "done", ""),
        ("client.offline", "failed", ""),
    ]
