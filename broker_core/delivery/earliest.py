"""Which of many moments is the earliest, where each changes often and the answer is wanted seldom: a heap of what they were."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

_SPARE = 64


class Earliest:
    """Of streams of which each has one moment or none. A moment that becomes later, or goes, needn't be told: that is found
    when it comes to the top."""

    __slots__ = ("_heap", "_listed", "_read")

    def __init__(self, read: Callable[[int], int]) -> None:
        """`read` gives a stream's moment now; 0: it has none."""
        self._read = read
        self._heap: list[tuple[int, int]] = []
        self._listed: set[int] = set()

    def add(self, stream: int, *, earlier: bool = False) -> None:
        """It may have a moment where it had none; or, if that is said, an earlier one."""
        if earlier or stream not in self._listed:
            self._listed.add(stream)
            heappush(self._heap, (self._read(stream), stream))

    def moment(self) -> int:
        """The earliest; 0: none of them has any."""
        heap, read = self._heap, self._read
        if len(heap) > 2 * len(self._listed) + _SPARE:
            heap[:] = [(read(stream), stream) for stream in self._listed]
            heapify(heap)
        while heap:
            at, stream = heap[0]
            now = read(stream)
            if now and now == at:
                return now
            if now:
                heapreplace(heap, (now, stream))
            else:
                heappop(heap)
                self._listed.discard(stream)
        return 0
