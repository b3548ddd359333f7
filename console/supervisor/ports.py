"""Which addresses Sluice wants, which of them are taken, and by whom. Asked before anything starts."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class PortRequest:
    """An address somebody will listen on: what for, and how an operator moves it elsewhere."""

    purpose: str
    host: str
    port: int
    move: str


def port_problems(
    wanted: Sequence[PortRequest],
    refused: Callable[[str, int], str | None],
    holder: Callable[[int], str | None],
) -> list[str]:
    """A sentence for each address that can't be had: wanted twice, taken, or not allowed. Pure but for its arguments.

    refused   why the address can't be listened on, or None when it can
    holder    who listens on the port now, if that can be told
    """
    found = []
    seen: dict[int, str] = {}
    for one in wanted:
        if one.port in seen:
            found.append(
                f"Port {one.port} is wanted twice: by {seen[one.port]} and by {one.purpose}. {one.move}."
            )
            continue
        seen[one.port] = one.purpose
        why = refused(one.host, one.port)
        if why is not None:
            by = holder(one.port)
            who = f" by {by}" if by else ""
            found.append(f"Port {one.port} on {one.host} ({one.purpose}) {why}{who}. {one.move}.")
    return found


def refusal_reason(host: str, port: int) -> str | None:
    """Why nobody can listen on this address now, as the rest of a sentence; None when one can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the listeners do: an address that is merely in TIME_WAIT from the last run is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return (
                "is taken" if error.errno == errno.EADDRINUSE else f"can't be used: {error.strerror or error}"
            )
    return None


def port_owner(port: int, proc: Path = Path("/proc")) -> str | None:
    """The process that listens on a TCP port, as `name, pid N`; None where the system doesn't say."""
    inodes = set(_listening_inodes(port, (proc / "net" / "tcp", proc / "net" / "tcp6")))
    if not inodes:
        return None
    for directory in proc.glob("[0-9]*"):
        if _owns(directory, inodes):
            try:
                return f"{(directory / 'comm').read_text().strip()}, pid {directory.name}"
            except OSError:
                return f"pid {directory.name}"
    return None


def _listening_inodes(port: int, tables: Iterable[Path]) -> Iterable[str]:
    for table in tables:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            column = line.split()
            if column[3] == _LISTEN and int(column[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{column[9]}]"


def _owns(directory: Path, inodes: set[str]) -> bool:
    try:
        return any(str(link.readlink()) in inodes for link in (directory / "fd").iterdir())
    except OSError:  # another user's process, or one that just ended
        return False
