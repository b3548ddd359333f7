"""Approval by a second person, and a plan for destructive runs, whichever way a run is started."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone
from rest_framework.test import APIClient

from broker_core.names import BROKER_NAME
from console.choices import Role, RunState
from console.models import Action, ActionRun, ApiToken, AuditEvent, Instance
from console.services import execution
from console.services.actions import causes, event_runs, scheduler
from console.services.actions.triggers import TriggerEvent
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker

CUT = [{"do": "disconnect", "client": "board-jfk"}]
QUIET = [{"do": "rotate_log"}]
NO_ANSWER = {"ok": False, "error": {"code": "broker_failed", "message": "It ended while it was asked."}}


def calling(name: str, role: Role = Role.ADMINISTRATOR) -> APIClient:
    user = get_user_model().objects.filter(username=name).first() or person(name, role)
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture
def maria(db: None, instance: Instance, broker: FakeBroker) -> APIClient:
    return calling("maria")


@pytest.fixture
def otto(db: None) -> APIClient:
    return calling("otto")


def make(api: APIClient, name: str, when: list[Any], steps: list[Any], **more: Any) -> int:
    answer = api.post("/api/v1/actions", {"name": name, "when": when, "steps": steps, **more})
    assert answer.status_code == 201, answer.data
    return int(answer.data["id"])


def approves(api: APIClient, run: str) -> str:
    """Approve a run; return its state, or the error code."""
    answer = api.post(f"/api/v1/runs/{run}/approve").data
    return str(answer.get("code") or answer["state"])


def by_event(maria: APIClient, otto: APIClient) -> str:
    make(otto, "quiet", [{"on": "event", "name": "full"}], QUIET, needs_approval=True)
    (run,) = maria.post("/api/v1/events/full", {}).data
    return str(run["id"])


def by_event_of_an_action(maria: APIClient, otto: APIClient) -> str:
    make(otto, "quiet", [{"on": "event", "name": "full"}], QUIET, needs_approval=True)
    first = make(otto, "first", [], [{"do": "event", "name": "full"}])
    asked = maria.post(f"/api/v1/actions/{first}/apply", {})
    execution.execute_run(asked.data["id"])
    return str(ActionRun.objects.get(action__name="quiet").pk)


def by_hand(maria: APIClient, otto: APIClient) -> str:
    number = make(otto, "quiet", [], QUIET, needs_approval=True)
    return str(maria.post(f"/api/v1/actions/{number}/apply", {}).data["id"])


def by_path(maria: APIClient, otto: APIClient) -> str:
    make(otto, "quiet", [{"on": "request", "path": "quiet"}], QUIET, needs_approval=True)
    return str(maria.post("/api/v1/actions/at/quiet", {}).data["id"])


def by_repetition(maria: APIClient, otto: APIClient) -> str:
    """Start a run that a third person repeats, after maria requested it."""
    run = by_hand(maria, otto)
    ActionRun.objects.filter(pk=run).update(state=RunState.FAILED)
    return str(calling("nina").post(f"/api/v1/runs/{run}/repeat").data["id"])


def by_schedule(maria: APIClient, otto: APIClient) -> str:
    """Start a run by a schedule that maria set up."""
    make(maria, "quiet", [{"on": "schedule", "every": "1m"}], QUIET, needs_approval=True)
    Action.objects.filter(name="quiet").update(started_at=timezone.now() - timedelta(minutes=3))
    (run,) = [one for one in scheduler.start_due_runs(timezone.now()) if one.action.name == "quiet"]
    return str(run.pk)


def by_publish_of_hers(maria: APIClient, otto: APIClient) -> str:
    """Start a run by a message that maria published through the control plane."""
    make(otto, "quiet", [{"on": "deliver", "topic": "t.>", "client": ""}], QUIET, needs_approval=True)
    assert maria.post("/api/v1/topics/t.a/messages", {"data": 1}).status_code in (200, 201, 202)
    return heard("deliver", {"publisher": BROKER_NAME, "user": ""})


def by_client_of_hers(maria: APIClient, otto: APIClient) -> str:
    """Start a run by a message from a client that logged on as maria."""
    make(otto, "quiet", [{"on": "publish", "topic": "t.>", "client": ""}], QUIET, needs_approval=True)
    return heard("publish", {"publisher": "feed", "user": "maria"})


def heard(kind: str, facts: dict[str, str]) -> str:
    facts |= {"topic": "t.>", "filter": ""}
    event = TriggerEvent(kind, {"AMPS_TOPIC": "t.a", "AMPS_CLIENT_NAME": "desk-1"}, facts)
    (run,) = event_runs.start_runs_for_events(Instance.objects.get(), [event])
    return str(run.pk)


WAYS = [
    by_event,
    by_event_of_an_action,
    by_hand,
    by_path,
    by_repetition,
    by_schedule,
    by_publish_of_hers,
    by_client_of_hers,
]


@pytest.mark.parametrize("way", WAYS)
def test_who_caused_a_run_cannot_approve_it_and_somebody_else_can(
    maria: APIClient, otto: APIClient, way: Callable[[APIClient, APIClient], str]
) -> None:
    run = way(maria, otto)
    assert ActionRun.objects.get(pk=run).state == RunState.APPROVAL
    assert approves(maria, run) == "own_run"
    assert approves(calling("paul"), run) == "waiting"


def move(run: str, later: timedelta) -> None:
    """Set the run's creation time to `later` from now."""
    ActionRun.objects.filter(pk=run).update(created_at=timezone.now() + later)


