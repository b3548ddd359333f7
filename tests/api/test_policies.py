from __future__ import annotations

from rest_framework.test import APIClient

from console.models import PolicyRevision
from tests.support.fake_broker import FakeBroker


def test_transports_show_what_is_wanted_and_what_runs(api: APIClient, broker: FakeBroker) -> None:
    answer = api.get("/api/v1/transports")
    assert [transport["name"] for transport in answer.data] == ["tcp", "websocket"]
    assert answer.data[0]["running"]["clients"] == 13
    assert answer["ETag"] == '"1"'


def test_patch_of_a_transport_is_in_force_at_once(api: APIClient, broker: FakeBroker) -> None:
    answer = api.patch(
        "/api/v1/transports/tcp",
        {"pool": {"message_memory_limit": 5_000_000}, "client_policy": {"client_max_capacity": 25}, "reason": "try"},
    )
    assert answer.status_code == 200
    assert (answer.data["revision"], answer.data["applied"], answer["ETag"]) == (2, True, '"2"')
    assert api.get("/api/v1/transports/tcp").data["pool"]["message_memory_limit"] == 5_000_000
    policy = api.get("/api/v1/policies").data
    assert policy["in_force"]["converged"] is True
    assert policy["document"]["transports"][0]["client_policy"]["client_max_capacity"] == 25


def test_null_returns_a_setting_to_its_default(api: APIClient, broker: FakeBroker) -> None:
    api.patch("/api/v1/policies", {"pool": {"message_memory_limit": 5_000_000}})
    assert api.patch("/api/v1/policies", {"pool": {"message_memory_limit": None}}).status_code == 200
    assert api.get("/api/v1/policies").data["document"]["pool"]["message_memory_limit"] is None


def test_if_match_guards_against_anothers_edit(api: APIClient, broker: FakeBroker) -> None:
    first = api.get("/api/v1/policies")["ETag"]
    change = {"client_policy": {"client_max_capacity": 20}}
    assert api.patch("/api/v1/policies", change, headers={"If-Match": first}).status_code == 200
    stale = api.patch("/api/v1/policies", {"pool": {"message_disk_limit": 10**9}}, headers={"If-Match": first})
    assert (stale.status_code, stale.data["code"]) == (412, "revision_changed")
    assert api.patch("/api/v1/policies", change, headers={"If-Match": "x"}).data["code"] == "bad_if_match"


def test_misspelt_setting_is_an_error_not_a_change(api: APIClient, broker: FakeBroker) -> None:
    answer = api.patch("/api/v1/policies", {"client_policy": {"client_max_capasity": 20}})
    assert (answer.status_code, answer.data["code"]) == (400, "bad_request")
    assert "client_max_capasity" in str(answer.data["details"])
    assert PolicyRevision.objects.count() == 1


def test_cross_field_problem_has_our_code(api: APIClient, broker: FakeBroker) -> None:
    answer = api.patch("/api/v1/transports/tcp", {"port": 9008})
    assert (answer.status_code, answer.data["code"]) == (400, "bad_policy")
    assert answer["Content-Type"] == "application/problem+json"


def test_revisions_are_listed_newest_first_and_can_be_read(api: APIClient, broker: FakeBroker) -> None:
    api.patch("/api/v1/policies", {"client_policy": {"client_max_capacity": 20}, "reason": "tight"})
    listed = api.get("/api/v1/policies/revisions").data["results"]
    assert [(one["number"], one["reason"]) for one in listed] == [(2, "tight"), (1, "The defaults.")]
    assert api.get("/api/v1/policies/revisions/1").data["document"]["client_policy"]["client_max_capacity"] == 50
    assert api.get("/api/v1/policies/revisions/9").data["code"] == "unknown_revision"
    assert api.delete("/api/v1/policies/revisions/1").status_code == 405


def test_change_while_the_broker_is_away_is_kept_and_says_so(api: APIClient, instance: object) -> None:
    answer = api.patch("/api/v1/transports/tcp", {"enabled": False})
    assert answer.status_code == 200
    assert answer.data["applied"] is False
    assert "can't be reached" in answer.data["problem"]
    assert api.get("/api/v1/transports/tcp").data["running"] is None
