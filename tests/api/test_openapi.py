"""Responses of every address match the OpenAPI schema exactly, and none is HTML."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from functools import cache
from typing import Any

import jsonschema
import pytest
from django.test import Client
from django.urls import resolve
from drf_spectacular.generators import SchemaGenerator
from rest_framework.test import APIClient

from api.parsers import MAX_LEVELS
from console.choices import Role, RunState
from console.models import Action, ActionRun, Instance
from console.services import drafts, operators, policies
from console.services.actors import Actor
from tests.api.doors import DOORS, NO_RUN, Door, send
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker
from tests.support.seed import seed_decisions, seed_runs, seed_samples

PROBLEM = "application/problem+json"
API = [door for door in DOORS if door.path.startswith("/api/v1/")]


@cache
def contract() -> dict[str, Any]:
    """Return the schema without additional properties, so that validation fails for undocumented fields."""
    made = json.loads(
        json.dumps(SchemaGenerator(api_version="v1").get_schema(request=None, public=True), default=str)
    )

    def close(schema: Any) -> None:
        if isinstance(schema, list):
            for one in schema:
                close(one)
        if isinstance(schema, dict):
            if "properties" in schema and "additionalProperties" not in schema:
                schema["additionalProperties"] = False
            for one in schema.values():
                close(one)

    close(made["components"])
    return dict(made)


def operation(method: str, path: str) -> dict[str, Any]:
    """Return the schema's operation for a request."""
    route = "/" + resolve(path.partition("?")[0]).route
    for kind in ("int", "str", "path", "uuid"):
        route = route.replace(f"<{kind}:", "{")
    return dict(contract()["paths"][route.replace(">", "}")][method.lower()])


def check(method: str, path: str, answer: Any) -> None:
    """Raise AssertionError unless the schema describes the response."""
    responses = operation(method, path)["responses"]
    status = str(answer.status_code)
    found = responses.get(status) or responses[f"{status[0]}XX"]
    if "content" not in found:
        assert answer.content == b"", (method, path, status)
        return
    kind = answer["Content-Type"].partition(";")[0]
    assert kind in found["content"], (method, path, status, kind)
    if kind == "text/csv":
        return
    schema = {**found["content"][kind]["schema"], "components": contract()["components"]}
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    told = [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(answer.json())]
    assert told == [], (method, path, status)


def everything(instance: Instance, actor: Actor) -> None:
    """Create rows for every list."""
    seed_runs(instance)
    seed_decisions(instance)
    seed_samples(instance, hours=1)
    user = person("vera", Role.VIEWER)
    operators.create_token(
        actor, user, "ci", lifetime=timedelta(days=1), scope=["view"], networks=["10.0.0.0/8"]
    )
    drafts.create_draft(actor, "a draft")
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 10}}, reason="x")


@pytest.fixture
def full(broker: FakeBroker, instance: Instance, actor: Actor) -> None:
    everything(instance, actor)


def of_what_there_is(path: str) -> str:
    """Replace the placeholder of a door's address with an existing run."""
    run = ActionRun.objects.filter(state=RunState.FAILED).values_list("pk", flat=True).first()
    return path.replace(NO_RUN, str(run))


@pytest.fixture
def maria(operator: Any) -> Client:
    client = Client(headers={"If-Match": "*"})
    client.force_login(operator)
    return client


@pytest.mark.parametrize("door", API, ids=str)
def test_what_is_answered_is_in_the_document(door: Door, maria: Client, full: None) -> None:
    if door.path.endswith("/schema"):
        return
    paths = [door.path, of_what_there_is(door.path)]
    if door.method == "GET":
        known = {
            one["name"] for one in operation("GET", door.path).get("parameters", ()) if one["in"] == "query"
        }
        paths += [f"{door.route}?page_size=2"] if "page_size" in known else []
        paths += [f"{door.route}?format=csv"] if "format" in known else []
    for path in dict.fromkeys(paths):
        check(door.method, path, send(Client(), door, path))
        check(door.method, path, send(maria, door, path))


@pytest.mark.parametrize("door", [door for door in API if door.body is not None], ids=str)
def test_a_body_that_isn_t_one_is_a_problem(door: Door, maria: Client, full: None) -> None:
    bodies = ["", "{", "[]", "7", '"x"', "null", '{"nonsense": 1}', "[" * 100_000, '{"a":' * 100_000]
    bodies += ["[" * (MAX_LEVELS + 2) + "]" * (MAX_LEVELS + 2)]
    for body in bodies:
        answer = maria.generic(door.method, door.path, body, "application/json")
        assert answer.status_code < 500, body[:20]
        check(door.method, door.path, answer)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "nonsense"):
        answer = maria.generic(door.method, door.path, "a=1", kind)
        assert (400 <= answer.status_code < 500, answer["Content-Type"]) == (True, PROBLEM)


@pytest.mark.django_db
def test_every_address_names_parameters_that_it_doesn_t_know(maria: Client, full: None) -> None:
    for door in API:
        there = "&" if "?" in door.path else "?"
        answer = send(maria, door, f"{door.path}{there}nonsense=1&serach=x")
        known = (
            {
                one["name"]
                for one in operation(door.method, door.path).get("parameters", ())
                if one["in"] == "query"
            }
            if "schema" not in door.path
            else set()
        )
        assert (answer.status_code, answer["Content-Type"]) == (400, PROBLEM), str(door)
        fields = answer.json()["details"]["fields"]
        assert set(fields) == {"nonsense", "serach"}, str(door)
        assert all(name in fields["nonsense"][0] for name in known), str(door)


MOMENTS = (
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-12:00",
    "-1",
    "99999999999999",
    "2026-13-01T00:00:00Z",
    "1e400",
    "\0",
)


