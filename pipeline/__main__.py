"""`python -m pipeline NAME`: run one job in this process.

Progress and the result go to standard output: as text lines, or with --json as one JSON object a line:
{"event":"note","text"}, {"event":"progress","done","total","what"}, {"event":"result",…},
{"event":"error","code",…}. `spark-submit pipeline/__main__.py NAME` runs the job on spark-submit's master.
Exit status: 0 success, 1 the job failed with an error, 2 invalid command line, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if not __package__:
    # spark-submit runs this file by its path, so Python's path has the file's directory instead of the
    # project's.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from broker_core.errors import OperatorError, SluiceError
from broker_core.private_files import PRIVATE_UMASK
from broker_core.safe_text import print_block, print_line
from pipeline.config import JobSettings, settings_from
from pipeline.jobs import JOBS, custom_jobs, load_job
from pipeline.run_record import RecordingReporter
from pipeline.spark_session import error_line

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.plots import PlotSpec


class TextReporter:
    """Reporter that prints text for a person."""

    def progress(self, done: int, total: int, unit: str) -> None:
        print_line(f"{done} of {total} {unit}")

    def note(self, sentence: str) -> None:
        print_line(sentence)

    def table(self, name: str, table: pa.Table, title: str, plots: Sequence[PlotSpec] = ()) -> None:
        print_line(f"{title}: {table.num_rows} rows")

    def page(self, html: str) -> None:
        """Do nothing: the page is in the run's record."""

    def result(self, result: dict[str, Any]) -> None:
        print_line(", ".join(f"{key} {value}" for key, value in result.items()))

    def error(self, error: SluiceError) -> None:
        print_line(f"{error.code}: {error.sentence} {error.fix}".strip(), sys.stderr)


class JsonReporter:
    """Reporter that prints JSON lines for the process that started this one."""

    def progress(self, done: int, total: int, unit: str) -> None:
        self._print_event({"event": "progress", "done": done, "total": total, "what": unit})

    def note(self, sentence: str) -> None:
        self._print_event({"event": "note", "text": sentence})

    def table(self, name: str, table: pa.Table, title: str, plots: Sequence[PlotSpec] = ()) -> None:
        """Do nothing: the table is in the run's record."""

    def page(self, html: str) -> None:
        """Do nothing: the page is in the run's record."""

    def result(self, result: dict[str, Any]) -> None:
        self._print_event({"event": "result", **result})

    def error(self, error: SluiceError) -> None:
        self._print_event({"event": "error", **error.as_dict()})

    def _print_event(self, event: dict[str, Any]) -> None:
        print_line(json.dumps(event))


class ReportingArgumentParser(argparse.ArgumentParser):
    """Argument parser that with --json also reports errors as JSON, for the process that started this one."""

    def error(self, message: str) -> NoReturn:
        if "--json" in sys.argv:
            JsonReporter().error(
                OperatorError("bad_option", f"{message[:1].upper()}{message[1:]}".rstrip(".") + ".")
            )
        super().error(message)


def environment_with_home(words: Sequence[str] | None) -> dict[str, str]:
    """Return the environment with the home directory of the command line. The available jobs depend on it."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--home", nargs="?")
    home = first.parse_known_args(words)[0].home
    return {**os.environ, **({"SLUICE_HOME": home} if home else {})}


def parser(environment: Mapping[str, str] = os.environ) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = ReportingArgumentParser(
        prog="python -m pipeline", description="Run one job of the Spark pipeline."
    )
    made.add_argument("--home", type=Path, help="the data directory (default: SLUICE_HOME)")
    names = made.add_subparsers(dest="name", required=True, metavar="NAME")
    for name in [*JOBS, *custom_jobs(environment)]:
        try:
            job = load_job(name, environment)
        except OperatorError as error:
            # A broken custom job must not hide the others. Its error is reported when it is run.
            names.add_parser(name, help=error.sentence).set_defaults(broken=error)
            continue
        one = names.add_parser(name, help=job.HELP, description=job.HELP, allow_abbrev=False)
        one.add_argument("--json", action="store_true", help="report as JSON, one object a line")
        one.add_argument(
            "--home", type=Path, default=argparse.SUPPRESS, help="the data directory (default: SLUICE_HOME)"
        )
        one.add_argument("--instance", help="the instance (default: SLUICE_INSTANCE or sluice-1)")
        one.add_argument(
            "--journal", type=Path, help="the journal's directory (default: journal in the home)"
        )
        one.add_argument(
            "--archive", type=Path, help="the archive's directory (default: archive in the home)"
        )
        one.add_argument("--lake", type=Path, help="where to write (default: lake in the home)")
        one.add_argument("--master", help="Spark's master (default: SPARK_MASTER or local[*])")
        job.add_arguments(one)
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Run the job that the command line names; return the exit status."""
    os.umask(PRIVATE_UMASK)
    environment = environment_with_home(words)
    arguments = parser(environment).parse_args(words)
    if settings_error := getattr(arguments, "broken", None):
        (JsonReporter() if "--json" in (words or sys.argv) else TextReporter()).error(settings_error)
        return 1
    reporter = JsonReporter() if arguments.json else TextReporter()
    record = RecordingReporter(reporter, arguments.name, arguments)
    settings: JobSettings | None = None
    try:
        settings = settings_from(
            environment,
            instance=arguments.instance,
            journal=arguments.journal,
            archive=arguments.archive,
            lake=arguments.lake,
            master=arguments.master,
        )
        result = load_job(arguments.name, environment).run(settings, arguments, record)
        is_stored = record.store_run(settings, result)
        reporter.result(result | ({"run": record.id} if is_stored else {}))
    except SluiceError as error:
        if settings is not None:
            record.store_run(settings, {}, error)
        reporter.error(error)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        sluice_error = to_sluice_error(error)
        if settings is not None:
            record.store_run(settings, {}, sluice_error)
        reporter.error(sluice_error)
        return 1
    return 0


def to_sluice_error(error: Exception) -> SluiceError:
    """Convert Spark's exception to the error that a worker raised, or to one sentence."""
    text = str(error)
    found = re.search(r"broker_core\.errors\.\w+: (\w+): (.+)", text)
    if found is not None:
        return OperatorError.from_dict(found[1], found[2].strip())
    if os.environ.get("SLUICE_PIPELINE_DEBUG"):
        print_block(text, sys.stderr)
    return OperatorError(
        "pipeline_failed",
        f"Spark failed: {error_line(text)}.",
        "Run the job with SLUICE_PIPELINE_DEBUG=1 to see Spark's complete output.",
    )


if __name__ == "__main__":
    sys.exit(main())
