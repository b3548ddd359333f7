from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from console.choices import RunState
from console.models import Action, ActionRun, AuditEvent, Instance
from console.services.actions.defaults import WEEKLY_ARCHIVE
from tests.console.views.test_client import apply
from tests.support.fake_broker import FakeBroker


@pytest.fixture
def weekly(instance: Instance) -> Action:
    return Action.objects.get(name=WEEKLY_ARCHIVE)


def form_of(weekly: Action, **changes: str) -> dict[str, str]:
    """Return the editor's form fields for the weekly archive, with changes."""
    return {
        "action_id": str(weekly.pk),
        "version": str(weekly.version),
        "name": weekly.name,
        "enabled": "on",
        "missed": "run_once",
        "when-0-part": "on.schedule",
        "when-0-every": "Saturday at 00:30Z",
        "steps-0-part": "do.archive",
        "steps-0-age": "7d",
        **changes,
    }


def test_the_list_says_when_what_and_next(browser: Client, weekly: Action) -> None:
    text = browser.get("/actions/").content.decode()
    assert WEEKLY_ARCHIVE in text
    assert "Saturday at 00:30Z" in text
    assert "Archive journals" in text


def test_an_action_shows_its_parts_and_five_firings(browser: Client, weekly: Action) -> None:
    text = browser.get(f"/actions/{weekly.pk}/").content.decode()
    assert 'value="Saturday at 00:30Z"' in text
    assert text.count("00:30 UTC") == 5
    assert "{{AMPS_" not in text or "Gives" in text


def test_a_schedule_is_shown_while_it_is_typed(browser: Client, weekly: Action) -> None:
    assert (
        browser.get("/actions/firings/", {"when-3-every": "00:30Z"}).content.decode().count("00:30 UTC") == 5
    )
    assert "is not a schedule" in browser.get("/actions/firings/", {"when-0-every": "noon"}).content.decode()


def test_saving_stores_a_new_version(browser: Client, weekly: Action) -> None:
    answer = browser.post("/actions/save/", form_of(weekly, **{"steps-0-age": "3d", "needs_approval": "on"}))
    assert (answer.status_code, answer["Location"]) == (302, f"/actions/{weekly.pk}/")
    weekly.refresh_from_db()
    assert (weekly.steps, weekly.version, weekly.needs_approval, weekly.changed_by) == (
        [{"do": "archive", "age": "3d"}],
        2,
        True,
        "maria",
    )


def test_an_edit_of_an_older_version_is_refused_and_keeps_what_was_typed(
    browser: Client, weekly: Action
) -> None:
    browser.post("/actions/save/", form_of(weekly, **{"steps-0-age": "3d"}))
    answer = browser.post("/actions/save/", form_of(weekly, **{"steps-0-age": "9d"}))
    assert answer.status_code == 422
    text = answer.content.decode()
    assert "at version 2, not 1" in text
    assert 'value="9d"' in text


def test_a_part_that_cannot_be_saved_says_why_beside_itself(browser: Client, weekly: Action) -> None:
    answer = browser.post("/actions/save/", form_of(weekly, **{"when-0-every": "noon"}))
    assert answer.status_code == 422
    assert answer.content.decode().count("is not a schedule") >= 2


@pytest.mark.parametrize(
    ("button", "more", "expected"),
    [
        ("add.steps", {"add-steps": "do.publish"}, ["archive", "publish"]),
        ("add.steps", {"add-steps": "do.nonsense"}, ["archive"]),
        ("remove.steps.0", {}, []),
        ("down.steps.0", {"steps-1-part": "do.event", "steps-1-name": "x"}, ["event", "archive"]),
        ("up.steps.1", {"steps-1-part": "do.event", "steps-1-name": "x"}, ["event", "archive"]),
        ("up.steps.9", {}, ["archive"]),
        ("nonsense", {}, ["archive"]),
    ],
)
def test_the_buttons_of_the_editor_change_the_draft_alone(
    browser: Client, weekly: Action, button: str, more: dict[str, str], expected: list[str]
) -> None:
    answer = browser.post(
        "/actions/draft/", {**form_of(weekly), **more, "edit": button}, headers={"HX-Request": "true"}
    )
    (steps,) = [group for group in answer.context["groups"] if group["name"] == "steps"]
    assert [part.kind.name for part in steps["parts"]] == expected
    weekly.refresh_from_db()
    assert weekly.version == 1


def test_the_plan_comes_first_and_starts_the_run(browser: Client, weekly: Action, broker: FakeBroker) -> None:
    text = browser.post(f"/actions/{weekly.pk}/plan/", headers={"HX-Request": "true"}).content.decode()
    shown = text.split('name="plan" value="')[1].split('"')[0]
    assert ActionRun.objects.count() == 0
    assert browser.post(f"/actions/{weekly.pk}/apply/", {"plan": "0" * 64})["Location"] == "/actions/"
    assert ActionRun.objects.count() == 0
    browser.post(f"/actions/{weekly.pk}/apply/", {"plan": shown})
    assert ActionRun.objects.get().plan_hash == shown


def test_a_run_that_needs_approval_waits_for_another_person(
    browser: Client, weekly: Action, broker: FakeBroker, administrator_too: Client
) -> None:
    Action.objects.update(needs_approval=True)
    browser.post(f"/actions/{weekly.pk}/apply/", {})
    run = ActionRun.objects.get()
    assert run.state == RunState.APPROVAL
    browser.post(f"/runs/{run.pk}/approve/")
    run.refresh_from_db()
    assert run.state == RunState.APPROVAL
    assert "Approve" in browser.get("/runs/").content.decode()
    administrator_too.post(f"/runs/{run.pk}/approve/")
    run.refresh_from_db()
    assert (run.state, run.approver) == (RunState.WAITING, "otto")


@pytest.fixture
def administrator_too(db: None) -> Client:
    """Return a client for a second person, who may approve."""
    from django.contrib.auth import get_user_model

    from console.models import Grant

    otto: Any = get_user_model().objects.create_user("otto", password="a-long-enough-password")
    Grant.objects.create(user=otto, role="approver")
    client = Client()
    client.force_login(otto)
    return client


def test_deleting_keeps_the_runs(browser: Client, weekly: Action) -> None:
    ActionRun.objects.create(
        instance=weekly.instance,
        kind="action",
        action=weekly,
        parameters={"action": weekly.name, "steps": []},
        state="failed",
        actor="x",
        actor_kind="person",
    )
    browser.post(f"/actions/{weekly.pk}/delete/")
    assert Action.objects.exists()
    assert f"Delete the action {WEEKLY_ARCHIVE}" in browser.get("/tray/").content.decode()
    apply(browser, "not used any more")
    assert AuditEvent.objects.get(action="action.delete").reason == "not used any more"
    assert not Action.objects.exists()
    assert ActionRun.objects.get().parameters["action"] == WEEKLY_ARCHIVE
    assert browser.get("/runs/").status_code == 200
