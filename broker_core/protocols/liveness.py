"""Liveness of a connection's peer: when silence, or a frame that does not end, means that the peer is gone.

Bytes count, not whole frames: a frame of 600 kB takes 30 s on a line of 20 kB/s, and the heartbeats wait
behind it. The broker and the client library use the same rules.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SILENT_INTERVALS: Final = 2
"""Heartbeat intervals without a sign of life after which a peer counts as gone."""
FRAME_GRACE_MS: Final = 60_000
"""Time that any frame may take, however little of it has come."""
MIN_FRAME_RATE: Final = 1_024
"""Bytes per second that a frame must bring after its grace. A peer that sends less holds memory for nothing.
"""


class ReadProgress(NamedTuple):
    """Bytes that a connection has read since its start, and the frame among them that is not whole."""

    received_bytes: int
    unfinished_bytes: int
    """Bytes of a frame that is not whole; 0 between frames."""
    frame_start: int
    """Position in the stream where that frame begins. Another value means that a frame has ended."""


class Liveness:
    """Signs of life of one peer, compared from look to look. Times are monotonic milliseconds."""

    __slots__ = ("_acknowledged", "_frame_began_at", "_handed", "_read", "heard_at")

    def __init__(self, now: int) -> None:
        self.heard_at = now
        """Last sign of life, as of the last look."""
        self._frame_began_at = now
        self._read = ReadProgress(0, 0, 0)
        self._handed = self._acknowledged = 0

    def restart(self, now: int) -> None:
        """Count from now on: nothing was read until now, so silence until now says nothing."""
        self.heard_at = self._frame_began_at = now

    def note_read(self, now: int, read: ReadProgress) -> None:
        """Compare what was read with the last look. Any new byte is a sign of life."""
        if read.received_bytes != self._read.received_bytes:
            self.heard_at = now
        if not read.unfinished_bytes or read.frame_start != self._read.frame_start:
            self._frame_began_at = now
        self._read = read

    def note_written(self, now: int, handed_bytes: int, acknowledged_bytes: int) -> None:
        """Compare what the peer's kernel has acknowledged with the last look.

        Progress is a sign of life only while bytes that were handed over before the last look are still on
        their way. A peer that stands still has a kernel that acknowledges heartbeats at once, and those must
        not keep it alive.
        """
        if self._acknowledged < acknowledged_bytes < self._handed:
            self.heard_at = now
        self._handed, self._acknowledged = handed_bytes, acknowledged_bytes

    def is_silent(self, now: int, interval_ms: int, slack_ms: int = 0) -> bool:
        """Whether the peer gave no sign of life for two of its heartbeat intervals and `slack_ms`."""
        return now - self.heard_at > SILENT_INTERVALS * interval_ms + slack_ms

    def is_frame_overdue(self, now: int) -> bool:
        """Whether the frame that is being received takes longer than its grace and the slowest rate allow."""
        unfinished = self._read.unfinished_bytes
        allowed_ms = FRAME_GRACE_MS + unfinished * 1_000 // MIN_FRAME_RATE
        return unfinished > 0 and now - self._frame_began_at > allowed_ms
