"""What of a subscription is done although something before it isn't: intervals of sequences, apart from each other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

MAX_RANGES = 10_000
"""Of a subscription and instance; what is done beyond them comes again after a restart."""


class DoneRanges:
    """Intervals in ascending order, joined where they touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def upto(self) -> int:
        """The last that is noted."""
        return self._lasts[-1] if self._lasts else 0

    def add(self, first: int, last: int) -> bool:
        """These are done; False when there are too many intervals to note it."""
        start, stop = bisect_left(self._lasts, first - 1), bisect_right(self._firsts, last + 1)
        if start == stop and len(self) >= MAX_RANGES:
            return False
        if start < stop:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[stop - 1])
        self._firsts[start:stop], self._lasts[start:stop] = [first], [last]
        return True

    def drop_upto(self, sequence: int) -> None:
        """Everything up to there is done: these say nothing any more."""
        gone = bisect_right(self._lasts, sequence)
        del self._firsts[:gone], self._lasts[:gone]

    def hold(self, sequences: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """For each sequence whether it is done."""
        if not self._firsts:
            return np.zeros(len(sequences), np.bool_)
        firsts, lasts = np.array(self._firsts, np.uint64), np.array(self._lasts, np.uint64)
        at = np.searchsorted(firsts, sequences, side="right") - 1
        held: npt.NDArray[np.bool_] = (at >= 0) & (sequences <= lasts[np.maximum(at, 0)])
        return held
