"""Pipeline jobs: requests for a job, and its execution as a separate process (`python -m pipeline NAME`).

Spark takes a JVM and hundreds of megabytes. A separate process returns that memory when the job ends,
however it ends.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.conf import settings

from broker_core.documents.jobs import JOB_OPTIONS, MAX_TEXT
from broker_core.errors import OperatorError
from console.choices import PipelineJobs, RunKind
from console.models import Action, ActionRun, Instance, PolicyDraft
from console.queries.policies import instance_named
from console.services import journal_directories, runs
from console.services.actors import Actor
from console.services.policies import newest_revision
from console.services.run_progress import RunProgress
from console.units.ages import parse_age

LISTEN_S = 1.0
"""Seconds that the worker waits for output before the next heartbeat."""
STOP_TIMEOUT_S = 15.0
"""Seconds between SIGTERM and SIGKILL for a job that is stopped."""
QUICK_S = 60.0
"""Time limit in seconds for a lake check by names and counts."""
INSTALLATIONS = ("home", "instance", "journal", "archive", "lake", "master", "json")
"""Options that every job has and the installation sets; requests can't give them."""
JUDGES = frozenset({"capacity"})
"""Jobs that compare recorded traffic with a policy: by default the newest revision."""
CHECK_S = 4 * 3_600.0
"""Time limit in seconds for a lake check by checksums. A lake of 1 TB takes less."""


def request(
    actor: Actor,
    job: str,
    options: Mapping[str, str] | None = None,
    instance_name: str | None = None,
    once: runs.IdempotencyKey | None = None,
) -> ActionRun:
    """Request a pipeline job, which a worker then starts.

    Raises OperatorError `unknown_job` or `bad_option`.
    """
    parameters = {"job": job, "options": _checked(job, options or {})}
    return runs.request(actor, instance_named(instance_name), RunKind.PIPELINE, parameters, once=once)


def job_command(run: ActionRun) -> list[str]:
    """Return the command line of a run's job. Writes the newest policy for jobs that need one (`JUDGES`)."""
    options = _checked(run.parameters.get("job", ""), run.parameters.get("options") or {})
    words = [sys.executable, "-m", "pipeline", run.parameters["job"], "--json"]
    if run.parameters["job"] in JUDGES and "policy" not in options:
        newest = newest_revision(run.instance)
        options["policy"] = _shelve({f"revision-{newest.number}": newest.document})
    if run.parameters["job"] in JUDGES and "retention-hours" not in options:
        retention_s = journal_retention_s(run.instance)
        options |= {} if retention_s is None else {"retention-hours": f"{retention_s / 3_600:g}"}
    return words + [f"--{name}={value}" for name, value in options.items()]


def journal_retention_s(instance: Instance) -> int | None:
    """Return the shortest age in seconds at which a scheduled action removes journals; None without one."""
    found = []
    for action in Action.objects.filter(instance=instance, enabled=True):
        if any(trigger["on"] == "schedule" for trigger in action.when):
            for step in action.steps:
                with suppress(OperatorError):  # an age that is a {{NAME}}
                    found += [parse_age(step["age"])] if step["do"] == "remove" else []
    return min(found, default=None)


def perform_run(run: ActionRun, progress: RunProgress) -> dict[str, Any]:
    """Run the job to its end, and return its result. Log and progress go into the run.

    Raises:
        OperatorError: the error that the job reported, or `pipeline_failed`.
        RunCancelled: the run was cancelled; the job's processes are stopped.
    """
    progress.step(0, 1, f"pipeline {run.parameters['job']}")
    process = subprocess.Popen(
        job_command(run),
        cwd=settings.BASE_DIR,
        env=_environment(run.instance.name, getattr(run, "actor", "an action")),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Spark starts a JVM as a child: stopping must reach the whole process group
    )
    report = JobReport(progress)
    try:
        _follow(process, report, progress)
    finally:
        _stop(process)
    return report.outcome(process.returncode)


