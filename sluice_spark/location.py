"""Where a log is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LogLocation:
    """The directories of one instance's journal. Small and picklable: it travels to every worker.

    On several machines both directories must be on a mount that every worker sees under this path.
    """

    directory: Path
    archive: Path | None
    instance: str
    log: str | None = None
    """The log's identity, once somebody has looked (`pipeline.log`); None in an empty log."""
