"""Runs of every type, step, state and failure on every page that shows runs, also for users with limited
rights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as project
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from console.choices import ActorKind, Permission, Role, RunKind, RunState
from console.models import Action, ActionRun, Instance
from console.services import execution
from console.services.actions import conditions, editor, event_runs, run_requests
from console.services.actions.catalogue import KINDS
from console.services.actors import Actor, access_of
from tests.support.control_plane import OWN, person
from tests.support.fake_broker import FakeBroker

FOLDER = str(Path(project.SLUICE_HOME) / "log")
OPTIONS: dict[str, dict[str, str]] = {
    "archive": {"age": "7d"},
    "compress": {"age": "7d"},
    "remove": {"age": "7d"},
    "delete_files": {"folder": FOLDER, "pattern": "*.log", "age": "7d"},
    "compress_files": {"folder": FOLDER, "pattern": "*.log", "age": "7d"},
    "truncate": {"what": "both", "age": "7d"},
    "rotate_log": {"process": "all"},
    "publish": {"topic": "copies", "data": "{{AMPS_DATA}}"},
    "transport": {"name": "tcp", "enabled": "no"},
    "disconnect": {"client": "{{AMPS_CLIENT_NAME}}", "reason": "said {{AMPS_DATA}}"},
    "offline": {"client": "{{AMPS_CLIENT_NAME}}"},
    "replay": {"name": "nightly", "change": "pause"},
    "replication": {"member": "b"},
    "revision": {"number": "1"},
    "pipeline": {"job": "lake"},
    "event": {"name": "told"},
    "webhook": {"url": "http://127.0.0.1:9/hook", "data": "{{AMPS_DATA}}"},
    "shut_down": {},
}
CONDITIONS: dict[str, dict[str, str]] = {
    "file_system": {"place": "home", "above": "0"},
    "expression": {"expression": "/AMPS_TOPIC = 'orders.1'"},
    "client": {"client": "board-*"},
    "topic": {"topic": "nothing"},
}
SECRET = "the-price-is-4711"
MESSAGE = {
    "AMPS_TOPIC": "orders.1",
    "AMPS_DATA": f'{{"note": "{SECRET}"}}',
    "AMPS_DATA_LENGTH": "29",
    "AMPS_BOOKMARK": "sluice-1|7|",
    "AMPS_CLIENT_NAME": "board-jfk",
}
LISTS = ("/runs/", "/runs/list/", "/api/v1/runs", "/api/v1/runs?format=csv")
PAGES = ("/", "/actions/", *LISTS)


@pytest.fixture
def doer(operator: Any) -> Actor:
    return Actor(ActorKind.PERSON, "maria", operator.pk, access=access_of(operator))


@pytest.fixture
def no_redis(settings: Any) -> None:
    """Point Celery at a missing Redis; these tests execute runs themselves."""
    settings.CELERY_BROKER_URL = "redis+socket:///nowhere/redis.sock"
    settings.SLUICE_WEBHOOK_HOSTS = ["127.0.0.1:9"]


def action_of(actor: Actor, instance: Instance, *parts: dict[str, str]) -> Action:
    when = [{"on": "publish", "topic": "orders.>"}]
    return editor.create(actor, instance, {"name": "one", "when": when, "steps": list(parts)})


def run_of(actor: Actor, action: Action, variables: dict[str, str]) -> ActionRun:
    """Plan, request and execute a run of the action."""
    made = run_requests.plan_action(action, variables)
    run = event_runs.start_run(
        actor, action, {"on": "publish"}, variables, timezone.now(), plan=made, plan_hash=made["hash"]
    )
    ActionRun.objects.filter(pk=run.pk).update(state=RunState.WAITING)
    return execution.execute_run(run.pk) or run


def pages_of(client: Client, run: ActionRun, pages: tuple[str, ...] = PAGES) -> dict[str, str]:
    mine = [f"/api/v1/runs/{run.pk}", *([f"/actions/{run.action_id}/"] if run.action_id else [])]
    found = {path: client.get(path) for path in (*pages, *mine)}
    assert {path: answer.status_code for path, answer in found.items()} == dict.fromkeys(found, 200)
    return {path: answer.content.decode() for path, answer in found.items()}


def test_there_is_an_example_of_every_step_and_condition() -> None:
    assert OPTIONS.keys() == KINDS.keys()
    assert CONDITIONS.keys() == conditions.KINDS.keys()


@pytest.mark.parametrize("kind", [*OPTIONS, *CONDITIONS])
@pytest.mark.parametrize("away", [False, True], ids=["with a broker", "away"])
def test_pages_show_a_run_with_every_step(
    kind: str, away: bool, doer: Actor, operator: Any, instance: Instance, broker: FakeBroker, no_redis: None
) -> None:
    part = {"do": kind, **OPTIONS[kind]} if kind in OPTIONS else {"if": kind, **CONDITIONS[kind]}
    then = [] if kind in OPTIONS else [{"do": "publish", **OPTIONS["publish"]}]
    action = action_of(doer, instance, part, *then)
    if away:
        broker.__exit__(None, None, None)
    run = run_of(doer, action, MESSAGE)
    assert run.state in (RunState.SUCCEEDED, RunState.FAILED)
    browser = Client()
    browser.force_login(operator)
    text = pages_of(browser, run)["/runs/"]
    assert (KINDS | conditions.KINDS)[kind].label.split()[0] in text or kind in text
    onlooker = Client()
    onlooker.force_login(person("vera", Role.VIEWER))
    narrow = Client()
    narrow.force_login(person("nora", Role.VIEWER, client_pattern="carrier-*"))
    for client in (onlooker, narrow):
        for path, seen in pages_of(client, run, LISTS).items():
            assert SECRET not in seen, path
            assert client is onlooker or "/actions" in path or "board-jfk" not in seen, path


@pytest.mark.parametrize("kind", RunKind)
def test_pages_show_a_run_of_every_kind_in_every_state(
    kind: RunKind, instance: Instance, operator: Any, broker: FakeBroker
) -> None:
    """The states include a run with incomplete data, as a lost worker leaves it."""
    browser = Client()
    browser.force_login(operator)
    plans: list[Any] = [
        None,
        {},
        {"steps": []},
        {"chosen": ["a"]},
        {
            "chosen": [{"name": "a"}],
            "bytes": 1,
            "skipped": [{"name": "b", "why": "needed by replay of board-jfk", "reason": "replay"}],
        },
    ]
    errors: list[Any] = [
        None,
        {},
        {"code": "x"},
        {"message": "m", "code": "journal_pinned", "details": {"needed_by": ["spool of board-jfk"]}},
        "text",
    ]
    results: list[Any] = [
        None,
        {},
        [],
        {"segments": [], "bytes": 0},
        {"items": 1},
        {"receipt": {"files": []}},
    ]
    for number in range(6):
        run = ActionRun.objects.create(
            instance=instance,
            kind=kind,
            state=RunState.FAILED,
            actor="maria",
            actor_kind="person",
            parameters={"steps": [], "variables": {}}
            if kind == RunKind.ACTION
            else {"age": "7d", "age_s": 1, "job": "lake", "options": {}},
            plan=plans[number % 5],
            error=errors[number % 5],
            result=results[number],
            steps=[{"do": "publish", "state": "failed", "error": errors[3]}][: number % 2],
            log="skipped b: needed by replay of board-jfk\n" * (number % 2),
            started_at=timezone.now() if number % 3 else None,
        )
    narrow = Client()
    narrow.force_login(person("nora", Role.VIEWER, client_pattern="carrier-*"))
    for state in RunState:
        ActionRun.objects.filter(pk=run.pk).update(state=state)
        pages_of(browser, run, LISTS)
        for path, seen in pages_of(narrow, run, LISTS).items():
            assert "board-jfk" not in seen, path


def test_what_a_message_said_is_for_those_who_may_read_its_topic(
    doer: Actor, instance: Instance, broker: FakeBroker, no_redis: None
) -> None:
    run = run_of(doer, action_of(doer, instance, {"do": "publish", **OPTIONS["publish"]}), MESSAGE)
    for name, scope, withheld in [
        ("otto", {}, []),
        ("olga", {"topic_pattern": "orders.>"}, ["clients"]),
        ("omar", {"topic_pattern": "flights.>"}, ["messages", "clients"]),
        ("oona", {"client_pattern": "board-*"}, ["messages"]),
    ]:
        client = APIClient()
        client.force_login(person(name, Role.OPERATOR, **scope))
        seen = client.get(f"/api/v1/runs/{run.pk}")
        assert seen.json()["withheld"] == withheld, name
        assert (SECRET in seen.content.decode()) == (name == "otto"), name


def test_a_token_for_running_alone_reads_no_message_in_the_answer(
    api: APIClient, doer: Actor, instance: Instance, broker: FakeBroker, no_redis: None
) -> None:
    run = run_of(doer, action_of(doer, instance, {"do": "publish", **OPTIONS["publish"]}), MESSAGE)
    ActionRun.objects.filter(pk=run.pk).update(state=RunState.FAILED)
    made = api.post("/api/v1/tokens", {**OWN, "name": "ci", "scope": ["view", "run_actions"]}).data
    client = APIClient(headers={"Authorization": f"Bearer {made['token']}"})
    again = client.post(f"/api/v1/runs/{run.pk}/repeat")
    assert again.status_code == 202
    assert SECRET not in again.content.decode()
    assert Permission.READ_MESSAGES not in client.get("/api/v1/auth/me").json()["permissions"]


def test_who_needs_a_segment_is_said_of_clients_in_scope(instance: Instance, broker: FakeBroker) -> None:
    for pattern, there, gone in [
        ("board-*", ["spool of board-jfk", "other readers"], ["lake-loader"]),
        ("carrier-*", ["other readers"], ["lake-loader", "board-jfk"]),
    ]:
        client = Client()
        client.force_login(person(f"of-{pattern[:3]}", Role.VIEWER, client_pattern=pattern))
        for path in ("/journals/", "/api/v1/journals", "/api/v1/journals?format=csv"):
            text = client.get(path).content.decode()
            assert [word for word in there if word not in text] == [], path
            assert [word for word in gone if word in text] == [], path
