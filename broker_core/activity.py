"""The newest work of this process's event loop, for the report of a stall. One per process, as the loop is.

Setting an attribute is all that it costs: nothing here reads a clock or keeps what it was given alive.
"""

from __future__ import annotations

from typing import Final, Literal


class LoopActivity:
    """The newest command, the newest group of records and the newest periodic work; `latest` names the newest
    of the three."""

    __slots__ = ("chore", "client", "command", "first", "last", "latest")

    def __init__(self) -> None:
        self.latest: Literal["", "command", "batch", "chore"] = ""
        self.command: type[object] | None = None
        self.client = ""
        """The client that sent the command."""
        self.first = self.last = 0
        """Sequences of the group that was delivered last."""
        self.chore = ""

    def describe(self) -> str:
        """Return the three as one line, the newest first: `command Subscribe of board; records 7 to 9; tick`."""
        parts = {
            "command": f"command {self.command.__name__} of {self.client or 'a client before its logon'}"
            if self.command is not None
            else "",
            "batch": f"records {self.first} to {self.last}" if self.last else "",
            "chore": self.chore,
        }
        return "; ".join(filter(None, (parts.pop(self.latest, ""), *parts.values())))


LAST: Final = LoopActivity()
