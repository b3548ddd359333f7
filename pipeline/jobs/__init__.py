"""The jobs, by name. Each module has HELP, add_arguments(parser) and run(settings, arguments, reporter) -> result."""

from __future__ import annotations

import argparse
import importlib
from typing import Any, Protocol, cast

from pipeline.config import Settings

JOBS = {
    "lake": "pipeline.jobs.lake",
    "lake-check": "pipeline.jobs.lake_check",
    "client-history": "pipeline.jobs.client_history",
}


class Reporter(Protocol):
    """Where a job tells how far it has come."""

    def progress(self, done: int, total: int, what: str) -> None:
        """`done` of `total` of `what`, as known by now."""

    def note(self, sentence: str) -> None:
        """Something the operator should know."""


class Job(Protocol):
    """What each of the modules is."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options that only this job has."""

    def run(self, settings: Settings, arguments: argparse.Namespace, reporter: Reporter) -> dict[str, Any]:
        """Do it; returns the result as JSON-able values."""


def load_job(name: str) -> Job:
    """The job of this name."""
    return cast(Job, importlib.import_module(JOBS[name]))


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every job that reads the journal."""
    parser.add_argument("--durable", type=int, metavar="SEQUENCE", help="take this as the durable frontier")
    add_flag(parser, "--skip-gaps", "go on behind records that are damaged or not there")


def add_flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """A yes-or-no option: `--name`, `--name=yes`, `--name=no`; callers that only know values need the long form."""
    parser.add_argument(
        name, nargs="?", const=True, default=False, type=_yes_or_no, metavar="yes|no", help=text
    )


def _yes_or_no(text: str) -> bool:
    known = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither yes nor no")
    return known[text.lower()]
