"""A combined replay gives its subscriptions the records in the journal's order across them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker_core.replay.read_ahead import split_into_runs

COUNT = 12
wants = st.lists(st.none() | st.sets(st.integers(0, COUNT - 1)), min_size=1, max_size=4)


@given(wants)
def test_every_record_comes_once_for_each_that_wants_it_in_the_order_of_the_journal(
    asked: list[set[int] | None],
) -> None:
    wanted = [None if rows is None else np.array(sorted(rows), np.int64) for rows in asked]
    got = [
        (row, owner)
        for owner, rows in split_into_runs(COUNT, wanted)
        for row in (range(COUNT) if rows is None else rows.tolist())
    ]
    assert got == sorted(
        (row, owner) for owner, rows in enumerate(asked) for row in (range(COUNT) if rows is None else rows)
    )


@given(wants)
def test_neighbouring_runs_are_of_different_subscriptions(asked: list[set[int] | None]) -> None:
    wanted = [None if rows is None else np.array(sorted(rows), np.int64) for rows in asked]
    owners = [owner for owner, _ in split_into_runs(COUNT, wanted)]
    assert all(before != after for before, after in pairwise(owners))


def test_one_alone_is_not_cut() -> None:
    rows = np.array([1, 5])
    (one,) = split_into_runs(9, [np.zeros(0, np.int64), rows])
    assert one[0] == 1
    assert one[1] is rows
    assert split_into_runs(9, [None]) == [(0, None)]
