"""Check before a start that all addresses are free, and who uses those that aren't."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"
"""State "listen" in /proc/net/tcp."""


@dataclass(frozen=True, slots=True)
class PortRequest:
    """Address that a process will listen on: its purpose, and how an operator can choose another one."""

    purpose: str
    host: str
    port: int
    move: str


def port_problems(
    requests: Sequence[PortRequest],
    refused: Callable[[str, int], str | None],
    holder: Callable[[int], str | None],
) -> list[str]:
    """Return a sentence for each address that can't be used: needed twice, in use, or forbidden. Pure.

    Args:
        requests: The addresses.
        refused: Returns why an address can't be used, or None.
        holder: Returns the process that listens on a port, or None if unknown.
    """
    found = []
    purposes: dict[int, str] = {}
    for one in requests:
        if one.port in purposes:
            found.append(
                f"Port {one.port} is configured twice: by {purposes[one.port]} and by {one.purpose}. "
                f"{one.move}."
            )
            continue
        purposes[one.port] = one.purpose
        reason = refused(one.host, one.port)
        if reason is not None:
            by = holder(one.port)
            suffix = f" by {by}" if by else ""
            found.append(f"Port {one.port} on {one.host} ({one.purpose}) {reason}{suffix}. {one.move}.")
    return found


def refusal_reason(host: str, port: int) -> str | None:
    """Return why no process can listen on this address now, as the rest of a sentence; None if one can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the listeners do: an address in TIME_WAIT from the last run is free.
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
    """Return the process that listens on a TCP port, as `name, pid N`; None if the system doesn't show it."""
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
    """Yield the sockets that listen on a port, in the form of links in /proc/PID/fd."""
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
    """Whether a process holds one of the sockets open."""
    try:
        return any(str(link.readlink()) in inodes for link in (directory / "fd").iterdir())
    except OSError:  # a process of another user, or one that just ended
        return False
