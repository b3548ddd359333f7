"""Whether spools can be written where a policy wants them: tried before they are needed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from broker_core.errors import OperatorError
from broker_core.journal.files import OpenFile


def refuse_unusable(directories: Iterable[str]) -> None:
    """Write a byte in each. OperatorError bad_spool_path names the first in which that can't be done, and why."""
    for directory in sorted(set(directories)):
        try:
            _try(Path(directory))
        except OSError as problem:
            raise OperatorError(
                "bad_spool_path",
                f"Spools can't be written in {directory}: {problem.strerror or problem}.",
                "Give message_disk_path a directory that the broker may write to, with room.",
                path=directory,
            ) from None


def _try(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    probe = directory / f".sluice-{secrets.token_hex(8)}"
    file = OpenFile(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.pwrite(file.fd, b"\0" * 4_096, 0)
        os.fsync(file.fd)
    finally:
        file.close()
        probe.unlink()
