"""Newest work of the process's event loop, for reports of stalls. There is one record per process and loop.

Recording costs one attribute assignment. No code here reads a clock or keeps the recorded objects alive.
"""

from __future__ import annotations

from typing import Final, Literal


class LoopActivity:
    """Newest command, newest delivered records and newest periodic task.

    `latest` names the newest of the three.
    """

    __slots__ = ("client", "command", "first", "last", "latest", "periodic_task")

    def __init__(self) -> None:
        self.latest: Literal["", "command", "batch", "periodic_task"] = ""
        """Class of the newest command."""
        self.command: type[object] | None = None
        self.client = ""
        """Client that sent the command."""
        self.first = self.last = 0
        """First and last sequence of the records that were delivered last."""
        self.periodic_task = ""
        """Name of the newest periodic task."""

    def describe(self) -> str:
        """Return the three as one line, newest first: `command Subscribe of board; records 7 to 9; tick`."""
        parts = {
            "command": f"command {self.command.__name__} of {self.client or 'a client before its logon'}"
            if self.command is not None
            else "",
            "batch": f"records {self.first} to {self.last}" if self.last else "",
            "periodic_task": self.periodic_task,
        }
        return "; ".join(filter(None, (parts.pop(self.latest, ""), *parts.values())))


LAST: Final = LoopActivity()
