"""File `<instance>.stalls.json` beside the control socket: the newest stalls of a broker's event loop.

The thread that reports them writes it. The next process reads it, and so does a console on the same machine
while the broker doesn't answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from broker_core.documents.stalls import StallEntry, Stalls


def stalls_path(control: Path) -> Path:
    """Return the file's path, by the control socket's."""
    return control.with_suffix(".stalls.json")


def read_stalls(path: Path) -> list[StallEntry]:
    """Return the stalls that were stored; none where the file is missing or can't be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Stalls).stalls
    except (OSError, msgspec.MsgspecError):
        return []


def write_stalls(path: Path, stalls: Sequence[StallEntry]) -> None:
    """Replace the file whole. A disk that refuses it is passed over: the log has them too."""
    with suppress(OSError):
        scratch = path.with_suffix(".tmp")
        scratch.write_bytes(msgspec.json.encode(Stalls(stalls=list(stalls))))
        scratch.replace(path)


def lasting_stall(control: Path) -> StallEntry | None:
    """Return the stall that the broker at a control socket is in; None where it is in none, or its process
    has ended."""
    newest = next(reversed(read_stalls(stalls_path(control))), None)
    if newest is None or newest.over or not Path(f"/proc/{newest.pid}").exists():
        return None
    return newest
