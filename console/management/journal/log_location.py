"""Location of an instance's log, for commands that work without a broker."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings

from broker_core.journal.tools.search import LogLocation
from console.services import journal_directories


def add_location_arguments(parser: ArgumentParser) -> None:
    """Add the options --instance, --directory and --archive to a parser."""
    parser.add_argument(
        "--instance", default=settings.SLUICE_INSTANCE, help="the log's instance (default: %(default)s)"
    )
    parser.add_argument(
        "--directory", type=Path, help="its journal directory (default: JournalDirectory of its policy)"
    )
    parser.add_argument(
        "--archive",
        type=Path,
        help="its archive directory (default: JournalArchiveDirectory of its policy; none with --directory)",
    )


def log_location(options: dict[str, Any]) -> LogLocation:
    """Return the location that the options name.

    Without the database, the policy on disk or the defaults apply.
    """
    if options["directory"] is not None:
        return LogLocation(options["directory"], options["instance"], options["archive"])
    by_policy = journal_directories.directories_without_database(options["instance"])
    return LogLocation(by_policy.journal, options["instance"], options["archive"] or by_policy.archive)
