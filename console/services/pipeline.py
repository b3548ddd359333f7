"""Pipeline jobs: asking for one, and running it as a process of its own (`python -m pipeline NAME`).

Spark takes a JVM and hundreds of megabytes; a process apart gives them back when the job ends, whatever happened.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from broker_core.errors import OperatorError
from console.choices import PIPELINE_JOBS, RunKind
from console.models import ActionRun
from console.queries.policies import instance_named
from console.services import runs
from console.services.actors import Actor
from console.services.progress import Progress

LISTEN_S = 1.0
STOP_WITHIN_S = 15.0


def request(
    actor: Actor, job: str, options: Mapping[str, str] | None = None, instance_name: str | None = None
) -> ActionRun:
    """Ask for a pipeline job; a worker starts it."""
    parameters = {"job": job, "options": _checked(job, options or {})}
    return runs.request(actor, instance_named(instance_name), RunKind.PIPELINE, parameters)


def command_of(run: ActionRun) -> list[str]:
    """The job's command line."""
    options = _checked(run.parameters.get("job", ""), run.parameters.get("options") or {})
    words = [sys.executable, "-m", "pipeline", run.parameters["job"]]
    for name, value in options.items():
        words.append(f"--{name}={value}")
    return words


def perform(run: ActionRun, progress: Progress) -> dict[str, Any]:
    """Run the job to its end; its output becomes the run's log. Raises OperatorError pipeline_failed."""
    command = command_of(run)
    progress.log(f"pipeline {run.parameters['job']} starts")
    process = subprocess.Popen(
        command,
        cwd=settings.BASE_DIR,
        env={**os.environ, "SLUICE_HOME": str(settings.SLUICE_HOME), "SLUICE_INSTANCE": run.instance.name},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Spark starts a JVM below it: stopping means the whole group
    )
    try:
        last = _follow(process, progress)
    finally:
        _stop(process)
    if process.returncode:
        raise OperatorError(
            "pipeline_failed",
            f"The job ended with code {process.returncode}: {last or 'it said nothing'}",
            "Read the run's log.",
            returncode=process.returncode,
        )
    return {"returncode": 0, "last_line": last}


def _follow(process: subprocess.Popen[bytes], progress: Progress) -> str:
    """Copy the output into the log until it ends, and say each second that the worker lives."""
    assert process.stdout is not None
    descriptor, rest, last = process.stdout.fileno(), b"", ""
    os.set_blocking(descriptor, False)
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            progress.alive()
            if not selector.select(LISTEN_S):
                continue
            part = os.read(descriptor, 65_536)
            lines = (rest + part).split(b"\n")
            rest = lines.pop() if part else b""
            for line in lines:
                if text := line.decode("utf-8", "replace").strip():
                    progress.log(text[:2_000])
                    last = text[:300]
            if not part:
                process.wait()
                return last


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the job's process group if it still runs: first asked, then made to."""
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _checked(job: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Options by name and value, none of which can be taken for another word of the command line."""
    if job not in PIPELINE_JOBS:
        raise OperatorError("unknown_job", f"There is no pipeline job {job!r}.", f"Use {' or '.join(PIPELINE_JOBS)}.")
    for name, value in options.items():
        if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum() and not name.startswith("-")):
            raise OperatorError("bad_option", f"{name[:50]!r} is not an option's name.", "Use letters and dashes.")
        if not isinstance(value, (str, int)) or len(str(value)) > 1_000 or "\0" in str(value):
            raise OperatorError("bad_option", f"The value of {name} can't be used.", "Give a short text or a number.")
    return {name: str(value) for name, value in options.items()}
