from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from broker_core.access.credential_hashes import hash_password, hash_token
from console.models import AuditEvent, Instance, PolicyRevision
from console.services import policies
from tests.support.fake_broker import FakeBroker

WHATEVER = {"If-Match": "*"}


def change(api: APIClient, address: str, body: dict[str, Any]) -> Any:
    """Send a PATCH that applies to any version."""
    return api.patch(f"/api/v1/{address}", body, headers=WHATEVER)


def test_transports_show_what_is_wanted_and_what_runs(api: APIClient, broker: FakeBroker) -> None:
    answer = api.get("/api/v1/transports")
    assert [transport["name"] for transport in answer.data] == ["tcp", "websocket", "stomp", "stomp-ws"]
    assert answer.data[0]["running"]["clients"] == 13
    assert answer["ETag"] == '"1"'


def test_patch_of_a_transport_is_in_force_at_once(api: APIClient, broker: FakeBroker) -> None:
    limits = {"pool": {"message_memory_limit": 5_000_000}, "client_policy": {"client_max_capacity": 25}}
    answer = change(api, "transports/tcp", {**limits, "reason": "try"})
    assert answer.status_code == 200
    assert (answer.data["revision"], answer.data["applied"], answer["ETag"]) == (2, True, '"2"')
    assert api.get("/api/v1/transports/tcp").data["pool"]["message_memory_limit"] == 5_000_000
    policy = api.get("/api/v1/policies").data
    assert policy["in_force"]["converged"] is True
    assert policy["document"]["transports"][0]["client_policy"]["client_max_capacity"] == 25


def test_null_returns_a_setting_to_its_default(api: APIClient, broker: FakeBroker) -> None:
    change(api, "policies", {"pool": {"message_memory_limit": 5_000_000}})
    assert change(api, "policies", {"pool": {"message_memory_limit": None}}).status_code == 200
    assert api.get("/api/v1/policies").data["document"]["pool"]["message_memory_limit"] is None


def test_if_match_guards_against_anothers_edit(api: APIClient, broker: FakeBroker) -> None:
    first = api.get("/api/v1/policies")["ETag"]
    tight = {"client_policy": {"client_max_capacity": 20}}
    assert api.patch("/api/v1/policies", tight, headers={"If-Match": first}).status_code == 200
    stale = api.patch(
        "/api/v1/policies", {"pool": {"message_disk_limit": 10**9}}, headers={"If-Match": first}
    )
    assert (stale.status_code, stale.data["code"]) == (412, "revision_changed")
    assert api.patch("/api/v1/policies", tight, headers={"If-Match": "x"}).data["code"] == "bad_if_match"


def test_misspelt_setting_is_an_error_not_a_change(api: APIClient, broker: FakeBroker) -> None:
    answer = change(api, "policies", {"client_policy": {"client_max_capasity": 20}})
    assert (answer.status_code, answer.data["code"]) == (400, "bad_request")
    assert "client_max_capasity" in str(answer.data["details"])
    assert PolicyRevision.objects.count() == 1


def test_cross_field_problem_has_our_code(api: APIClient, broker: FakeBroker) -> None:
    answer = change(api, "transports/tcp", {"port": 9008})
    assert (answer.status_code, answer.data["code"]) == (400, "bad_policy")
    assert answer["Content-Type"] == "application/problem+json"


def test_revisions_are_listed_newest_first_and_can_be_read(api: APIClient, broker: FakeBroker) -> None:
    change(api, "policies", {"client_policy": {"client_max_capacity": 20}, "reason": "tight"})
    listed = api.get("/api/v1/policies/revisions").data["results"]
    assert [(one["number"], one["reason"]) for one in listed] == [(2, "tight"), (1, "The defaults.")]
    assert (
        api.get("/api/v1/policies/revisions/1").data["document"]["client_policy"]["client_max_capacity"] == 50
    )
    assert api.get("/api/v1/policies/revisions/9").data["code"] == "unknown_revision"
    assert api.delete("/api/v1/policies/revisions/1").status_code == 405


def test_change_while_the_broker_is_away_is_kept_and_says_so(api: APIClient, instance: object) -> None:
    answer = change(api, "transports/tcp", {"enabled": False, "confirmed": True})
    assert answer.status_code == 200
    assert answer.data["applied"] is False
    assert "can't be reached" in answer.data["problem"]
    assert api.get("/api/v1/transports/tcp").data["running"] is None


@pytest.mark.parametrize("address", ["policies", "transports/tcp"])
def test_a_change_that_says_not_what_it_was_made_for_is_refused(
    api: APIClient, broker: FakeBroker, address: str
) -> None:
    answer = api.patch(f"/api/v1/{address}", {"client_policy": {"client_max_capacity": 20}})
    assert (answer.status_code, answer.data["code"]) == (428, "if_match_needed")
    assert "If-Match" in answer.data["fix"]
    assert PolicyRevision.objects.count() == 1