def test_who_published_is_known_however_many_others_publish_on_the_topic(
    maria: APIClient, otto: APIClient
) -> None:
    run = by_publish_of_hers(maria, otto)
    others = [
        AuditEvent(actor_kind="token", actor="feed", action=causes.PUBLISHED, object="sluice-1: topic t.a")
        for _ in range(1_100)
    ]
    AuditEvent.objects.bulk_create(others)
    assert approves(maria, run) == "own_run"


def test_who_published_is_known_when_the_run_starts_hours_later(maria: APIClient, otto: APIClient) -> None:
    """Events wait in the broker while the database is unavailable."""
    make(otto, "quiet", [{"on": "deliver", "topic": "t.>", "client": ""}], QUIET, needs_approval=True)
    accepted_at_ms = str(int(timezone.now().timestamp() * 1_000))
    maria.post("/api/v1/topics/t.a/messages", {"data": 1})
    run = heard("deliver", {"publisher": BROKER_NAME, "user": "", "accepted_at_ms": accepted_at_ms})
    move(run, timedelta(hours=2))
    assert approves(maria, run) == "own_run"
    assert approves(calling("paul"), run) == "waiting"


def test_who_published_does_not_approve_a_repetition_hours_later(maria: APIClient, otto: APIClient) -> None:
    first = by_publish_of_hers(maria, otto)
    ActionRun.objects.filter(pk=first).update(state=RunState.FAILED)
    run = str(calling("nina").post(f"/api/v1/runs/{first}/repeat").data["id"])
    move(run, timedelta(hours=2))
    assert approves(maria, run) == "own_run"


def test_who_published_is_known_when_the_brokers_answer_was_lost(
    maria: APIClient, otto: APIClient, broker: FakeBroker
) -> None:
    make(otto, "quiet", [{"on": "deliver", "topic": "t.>", "client": ""}], QUIET, needs_approval=True)
    broker.answers["publish"] = NO_ANSWER
    assert maria.post("/api/v1/topics/t.a/messages", {"data": 1}).status_code == 502
    del broker.answers["publish"]
    run = heard("deliver", {"publisher": BROKER_NAME, "user": ""})
    assert approves(maria, run) == "own_run"


def test_who_ran_an_action_whose_publish_had_no_answer_is_known(
    maria: APIClient, otto: APIClient, broker: FakeBroker
) -> None:
    make(otto, "quiet", [{"on": "deliver", "topic": "t.>", "client": ""}], QUIET, needs_approval=True)
    telling = make(
        maria, "tell", [{"on": "schedule", "every": "1m"}], [{"do": "publish", "topic": "t.a", "data": "1"}]
    )
    Action.objects.filter(pk=telling).update(started_at=timezone.now() - timedelta(minutes=3))
    (tells,) = [one for one in scheduler.start_due_runs(timezone.now()) if one.action_id == telling]
    broker.answers["publish_bytes"] = NO_ANSWER
    execution.execute_run(tells.pk)
    del broker.answers["publish_bytes"]
    run = heard("deliver", {"publisher": BROKER_NAME, "user": ""})
    assert approves(maria, run) == "own_run"


def test_a_token_of_the_same_account_is_the_same_person(maria: APIClient, otto: APIClient) -> None:
    run = by_event(maria, otto)
    user = get_user_model().objects.get(username="maria")
    client = APIClient()
    client.force_authenticate(user, ApiToken(name="t", user=user, scope=["view", "approve", "run_actions"]))
    assert approves(client, run) == "own_run"


