"""`<instance>.ended.json` beside the control socket: why a broker ended by itself, or couldn't start.

Written when it happens, read by whoever can't reach it, and by the next process, which takes it into its status and
removes it when it has started. A broker that is told to stop leaves none.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from broker_core.documents.instance import ExitReport
from broker_core.errors import SluiceError


def exit_report_path(control: Path) -> Path:
    """Where they are, by the control socket's path."""
    return control.with_suffix(".ended.json")


def write_exit_report(control: Path, error: SluiceError, now_ns: int) -> None:
    """Leave them. A disk that takes not even that says nothing: the log has them too."""
    words = ExitReport(at=now_ns // 1_000_000, code=error.code, message=error.sentence, fix=error.fix)
    with suppress(OSError):
        control.parent.mkdir(parents=True, exist_ok=True)
        exit_report_path(control).write_bytes(msgspec.json.encode(words))


def read_exit_report(control: Path) -> ExitReport | None:
    """Those of the newest broker, if it left any that can be read."""
    try:
        return msgspec.json.decode(exit_report_path(control).read_bytes(), type=ExitReport)
    except (OSError, msgspec.MsgspecError):
        return None


def delete_exit_report(control: Path) -> None:
    """A broker runs again."""
    with suppress(OSError):
        exit_report_path(control).unlink()
