"""Drafts, imports and rollouts through the API."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from broker_core.access.credential_hashes import hash_token
from console.choices import Role
from console.models import AuditEvent, Instance, PolicyDraft
from console.services import policies, rollouts
from tests.console.services.policy_import.test_importers import ACTIVEMQ, AMPS
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker

DRAFTS = "/api/v1/drafts"
WHATEVER = {"If-Match": "*"}


@pytest.fixture
def draft(api: APIClient, broker: FakeBroker) -> str:
    """Create a draft; return its address."""
    return str(api.post(DRAFTS, {"title": "tighter"})["Location"])


def test_a_draft_goes_from_its_making_to_a_revision(
    api: APIClient, broker: FakeBroker, instance: Instance
) -> None:
    made = api.post(DRAFTS, {"title": "tighter"})
    assert (made.status_code, made.data["base"], made["ETag"]) == (201, 1, '"1"')
    address = made["Location"]
    changed = api.patch(
        address, {"changes": {"client_policy": {"client_max_capacity": 5}}}, headers={"If-Match": '"1"'}
    )
    assert (changed.data["version"], changed["ETag"]) == (2, '"2"')
    preview = api.post(f"{address}/preview")
    assert preview.data["differences"] == [
        {"path": "client_policy.client_max_capacity", "before": "50 %", "after": "5 %"}
    ]
    assert preview.data["effect"]["acted_on"][0]["client"] == "board-jfk"
    body = {"reason": "asked for", "confirmed": True}
    published = api.post(f"{address}/publish", body, headers={"If-Match": '"2"'})
    assert (published.status_code, published.data["revision"], published.data["applied"]) == (200, 2, True)
    assert api.get(address).status_code == 404
    assert policies.newest_revision(instance).reason == "asked for"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("patch", "", {"changes": {}}), ("delete", "", None), ("post", "/publish", {})],
)
def test_a_change_of_a_draft_says_what_it_was_made_for(
    api: APIClient, draft: str, method: str, path: str, body: Any
) -> None:
    refused = getattr(api, method)(draft + path, body)
    assert (refused.status_code, refused.data["code"]) == (428, "if_match_needed")
    stale = getattr(api, method)(draft + path, body, headers={"If-Match": '"7"'})
    assert (stale.status_code, stale.data["code"]) == (412, "draft_changed")
    assert getattr(api, method)(draft + path, body, headers=WHATEVER).status_code in (200, 204)


def test_a_rollout_is_begun_seen_and_promoted(api: APIClient, draft: str) -> None:
    api.patch(draft, {"changes": {"client_policy": {"client_max_capacity": 20}}}, headers=WHATEVER)
    plan = {"client": "desk-*", "most_decisions": 2}
    assert (
        api.post(f"{draft}/publish", {"reason": "carefully", "rollout": plan}, headers=WHATEVER).status_code
        == 200
    )
    (rollout,) = api.get("/api/v1/rollouts").data["results"]
    assert (
        rollout["state"],
        rollout["revision"],
        rollout["base"],
        rollout["client"],
        rollout["decisions"],
    ) == ("running", 2, 1, "desk-*", 0)
    assert (
        api.get("/api/v1/policies").data["in_force"]["staged"]
        == "Revision 2 for desk-* first, 1 for the others."
    )
    assert api.post("/api/v1/rollouts/promote").status_code == 428
    assert api.post("/api/v1/rollouts/stop", {}, headers={"If-Match": '"1"'}).status_code == 412
    assert api.post("/api/v1/rollouts/promote", headers={"If-Match": '"2"'}).status_code == 200
    assert api.get("/api/v1/policies").data["in_force"]["staged"] == ""
    assert (
        api.post("/api/v1/rollouts/stop", {"reason": "late"}, headers=WHATEVER).data["code"] == "no_rollout"
    )


def test_an_import_makes_a_draft_and_says_of_each_setting_what_became_of_it(
    api: APIClient, broker: FakeBroker, instance: Instance
) -> None:
    answer = api.post(f"{DRAFTS}/import", {"system": "activemq", "text": ACTIVEMQ})
    assert answer.status_code == 201
    assert [entry["topic"] for entry in answer.data["draft"]["document"]["activemq"]] == [
        ">",
        "prices.*",
        "queue.>",
        "scratch.temp.>",
    ]
    assert {"where", "line", "what", "into"} == set(answer.data["taken"][0])
    into = {one["what"]: one["into"] for one in answer.data["taken"]}
    assert into["limit=50"].startswith("activemq >: constant_pending_message_limit_strategy")
    left = {one["what"]: one for one in answer.data["left_out"]}
    assert (
        left["producerFlowControl=false"]["line"],
        "producers" in left["producerFlowControl=false"]["why"],
    ) == (2, True)
    assert answer.data["not_about_policy"] == []
    assert answer.data["actions"] == []
    assert answer["Location"] == f"{DRAFTS}/{answer.data['draft']['id']}"
    assert policies.newest_revision(instance).number == 1


AMPS_LOG = """<AMPSConfig><TransactionLog>
<Topic><Name>ORDERS</Name><MessageType>json</MessageType></Topic>
</TransactionLog></AMPSConfig>"""


def test_an_import_that_narrows_the_journaled_topics_says_so(api: APIClient, broker: FakeBroker) -> None:
    answer = api.post(f"{DRAFTS}/import", {"system": "amps", "text": AMPS_LOG})
    assert answer.status_code == 201
    (warning,) = answer.data["warnings"]
    assert warning.startswith("These topics would no longer be journaled: > (a part of it).")
    answer = api.post(f"{DRAFTS}/import", {"system": "activemq", "text": ACTIVEMQ})
    assert answer.data["warnings"] == []


def test_an_import_of_nothing_is_refused_with_the_reasons(api: APIClient, broker: FakeBroker) -> None:
    answer = api.post(f"{DRAFTS}/import", {"system": "amps", "text": ACTIVEMQ})
    assert (answer.status_code, answer.data["code"]) == (400, "nothing_imported")
    assert answer.data["fix"] == "This looks like activemq.xml: --from activemq."
    assert answer.data["details"]["left_out"][0]["what"] == "topic=>"
    assert not PolicyDraft.objects.exists()


def test_an_import_of_actions_that_are_there_already_is_refused_as_nothing(
    api: APIClient, broker: FakeBroker
) -> None:
    text = AMPS[AMPS.index("<Actions>") : AMPS.index("</AMPSConfig>")]
    assert api.post(f"{DRAFTS}/import", {"system": "amps", "text": text}).status_code == 201
    again = api.post(f"{DRAFTS}/import", {"system": "amps", "text": text})
    assert (again.status_code, again.data["code"], PolicyDraft.objects.count()) == (
        400,
        "nothing_imported",
        1,
    )
    assert "The action 'weekly' exists already" in str(again.data["details"])


def test_a_transport_on_anothers_port_is_left_out(api: APIClient, broker: FakeBroker) -> None:
    answer = api.post(f"{DRAFTS}/import", {"system": "amps", "text": AMPS.replace("9017", "9007")})
    there = [one["name"] for one in answer.data["draft"]["document"]["transports"]]
    assert there == ["tcp", "websocket", "stomp", "stomp-ws"]
    left = {one["what"]: one["why"] for one in answer.data["left_out"]}
    assert "Port 9007 is that of the transport tcp" in left["Name=any-tcp"]
    assert left["InetAddr=9007"] == left["MessageMemoryLimit=2MB"] == left["Name=any-tcp"]


def test_actions_of_an_import_are_switched_off_and_not_made_twice(api: APIClient, broker: FakeBroker) -> None:
    first = api.post(f"{DRAFTS}/import", {"system": "amps", "text": AMPS, "title": "from amps"})
    assert (first.data["draft"]["title"], {one["name"] for one in first.data["actions"]}) == (
        "from amps",
        {"weekly", "archive_journals"},
    )
    assert api.get(f"/api/v1/actions/{first.data['actions'][0]['id']}").data["enabled"] is False
    assert "action weekly: every" in [one["into"] for one in first.data["taken"]]
    again = api.post(f"{DRAFTS}/import", {"system": "amps", "text": AMPS})
    assert again.data["actions"] == []
    left = {one["what"]: one["why"] for one in again.data["left_out"]}
    assert "The action 'weekly' exists already" in left["Every=Saturday at 00:30"]
    assert not [one for one in again.data["taken"] if one["into"].startswith("action")]
    assert len(again.data["taken"]) + len(again.data["left_out"]) == len(first.data["taken"]) + len(
        first.data["left_out"]
    )


@pytest.mark.parametrize(
    "body",
    [
        {"system": "activemq", "text": "<broker"},
        {"system": "yaml", "text": "[1]"},
        {"system": "cobol", "text": "x"},
        {"system": "yaml", "text": "a: &a [1]\nb: [*a, *a]"},
        {"system": "yaml", "text": "[" * 5_000},
        {"system": "yaml", "text": "a: 2026-01-01"},
        {"system": "xap", "text": "x" * 1_048_577},
        {"system": "amps", "text": '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'},
    ],
)
def test_a_file_that_cant_be_taken_makes_nothing(
    api: APIClient, broker: FakeBroker, body: dict[str, str]
) -> None:
    answer = api.post(f"{DRAFTS}/import", body)
    assert (answer.status_code, answer.data["code"] in ("bad_import", "bad_request")) == (400, True)
    assert not PolicyDraft.objects.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"rules": [1]},
        {"rules": {}},
        {"transports": [{}]},
        {"pool": 5},
        {"access": {"users": ["maria"]}},
        {"nonsense": 1},
        {"instance": {"journaled_topics": [5]}},
        {"transports": {"tcp": 5}},
        {"qpid": [{"topic": "a\x00b"}]},
    ],
)
def test_a_draft_may_be_wrong_and_is_never_misshapen(
    api: APIClient, draft: str, changes: dict[str, Any]
) -> None:
    answer = api.patch(draft, {"changes": changes}, headers=WHATEVER)
    assert (answer.status_code, answer.data["code"]) == (400, "bad_policy")
    assert api.get(draft).data["version"] == 1


def test_wrong_values_are_kept_for_the_preview_to_name(api: APIClient, draft: str) -> None:
    wrong = {
        "rules": [{"name": "x", "scope": 5, "ladder": [7]}],
        "client_policy": {"client_max_capacity": "lots"},
    }
    assert api.patch(draft, {"changes": wrong}, headers=WHATEVER).status_code == 200
    assert len(api.post(f"{draft}/preview").data["problems"]) >= 3
    assert api.post(f"{draft}/publish", {}, headers=WHATEVER).data["code"] == "bad_policy"


def test_a_drafts_hashes_stay_inside(api: APIClient, draft: str) -> None:
    token = hash_token("secret")
    answers = [
        api.patch(
            draft, {"changes": {"access": {"users": [{"name": "m", "token": token}]}}}, headers=WHATEVER
        )
    ]
    answers.append(api.patch(draft, {"changes": answers[0].data["document"]}, headers=WHATEVER))
    assert PolicyDraft.objects.get().document["access"]["users"][0]["token"] == token
    answers += [
        api.get(draft),
        api.get(DRAFTS),
        api.post(f"{draft}/preview"),
        api.delete(draft, headers=WHATEVER),
        api.get("/api/v1/audit"),
    ]
    assert all(token not in answer.content.decode() for answer in answers)
    assert all(token not in str(event.before) + str(event.after) for event in AuditEvent.objects.all())


def test_an_older_revision_comes_back_with_its_own_secrets(
    api: APIClient, broker: FakeBroker, instance: Instance
) -> None:
    user = {"name": "m", "token": hash_token("secret")}
    api.patch("/api/v1/policies", {"access": {"users": [user]}}, headers=WHATEVER)
    api.patch("/api/v1/policies", {"access": {"users": []}}, headers=WHATEVER)
    made = api.post(DRAFTS, {"title": "back", "revision": 2})
    assert (made.data["base"], made.data["document"]["access"]["users"][0]["token"]) == (3, "set")
    api.post(f"{made['Location']}/publish", {}, headers=WHATEVER)
    assert policies.newest_revision(instance).document["access"]["users"][0]["token"] == user["token"]


def test_a_preview_names_only_clients_that_one_may_see(
    api: APIClient, broker: FakeBroker, draft: str
) -> None:
    api.patch(draft, {"changes": {"client_policy": {"client_max_capacity": 5}}}, headers=WHATEVER)
    theirs = APIClient()
    theirs.force_authenticate(person("otto", Role.VIEWER, client_pattern="carrier-*"))
    effect = theirs.post(f"{draft}/preview").data["effect"]
    assert {one["client"].split("-")[0] for one in effect["touched"]} == {"carrier"}
    assert (effect["acted_on"], effect["acted_on_in_all"], effect["touched_in_all"]) == ([], 1, 18)
    broker.unrecorded = ["carrier-1", "board-jfk"]
    effect = theirs.post(f"{draft}/preview").data["effect"]
    assert [one["client"] for one in effect["unrecorded"]] == ["carrier-1"]
    assert effect["unrecorded_in_all"] == 2


def test_a_rollout_that_returned_is_told_by_the_api(
    api: APIClient, draft: str, broker: FakeBroker, instance: Instance
) -> None:
    api.patch(draft, {"changes": {"client_policy": {"client_max_capacity": 20}}}, headers=WHATEVER)
    plan = {"client": "desk-*", "most_decisions": 2}
    api.post(f"{draft}/publish", {"reason": "carefully", "rollout": plan}, headers=WHATEVER)
    assert broker.asked[-1]["staged"]["allowances"] == {"": 2}
    assert rollouts.stop_if_exceeded(instance, withdrawn=2) is not None
    (rollout,) = api.get("/api/v1/rollouts").data["results"]
    assert (rollout["state"], rollout["allowances"]) == ("returned", {"": 2})
    assert "2 decisions were allowed" in api.get("/api/v1/policies/revisions/2").data["withdrawn"]
    assert api.get("/api/v1/policies/revisions/1").data["withdrawn"] == ""
    for address in ("/api/v1/policies", "/api/v1/status"):
        answer = api.get(address)
        answer.render()
        assert (answer.status_code, answer.data["in_force"]["wanted"]) == (200, 3)
