"""The jobs, by name. Each module has HELP, add_arguments(parser) and run(settings, arguments, reporter) -> result.

An operator's own jobs are modules of the same shape in a folder (SLUICE_JOBS_DIRECTORY, or `jobs` in the home): `my_job.py` is
the job `my-job`. `template.py` is one to begin with.
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
    """Where a job tells how far it has come."""

    def progress(self, done: int, total: int, what: str) -> None:
        """`done` of `total` of `what`, as known by now."""

    def note(self, sentence: str) -> None:
        """Something the operator should know."""

    def table(self, name: str, table: pa.Table, title: str, plots: Sequence[PlotSpec] = ()) -> None:
        """A table of the result, kept with the run and shown on its page. `name` is its file's: small letters and _."""

    def page(self, html: str) -> None:
        """The result as a document, kept with the run and taken from its page."""


class JobModule(Protocol):
    """What each of the modules is."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options that only this job has."""

    def run(self, settings: JobSettings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
        """Do it; returns the result as JSON-able values."""


def jobs_directory(environment: Mapping[str, str]) -> Path:
    """Where an operator's own jobs are; there may be no such folder."""
    home = Path(environment.get("SLUICE_HOME") or BASE / "var")
    return Path(environment.get("SLUICE_JOBS_DIRECTORY") or home / "jobs").expanduser()


def custom_jobs(environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """An operator's own jobs: name and file."""
    directory = jobs_directory(environment)
    files = sorted(directory.glob("*.py")) if directory.is_dir() else []
    found = {
        path.stem.replace("_", "-"): path
        for path in files
        if path.stem.isidentifier() and path.stem[0] != "_"
    }
    return {name: path for name, path in found.items() if name not in JOBS and name.isascii()}


def load_job(name: str, environment: Mapping[str, str] = os.environ) -> JobModule:
    """The job of this name. OperatorError bad_job for a file that isn't one."""
    if name in JOBS:
        return cast(JobModule, importlib.import_module(JOBS[name]))
    path = custom_jobs(environment)[name]
    # Spark's workers import what a job hands them by its module's name.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
        known = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = f"{known}{os.pathsep if known else ''}{path.parent}"
    try:
        found = importlib.import_module(path.stem)
    except Exception as error:  # whatever is wrong with somebody's file
        raise _no_job(path, f"{type(error).__name__}: {error}") from error
    if Path(found.__file__ or "").resolve() != path.resolve():
        raise _no_job(path, f"there is another module {path.stem}, {found.__file__ or 'of Python itself'}")
    lacking = [one for one in NEEDED if not hasattr(found, one)]
    if lacking:
        raise _no_job(path, f"it has no {', '.join(lacking)}")
    return cast(JobModule, found)


def _no_job(path: Path, why: str) -> OperatorError:
    return OperatorError(
        "bad_job",
        f"{path} isn't a job: {why}.",
        "Begin with pipeline/jobs/template.py, or take the file away.",
    )


def add_options(parser: argparse.ArgumentParser, job: str) -> None:
    """The options of one of our jobs, with their bounds (`broker_core.documents.jobs`)."""
    for option in JOB_OPTIONS[job]:
        if option.kind == "flag":
            add_flag(parser, f"--{option.name}", option.says)
            continue
        default = "" if option.kind == "text" and option.default is None else option.default
        told = "" if option.default is None else f" (default: {option.default})"
        told += "" if option.kind == "text" else f"; {option.bounds}"
        parser.add_argument(
            f"--{option.name}", type=partial(_read, option), default=default, required=option.required,
            metavar=option.like or "N", help=f"{option.says}{told}",
        )  # fmt: skip


def add_flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """A yes-or-no option: `--name`, `--name=yes`, `--name=no`; callers that only know values need the long form."""
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
