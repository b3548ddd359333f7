"""Lists of runs and of decisions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.models import ActionRun, AuditEvent, Decision, Instance
from console.services import runs
from console.views.runs import describe_parameters
from tests.console.views.test_client import apply
from tests.support.html import minified
from tests.support.seed import seed_decisions, seed_runs


def test_a_run_under_way_shows_its_progress_and_asks_again(browser: Client, instance: Instance) -> None:
    seed_runs(instance)
    text = browser.get("/runs/").content.decode()
    assert 'aria-valuenow="62"' in text or 'aria-valuenow="63"' in text
    assert 'hx-trigger="every 2s"' in text
    assert "Java 17 isn&#x27;t installed." in text


def test_when_nothing_runs_the_page_is_left_alone(browser: Client, instance: Instance) -> None:
    assert "hx-trigger" not in browser.get("/runs/").content.decode()


def test_cancelling_asks_the_run_to_stop(browser: Client, instance: Instance) -> None:
    seed_runs(instance)
    run = ActionRun.objects.get(state="running")
    browser.post(f"/runs/{run.pk}/cancel/")
    run.refresh_from_db()
    assert not run.cancel_requested
    assert "stops after this step. Completed steps are not undone" in browser.get("/tray/").content.decode()
    apply(browser, "the disk is busy")
    run.refresh_from_db()
    assert run.cancel_requested
    assert AuditEvent.objects.get(action="run.cancel").reason == "the disk is busy"


def test_a_run_that_has_ended_meanwhile_blocks_pending_changes(browser: Client, instance: Instance) -> None:
    seed_runs(instance)
    run = ActionRun.objects.get(state="running")
    browser.post(f"/runs/{run.pk}/cancel/")
    ActionRun.objects.filter(pk=run.pk).update(state="succeeded")
    assert browser.get("/tray/").context["pending"].blocked == ["The run has ended: succeeded."]


def test_a_pipeline_job_is_asked_for(
    browser: Client, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "enqueue", lambda run: None)
    browser.post("/runs/pipeline/", {"job": "lake"})
    assert ActionRun.objects.get().parameters["job"] == "lake"


def test_a_job_that_isnt_there_is_refused(browser: Client, instance: Instance) -> None:
    answer = browser.post("/runs/pipeline/", {"job": "rm -rf"}, follow=True)
    assert b"The pipeline job" in answer.content


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"age": "7d", "age_s": 604_800}, "older than 7d"),
        ({"job": "lake", "options": {"start": "2026-11-01"}}, "lake start=2026-11-01"),
        ({}, ""),
    ],
)
def test_parameters_are_shown_in_words(parameters: dict[str, object], words: str) -> None:
    assert describe_parameters(parameters) == words


def test_a_decision_explains_itself_whole(browser: Client, instance: Instance) -> None:
    seed_decisions(instance)
    text = minified(browser.get("/decisions/"))
    for part in (
        "<dt>Rule</dt><dd>MessageMemoryLimit",
        "pool_memory",
        "2.40 GiB",
        "carrier-ua",
        "20,411 messages in its spool",
        "sluice-1|990120|",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("query", "shown", "hidden"),
    [
        ("client=delay-mailer", "delay-mailer", "old-dashboard"),
        ("action=disconnect", "old-dashboard", "delay-mailer"),
        ("reason=slow_client_age", "old-dashboard", "delay-mailer"),
    ],
)
def test_decisions_are_filtered(
    browser: Client, instance: Instance, query: str, shown: str, hidden: str
) -> None:
    seed_decisions(instance)
    text = browser.get(f"/decisions/?{query}").content.decode()
    assert f"Client {shown} was" in text
    assert f"Client {hidden} was" not in text


def test_a_filter_that_fits_nothing_says_so(browser: Client, instance: Instance) -> None:
    assert b"No decision matches" in browser.get("/decisions/?client=nobody").content


@pytest.mark.parametrize(
    ("query", "states"),
    [("state=failed", {"failed"}), ("state=nonsense", None), ("kind=pipeline&state=failed", set())],
)
def test_runs_are_filtered_alike_by_the_page_and_by_the_api(
    browser: Client, instance: Instance, query: str, states: set[str] | None
) -> None:
    seed_runs(instance)
    ActionRun.objects.exclude(kind="pipeline").update(state="failed")
    ActionRun.objects.filter(kind="pipeline").update(state="succeeded")
    shown = {run.state for run in browser.get(f"/runs/?{query}").context["page"]}
    answer = browser.get(f"/api/v1/runs?{query}")
    if states is None:
        assert answer.status_code == 400
    else:
        assert shown == states == {run["state"] for run in answer.json()["results"]}


def test_pager_of_filtered_runs_keeps_the_filter(browser: Client, instance: Instance) -> None:
    seed_runs(instance)
    assert (
        browser.get("/runs/?state=succeeded&actor=a%26b").context["query"] == "state=succeeded&actor=a%26b&"
    )


def test_an_incident_names_its_rule_in_words(browser: Client, instance: Instance) -> None:
    for second in range(3):
        Decision.objects.create(
            instance=instance,
            at=timezone.now() - timedelta(seconds=second),
            client="one",
            action="offline",
            mode="enforce",
            reason="client_capacity",
            rule="amps.client_max_capacity.memory",
        )
    text = minified(browser.get("/decisions/"))
    assert "1 incident<" in text and ", by ClientMaxCapacity (memory).<" in text
