"""Locations of the journal and the lake: from the environment, overridden by the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from broker_core.errors import OperatorError
from broker_core.names import is_name
from sluice_spark.location import LogLocation

BASE = Path(__file__).resolve().parent.parent
"""The project's directory. Spark's workers import `pipeline` and `broker_core` from it."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Locations and Spark master of a job."""

    log: LogLocation
    lake: Path
    master: str
    """Spark's master URL.

    `local[*]` uses all cores of this machine; "" leaves the master to spark-submit, which started this
    process.
    """

    @property
    def records(self) -> Path:
        """Directory of the lake's record files, by day."""
        return self.lake / "records"

    @property
    def client_history(self) -> Path:
        """Directory of the lake's hourly client history, by day."""
        return self.lake / "client_history"


def settings_from(
    environment: Mapping[str, str],
    *,
    home: Path | None = None,
    instance: str | None = None,
    journal: Path | None = None,
    archive: Path | None = None,
    lake: Path | None = None,
    master: str | None = None,
) -> JobSettings:
    """Return settings from the installation's variables; arguments override them.

    Raises OperatorError bad_setting.

    The variables are SLUICE_HOME, SLUICE_INSTANCE, SLUICE_JOURNAL_DIRECTORY, SLUICE_ARCHIVE_DIRECTORY,
    SLUICE_LAKE_DIRECTORY and SPARK_MASTER.
    """
    home = (home or Path(environment.get("SLUICE_HOME") or BASE / "var")).expanduser().resolve()
    if not home.is_dir() and (journal is None or lake is None):
        raise OperatorError(
            "bad_setting",
            f"The data directory {home} doesn't exist.",
            "Give it as --home, or set SLUICE_HOME.",
        )
    name = instance or environment.get("SLUICE_INSTANCE") or "sluice-1"
    if not is_name(name):
        raise OperatorError(
            "bad_setting", f"{name[:80]!r} can't be an instance's name.", "Set SLUICE_INSTANCE."
        )

    def directory(argument: Path | None, variable: str, default: str) -> Path:
        return (argument or Path(environment.get(variable) or home / default)).expanduser().resolve()

    shelf: Path | None = directory(archive, "SLUICE_ARCHIVE_DIRECTORY", "archive")
    if (
        archive is None
        and not environment.get("SLUICE_ARCHIVE_DIRECTORY")
        and not (home / "archive").is_dir()
    ):
        shelf = None  # a copy of a journal may have no archive; a configured one must exist
    return JobSettings(
        log=LogLocation(directory(journal, "SLUICE_JOURNAL_DIRECTORY", "journal"), shelf, name),
        lake=directory(lake, "SLUICE_LAKE_DIRECTORY", "lake"),
        master=master
        or environment.get("SPARK_MASTER")
        or ("" if is_spark_submit(environment) else "local[*]"),
    )


def is_spark_submit(environment: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process, so that its --master applies."""
    return "PYSPARK_GATEWAY_PORT" in environment
