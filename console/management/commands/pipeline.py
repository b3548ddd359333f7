"""`manage.py pipeline run NAME [options]`, `manage.py pipeline ls`: a Spark job as a separate process.

Spark takes a JVM and hundreds of megabytes, which a separate process returns when it ends. So the control
plane never imports the pipeline: it starts `python -m pipeline` and reads its reports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import REMAINDER
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from console.management.safe_command import SafeCommand
from console.services import journal_directories

BAR = 30
"""Length of the progress bar on a terminal, in characters."""


class Command(SafeCommand):
    """Command that starts a job, shows its progress, and ends with its status."""

    help = "Run a job of the Spark pipeline, or list them."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the sub-commands. All arguments after a job's name are passed to the job."""
        commands = parser.add_subparsers(dest="command", required=True, metavar="run|ls")
        run = commands.add_parser("run", help="run a job and show its progress")
        run.add_argument("name", metavar="NAME")
        run.add_argument("options", nargs=REMAINDER, help="the job's own options; --help lists them")
        commands.add_parser("ls", help="list the jobs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the job to its end. Raises CommandError with the job's own sentence."""
        words = ["--help"] if options["command"] == "ls" else [options["name"], *options["options"]]
        plain = "--help" in words or "-h" in words
        command = [sys.executable, "-m", "pipeline", *words] + ([] if plain else ["--json"])
        # Spark's warnings stay on stderr. Ctrl-C reaches the job too, which stops Spark and reports the end.
        with subprocess.Popen(
            command, cwd=settings.BASE_DIR, env=_environment(), stdout=subprocess.PIPE, text=True
        ) as job:
            failure = self._follow(job)
        if failure or job.returncode:
            raise CommandError(
                failure or f"The job ended with status {job.returncode}.", returncode=job.returncode or 1
            )

    def _follow(self, job: subprocess.Popen[str]) -> str:
        """Print each report, and return the error's sentence, or ""."""
        assert job.stdout is not None
        failure = ""
        try:
            for line in job.stdout:
                try:
                    report = json.loads(line)
                except ValueError:
                    self.stdout.write(line)
                    continue
                if report["event"] == "error":
                    failure = f"{report['message']} {report['fix']}".strip()
                else:
                    self._show(report)
        except KeyboardInterrupt:
            job.wait()
        return failure

    def _show(self, report: dict[str, Any]) -> None:
        if report["event"] == "progress":
            self._show_progress(report["done"], report["total"], report["what"])
        elif report["event"] == "note":
            self.stdout.write(report["text"])
        else:
            self._show_progress(1, 1, "done")
            for key, value in report.items():
                if key != "event":
                    self.stdout.write(f"  {key:<10} {f'{value:,}' if isinstance(value, int) else value}")

    def _show_progress(self, done: int, total: int, label: str) -> None:
        filled = BAR * done // max(total, 1)
        if self.stdout.isatty():
            end = "\n" if label == "done" else ""
            self.stdout.write(f"\r[{'█' * filled}{'·' * (BAR - filled)}] {label:<20}", ending=end)
            self.stdout.flush()
        elif label != "done":
            self.stdout.write(f"{done} of {total} {label}")


def _environment() -> dict[str, str]:
    """Return the job's environment variables, which name this installation's directories."""
    directories = journal_directories.directories_without_database(settings.SLUICE_INSTANCE)
    return {
        **os.environ,
        "SLUICE_HOME": str(settings.SLUICE_HOME),
        "SLUICE_INSTANCE": settings.SLUICE_INSTANCE,
        "SLUICE_JOURNAL_DIRECTORY": str(directories.journal),
        "SLUICE_ARCHIVE_DIRECTORY": str(directories.archive),
        "SLUICE_LAKE_DIRECTORY": str(settings.SLUICE_LAKE_DIRECTORY),
        "SLUICE_JOBS_DIRECTORY": str(settings.SLUICE_JOBS_DIRECTORY),
    }