def test_an_event_that_takes_something_away_needs_its_plan(maria: APIClient, broker: FakeBroker) -> None:
    make(maria, "cut", [{"on": "event", "name": "full"}], CUT)
    refused = maria.post("/api/v1/events/full", {})
    assert (refused.status_code, refused.data["code"]) == (409, "plan_needed")
    assert ActionRun.objects.count() == 0
    plan = maria.post("/api/v1/events/full/plan", {}).data
    assert plan["destructive"] and plan["actions"][0]["steps"][0]["sentence"].startswith(
        "disconnect board-jfk"
    )
    make(maria, "cut too", [{"on": "event", "name": "full"}], CUT)
    changed = maria.post("/api/v1/events/full", {"plan": plan["hash"]})
    assert (changed.status_code, changed.data["code"]) == (409, "plan_changed")
    again = maria.post("/api/v1/events/full/plan", {}).data
    assert len(maria.post("/api/v1/events/full", {"plan": again["hash"]}).data) == 2


@pytest.mark.parametrize("links", [1, 2])
def test_an_action_whose_events_take_something_away_needs_its_plan(
    maria: APIClient, broker: FakeBroker, links: int
) -> None:
    make(maria, "cut", [{"on": "event", "name": "e0"}], CUT)
    for number in range(links):
        made = make(
            maria,
            f"link {number}",
            [{"on": "event", "name": f"e{number + 1}"}],
            [{"do": "event", "name": f"e{number}"}],
        )
    refused = maria.post(f"/api/v1/actions/{made}/apply", {})
    assert (refused.status_code, refused.data["code"]) == (409, "plan_needed")
    plan = maria.post(f"/api/v1/actions/{made}/plan", {}).data
    assert plan["destructive"] and "cut" in plan["steps"][0]["sentence"]
    asked = maria.post(f"/api/v1/actions/{made}/apply", {"plan": plan["hash"]})
    assert asked.status_code == 202
    for _ in range(links + 1):
        for run in ActionRun.objects.filter(state=RunState.WAITING):
            execution.execute_run(run.pk)
    last = ActionRun.objects.get(action__name="cut")
    assert (last.state, last.actor) == (RunState.SUCCEEDED, "maria")


def test_an_action_that_became_destructive_after_the_run_was_asked_for_is_not_started(
    maria: APIClient, broker: FakeBroker
) -> None:
    cut = make(maria, "cut", [{"on": "event", "name": "e"}], QUIET)
    first = make(maria, "first", [], [{"do": "event", "name": "e"}])
    asked = maria.post(f"/api/v1/actions/{first}/apply", {}).data["id"]
    maria.patch(f"/api/v1/actions/{cut}", {"steps": CUT}, headers={"If-Match": "*"})
    run = execution.execute_run(asked)
    assert run is not None and run.error["code"] == "plan_needed"
    assert not ActionRun.objects.filter(action_id=cut).exists()


def test_a_repetition_of_what_takes_something_away_needs_the_plan_of_the_rest(
    maria: APIClient, broker: FakeBroker
) -> None:
    number = make(maria, "cut", [], CUT)
    plan = maria.post(f"/api/v1/actions/{number}/plan", {}).data["hash"]
    run = maria.post(f"/api/v1/actions/{number}/apply", {"plan": plan}).data["id"]
    ActionRun.objects.filter(pk=run).update(state=RunState.LOST)
    refused = maria.post(f"/api/v1/runs/{run}/repeat")
    assert (refused.status_code, refused.data["code"]) == (409, "plan_needed")
    told = refused.data["details"]
    assert told["plan"]["steps"][0]["sentence"].startswith("disconnect board-jfk")
    again = maria.post(f"/api/v1/runs/{run}/repeat", {"plan": told["hash"]})
    assert again.status_code == 202
    done = execution.execute_run(again.data["id"])
    assert done is not None and done.state == RunState.SUCCEEDED


def test_what_a_schedule_starts_is_planned_for_who_approves_it(maria: APIClient, broker: FakeBroker) -> None:
    make(maria, "cut", [{"on": "schedule", "every": "1m"}], CUT, needs_approval=True)
    Action.objects.filter(name="cut").update(started_at=timezone.now() - timedelta(minutes=3))
    (run,) = [one for one in scheduler.start_due_runs(timezone.now()) if one.action.name == "cut"]
    assert run.plan_hash and run.plan["steps"][0]["sentence"].startswith("disconnect board-jfk")


def test_a_kind_that_needs_approval_needs_it_as_a_step_of_an_action_too(
    maria: APIClient, settings: Any, broker: FakeBroker
) -> None:
    settings.SLUICE_APPROVE_KINDS = ["archive"]
    number = make(maria, "weekly", [], [{"do": "archive", "age": "7d"}])
    run = maria.post(f"/api/v1/actions/{number}/apply", {}).data
    assert run["state"] == "approval"
    assert approves(maria, run["id"]) == "own_run"