@pytest.mark.django_db
def test_moments_and_numbers_out_of_range_are_refused(maria: Client, full: None) -> None:
    for door in API:
        if door.method != "GET" or door.path.endswith("/schema"):
            continue
        for one in operation("GET", door.path).get("parameters", ()):
            if one["in"] != "query" or one["name"] in ("instance", "format"):
                continue
            for text in (*MOMENTS, "9" * 400, "x" * 5_000):
                answer = maria.get(door.route, {one["name"]: text})
                assert answer.status_code < 500, (str(door), one["name"], text[:30])
                if one["schema"].get("format") == "date-time":
                    assert answer.status_code == 400, (str(door), one["name"], text[:30])
                check("GET", door.route, answer)


@pytest.mark.parametrize("number", ["0", "9" * 10, "9" * 30, "9" * 400])
def test_numbers_in_addresses_may_be_anything(number: str, maria: Client, full: None) -> None:
    for path in ("drafts", "actions", "tokens", "grants", "policies/revisions"):
        for method in ("GET", "PATCH", "DELETE"):
            answer = maria.generic(method, f"/api/v1/{path}/{number}", "{}", "application/json")
            assert answer.status_code in (400, 404, 405), (path, method)
            assert answer["Content-Type"] == PROBLEM


@pytest.mark.parametrize(
    "path",
    [
        "/api/",
        "/api/v1",
        "/api/v1/",
        "/api/v1/nonsense",
        "/api/v2/clients",
        "/api/v1/clients/",
        "/api/v1/clients/a/b/c",
        "/api/v1/clients/%00",
        "/api/v1/people/%00",
        "/api/v1/drafts/x",
        "/api/v1/%ff",
        "/api/v1/runs/nonsense",
        "/api/v1/clients?page=0",
        "/api/v1/audit?cursor=nonsense",
        "/api/v1/clients?format=html",
        "/api/v1/clients?instance=nonsense",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"])
def test_nothing_under_api_is_html(path: str, method: str, maria: Client, full: None) -> None:
    for client in (maria, Client()):
        answer = client.generic(method, path, "{", "application/json", HTTP_ACCEPT="text/html")
        assert 400 <= answer.status_code < 500
        assert answer["Content-Type"] == PROBLEM
        assert {"type", "title", "status", "detail", "code", "fix", "details"} == set(answer.json())


def test_what_django_refuses_by_itself_is_a_problem_too(
    operator: Any, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    strict = Client(enforce_csrf_checks=True, raise_request_exception=False)
    strict.force_login(operator)
    found = {
        "csrf": strict.post("/api/v1/journals/archive", {"age": "7d"}, content_type="application/json"),
        "host": strict.get("/api/v1/clients", headers={"Host": "example.org"}),
    }
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    found["large"] = strict.post(
        "/api/v1/auth/login", {"username": "x" * 100, "password": "y"}, content_type="application/json"
    )
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK}
    monkeypatch.setattr("api.views.clients.live.instance_status", lambda name: 1 / 0)
    found["mistake"] = strict.get("/api/v1/status")
    monkeypatch.setattr("rest_framework.throttling.UserRateThrottle.allow_request", lambda *args: False)
    monkeypatch.setattr("rest_framework.throttling.UserRateThrottle.wait", lambda *args: 3.0)
    found["throttled"] = strict.get("/api/v1/clients")
    told = {name: (answer.status_code, answer["Content-Type"]) for name, answer in found.items()}
    statuses = {"csrf": 403, "host": 400, "large": 400, "mistake": 500, "throttled": 429}
    assert told == {name: (status, PROBLEM) for name, status in statuses.items()}


def test_removing_wants_a_plan_and_the_others_don_t(api: APIClient, broker: FakeBroker) -> None:
    refused = api.post("/api/v1/journals/remove", {"age": "7d"})
    assert (refused.status_code, refused.data["code"]) == (409, "plan_needed")
    assert "journals/remove/plan" in refused.data["fix"]
    made = api.post("/api/v1/journals/remove/plan", {"age": "7d"}).data["hash"]
    assert api.post("/api/v1/journals/remove", {"age": "7d", "dry_run": True}).data["hash"] == made
    other = api.post("/api/v1/journals/remove", {"age": "7d", "plan": "0" * 64})
    assert (other.status_code, other.data["code"]) == (409, "plan_changed")
    assert not ActionRun.objects.exists()
    assert api.post("/api/v1/journals/remove", {"age": "7d", "plan": made}).status_code == 202
    assert api.post("/api/v1/journals/archive", {"age": "7d"}).status_code == 202
    assert api.post("/api/v1/journals/compress", {"age": "7d"}).status_code == 202


def test_a_change_of_an_action_says_what_it_was_made_for(api: APIClient, instance: Instance) -> None:
    path = f"/api/v1/actions/{Action.objects.get().pk}"
    assert api.patch(path, {"description": "x"}).data["code"] == "if_match_needed"
    tag = api.get(path)["ETag"]
    assert api.patch(path, {"enabled": False}, headers={"If-Match": tag}).status_code == 200
    assert api.patch(path, {"enabled": True}, headers={"If-Match": tag}).status_code == 412
    assert api.patch(path, {"enabled": True}, headers={"If-Match": "*"}).status_code == 200


def test_closing_objects_finds_what_isn_t_described() -> None:
    """Validation fails for an undocumented field."""
    extra = copy.deepcopy(contract()["components"]["schemas"]["Problem"])
    validator = jsonschema.Draft202012Validator(extra)
    good = {"type": "", "title": "", "status": 1, "detail": "", "code": "", "fix": "", "details": {}}
    assert list(validator.iter_errors(good)) == []
    assert [error.validator for error in validator.iter_errors({**good, "more": 1})] == [
        "additionalProperties"
    ]
