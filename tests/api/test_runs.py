from __future__ import annotations

import uuid
from typing import Any

from rest_framework.test import APIClient

from console.models import ActionRun, AuditEvent, Instance
from tests.support.fake_broker import FakeBroker


def test_dry_run_gives_the_plan_and_does_nothing(api: APIClient, broker: FakeBroker) -> None:
    answer = api.post("/api/v1/journals/remove", {"age": "7d", "dry_run": True})
    assert answer.status_code == 200
    assert (answer.data["age_s"], len(answer.data["chosen"])) == (604_800, 1)
    assert "needed by" in answer.data["skipped"][0]["why"]
    assert ActionRun.objects.count() == 0


def test_action_is_accepted_as_a_run_with_its_plan(api: APIClient, broker: FakeBroker) -> None:
    answer = api.post("/api/v1/journals/archive", {"age": "1h30m"})
    assert answer.status_code == 202
    run = api.get(answer["Location"]).data
    assert (run["kind"], run["state"], run["parameters"]["age_s"]) == ("archive", "waiting", 5_400)
    assert run["plan"]["chosen"]
    assert AuditEvent.objects.filter(action="run.archive").count() == 1


def test_second_action_of_a_kind_is_a_conflict(api: APIClient, broker: FakeBroker) -> None:
    first = api.post("/api/v1/journals/archive", {"age": "7d"}).data
    second = api.post("/api/v1/journals/archive", {"age": "7d"})
    assert (second.status_code, second.data["code"]) == (409, "run_in_progress")
    assert second.data["details"]["run"] == first["id"]


def test_action_without_an_age_or_with_a_bad_one_is_refused(api: APIClient, broker: FakeBroker) -> None:
    assert api.post("/api/v1/journals/archive", {}).status_code == 400
    assert api.post("/api/v1/journals/archive", {"age": "soon"}).data["code"] == "bad_age"
    assert api.post("/api/v1/journals/shred", {"age": "7d"}).status_code == 404
    assert api.get("/api/v1/journals/archive").status_code == 405


def test_journals_are_listed(api: APIClient, broker: FakeBroker) -> None:
    found = api.get("/api/v1/journals").data["results"]
    assert [one["state"] for one in found] == ["archived", "archived", "sealed", "sealed", "current"]
    assert found[3]["pinned_by"]


def test_pipeline_job_is_accepted_as_a_run(api: APIClient, instance: Instance) -> None:
    answer = api.post("/api/v1/pipeline/lake", {"options": {"skip-gaps": "yes"}})
    assert (answer.status_code, answer.data["kind"]) == (202, "pipeline")
    assert api.post("/api/v1/pipeline/rm", {}).data["code"] == "unknown_job"


def test_waiting_run_is_cancelled(api: APIClient, instance: Instance) -> None:
    run = api.post("/api/v1/pipeline/lake", {}).data
    assert api.post(f"/api/v1/runs/{run['id']}/cancel").data["state"] == "cancelled"
    assert api.post(f"/api/v1/runs/{run['id']}/cancel").data["code"] == "run_ended"
    assert [one["id"] for one in api.get("/api/v1/runs", {"state": "cancelled"}).data["results"]] == [
        run["id"]
    ]


def test_run_that_does_not_exist(api: APIClient, instance: Instance) -> None:
    for name in ("nonsense", str(uuid.uuid4())):
        assert api.get(f"/api/v1/runs/{name}").data["code"] == "unknown_run"


def test_weekly_archive_is_listed_with_its_next_firing(api: APIClient, instance: Instance) -> None:
    (schedule,) = api.get("/api/v1/schedules").data["results"]
    assert (schedule["name"], schedule["every"], schedule["missed"]) == (
        "weekly archive",
        ["Saturday at 00:30Z"],
        "run_once",
    )
    assert schedule["next_due_at"]


def test_lists_cost_the_same_number_of_queries_however_long(
    api: APIClient, instance: Instance, django_assert_max_num_queries: Any
) -> None:
    for _ in range(30):
        ActionRun.objects.create(
            instance=instance, kind="archive", state="failed", actor="x", actor_kind="person"
        )
    for address in (
        "/api/v1/runs",
        "/api/v1/audit",
        "/api/v1/decisions",
        "/api/v1/policies/revisions",
        "/api/v1/schedules",
    ):
        with django_assert_max_num_queries(4):
            assert api.get(address).status_code == 200
