"""Stall file `<instance>.stalls.json` beside the control socket: newest stalls of the event loop.

The thread that reports stalls writes it. The next process reads it, and so does a console on the same machine
while the broker does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from broker_core.documents.stalls import StallEntry, Stalls


def stalls_path(control: Path) -> Path:
    """Return the path of the stall file that belongs to a control socket."""
    return control.with_suffix(".stalls.json")


def read_stalls(path: Path) -> list[StallEntry]:
    """Return the stored stalls; none if the file is missing or invalid."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Stalls).stalls
    except (OSError, msgspec.MsgspecError):
        return []


def write_stalls(path: Path, stalls: Sequence[StallEntry]) -> None:
    """Replace the stall file atomically. A failing disk is ignored, because the log has the stalls, too."""
    with suppress(OSError):
        scratch = path.with_suffix(".tmp")
        scratch.write_bytes(msgspec.json.encode(Stalls(stalls=list(stalls))))
        scratch.replace(path)


def find_lasting_stall(control: Path) -> StallEntry | None:
    """Return the stall in which the broker at a control socket is now.

    None: it is not in a stall, or its process has ended.
    """
    newest = next(reversed(read_stalls(stalls_path(control))), None)
    if newest is None or newest.over or not Path(f"/proc/{newest.pid}").exists():
        return None
    return newest
