from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from console.models import ApiToken, AuditEvent, Instance
from tests.support.control_plane import OWN, PASSWORD
from tests.support.fake_broker import FakeBroker

READS = [
    "/api/v1/status",
    "/api/v1/transports",
    "/api/v1/transports/tcp",
    "/api/v1/policies",
    "/api/v1/policies/revisions",
    "/api/v1/clients",
    "/api/v1/clients/board-jfk",
    "/api/v1/clients/board-jfk/history",
    "/api/v1/journals",
    "/api/v1/runs",
    "/api/v1/schedules",
    "/api/v1/decisions",
    "/api/v1/auth/me",
    "/api/v1/tokens",
    "/api/v1/schema",
]
CHANGES = [
    ("patch", "/api/v1/transports/tcp", {"port": 9100}),
    ("patch", "/api/v1/policies", {"client_policy": {"client_max_capacity": 10}}),
    ("post", "/api/v1/clients/board-jfk/disconnect", {"reason": "x"}),
    ("post", "/api/v1/journals/remove", {"age": "7d"}),
    ("post", "/api/v1/pipeline/lake", {}),
    ("post", "/api/v1/runs/00000000-0000-0000-0000-000000000000/cancel", {}),
]


def token_client(text: str, word: str = "Bearer") -> APIClient:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"{word} {text}")
    return client


@pytest.mark.parametrize("address", READS)
def test_reading_needs_a_login_and_no_more(address: str, viewer: Any, broker: FakeBroker) -> None:
    assert APIClient().get(address).status_code == 401
    client = APIClient()
    client.force_authenticate(viewer)
    assert client.get(address).status_code == 200


@pytest.mark.parametrize(("method", "address", "body"), CHANGES)
def test_changing_needs_an_operator_and_a_refusal_is_audited(
    method: str, address: str, body: dict[str, Any], viewer: Any, broker: FakeBroker
) -> None:
    client = APIClient()
    assert getattr(client, method)(address, body).status_code == 401
    client.force_authenticate(viewer)
    assert getattr(client, method)(address, body).status_code == 403
    denied = AuditEvent.objects.filter(result="denied", object=address)
    assert sorted(denied.values_list("actor", flat=True)) == ["anonymous", "vera"]
    assert [asked["do"] for asked in broker.asked] == []


def test_login_gives_a_session_that_changes_need_a_csrf_token_for(operator: Any, broker: FakeBroker) -> None:
    client = APIClient(enforce_csrf_checks=True)
    answer = client.post("/api/v1/auth/login", {"username": "maria", "password": PASSWORD})
    assert (answer.status_code, "manage_access" in answer.data["permissions"]) == (200, True)
    assert client.get("/api/v1/auth/me").data["username"] == "maria"
    assert client.patch("/api/v1/transports/tcp", {"port": 9100}).status_code == 403
    token = client.cookies["csrftoken"].value
    assert (
        client.patch(
            "/api/v1/transports/tcp", {"port": 9100}, headers={"X-CSRFToken": token, "If-Match": "*"}
        ).status_code
        == 200
    )
    assert client.post("/api/v1/auth/logout", headers={"X-CSRFToken": token}).status_code == 204
    assert client.get("/api/v1/auth/me").status_code == 401


def test_login_takes_no_form_of_another_site(operator: Any) -> None:
    answer = APIClient().post(
        "/api/v1/auth/login",
        f"username=maria&password={PASSWORD}",
        content_type="application/x-www-form-urlencoded",
    )
    assert answer.status_code == 415


def test_wrong_passwords_lock_the_name_for_a_while(operator: Any, settings: Any) -> None:
    settings.AXES_FAILURE_LIMIT = 3
    client = APIClient()
    wrong = {"username": "maria", "password": "wrong"}
    assert [client.post("/api/v1/auth/login", wrong).status_code for _ in range(3)] == [401, 401, 429]
    locked = client.post("/api/v1/auth/login", {"username": "maria", "password": PASSWORD})
    assert (locked.status_code, locked.json()["code"], locked["Retry-After"]) == (429, "locked", "900")
    assert AuditEvent.objects.filter(action="login", result="denied").count() == 4


def test_locked_name_is_told_so_on_the_login_page(operator: Any, settings: Any) -> None:
    settings.AXES_FAILURE_LIMIT = 1
    answer = APIClient().post("/login/", {"username": "maria", "password": "wrong"}, format="multipart")
    assert answer.status_code == 429
    assert b"Too many wrong passwords" in answer.content


@pytest.mark.parametrize("word", ["Bearer", "Token"])
def test_token_is_shown_once_and_works_until_revoked(word: str, api: APIClient, broker: FakeBroker) -> None:
    made = api.post(
        "/api/v1/tokens", {**OWN, "name": "ci", "lifetime": "30d", "scope": ["view", "edit_policies"]}
    ).data
    client = token_client(made["token"], word)
    me = client.get("/api/v1/auth/me").data
    assert (me["username"], me["token"], me["permissions"]) == ("maria", "ci", ["view", "edit_policies"])
    assert (
        client.patch("/api/v1/transports/tcp", {"port": 9100}, headers={"If-Match": "*"}).status_code == 200
    )
    assert AuditEvent.objects.get(action="transport.change").actor == "maria by token ci"
    assert "token" not in api.get("/api/v1/tokens").data["results"][0]
    assert api.delete(f"/api/v1/tokens/{made['id']}").status_code == 204
    assert client.get("/api/v1/auth/me").status_code == 401


def test_reading_token_changes_nothing(api: APIClient, broker: FakeBroker) -> None:
    client = token_client(api.post("/api/v1/tokens", {**OWN, "name": "dashboard"}).data["token"])
    assert client.get("/api/v1/clients").status_code == 200
    assert client.patch("/api/v1/transports/tcp", {"port": 9100}).status_code == 403


def test_token_makes_no_tokens_and_touches_no_others(api: APIClient) -> None:
    other = api.post("/api/v1/tokens", {**OWN, "name": "other"}).data
    client = token_client(
        api.post("/api/v1/tokens", {**OWN, "name": "one", "scope": ["view", "edit_policies"]}).data["token"]
    )
    assert client.post("/api/v1/tokens", {"name": "two"}).status_code == 403
    assert client.delete(f"/api/v1/tokens/{other['id']}").status_code == 404
    assert ApiToken.objects.filter(revoked_at__isnull=True).count() == 2


@pytest.mark.parametrize("header", ["Bearer", "Bearer a b", "Bearer slc_00000000_x", "Bearer \xff"])
def test_bad_token_is_a_401_that_names_the_scheme(header: str, instance: Instance) -> None:
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=header)
    answer = client.get("/api/v1/auth/me")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer["Content-Type"] == "application/problem+json"
