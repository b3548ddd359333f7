"""Output of hosts, files and jobs in a run's log cannot forge log lines or send terminal control codes."""

from __future__ import annotations

import re

import pytest

from broker_core.errors import OperatorError
from console.choices import RunKind, RunState
from console.models import ActionRun, Instance
from console.services import execution
from console.services.run_progress import RunProgress

FORGED = "\x1b[31mred\n2026-11-28 06:17:20 journal removed\r\u202etxt"
SHOWN = "\\x1b[31mred\n  2026-11-28 06:17:20 journal removed\\r\\u202etxt"


@pytest.fixture
def run(instance: Instance) -> ActionRun:
    return ActionRun.objects.create(
        instance=instance, kind=RunKind.ACTION, state=RunState.RUNNING, actor="maria", actor_kind="person"
    )


def test_a_line_of_somebody_else_forges_no_record_of_the_runs_log(run: ActionRun) -> None:
    RunProgress(run).log(f"127.0.0.1 answered 200: {FORGED}")
    assert (
        re.fullmatch(r"[-0-9]{10} [:0-9]{8} 127\.0\.0\.1 answered 200: (.*)\n", run.log, re.DOTALL)[1]
        == SHOWN
    )  # type: ignore[index]


def test_an_error_of_somebody_else_forges_no_record_of_the_runs_log(
    run: ActionRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    ActionRun.objects.filter(pk=run.pk).update(state=RunState.WAITING, parameters={"steps": []})

    def fail(*_: object) -> None:
        raise OperatorError("webhook_failed", FORGED, "")

    monkeypatch.setitem(execution.PERFORM, RunKind.ACTION, fail)
    done = execution.execute_run(run.pk)
    assert done is not None and done.log.endswith(f"failed: {SHOWN}\n")
