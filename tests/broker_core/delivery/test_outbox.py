"""The outbox: order, and figures that are exact after every operation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.outbox import Outbox
from tests.support.broker_simulation import outbox_entry


def filled_outbox(*sizes: int) -> Outbox:
    outbox = Outbox()
    for place, size in enumerate(sizes):
        outbox.offer(outbox_entry(size, at=100 + place, sequence=1 + place))
    return outbox


def test_an_empty_outbox_has_no_age_and_gives_nothing() -> None:
    outbox = Outbox()
    assert (outbox.nbytes, outbox.messages, outbox.oldest_at, outbox.get_first_sequence(1)) == (0, 0, 0, 0)
    assert outbox.pull(100) == [] and outbox.take_all() == []


def test_pull_takes_whole_entries_that_fit() -> None:
    outbox = filled_outbox(10, 20, 30)
    assert [taken.nbytes for taken in outbox.pull(35)] == [10, 20]
    assert (outbox.nbytes, outbox.messages, outbox.oldest_at, outbox.get_first_sequence(1)) == (30, 1, 102, 3)


def test_pull_gives_one_entry_larger_than_asked_for() -> None:
    outbox = filled_outbox(50, 1)
    assert [taken.nbytes for taken in outbox.pull(10)] == [50]
    assert outbox.nbytes == 1


def test_take_all_empties_in_order() -> None:
    outbox = filled_outbox(1, 2, 3)
    assert [taken.nbytes for taken in outbox.take_all()] == [1, 2, 3]
    assert (outbox.nbytes, outbox.messages, len(outbox)) == (0, 0, 0)


def test_taking_a_stream_keeps_the_others_in_order() -> None:
    outbox = Outbox()
    for stream, size in ((1, 10), (2, 20), (1, 30), (3, 40)):
        outbox.offer(outbox_entry(size, stream=stream))
    assert [taken.nbytes for taken in outbox.take_stream(1)] == [10, 30]
    assert [(left.stream, left.nbytes) for left in outbox.take_all()] == [(2, 20), (3, 40)]


def test_only_what_is_not_journaled_counts_as_beyond_a_bookmark() -> None:
    outbox = Outbox()
    outbox.offer(outbox_entry(10, journaled=False, count=3))
    outbox.offer(outbox_entry(10, sequence=7, count=5))
    assert outbox.get_first_sequence(1) == 7
    assert outbox.messages == 8


operations = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 500), st.integers(1, 4)),
        st.tuples(st.just("pull"), st.integers(0, 1_000), st.just(0)),
        st.tuples(st.just("take_all"), st.just(0), st.just(0)),
        st.tuples(st.just("drop"), st.just(0), st.integers(1, 4)),
    ),
    max_size=40,
)


@given(operations)
def test_figures_equal_a_plain_list(steps: list[tuple[str, int, int]]) -> None:
    outbox, model = Outbox(), list[OutboxEntry]()
    for step, (what, size, number) in enumerate(steps):
        if what == "offer":
            made = outbox_entry(size, at=1 + step, stream=number, count=number)
            outbox.offer(made)
            model.append(made)
        elif what == "drop":
            outbox.take_stream(number)
            model = [kept for kept in model if kept.stream != number]
        else:
            taken = outbox.pull(size) if what == "pull" else outbox.take_all()
            assert taken == model[: len(taken)]
            assert what == "pull" or len(taken) == len(model)
            model = model[len(taken) :]
        assert outbox.nbytes == sum(kept.nbytes for kept in model)
        assert outbox.messages == sum(kept.count for kept in model)
        assert outbox.oldest_at == (model[0].accepted_at if model else 0)
