"""The location of a log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Directories of an instance's journal and archive. Small and picklable: it is sent to every worker.

    On several machines both directories must be on a mount that every worker sees under the same path.
    """

    directory: Path
    archive: Path | None
    instance: str
    log: str | None = None
    """The log's identity, once `sluice_spark.log` has read it; None in an empty log."""
