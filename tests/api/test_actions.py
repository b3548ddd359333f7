from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from rest_framework.test import APIClient

from console.models import Action, ActionRun, AuditEvent, Grant, Instance
from tests.support.fake_broker import FakeBroker

ARCHIVE_ON_REQUEST = {
    "name": "archive on request",
    "when": [{"on": "request", "path": "archive_journals", "parameters": "AGE"}],
    "steps": [{"do": "archive", "age": "{{AGE}}"}],
}
REMOVE = {
    "name": "remove",
    "when": [{"on": "request", "path": "remove"}],
    "steps": [{"do": "remove", "age": "7d"}],
}


@pytest.fixture
def second(db: None) -> APIClient:
    """Return a client for a second account, an approver and operator."""
    user: Any = get_user_model().objects.create_user("otto", password="a-long-enough-password")
    for role in ("approver", "operator"):
        Grant.objects.create(user=user, role=role)
    client = APIClient()
    client.force_authenticate(user)
    return client


def test_an_action_is_made_read_changed_and_deleted(api: APIClient, instance: Instance) -> None:
    made = api.post(
        "/api/v1/actions",
        {"name": "nightly", "when": [{"on": "schedule", "every": "00:30Z"}], "steps": [{"do": "truncate"}]},
    )
    assert (made.status_code, made["ETag"], len(made.data["next_firings"])) == (201, '"1"', 5)
    address = made["Location"]
    assert api.get(address).data["steps"] == [{"do": "truncate", "what": "both", "age": "7d"}]
    assert api.patch(address, {"enabled": False}, headers={"If-Match": '"9"'}).status_code == 412
    changed = api.patch(address, {"enabled": False}, headers={"If-Match": '"1"'})
    assert (changed.status_code, changed["ETag"], changed.data["next_firings"]) == (200, '"2"', [])
    assert api.delete(address).status_code == 204
    assert api.get(address).data["code"] == "unknown_action"
    events = (
        AuditEvent.objects.filter(action__startswith="action.")
        .order_by("pk")
        .values_list("action", flat=True)
    )
    assert list(events) == ["action.create", "action.change", "action.delete"]


def test_what_cannot_be_an_action_is_refused_with_its_part(api: APIClient, instance: Instance) -> None:
    answer = api.post("/api/v1/actions", {"name": "x", "steps": [{"do": "archive", "age": "soon"}]})
    assert (answer.status_code, answer.data["code"], answer.data["details"]["part"]) == (
        400,
        "bad_action",
        "steps.0",
    )
    assert (
        api.post("/api/v1/actions", {"name": "x", "steps": [{"do": "run_command"}]}).data["code"]
        == "bad_action"
    )


def test_a_step_can_only_be_set_up_by_whoever_may_do_it(instance: Instance, db: None) -> None:
    editor: Any = get_user_model().objects.create_user("pia", password="a-long-enough-password")
    Grant.objects.create(user=editor, role="policy_editor")
    client = APIClient()
    client.force_authenticate(editor)
    assert (
        client.post(
            "/api/v1/actions", {"name": "a", "steps": [{"do": "transport", "name": "tcp"}]}
        ).status_code
        == 201
    )
    answer = client.post("/api/v1/actions", {"name": "b", "steps": [{"do": "disconnect", "client": "x"}]})
    assert (answer.status_code, answer.data["code"]) == (403, "not_allowed")


def test_a_request_at_a_path_brings_its_parameters(
    api: APIClient, instance: Instance, broker: FakeBroker
) -> None:
    api.post("/api/v1/actions", ARCHIVE_ON_REQUEST)
    missing = api.post("/api/v1/actions/at/archive_journals", {"parameters": {"age": "7d"}})
    assert (missing.status_code, missing.data["code"], missing.data["details"]) == (
        400,
        "parameter_missing",
        {"missing": ["AGE"]},
    )
    assert api.post("/api/v1/actions/at/nowhere", {}).status_code == 404
    accepted = api.post("/api/v1/actions/at/archive_journals", {"parameters": {"AGE": "7d"}})
    assert accepted.status_code == 202
    run = api.get(accepted["Location"]).data
    assert (run["parameters"]["variables"]["AGE"], run["trigger"]["path"]) == ("7d", "archive_journals")
    assert run["plan"]["steps"][0]["plan"]["chosen"]


def test_two_actions_cannot_answer_at_one_path(api: APIClient, instance: Instance) -> None:
    api.post("/api/v1/actions", ARCHIVE_ON_REQUEST)
    assert api.post("/api/v1/actions", {**ARCHIVE_ON_REQUEST, "name": "other"}).data["code"] == "name_taken"


def test_what_takes_something_away_needs_its_plan(
    api: APIClient, instance: Instance, broker: FakeBroker
) -> None:
    action = api.post("/api/v1/actions", REMOVE)["Location"]
    for address in (f"{action}/apply", "/api/v1/actions/at/remove"):
        assert api.post(address, {}).data["code"] == "plan_needed"
        assert api.post(address, {"plan": "0" * 64}).data["code"] == "plan_changed"
    plan = api.post("/api/v1/actions/at/remove/plan", {}).data
    assert plan["destructive"]
    assert api.post(f"{action}/apply", {"plan": plan["hash"]}).status_code == 202
    assert ActionRun.objects.count() == 1


