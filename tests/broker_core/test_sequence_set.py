"""Sequence sets: intervals of processed records beyond an unprocessed one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker_core.sequence_set import SequenceSet, to_intervals

INTERVALS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8)), max_size=30)


@given(INTERVALS, st.integers(0, 70))
def test_they_hold_what_was_added_and_isnt_dropped(intervals: list[tuple[int, int]], dropped: int) -> None:
    ranges, model = SequenceSet(), set[int]()
    for first, more in intervals:
        assert ranges.add(first, first + more)
        model |= set(range(first, first + more + 1))
    found = list(ranges)
    assert found == sorted(found)
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(found)), "apart"
    assert list(SequenceSet(to_intervals(np.array(sorted(model), np.uint64)))) == found
    ranges.remove_through(dropped)
    sequences = np.arange(dropped + 1, 80, dtype=np.uint64)
    left = sorted(n for n in model if n > dropped)
    assert [int(one) for one in sequences[ranges.contains(sequences)]] == left
    assert [n for first, last in ranges for n in range(first, last + 1)] == left
    others = [n for first, last in ranges.gaps_between(dropped + 1, 79) for n in range(first, last + 1)]
    assert sorted([*others, *left]) == sequences.tolist()


@given(INTERVALS, INTERVALS)
def test_they_hold_nothing_of_what_was_removed(
    added: list[tuple[int, int]], removed: list[tuple[int, int]]
) -> None:
    ranges, model = SequenceSet(), set[int]()
    for (first, more), (start, others) in zip(added, removed, strict=False):
        ranges.add(first, first + more)
        ranges.remove(start, start + others)
        model = (model | set(range(first, first + more + 1))) - set(range(start, start + others + 1))
        assert [n for one, last in ranges for n in range(one, last + 1)] == sorted(model)


def test_there_is_a_bound() -> None:
    ranges = SequenceSet(max_ranges=2)
    assert [ranges.add(one, one) for one in (2, 4, 8)] == [True, True, False]
    assert ranges.add(3, 3), "what touches another needs no room"
    assert list(ranges) == [(2, 4)]
