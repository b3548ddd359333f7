"""Sets of sequences, stored as intervals, for example the processed records of a part of the log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt


class SequenceSet:
    """Set of sequences, stored as disjoint intervals in ascending order."""

    __slots__ = ("_firsts", "_lasts", "_max_ranges")

    def __init__(self, intervals: Iterable[tuple[int, int]] = (), max_ranges: int | None = None) -> None:
        """Create a set.

        Args:
            intervals: Intervals, as pairs of first and last sequence.
            max_ranges: Maximum number of intervals. None: no limit.
        """
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._max_ranges = max_ranges
        for first, last in intervals:
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        return len(self._firsts)

    @property
    def first(self) -> int:
        """First sequence; 0 if the set is empty."""
        return self._firsts[0] if self._firsts else 0

    @property
    def last(self) -> int:
        """Last sequence; 0 if the set is empty."""
        return self._lasts[-1] if self._lasts else 0

    def add(self, first: int, last: int) -> bool:
        """Add the sequences `first` to `last`.

        Returns False, without a change, if there are too many intervals.
        """
        start, stop = bisect_left(self._lasts, first - 1), bisect_right(self._firsts, last + 1)
        if start == stop and self._max_ranges is not None and len(self) >= self._max_ranges:
            return False
        if start < stop:
            first, last = min(first, self._firsts[start]), max(last, self._lasts[stop - 1])
        self._firsts[start:stop], self._lasts[start:stop] = [first], [last]
        return True

    def remove(self, first: int, last: int) -> None:
        """Remove the sequences `first` to `last`."""
        start, stop = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        if start >= stop:
            return
        remainders = [(self._firsts[start], first - 1), (last + 1, self._lasts[stop - 1])]
        nonempty = [(one, other) for one, other in remainders if one <= other]
        self._firsts[start:stop] = [one for one, _ in nonempty]
        self._lasts[start:stop] = [other for _, other in nonempty]

    def remove_through(self, sequence: int) -> None:
        """Remove all sequences up to and including `sequence`."""
        if self._firsts and self._firsts[0] <= sequence:
            self.remove(self._firsts[0], sequence)

    def gaps_between(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Iterate over the intervals of `first` to `last` that are not in the set."""
        for start, stop in self:
            if start > first:
                yield first, min(start - 1, last)
            first = max(first, stop + 1)
            if first > last:
                return
        if first <= last:
            yield first, last

    def contains(self, sequences: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return for each sequence whether it is in the set."""
        if not self._firsts:
            return np.zeros(len(sequences), np.bool_)
        firsts, lasts = np.array(self._firsts, np.uint64), np.array(self._lasts, np.uint64)
        at = np.searchsorted(firsts, sequences, side="right") - 1
        is_contained: npt.NDArray[np.bool_] = (at >= 0) & (sequences <= lasts[np.maximum(at, 0)])
        return is_contained


def to_intervals(sequences: npt.NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Return ascending sequences as intervals."""
    if len(sequences):
        cuts = np.flatnonzero(np.diff(sequences) > 1) + 1
        yield from zip(
            sequences[np.r_[0, cuts]].tolist(), sequences[np.r_[cuts - 1, -1]].tolist(), strict=True
        )
