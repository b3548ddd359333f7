from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from broker_core.config import PolicyDocument
from broker_core.errors import OperatorError
from console.choices import RunState
from console.models import Action, ActionRun, Instance
from console.services import execution, pipeline, policies
from console.services.actors import Actor
from pipeline.config import settings_from
from pipeline.jobs.backtest import read_policy


@pytest.fixture
def run(instance: Instance, actor: Actor) -> ActionRun:
    return pipeline.request(actor, "lake", {"start": "100", "skip-gaps": "yes"})


def carried_out(run: ActionRun, script: str, monkeypatch: pytest.MonkeyPatch) -> ActionRun:
    """Execute the run with a Python script in place of the job's program."""
    monkeypatch.setattr(pipeline, "job_command", lambda run: [sys.executable, "-u", "-c", script])
    done = execution.execute_run(run.pk)
    assert done is not None
    return done


def test_job_is_a_process_of_its_own_with_its_options(run: ActionRun) -> None:
    assert pipeline.job_command(run) == [
        sys.executable,
        "-m",
        "pipeline",
        "lake",
        "--json",
        "--start=100",
        "--skip-gaps=yes",
    ]


def test_capacity_compares_with_the_newest_revision_unless_another_policy_is_named(
    instance: Instance, actor: Actor, settings: Any, tmp_path: Path
) -> None:
    settings.SLUICE_LAKE_DIRECTORY = tmp_path / "lake"
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 37}})
    newest = policies.newest_revision(instance)
    run = pipeline.request(actor, "capacity")
    named = pipeline.job_command(run)[-1]
    assert named == f"--policy=revision-{newest.number}"
    place = settings_from({}, home=tmp_path, instance=instance.name)
    read = PolicyDocument.from_dict(read_policy(place, named.partition("=")[2]))
    assert read.client_policy.client_max_capacity == 37
    assert "--retention-hours" not in named
    steps = [{"do": "remove", "age": "2d"}, {"do": "remove", "age": "36h"}]
    Action.objects.update(enabled=False)
    Action.objects.create(
        instance=instance,
        name="tidy",
        when=[{"on": "schedule", "every": "1d"}],
        steps=steps,
        started_at=timezone.now(),
    )
    assert pipeline.job_command(run)[-1] == "--retention-hours=36"
    Action.objects.update(enabled=False)
    run.parameters["options"] = {"policy": "mine.yaml"}
    assert pipeline.job_command(run)[-1] == "--policy=mine.yaml"


def test_job_reports_progress_notes_and_its_result(run: ActionRun, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        {"event": "note", "text": "There is much."},
        {"event": "progress", "done": 1, "total": 4, "what": "spans"},
        {"event": "result", "files": 3},
    ]
    lines = "; ".join(f"print({json.dumps(json.dumps(one))})" for one in said)
    done = carried_out(run, f"print('WARN of Spark, ä'); {lines}", monkeypatch)
    assert (done.state, done.result) == (RunState.SUCCEEDED, {"files": 3})
    assert "WARN of Spark, ä" in done.log
    assert "There is much." in done.log


def test_error_of_the_job_is_the_error_of_the_run(run: ActionRun, monkeypatch: pytest.MonkeyPatch) -> None:
    error = {
        "event": "error",
        "code": "no_java",
        "message": "Java is missing.",
        "fix": "Install 17.",
        "details": {},
    }
    done = carried_out(run, f"import sys; print({json.dumps(json.dumps(error))}); sys.exit(1)", monkeypatch)
    assert done.state == RunState.FAILED
    assert done.error == {
        "code": "no_java",
        "message": "Java is missing.",
        "fix": "Install 17.",
        "details": {},
    }


def test_job_that_fails_says_its_last_line(run: ActionRun, monkeypatch: pytest.MonkeyPatch) -> None:
    done = carried_out(run, "import sys; sys.exit('Java 17 is needed')", monkeypatch)
    assert (done.state, done.error["code"]) == (RunState.FAILED, "pipeline_failed")
    assert "Java 17 is needed" in done.error["message"]


def test_cancelled_job_takes_its_children_with_it(
    run: ActionRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        "print('started')\n"
        "time.sleep(60)\n"
    )
    ActionRun.objects.filter(pk=run.pk).update(cancel_requested=False)
    read = os.read

    def cancel_when_started(descriptor: int, size: int) -> bytes:
        if b"started" in (part := read(descriptor, size)):
            ActionRun.objects.filter(pk=run.pk).update(cancel_requested=True)
        return part

    monkeypatch.setattr(pipeline.os, "read", cancel_when_started)
    done = carried_out(run, script, monkeypatch)
    assert done.state == RunState.CANCELLED
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and _state(child) != "Z":
        assert time.monotonic() < deadline, "the job's child process is still running"
        time.sleep(0.02)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


@pytest.mark.parametrize(
    ("job", "options"),
    [
        ("shell", {}),
        ("lake", {"home": "/etc"}),
        ("lake", {"start": "1 --home=/etc"}),
        ("lake", {"start": ["x"]}),
    ],
)
def test_what_cannot_be_a_command_line_is_refused(
    instance: Instance, actor: Actor, job: str, options: dict[str, str]
) -> None:
    with pytest.raises(OperatorError):
        pipeline.request(actor, job, options)
    assert ActionRun.objects.count() == 0
