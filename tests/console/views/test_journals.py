"""Journals: the plan first, then the run, and only if the plan still holds."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from console.models import ActionRun
from console.services import runs
from console.views.journals import digest
from tests.support.fake_broker import FakeBroker

CHOSEN = "sluice-1.00000000000000560001.journal.gz"


@pytest.fixture(autouse=True)
def _no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests ask for runs; workers, which carry them out, have tests of their own."""
    monkeypatch.setattr(runs, "enqueue", lambda run: None)


def test_segments_are_listed_newest_first_with_who_needs_them(browser: Client, broker: FakeBroker) -> None:
    text = browser.get("/journals/").content.decode()
    assert text.index("1,120,001") < text.index("840,001 –") < text.index("1 – 280,000")
    assert "replay of lake-loader" in text


def test_a_plan_says_what_is_chosen_what_is_not_and_why(browser: Client, broker: FakeBroker) -> None:
    answer = browser.post(
        "/journals/plan/", {"action": "archive", "age": "7d"}, headers={"HX-Request": "true"}
    )
    text = answer.content.decode()
    assert CHOSEN in text
    assert "needed by replay of lake-loader and by the spool of board-jfk" in text
    assert "Archive 1 segment" in text
    assert not ActionRun.objects.exists()


def test_a_plan_without_scripts_is_a_whole_page(browser: Client, broker: FakeBroker) -> None:
    assert b"<h1>" in browser.post("/journals/plan/", {"action": "archive", "age": "7d"}).content


def test_an_age_that_cant_be_read_is_said(browser: Client, broker: FakeBroker) -> None:
    answer = browser.post(
        "/journals/plan/", {"action": "archive", "age": "soon"}, headers={"HX-Request": "true"}
    )
    assert b"is not an age" in answer.content


def test_nothing_old_enough_offers_nothing_to_apply(browser: Client, broker: FakeBroker) -> None:
    answer = browser.post(
        "/journals/plan/", {"action": "archive", "age": "52w"}, headers={"HX-Request": "true"}
    )
    assert b"No segment is older" in answer.content
    assert b"/journals/apply/" not in answer.content


def apply(browser: Client, action: str, **more: Any) -> Any:
    """Press the plan's button."""
    form = {"action": action, "age": "7d", "plan": digest(action, [CHOSEN]), **more}
    return browser.post("/journals/apply/", form, follow=True)


def test_applying_a_plan_starts_a_run(browser: Client, broker: FakeBroker) -> None:
    answer = apply(browser, "compress")
    run = ActionRun.objects.get()
    assert (run.kind, run.actor, run.parameters["age"]) == ("compress", "maria", "1w")
    assert b"started" in answer.content


def test_a_plan_that_no_longer_holds_starts_nothing(browser: Client, broker: FakeBroker) -> None:
    answer = apply(browser, "compress", plan="another")
    assert b"have changed since the plan was shown" in answer.content
    assert not ActionRun.objects.exists()


@pytest.mark.parametrize("typed", ["", "sluice-2"])
def test_removing_needs_the_instances_name(browser: Client, broker: FakeBroker, typed: str) -> None:
    answer = apply(browser, "remove", confirm=typed)
    assert b"Nothing was removed" in answer.content
    assert not ActionRun.objects.exists()


def test_removing_with_the_name_starts_a_run(browser: Client, broker: FakeBroker) -> None:
    apply(browser, "remove", confirm="sluice-1")
    assert ActionRun.objects.get().kind == "remove"


def test_a_second_run_of_a_kind_is_refused_with_its_reason(browser: Client, broker: FakeBroker) -> None:
    apply(browser, "compress")
    answer = apply(browser, "compress")
    assert b"is under way" in answer.content
    assert ActionRun.objects.count() == 1
