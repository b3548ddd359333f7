"""What was sent last, by sequence: how far back a client must be served again that died without a word. Pure.

A broker knows what it gave to its kernel, and not what a client has read: two kernels' buffers lie between. A client that
doesn't say what it has (by acknowledging, or by `received`) gets the last HELD_BYTES once more.
"""

from __future__ import annotations

from collections import deque
from typing import Final

HELD_BYTES: Final = 8 * 1024 * 1024
"""More than two kernels hold of one connection: 6 MiB at the receiver (Linux's tcp_rmem), 64 KiB that aren't sent yet, and
one chunk of a replay."""
GRAIN_BYTES: Final = 64 * 1024
"""Batches are remembered together up to so many bytes, so that a trail has a hundred steps whatever their size."""


class Trail:
    """The last batches given to one subscription."""

    __slots__ = ("_nbytes", "_steps")

    def __init__(self) -> None:
        self._steps: deque[list[int]] = deque()
        """[sequence of its first record, bytes], the oldest first."""
        self._nbytes = 0

    @property
    def first(self) -> int:
        """The first record that may not have been read; 0 when nothing was sent."""
        return self._steps[0][0] if self._steps else 0

    def sent(self, first_sequence: int, nbytes: int) -> None:
        self._nbytes += nbytes
        if self._steps and self._steps[-1][1] + nbytes <= GRAIN_BYTES:
            self._steps[-1][1] += nbytes
        else:
            self._steps.append([first_sequence, nbytes])
        while self._nbytes - self._steps[0][1] >= HELD_BYTES:
            self._nbytes -= self._steps.popleft()[1]
