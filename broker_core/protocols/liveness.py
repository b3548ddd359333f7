"""Liveness of a connection's peer: when silence, or a frame that does not end, means that the peer is lost.

Bytes count, not whole frames: a frame of 600 kB takes 30 s on a line of 20 kB/s, and the heartbeats wait
behind it. The broker and the client library use the same rules.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SILENT_INTERVALS: Final = 2
"""Heartbeat intervals without a sign of life after which a peer counts as lost."""
FRAME_GRACE_MS: Final = 60_000
"""Time, ms, that any frame may take, however few of its bytes have arrived."""
MIN_FRAME_RATE: Final = 1_024
"""Minimum bytes per second of a frame after its grace time. A slower peer would occupy memory for nothing."""


TOLERATED_LATENESS_MS: Final = 500
"""A check that is later than this, ms, comes after a pause: the process or the machine was stopped."""


class ReadProgress(NamedTuple):
    """Bytes that a connection has read since its start, and its incomplete frame."""

    received_bytes: int
    unfinished_bytes: int
    """Bytes of an incomplete frame; 0 between frames."""
    frame_start: int
    """Stream position at which that frame begins. A different value means that the frame has ended."""


class Liveness:
    """Signs of life of one peer, compared from check to check. Times are monotonic milliseconds."""

    __slots__ = ("_acknowledged", "_checked_at", "_frame_began_at", "_handed", "_read", "last_alive_at")

    def __init__(self, now: int) -> None:
        self.last_alive_at = now
        """Time of the last sign of life, as of the last check."""
        self._frame_began_at = self._checked_at = now
        self._read = ReadProgress(0, 0, 0)
        self._handed = self._acknowledged = 0

    def note_check(self, now: int, interval_ms: int) -> None:
        """Leave out a pause of this process: a check that is late says nothing about the peer.

        Call it before each check. `interval_ms`: planned time between two checks.
        """
        late_ms = now - self._checked_at - interval_ms
        if late_ms > TOLERATED_LATENESS_MS:
            self.last_alive_at = min(self.last_alive_at + late_ms, now)
            self._frame_began_at = min(self._frame_began_at + late_ms, now)
        self._checked_at = now

    def restart(self, now: int) -> None:
        """Restart the measurement: the broker read nothing until now, so silence until now means nothing."""
        self.last_alive_at = self._frame_began_at = self._checked_at = now

    def note_read(self, now: int, read: ReadProgress) -> None:
        """Compare the read bytes with the last check. Any new byte is a sign of life."""
        if read.received_bytes != self._read.received_bytes:
            self.last_alive_at = now
        if not read.unfinished_bytes or read.frame_start != self._read.frame_start:
            self._frame_began_at = now
        self._read = read

    def note_written(self, now: int, handed_bytes: int, acknowledged_bytes: int) -> None:
        """Compare the bytes that the peer's kernel has acknowledged with the last check.

        Progress is a sign of life only while bytes that were handed over before the last check are still in
        flight. The kernel of a suspended peer acknowledges heartbeats immediately, and those must not keep it
        alive.
        """
        if self._acknowledged < acknowledged_bytes < self._handed:
            self.last_alive_at = now
        self._handed, self._acknowledged = handed_bytes, acknowledged_bytes

    def is_silent(self, now: int, interval_ms: int, slack_ms: int = 0) -> bool:
        """Return whether the peer gave no sign of life for two of its heartbeat intervals and `slack_ms`."""
        return now - self.last_alive_at > SILENT_INTERVALS * interval_ms + slack_ms

    def is_frame_overdue(self, now: int) -> bool:
        """Return whether the incomplete frame takes longer than its grace time and the minimum rate allow."""
        unfinished = self._read.unfinished_bytes
        allowed_ms = FRAME_GRACE_MS + unfinished * 1_000 // MIN_FRAME_RATE
        return unfinished > 0 and now - self._frame_began_at > allowed_ms