def lake_complete_upto(instance_name: str, last: int, *, quick: bool) -> int:
    """Return the newest sequence up to which the lake has every record of the log.

    Args:
        instance_name: The instance.
        last: Sequence at which the check ends.
        quick: Compare names and counts of the lake's files; otherwise read the files and compare checksums.

    Raises:
        OperatorError: the error that the check reported, or `pipeline_failed`.
        subprocess.TimeoutExpired: the check took longer than `QUICK_S` or `CHECK_S`.
    """
    words = [sys.executable, "-m", "pipeline", "lake-check", "--json", f"--end={last}"]
    done = subprocess.run(
        [*words, f"--quick={'yes' if quick else 'no'}"],
        cwd=settings.BASE_DIR,
        env=_environment(instance_name),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=QUICK_S if quick else CHECK_S,
        check=False,
    )
    report: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        report = json.loads(line)
    if report.get("event") == "error":
        raise OperatorError.from_dict(
            report["code"], report["message"], report.get("fix", ""), report.get("details")
        )
    if done.returncode or "through" not in report:
        raise OperatorError(
            "pipeline_failed",
            f"lake-check ended with code {done.returncode}: "
            f"{done.stderr[-300:].strip() or 'no error output'}",
            "Run `manage.py pipeline run lake-check`.",
            returncode=done.returncode,
        )
    return int(report["through"])


class JobReport:
    """Reader of a job's output.

    Lines with a JSON object are reports; all others (Spark's warnings) go to the log.
    """

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._result: dict[str, Any] = {}
        self._error: dict[str, Any] = {}
        self._last = ""

    def line(self, text: str) -> None:
        """Process one line of output. Raises RunCancelled."""
        try:
            report = json.loads(text)
            event = report.pop("event")
        except (ValueError, TypeError, KeyError, AttributeError):
            self._last = text[:300]
            self._progress.log(text[:2_000])
            return
        if event == "progress":
            self._progress.run.step = f"{report['done']} of {report['total']} {report['what']}"[:300]
            self._progress.set_fraction(report["done"], report["total"])
        elif event == "note":
            self._progress.log(report["text"])
        elif event == "result":
            self._result = report
        elif event == "error":
            self._error = report

    def outcome(self, returncode: int) -> dict[str, Any]:
        """Return the job's result. Raises OperatorError: the job's error, or `pipeline_failed`."""
        if self._error:
            error = self._error
            raise OperatorError.from_dict(
                error["code"], error["message"], error.get("fix", ""), error.get("details")
            )
        if returncode:
            raise OperatorError(
                "pipeline_failed",
                f"The job ended with code {returncode}: {self._last or 'no error output'}",
                "Read the run's log.",
                returncode=returncode,
            )
        return self._result


def _environment(instance_name: str, actor: str = "") -> dict[str, str]:
    """Return the job's environment variables, which name the instance's directories."""
    directories = journal_directories.directories_for(instance_name)
    return {
        **os.environ,
        "SLUICE_HOME": str(settings.SLUICE_HOME),
        "SLUICE_INSTANCE": instance_name,
        "SLUICE_JOURNAL_DIRECTORY": str(directories.journal),
        "SLUICE_ARCHIVE_DIRECTORY": str(directories.archive),
        "SLUICE_LAKE_DIRECTORY": str(settings.SLUICE_LAKE_DIRECTORY),
        "SLUICE_JOBS_DIRECTORY": str(settings.SLUICE_JOBS_DIRECTORY),
        **({"SLUICE_ACTOR": actor} if actor else {}),
    }