def test_every_list_of_a_policy_can_be_replaced(api: APIClient, broker: FakeBroker) -> None:
    lists = {
        "rules": [
            {
                "name": "behind",
                "signal": "oldest_age",
                "limit": 5000,
                "scope": {"transport": "tcp"},
                "ladder": [{"action": "warn"}],
            }
        ],
        "xap": [{"enabled": True, "latency": 700}],
        "activemq": [
            {"topic": "prices.>", "prefetch": 1000, "prefetch_rate_pending_message_limit_strategy": 2.5}
        ],
        "qpid": [{"topic": "stocks.us.*", "depth": 4235264}],
        "access": {"entitlements": [{"who": ["*"], "subscribe": ["orders.>"]}]},
    }
    answer = change(api, "policies", lists)
    assert answer.status_code == 200, answer.data
    document = api.get("/api/v1/policies").data["document"]
    assert {key: document[key] for key in ("rules", "xap", "activemq", "qpid")} == {
        key: lists[key] for key in ("rules", "xap", "activemq", "qpid")
    }
    assert document["access"]["entitlements"][0]["subscribe"] == ["orders.>"]
    assert change(api, "policies", {"rules": []}).data["document"]["rules"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"rules": [{"name": "x", "signal": "age"}]},
        {"rules": [{"name": "x", "ladder": [{"action": "warn", "later": 1}]}]},
        {"xap": [{"latensy": 1}]},
        {"qpid": [{"depth": 1}]},
        {"activemq": {"topic": "a"}},
        {"access": {"user": []}},
        {"access": {"users": [{"name": "maria", "pasword": "x"}]}},
    ],
)
def test_misspelt_entries_are_refused_by_name(
    api: APIClient, broker: FakeBroker, body: dict[str, Any]
) -> None:
    answer = change(api, "policies", body)
    assert (answer.status_code, answer.data["code"]) == (400, "bad_request")
    assert PolicyRevision.objects.count() == 1


def test_a_transport_says_who_may_log_on(api: APIClient, broker: FakeBroker) -> None:
    assert api.get("/api/v1/transports/tcp").data["authentication"] == "none"
    users = {"access": {"users": [{"name": "maria", "token": hash_token("t")}]}}
    assert change(api, "policies", users).status_code == 200
    tls = {"certificate": "/etc/c.pem", "key": "/etc/k.pem"}
    answer = change(api, "transports/tcp", {"authentication": "token", "restricted": True, "tls": tls})
    assert answer.status_code == 200, answer.data
    shown = api.get("/api/v1/transports/tcp").data
    assert (shown["authentication"], shown["restricted"], shown["tls"]["key"]) == (
        "token",
        True,
        "/etc/k.pem",
    )
    assert change(api, "transports/tcp", {"tls": {"certificate": "/etc/c.pem"}}).data["code"] == "bad_request"
    assert change(api, "transports/tcp", {"authentication": "certificate"}).data["code"] == "bad_policy"


def test_hashes_are_taken_kept_and_never_given(
    api: APIClient, broker: FakeBroker, instance: Instance
) -> None:
    password, token = hash_password("open sesame"), hash_token("secret")
    users = [{"name": "maria", "password": password, "token": token}]
    answers = [change(api, "policies", {"access": {"users": users}, "reason": "users"})]
    kept = [{"name": "maria", "password": "set", "token": "set", "groups": ["desk"], "clients": ["desk-*"]}]
    answers.append(change(api, "policies", {"access": {"users": kept}}))
    (user,) = policies.newest_revision(instance).document["access"]["users"]
    assert (user["password"], user["token"], user["groups"], user["clients"]) == (
        password,
        token,
        ["desk"],
        ["desk-*"],
    )
    for address in ("policies", "policies/revisions/2", "policies/revisions", "transports", "audit"):
        answers.append(api.get(f"/api/v1/{address}"))
    said = "".join(answer.content.decode() for answer in answers)
    assert password not in said and token not in said
    assert '"password":"set"' in said.replace(" ", "")
    assert all(password not in str(event.before) + str(event.after) for event in AuditEvent.objects.all())


@pytest.mark.parametrize("password", ["open sesame", "set"])
def test_what_is_no_hash_isnt_stored(api: APIClient, broker: FakeBroker, password: str) -> None:
    answer = change(api, "policies", {"access": {"users": [{"name": "new", "password": password}]}})
    assert (answer.status_code, answer.data["code"]) == (400, "bad_policy")
    assert "password can't be used" in answer.data["detail"] and "sesame" not in answer.data["detail"]


def test_destinations_are_policy_like_the_rest_and_have_no_secret(api: APIClient, broker: FakeBroker) -> None:
    one = {"name": "ny", "addresses": ["tcps://ny:9007"], "topic": "prices.>", "filter": "/n > 1"}
    assert change(api, "policies", {"destinations": [one]}).status_code == 200
    assert api.get("/api/v1/policies").data["document"]["destinations"] == [one]
    assert PolicyRevision.objects.get(number=2).document["destinations"] == [one]
    for wrong, said in (
        (
            {"addresses": ["ws://ny"]},
            "destination ny: addresses must be 1 to 16 of tcp://HOST:PORT or tcps://HOST:PORT",
        ),
        ({"topic": "a..b"}, "destination ny: "),
        ({"filter": "/n >"}, "destination ny: "),
        ({"certificate": "/c.pem"}, "destination ny: certificate and key go together"),
    ):
        refused = change(api, "policies", {"destinations": [one | wrong]})
        assert (refused.status_code, refused.data["code"]) == (400, "bad_policy")
        assert said in str(refused.data)
    assert change(api, "policies", {"destinations": [one | {"token": "x"}]}).status_code == 400
    assert change(api, "policies", {"destinations": []}).status_code == 200
    assert "destinations" not in api.get("/api/v1/policies").data["document"]
