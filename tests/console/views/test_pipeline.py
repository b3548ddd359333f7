"""Pages of stored pipeline runs: tables, plots, CSV and Parquet downloads, and permissions."""

from __future__ import annotations

import argparse
import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.test import Client
from django.utils.html import escape

from broker_core.config import PolicyDocument
from broker_core.documents.jobs import JOB_OPTIONS
from console.choices import ActorKind, PipelineJobs, Role
from console.models import ActionRun, Instance
from console.services import drafts, runs
from console.services.actors import Actor
from pipeline.config import settings_from
from pipeline.plots import PlotSpec
from pipeline.run_record import RecordingReporter
from tests.pipeline.support import FakeReporter
from tests.support.control_plane import person
from tests.support.html import minified


@pytest.fixture
def lake(tmp_path: Path, settings: Any) -> Path:
    settings.SLUICE_LAKE_DIRECTORY = tmp_path / "lake"
    settings.SLUICE_JOBS_DIRECTORY = tmp_path / "jobs"
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


def keep(lake: Path, table: pa.Table, *plots: PlotSpec) -> str:
    """Store a run as a job's process does at its end; return its id."""
    record = RecordingReporter(FakeReporter(), "capacity", argparse.Namespace(start=5, strict=False))
    record.note("Three <b>topics</b>.")
    record.table("topics", table, "Topics", plots)
    assert record.store_run(settings_from({}, home=lake.parent, lake=lake), {"records": 12})
    return record.id


TOPICS = pa.table({"topic": ["a", "=b()", "<script>"], "messages": [3, 4, 5]})


def test_a_run_is_a_page_with_tables_and_plots_to_take_away(
    browser: Client, instance: Instance, lake: Path
) -> None:
    name = keep(lake, TOPICS, PlotSpec("Messages", "topic", ("messages",), "bars"))
    assert name in minified(browser.get("/pipeline/"))
    text = minified(browser.get(f"/pipeline/{name}/"))
    assert "Three &lt;b&gt;topics&lt;/b&gt;." in text
    assert '<td class="break">&lt;script&gt;</td>' in text
    assert "<dt>requested: start</dt><dd>5</dd>" in text
    plot = browser.get(f"/pipeline/{name}/plots/topics.0.svg")
    assert (plot["Content-Type"], plot.content[:4]) == ("image/svg+xml", b"<svg")
    assert b"<script>" not in plot.content
    given = browser.get(f"/pipeline/{name}/topics.csv")
    rows = list(csv.reader(io.StringIO(b"".join(given.streaming_content).decode())))  # type: ignore[attr-defined]
    assert rows == [["topic", "messages"], ["a", "3"], ["'=b()", "4"], ["<script>", "5"]]
    taken = b"".join(browser.get(f"/pipeline/{name}/topics.parquet").streaming_content)  # type: ignore[attr-defined]
    assert pq.read_table(io.BytesIO(taken)).column("messages").to_pylist() == [3, 4, 5]


@pytest.mark.parametrize(
    "path", ["nothing/", "{}/other.csv", "{}/topics.exe", "{}/run.json", "{}/plots/topics.1.svg"]
)
def test_what_a_run_does_not_have_is_not_found(
    browser: Client, instance: Instance, lake: Path, path: str
) -> None:
    name = keep(lake, TOPICS)
    assert browser.get(f"/pipeline/{path.format(name)}").status_code == 404


def test_bodies_of_messages_need_the_right_to_read_them(
    onlooker: Client, instance: Instance, lake: Path
) -> None:
    plain = keep(lake, TOPICS)
    bodies = keep(lake, pa.table({"topic": ["a"], "body": [b"secret"]}))
    assert onlooker.get(f"/pipeline/{plain}/").status_code == 200
    for path in ("", "topics.csv", "topics.parquet"):
        assert onlooker.get(f"/pipeline/{bodies}/{path}").status_code == 403


def test_who_may_see_some_clients_alone_sees_no_run(instance: Instance, lake: Path) -> None:
    name = keep(lake, TOPICS)
    some = Client()
    some.force_login(person("otto", Role.OPERATOR, client_pattern="carrier-*"))
    assert some.get(f"/pipeline/{name}/").status_code == 403


def test_an_own_job_is_offered_and_asked_for_with_its_options(
    browser: Client, instance: Instance, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "enqueue", lambda run: None)
    (lake.parent / "jobs").mkdir()
    (lake.parent / "jobs" / "my_own.py").touch()
    assert ("my-own", "my-own") in PipelineJobs()
    assert '<a href="?job=my-own">' in browser.get("/pipeline/").content.decode()
    assert (
        '<textarea class="form-control mono" id="job-options"'
        in browser.get("/pipeline/?job=my-own").content.decode()
    )
    browser.post(
        "/pipeline/start/", {"job": "my-own", "options": "topics=a.>\r\nat=2026-11-21T08:00:00Z\r\n"}
    )
    assert ActionRun.objects.get().parameters == {
        "job": "my-own",
        "options": {"topics": "a.>", "at": "2026-11-21T08:00:00Z"},
    }
    for bad in ("home=/etc", "-x=1", "a=b c"):
        answer = browser.post("/pipeline/start/", {"job": "my-own", "options": bad}, follow=True)
        assert b"my-own has no option" in answer.content or b"can&#x27;t be used" in answer.content
    assert ActionRun.objects.count() == 1


