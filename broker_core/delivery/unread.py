"""Whether a peer reads what its kernel takes for it: as its window tells.

A socket takes what comes for a peer that reads nothing until the peer's kernel is full, and each message costs a write meanwhile. But a
receiver's window tells it at once: its end moves when bytes are read there, and stays where it is when none are. How wide a window is says less:
kernels narrow it for reasons of their own.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LOOK_NS: Final = 500_000_000
"""Over so long at least: who does something else for a moment isn't meant."""
ENOUGH_BYTES: Final = 16 * 1024
"""So much must have come for a peer: Linux opens a window in steps."""


class Window(NamedTuple):
    """Of one look at a connection, in bytes since its start; the same each time where nobody tells."""

    acknowledged: int
    """The peer's kernel has it."""
    end: int
    """Up to there it said that it takes."""


UNKNOWN: Final = Window(0, 0)


class Unread:
    """One peer's. `leaves`: it has read less than half of what came lately."""

    __slots__ = ("_at", "_since", "leaves")

    def __init__(self) -> None:
        self.leaves = False
        self._since: Window | None = None
        self._at = 0

    def look(self, seen: Window, now_ns: int) -> bool:
        """`leaves`, as of now; a clock that never jumps. It takes a while to be so, and ends as soon as it is seen to read."""
        since = self._since
        if since is None:
            self._since, self._at = seen, now_ns
            return False
        came, read = seen.acknowledged - since.acknowledged, seen.end - since.end
        reads = 2 * read >= came
        if (self.leaves and reads and read > 0) or (came >= ENOUGH_BYTES and now_ns - self._at >= LOOK_NS):
            self.leaves = not reads
            self._since, self._at = seen, now_ns
        return self.leaves
