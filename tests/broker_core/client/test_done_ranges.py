"""What is done after an undone record: intervals that say of each sequence whether it was added."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.client import done_ranges
from broker_core.client.done_ranges import DoneRanges

INTERVALS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8)), max_size=30)


@given(INTERVALS, st.integers(0, 70))
def test_they_hold_what_was_added_and_isnt_dropped(intervals: list[tuple[int, int]], dropped: int) -> None:
    ranges, model = DoneRanges(), set[int]()
    for first, more in intervals:
        assert ranges.add(first, first + more)
        model |= set(range(first, first + more + 1))
    found = list(ranges)
    assert found == sorted(found)
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(found)), "apart"
    ranges.drop_upto(dropped)
    sequences = np.arange(dropped + 1, 80, dtype=np.uint64)
    assert [int(one) for one in sequences[ranges.hold(sequences)]] == sorted(n for n in model if n > dropped)


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(done_ranges, "MAX_RANGES", 2)
    ranges = DoneRanges()
    assert [ranges.add(one, one) for one in (2, 4, 8)] == [True, True, False]
    assert ranges.add(3, 3), "what touches another needs no room"
    assert list(ranges) == [(2, 4)]
