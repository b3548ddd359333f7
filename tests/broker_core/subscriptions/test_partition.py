"""Runs of a batch that is journaled in part: the order of its rows, for any subscriptions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker_core.subscriptions.partition import NO_ROWS, Interleaving

ROWS = st.lists(st.booleans(), min_size=1, max_size=30)


@given(ROWS, st.data())
def test_runs_are_the_wanted_rows_in_the_order_of_the_batch(is_kept: list[bool], data: st.DataObject) -> None:
    kept, passed = (
        [n for n, one in enumerate(is_kept) if one],
        [n for n, one in enumerate(is_kept) if not one],
    )
    left = data.draw(st.integers(0, len(kept)))
    kept = kept[len(kept) - left :]
    order = Interleaving(np.array(is_kept, np.bool_), left)

    def wanted(of: list[int]) -> np.ndarray | None:
        chosen = data.draw(st.lists(st.booleans(), min_size=len(of), max_size=len(of)))
        return None if of and all(chosen) else np.flatnonzero(chosen) if any(chosen) else NO_ROWS

    rows = wanted(kept), wanted(passed)
    runs = order.runs(*rows)
    assert order.runs(*rows) is runs, "made once for all who want the same"
    found = []
    for part, some in runs:
        places = (kept, passed)[part]
        found += places if some is None else [places[row] for row in some.tolist()]
    every = [
        places[row]
        for places, some in zip((kept, passed), rows, strict=True)
        for row in (range(len(places)) if some is None else some.tolist())
    ]
    assert found == sorted(every)
    assert all(one[0] != other[0] for one, other in pairwise(runs)), "runs are as long as can be"