@pytest.mark.parametrize("job", JOB_OPTIONS)
def test_each_job_has_a_form_with_its_options_and_their_bounds(
    browser: Client, instance: Instance, lake: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    monkeypatch.setattr(runs, "enqueue", lambda run: None)
    form = browser.get(f"/pipeline/?job={job}").content.decode()
    asked = {"job": job}
    for option in JOB_OPTIONS[job]:
        assert f'name="option-{option.name}"' in form
        assert f'for="option-{option.name}">{escape(option.label)}</label>' in form
        if option.kind in ("whole", "number"):
            assert f'min="{option.least}" max="{option.most}"' in form
            bad = browser.post("/pipeline/start/", {**asked, f"option-{option.name}": "-5"}, follow=True)
            assert f"{option.name} is &#x27;-5&#x27;. Give {option.bounds}" in bad.content.decode()
            assert bad.redirect_chain[0][0] == f"/pipeline/?job={job}&"
        if option.required:
            assert (
                f"{job} needs {option.name}."
                in browser.post("/pipeline/start/", asked, follow=True).content.decode()
            )
    assert not ActionRun.objects.exists()
    given = {
        f"option-{one.name}": "yes" if one.kind == "flag" else str(one.most) if one.kind != "text" else "x"
        for one in JOB_OPTIONS[job]
    }
    browser.post("/pipeline/start/", {**asked, **given})
    assert ActionRun.objects.get().parameters == {
        "job": job,
        "options": {one.name: given[f"option-{one.name}"] for one in JOB_OPTIONS[job]},
    }


def test_a_draft_is_tried_beside_the_revision_in_force(
    browser: Client, instance: Instance, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job receives both policies without secrets, and the draft's page lists its result."""
    monkeypatch.setattr(runs, "enqueue", lambda run: None)
    draft = drafts.create_draft(Actor(ActorKind.PERSON, "maria"), "Gentler")
    assert f"/policies/drafts/{draft.pk}/backtest/" in minified(browser.get(f"/policies/drafts/{draft.pk}/"))
    page = f"/policies/drafts/{draft.pk}/backtest/"
    assert "No back-tests of this draft yet" in minified(browser.get(page))
    browser.post(page, {"grid": "client_policy.client_max_capacity=10, 20", "save": "board-jfk"})
    (asked,) = ActionRun.objects.all()
    named = asked.parameters["options"]
    assert named["grid"] == "client_policy.client_max_capacity=10,20"
    assert named["save"] == "board-jfk"
    for name in named["policy"].split(","):
        document = json.loads((lake / "policies" / f"{name}.json").read_text())
        assert "access" not in document
        PolicyDocument.from_dict(document)
    shown = minified(browser.get(page))
    listed = minified(browser.get(f"{page}runs/"))
    for html in (shown, listed):  # progress and a button to cancel
        assert f'id="run-{asked.pk}"' in html and f"/runs/{asked.pk}/cancel/" in html
        assert 'role="progressbar"' in html and f'hx-get="{page}runs/?page=1"' in html
    refused = minified(browser.post(page, {"save": "board-lhr", "end": "5"}))
    assert "Another run of pipeline is in progress" in refused
    assert 'value="board-lhr"' in refused and 'name="end" value="5"' in refused, (
        "the form retains the entered values"
    )
    other = drafts.create_draft(Actor(ActorKind.PERSON, "maria"), "Harder")
    assert str(asked.pk) not in minified(browser.get(f"/policies/drafts/{other.pk}/backtest/"))
    record = RecordingReporter(FakeReporter(), "backtest", argparse.Namespace(policy=named["policy"]))
    record.table("policies", TOPICS, "Effects of each policy")
    assert record.store_run(settings_from({}, home=lake.parent, lake=lake), {"clients": 3})
    for where in (page, f"{page}runs/"):  # also by polling, without reloading the page
        assert record.id in minified(browser.get(where))


def test_a_policy_for_a_back_test_is_named_and_no_path(
    browser: Client, instance: Instance, lake: Path
) -> None:
    answer = browser.post(
        "/pipeline/start/", {"job": "backtest", "options": "policy=/etc/passwd"}, follow=True
    )
    assert b"can&#x27;t be used" in answer.content
    assert not ActionRun.objects.exists()
