"""MESSAGE frames between a client's outbox and its socket: joined a slice at a time, when the socket takes it.

A batch of small records becomes many times its size as STOMP. What waits here is therefore the batch's shared frames, and
one slice of them in bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from broker_core.protocols.stomp.message_frames import MessageFrames

SLICE_BYTES: Final = 64 * 1024
"""Bytes that are joined and handed on at a time, and a WebSocket message's; a longer frame goes by itself."""


class Outgoing:
    """One client's, in order. Whole frames, so that something else may be said between two slices."""

    def __init__(self) -> None:
        self._waiting: deque[MessageFrames | bytes] = deque()
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, frames: MessageFrames | bytes) -> int:
        """Queue frames, or one that must not overtake them; how many bytes they are."""
        nbytes = len(frames) if isinstance(frames, bytes) else frames.nbytes
        self._waiting.append(frames)
        self.nbytes += nbytes
        return nbytes

    def take(self) -> bytes:
        """The next slice; b"" when nothing waits."""
        taken: list[bytes] = []
        size = 0
        while self._waiting and size < SLICE_BYTES:
            first = self._waiting.popleft()
            if isinstance(first, bytes):
                part = first
            else:
                part, rest = first.take(SLICE_BYTES - size)
                if rest is not None:
                    self._waiting.appendleft(rest)
            taken.append(part)
            size += len(part)
        self.nbytes -= size
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def drop(self) -> int:
        """Forget what waits; how many bytes that was."""
        dropped, self.nbytes = self.nbytes, 0
        self._waiting.clear()
        return dropped