def _follow(process: subprocess.Popen[bytes], report: JobReport, progress: RunProgress) -> None:
    """Read the job's output until it ends, with a heartbeat at least every `LISTEN_S`.

    Raises RunCancelled.
    """
    assert process.stdout is not None
    descriptor, partial = process.stdout.fileno(), b""
    os.set_blocking(descriptor, False)
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            progress.heartbeat()
            if not selector.select(LISTEN_S):
                continue
            part = os.read(descriptor, 65_536)
            lines = (partial + part).split(b"\n")
            partial = lines.pop() if part else b""
            for line in lines:
                if text := line.decode("utf-8", "replace").strip():
                    report.line(text)
            if not part:
                process.wait()
                return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the job's process group if it still runs: SIGTERM, then SIGKILL after `STOP_TIMEOUT_S`."""
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _checked(job: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Check a job's options, and return them as texts that are safe in a command line.

    Raises:
        OperatorError: `unknown_job` or `bad_option`.
    """
    known = PipelineJobs().names()
    if job not in known:
        raise OperatorError(
            "unknown_job", f"The pipeline job {job[:50]!r} doesn't exist.", f"Use {' or '.join(known)}."
        )
    for name, value in options.items():
        # A custom job checks its own options. Directories are never a request's choice.
        takes = {one.name: one for one in JOB_OPTIONS.get(job, ())}
        if not (name in takes if job in JOB_OPTIONS else _named(name)):
            option_names = ", ".join(takes) or "those that the job defines"
            raise OperatorError(
                "bad_option",
                f"{job} has no option {name[:50]!r} here.",
                f"Available options: {option_names}.",
            )
        # Requests name policies in the lake's folder, never files.
        is_file = name == "policy" and job in JOB_OPTIONS and "/" in str(value)
        if is_file or isinstance(value, bool) or not isinstance(value, (str, int)) or not _plain(str(value)):
            raise OperatorError(
                "bad_option",
                f"The value of {name} can't be used.",
                f"Use at most {MAX_TEXT:,} characters without spaces.",
            )
        if name in takes:
            takes[name].read(str(value))
    lacking = [one.name for one in JOB_OPTIONS.get(job, ()) if one.required and one.name not in options]
    if lacking:
        raise OperatorError(
            "bad_option", f"{job} needs {lacking[0]}.", f"Give {lacking[0]}.", option=lacking[0]
        )
    return {name: str(value) for name, value in options.items()}


def backtest(actor: Actor, draft: PolicyDraft, options: Mapping[str, str]) -> ActionRun:
    """Request a back-test that compares a draft with the newest revision on recorded traffic.

    Both policies are written without users' secrets into the lake's folder of policies, where the job reads
    them.
    """
    newest = newest_revision(draft.instance)
    names = _shelve(
        {f"draft-{draft.pk}-{draft.version}": draft.document, f"revision-{newest.number}": newest.document}
    )
    chosen = {"policy": names} | {name: value for name, value in options.items() if value}
    return request(actor, "backtest", chosen, draft.instance.name)


def _shelve(documents: Mapping[str, Any]) -> str:
    """Write policies without their access part into the lake's folder of policies, and return their names.

    Jobs find policies there by name, without users' secrets. The names are joined with commas.
    """
    shelf = Path(settings.SLUICE_LAKE_DIRECTORY) / "policies"
    shelf.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        bare = {key: value for key, value in document.items() if key != "access"}
        temporary = shelf / f".{name}.{uuid4().hex}"
        temporary.write_text(json.dumps(bare), "utf-8")
        temporary.rename(shelf / f"{name}.json")
    return ",".join(documents)


def parse_options(text: str) -> dict[str, str]:
    """Return options from the text of a form: one `name=value` per line."""
    pairs = (line.partition("=") for line in text.splitlines() if line.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _named(name: str) -> bool:
    """Whether the text can be the name of a custom job's option."""
    return (
        name.replace("-", "").isalnum() and name.isascii() and name[:1] != "-" and name not in INSTALLATIONS
    )


def _plain(value: str) -> bool:
    """Whether a value is safe in `--name=value`: one word without blanks. No shell interprets it."""
    return bool(value) and len(value) <= MAX_TEXT and value.isprintable() and " " not in value