def test_a_journal_plan_is_applied_only_as_it_was_shown(
    api: APIClient, instance: Instance, broker: FakeBroker
) -> None:
    plan = api.post("/api/v1/journals/remove/plan", {"age": "7d"}).data
    assert plan["chosen"]
    assert (
        api.post("/api/v1/journals/remove/apply", {"age": "8d", "plan": plan["hash"]}).data["code"]
        == "plan_changed"
    )
    assert ActionRun.objects.count() == 0
    accepted = api.post("/api/v1/journals/remove/apply", {"age": "7d", "plan": plan["hash"]})
    assert (accepted.status_code, accepted.data["plan_hash"]) == (202, plan["hash"])


def test_a_plan_that_changed_before_the_worker_came_is_not_carried_out(
    api: APIClient, instance: Instance, broker: FakeBroker
) -> None:
    from console.services import execution

    plan = api.post("/api/v1/journals/remove/plan", {"age": "7d"}).data
    run = api.post("/api/v1/journals/remove/apply", {"age": "7d", "plan": plan["hash"]}).data
    broker.answers["journal_plan"] = {
        "ok": True,
        "result": {"action": "remove", "chosen": [], "skipped": [], "bytes": 0},
    }
    done = execution.execute_run(run["id"])
    assert done is not None
    assert (done.state, done.error["code"]) == ("failed", "plan_changed")
    assert not any(asked["do"] == "journal_remove" for asked in broker.asked)


def test_the_same_request_again_gives_the_same_run(
    api: APIClient, instance: Instance, broker: FakeBroker
) -> None:
    key = {"Idempotency-Key": "5e9c"}
    first = api.post("/api/v1/journals/archive", {"age": "7d"}, headers=key)
    again = api.post("/api/v1/journals/archive", {"age": "7d"}, headers=key)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.data["id"] == again.data["id"]
    other = api.post("/api/v1/journals/archive", {"age": "8d"}, headers=key)
    assert (other.status_code, other.data["code"]) == (422, "idempotency_key_reused")
    assert ActionRun.objects.count() == 1


def test_whoever_asked_for_a_run_cannot_approve_it(
    api: APIClient, second: APIClient, instance: Instance, broker: FakeBroker, settings: Any
) -> None:
    settings.SLUICE_APPROVE_KINDS = ["archive"]
    run = api.post("/api/v1/journals/archive", {"age": "7d"}).data
    assert run["state"] == "approval"
    assert api.post(f"/api/v1/runs/{run['id']}/approve").data["code"] == "own_run"
    approved = second.post(f"/api/v1/runs/{run['id']}/approve")
    assert (approved.status_code, approved.data["state"], approved.data["approver"]) == (
        200,
        "waiting",
        "otto",
    )
    assert second.post(f"/api/v1/runs/{run['id']}/approve").data["code"] == "not_awaiting"


def test_a_run_that_came_to_nothing_is_repeated(api: APIClient, instance: Instance) -> None:
    run = api.post("/api/v1/pipeline/lake", {}).data
    assert api.post(f"/api/v1/runs/{run['id']}/repeat").data["code"] == "not_repeatable"
    api.post(f"/api/v1/runs/{run['id']}/cancel")
    again = api.post(f"/api/v1/runs/{run['id']}/repeat")
    assert (again.status_code, str(again.data["repeats"])) == (202, run["id"])


def test_a_custom_event_starts_the_actions_that_wait_for_it(api: APIClient, instance: Instance) -> None:
    api.post(
        "/api/v1/actions",
        {"name": "on full", "when": [{"on": "event", "name": "full"}], "steps": [{"do": "rotate_log"}]},
    )
    answer = api.post("/api/v1/events/full", {"parameters": {"WHO": "me"}})
    (run,) = answer.data
    assert (answer.status_code, run["actor"], run["parameters"]["variables"]["WHO"]) == (202, "maria", "me")
    assert api.post("/api/v1/events/empty", {}).data == []


def test_a_schedule_is_tried_without_an_action(api: APIClient, instance: Instance) -> None:
    assert len(api.get("/api/v1/actions/firings", {"every": "Saturday at 00:30"}).data["firings"]) == 5
    assert api.get("/api/v1/actions/firings", {"every": "noon"}).data["code"] == "bad_schedule"


def test_a_list_of_actions_costs_the_same_number_of_queries(
    api: APIClient, instance: Instance, django_assert_max_num_queries: Any
) -> None:
    Action.objects.bulk_create(
        [
            Action(
                instance=instance,
                name=f"a{n}",
                steps=[{"do": "truncate", "what": "both", "age": "7d"}],
                started_at=instance.created_at,
            )
            for n in range(30)
        ]
    )
    with django_assert_max_num_queries(4):
        assert len(api.get("/api/v1/actions").data["results"]) > 20
