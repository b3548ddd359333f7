"""Exit report `<instance>.ended.json` beside the control socket: why a broker failed or could not start.

A broker writes it when it fails. The control plane reads it while the broker is unreachable. The next broker
process puts it into its status, and deletes the file when it has started. A broker that is stopped on request
writes none.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from broker_core.documents.instance import ExitReport
from broker_core.errors import SluiceError


def exit_report_path(control: Path) -> Path:
    """Return the path of the exit report for a control socket."""
    return control.with_suffix(".ended.json")


def write_exit_report(control: Path, error: SluiceError, now_ns: int) -> None:
    """Write an exit report. A write error is ignored, because the log has the same information."""
    words = ExitReport(at=now_ns // 1_000_000, code=error.code, message=error.sentence, fix=error.fix)
    with suppress(OSError):
        control.parent.mkdir(parents=True, exist_ok=True)
        exit_report_path(control).write_bytes(msgspec.json.encode(words))


def read_exit_report(control: Path) -> ExitReport | None:
    """Return the exit report of the last broker; None if there is none that can be read."""
    try:
        return msgspec.json.decode(exit_report_path(control).read_bytes(), type=ExitReport)
    except (OSError, msgspec.MsgspecError):
        return None


def delete_exit_report(control: Path) -> None:
    """Delete the exit report, because a broker runs again."""
    with suppress(OSError):
        exit_report_path(control).unlink()
