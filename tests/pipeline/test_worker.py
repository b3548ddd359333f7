"""Jobs started from the console's form and by a schedule, through Redis and a worker, to their result
page.
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from django.conf import settings as configured
from django.test import Client
from django.utils import timezone

from console.access.rights import EffectiveAccess, GrantedRight
from console.choices import ACTIVE_RUN_STATES, ActorKind, Permission, Role, RunState
from console.models import Action, ActionRun
from console.services import policies
from console.services.actions import editor, scheduler
from console.services.actors import Actor
from pipeline.jobs.client_history import write_hours
from pipeline.schemas import CLIENT_HOURS
from tests.pipeline.support import NOON, append, fill, numbered_messages, open_journal, settings_in
from tests.support.celery_worker import running_worker
from tests.support.control_plane import person
from tests.support.html import minified

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
MARIA = Actor(ActorKind.PERSON, "maria", 7, access=EffectiveAccess((GrantedRight(frozenset(Permission)),)))
LONG_S = 500


def wait_run_end(run: ActionRun) -> ActionRun:
    deadline = time.monotonic() + LONG_S
    while run.state in ACTIVE_RUN_STATES:
        assert time.monotonic() < deadline, run.log
        time.sleep(0.1)
        run.refresh_from_db()
    return run


def test_a_form_and_a_schedule_have_jobs_done_whose_results_are_pages(
    tmp_path: Path, redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, [40])
    with open_journal(tmp_path) as log:
        append(log, numbered_messages(10, 41), at=NOON + 3_600 * 10**9)
    place = settings_in(tmp_path)
    hours = [
        {
            "client": "slow",
            "transport": transport,
            "hour": NOON // 1_000,
            "samples": 1,
            "delivered_messages": 9,
        }
        for transport in ("", "tcp")
    ]
    write_hours(
        place.client_history, place.log.instance, pa.Table.from_pylist(hours, schema=CLIENT_HOURS), None
    )
    settings.SLUICE_JOURNAL_DIRECTORY, settings.SLUICE_ARCHIVE_DIRECTORY = (
        place.log.directory,
        place.log.archive,
    )
    settings.SLUICE_LAKE_DIRECTORY, settings.SLUICE_JOBS_DIRECTORY = place.lake, tmp_path / "jobs"
    monkeypatch.setenv("SPARK_MASTER", "local[1]")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
    instance = policies.ensure_instance(configured.SLUICE_INSTANCE)
    steps = [{"do": "pipeline", "job": "report", "options": "days=3"}]
    action = editor.create(
        MARIA, instance, {"name": "each week", "when": [{"on": "schedule", "every": "1h"}], "steps": steps}
    )
    Action.objects.exclude(pk=action.pk).update(enabled=False)
    browser = Client()
    browser.force_login(person("otto", Role.ADMINISTRATOR))
    browser.post("/pipeline/start/", {"job": "capacity", "option-host-memory": "8000000000"})
    asked = ActionRun.objects.get()
    with running_worker(LONG_S):
        assert wait_run_end(asked).state == RunState.SUCCEEDED, asked.log
        (due,) = scheduler.start_due_runs(timezone.now() + timedelta(hours=2))
        assert wait_run_end(due).state == RunState.SUCCEEDED, due.log
    assert asked.result["records"] == 50
    listed = browser.get("/pipeline/").content.decode()
    found, told = asked.result["run"], due.steps[0]["result"]["run"]
    assert all(f'href="/pipeline/{run}/"' in listed for run in (found, told))
    page = minified(browser.get(f"/pipeline/{found}/"))
    for word in (
        "<dt>requested: host memory</dt><dd>8,000,000,000</dd>",
        "Pool usage by clients",
        "revision-",
    ):
        assert word in page
    for plot in ("growth.0", "growth.0.narrow"):
        assert f"/pipeline/{found}/plots/{plot}.svg" in page
        assert browser.get(f"/pipeline/{found}/plots/{plot}.svg").content.startswith(b"<svg ")
    assert f'href="/pipeline/{told}/page.html"' in browser.get(f"/pipeline/{told}/").content.decode()
    assert b"(not told)" in browser.get(f"/pipeline/{told}/page.html").content
