"""Property tests of record assignments: each record is in one place, and all counts are exact."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broker_core.replay.sharing.assignments import RecordAssignments

HOLDERS = "abc"
STEPS = st.tuples(
    st.sampled_from(["took", "gave", "gave", "acknowledged", "returned", "left", "brought", "spared"]),
    st.sampled_from(HOLDERS),
    st.integers(1, 6),
)


def step(
    handout: RecordAssignments[str], here: list[int], done: set[int], what: str, holder: str, number: int
) -> None:
    """Perform one step; `here` has the assignable records, lowest first, `done` the acknowledged ones."""
    mine = list(handout.records_of(holder))
    match what:
        case "took":
            new = [handout.upto + 1 + one for one in range(number)]
            handout.add_new(new)
            here += new
        case "gave":
            handout.assign(holder, here[:number])
            del here[:number]
        case "acknowledged":
            handout.acknowledge(holder, [*mine[:number], 1_000_000])  # and what it doesn't have
            done.update(mine[:number])
        case "returned":
            handout.release(holder, [*mine[-number:], 1_000_000], mine[-1:], is_permanent=number == 1)
        case "spared":
            handout.retry(holder, mine[:1])
        case "left":
            handout.remove_holder(holder, mine[:1])
        case _ if len(handout.released):
            sequences = np.arange(handout.released.first, handout.released.last + 1, dtype=np.uint64)
            here[:] = sorted(here + sequences[handout.add_reread(sequences)].tolist())
            handout.released.remove(int(sequences[0]), int(sequences[-1]))


@given(st.lists(STEPS, max_size=60), st.sampled_from([0, 2]))
def test_each_record_is_in_one_place_and_the_numbers_are_those_of_what_is_there(
    steps: list[tuple[str, str, int]], max_tries: int
) -> None:
    handout, here, done = RecordAssignments[str](1, 0, max_tries=max_tries), list[int](), set[int]()
    for what, holder, number in steps:
        step(handout, here, done, what, holder, number)
        held = [sequence for holder in HOLDERS for sequence in handout.records_of(holder)]
        back = [one for first, last in handout.released for one in range(first, last + 1)]
        assert sorted([*here, *held, *back, *done]) == list(range(1, handout.upto + 1))
        assert handout.unacknowledged == len(held)
        assert handout.outstanding_count == len(here) + len(held) + len(handout.released)
        position = handout.position(handout.upto + 1)
        assert position == min([*here, *held, *back], default=handout.upto + 1)
        kept = {one for first, last in handout.completed_intervals() for one in range(first, last + 1)}
        assert kept == {one for one in done if one > position}
        assert handout.possible_repeats.isdisjoint(done) and handout.tries.keys() <= {*here, *held, *back}
