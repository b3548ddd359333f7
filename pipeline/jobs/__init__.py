"""The jobs by name.

Each module has HELP, add_arguments(parser) and run(settings, arguments, reporter) -> result.

An operator's custom jobs are modules with the same functions in a directory (SLUICE_JOBS_DIRECTORY, or
`jobs` in the home): `my_job.py` is the job `my-job`. `template.py` is an example.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from broker_core.documents.jobs import JOB_OPTIONS, JobOption
from broker_core.errors import OperatorError
from pipeline.config import BASE, JobSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.plots import PlotSpec

JOBS = {name: f"pipeline.jobs.{name.replace('-', '_')}" for name in JOB_OPTIONS}
NEEDED = ("HELP", "add_arguments", "run")


class Reporter(Protocol):
    """Receiver of a job's progress, notes and tables."""

    def progress(self, done: int, total: int, unit: str) -> None:
        """Report that `done` of `total` units are finished. `unit` names the unit. `total` may grow."""

    def note(self, sentence: str) -> None:
        """Report a sentence to the operator."""

    def table(self, name: str, table: pa.Table, title: str, plots: Sequence[PlotSpec] = ()) -> None:
        """Add a table to the result. It is stored with the run and shown on its page.

        `name`: name of its file, of small letters, digits and "_".
        """

    def page(self, html: str) -> None:
        """Set the result's HTML document. It is stored with the run and linked on its page."""


class JobModule(Protocol):
    """Interface of a job's module."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that only this job has."""

    def run(self, settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
        """Run the job; return the result as JSON-compatible values."""


def jobs_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory of custom jobs. It may not exist."""
    home = Path(environment.get("SLUICE_HOME") or BASE / "var")
    return Path(environment.get("SLUICE_JOBS_DIRECTORY") or home / "jobs").expanduser()


def custom_jobs(environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """Return the custom jobs: name and file."""
    directory = jobs_directory(environment)
    files = sorted(directory.glob("*.py")) if directory.is_dir() else []
    found = {
        path.stem.replace("_", "-"): path
        for path in files
        if path.stem.isidentifier() and path.stem[0] != "_"
    }
    return {name: path for name, path in found.items() if name not in JOBS and name.isascii()}


def load_job(name: str, environment: Mapping[str, str] = os.environ) -> JobModule:
    """Import the job of this name. Raises OperatorError bad_job for a file that isn't a job."""
    if name in JOBS:
        return cast(JobModule, importlib.import_module(JOBS[name]))
    path = custom_jobs(environment)[name]
    # Spark's workers import a job's functions by module name, so they need the directory on their path.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
        known = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = f"{known}{os.pathsep if known else ''}{path.parent}"
    try:
        found = importlib.import_module(path.stem)
    except Exception as error:  # an operator's file can raise anything
        raise _no_job(path, f"{type(error).__name__}: {error}") from error
    if Path(found.__file__ or "").resolve() != path.resolve():
        raise _no_job(path, f"there is another module {path.stem}, {found.__file__ or 'of Python itself'}")
    lacking = [one for one in NEEDED if not hasattr(found, one)]
    if lacking:
        raise _no_job(path, f"it lacks {', '.join(lacking)}")
    return cast(JobModule, found)


def _no_job(path: Path, reason: str) -> OperatorError:
    return OperatorError(
        "bad_job",
        f"{path} isn't a job: {reason}.",
        "Start from pipeline/jobs/template.py, or remove the file.",
    )


def add_options(parser: argparse.ArgumentParser, job: str) -> None:
    """Add the options of a built-in job, with their bounds (`broker_core.documents.jobs`)."""
    for option in JOB_OPTIONS[job]:
        if option.kind == "flag":
            add_flag(parser, f"--{option.name}", option.says)
            continue
        default = "" if option.kind == "text" and option.default is None else option.default
        hint = "" if option.default is None else f" (default: {option.default})"
        hint += "" if option.kind == "text" else f"; {option.bounds}"
        parser.add_argument(
            f"--{option.name}",
            type=partial(_read, option),
            default=default,
            required=option.required,
            metavar=option.like or "N",
            help=f"{option.says}{hint}",
        )


def add_flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add a yes-or-no option: `--name`, `--name=yes`, `--name=no`.

    The long forms are for callers that always pass a value.
    """
    plain = name.lstrip("-")
    option = JobOption(name=plain, label=plain, says=text, kind="flag")
    parser.add_argument(
        name, nargs="?", const=True, default=False, type=partial(_read, option), metavar="yes|no", help=text
    )


def _read(option: JobOption, text: str) -> int | float | str | bool:
    try:
        return option.read(text)
    except OperatorError as error:
        raise argparse.ArgumentTypeError(f"{error.sentence} {error.fix}") from None
