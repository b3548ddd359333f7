"""Policy changes through the API need the same confirmation as on the console's pages."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from console.models import Instance
from console.services import policies
from tests.support.fake_broker import FakeBroker

WHATEVER = {"If-Match": "*"}
TIGHT = {"client_policy": {"client_max_capacity": 5}}
"""The fake broker's preview of it acts on board-jfk."""
MILD = {"client_policy": {"client_max_capacity": 20}}


def held_back(answer: Any) -> dict[str, Any]:
    """Return the details of a response that requires confirmation."""
    assert (answer.status_code, answer.data["code"]) == (409, "confirm_needed"), answer.data
    assert '"confirmed": true' in answer.data["fix"]
    return dict(answer.data["details"])


@pytest.mark.parametrize("address", ["policies", "transports/tcp"])
@pytest.mark.parametrize("unread", [False, True])
def test_a_patch_that_acts_on_clients_or_leaves_readers_without_records_is_refused_without_it(
    api: APIClient, broker: FakeBroker, instance: Instance, address: str, unread: bool
) -> None:
    broker.unrecorded = ["desk-1"] if unread else []
    change = MILD if unread else TIGHT
    address = f"/api/v1/{address}"
    if unread or address.endswith("policies"):
        details = held_back(api.patch(address, change, headers=WHATEVER))
        named = details["preview"]["effect"]["unrecorded" if unread else "acted_on"]
        assert [one["client"] for one in named] == ["desk-1" if unread else "board-jfk"]
        said = "1 client without new records" if unread else "1 client disconnected"
        assert any(said in one for one in details["warnings"]), details["warnings"]
        assert policies.newest_revision(instance).number == 1
        assert api.get("/api/v1/policies").data["document"]["client_policy"]["client_max_capacity"] == 50
    done = api.patch(address, {**change, "confirmed": True}, headers=WHATEVER)
    assert (done.status_code, done.data["revision"]) == (200, 2)


def test_what_a_page_applies_without_a_tick_needs_no_confirmation(
    api: APIClient, broker: FakeBroker, instance: Instance
) -> None:
    assert api.patch("/api/v1/policies", MILD, headers=WHATEVER).status_code == 200
    assert api.patch("/api/v1/policies", {**MILD, "confirmed": False}, headers=WHATEVER).status_code == 200


def test_publishing_a_draft_and_staging_it_need_it(
    api: APIClient, broker: FakeBroker, instance: Instance
) -> None:
    draft = api.post("/api/v1/drafts", {"title": "tighter"})["Location"]
    api.patch(draft, {"changes": TIGHT}, headers=WHATEVER)
    publish = f"{draft}/publish"
    held_back(api.post(publish, {"reason": "x"}, headers=WHATEVER))
    staged = {"reason": "x", "rollout": {"client": "board-*", "most_decisions": 2}}
    held_back(api.post(publish, staged, headers=WHATEVER))
    assert (broker.asked[-1]["do"], broker.asked[-1]["staged"]["client"]) == ("preview", "board-*")
    assert policies.newest_revision(instance).number == 1
    assert api.post(publish, {**staged, "confirmed": True}, headers=WHATEVER).status_code == 200
    held_back(api.post("/api/v1/rollouts/promote", headers=WHATEVER))
    assert api.post("/api/v1/rollouts/promote", {"confirmed": True}, headers=WHATEVER).status_code == 200


def test_stopping_a_rollout_needs_it_when_the_revision_before_acts(
    api: APIClient, broker: FakeBroker, instance: Instance
) -> None:
    assert api.patch("/api/v1/policies", {**TIGHT, "confirmed": True}, headers=WHATEVER).status_code == 200
    draft = api.post("/api/v1/drafts", {"title": "milder"})["Location"]
    api.patch(draft, {"changes": MILD}, headers=WHATEVER)
    body = {"rollout": {"client": "board-*", "most_decisions": 2}}
    assert api.post(f"{draft}/publish", body, headers=WHATEVER).status_code == 200
    held_back(api.post("/api/v1/rollouts/stop", {"reason": "x"}, headers=WHATEVER))
    body = {"reason": "x", "confirmed": True}
    assert api.post("/api/v1/rollouts/stop", body, headers=WHATEVER).status_code == 200


def test_a_broker_that_cant_be_asked_is_a_warning_too(api: APIClient, instance: Instance) -> None:
    details = held_back(api.patch("/api/v1/policies", MILD, headers=WHATEVER))
    assert details["preview"]["effect"] is None
    assert any("Affected clients are unknown" in one for one in details["warnings"])
    answer = api.patch("/api/v1/policies", {**MILD, "confirmed": True}, headers=WHATEVER)
    assert (answer.status_code, answer.data["applied"]) == (200, False)


def test_wrong_settings_are_told_before_the_confirmation(api: APIClient, instance: Instance) -> None:
    answer = api.patch("/api/v1/transports/tcp", {"port": 9008}, headers=WHATEVER)
    assert (answer.status_code, answer.data["code"]) == (400, "bad_policy")
    stale = api.patch("/api/v1/policies", MILD, headers={"If-Match": '"7"'})
    assert (stale.status_code, stale.data["code"]) == (412, "revision_changed")
