"""Subscription queues: order, ack windows, cut batches, and discards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.subscription_queues import SubscriptionQueue
from broker_core.delivery.window import AckMode, AckWindow


def entry(first: int, count: int, at: int = 1) -> OutboxEntry:
    """Records `first` to first + count - 1."""
    batch = Batch.parse(
        build_single_topic_batch("p", "t", [b"%d" % number for number in range(first, first + count)])
    )
    batch.header = batch.header._replace(first_sequence=first)
    return OutboxEntry(1, batch, None, (1, 0), batch.nbytes, count, batch.nbytes, at)


def numbers(entries: list[OutboxEntry]) -> list[int]:
    return [int(body) for entry in entries for body in entry.batch.bodies()]


def test_the_window_bounds_deliveries_and_the_rest_follows_in_order() -> None:
    lane = SubscriptionQueue(1, AckWindow(AckMode.CLIENT, 4))
    lane.offer(entry(1, 3))
    lane.offer(entry(4, 5))
    assert numbers(lane.take_sendable(1 << 20, 10)) == [1, 2, 3, 4]
    assert lane.messages == 4 and lane.first_sequence == 5
    assert lane.take_sendable(1 << 20, 11) == []
    assert lane.window is not None
    lane.window.acknowledge(3, 3)
    assert numbers(lane.take_sendable(1 << 20, 12)) == [5, 6, 7]
    assert [e.batch.sequences().tolist() for e in lane.take_all()] == [[8]]
    assert (lane.messages, lane.nbytes) == (0, 0)


def test_slow_begins_when_the_window_is_full_with_something_waiting_and_ends_when_dispatch_resumes() -> None:
    lane = SubscriptionQueue(1, AckWindow(AckMode.CLIENT, 2))
    lane.offer(entry(1, 2))
    lane.take_sendable(1 << 20, 10)
    lane.update_window_full(11)
    assert (lane.full_since, lane.times_full) == (0, 0), "a full window with nothing to send isn't slow"
    lane.offer(entry(3, 2))
    lane.update_window_full(12)
    lane.update_window_full(13)
    assert (lane.full_since, lane.times_full) == (12, 1)
    assert lane.window is not None
    lane.window.acknowledge(2, 2)
    lane.take_sendable(1 << 20, 14)
    assert lane.full_since == 0
    lane.offer(entry(5, 1))
    lane.update_window_full(15)
    assert (lane.full_since, lane.times_full) == (15, 2)


def test_a_paused_lane_keeps_everything() -> None:
    lane = SubscriptionQueue(1)
    lane.offer(entry(1, 2))
    lane.paused = True
    assert lane.take_sendable(1 << 20, 1) == []
    lane.paused = False
    assert numbers(lane.take_sendable(1 << 20, 1)) == [1, 2]


def test_the_oldest_are_discarded_to_the_very_message() -> None:
    lane = SubscriptionQueue(1)
    for first in (1, 4, 7):
        lane.offer(entry(first, 3))
    assert numbers(lane.discard_oldest(lane.messages - 4, 0)) == [1, 2, 3, 4, 5]
    assert numbers(lane.take_all()) == [6, 7, 8, 9]


def test_by_bytes_whole_batches_are_discarded() -> None:
    lane = SubscriptionQueue(1)
    for first in (1, 4, 7):
        lane.offer(entry(first, 3))
    assert numbers(lane.discard_oldest(0, 1)) == [1, 2, 3]


def test_what_could_not_leave_after_all_is_sent_again_first() -> None:
    lane = SubscriptionQueue(1, AckWindow(AckMode.CLIENT, 4))
    lane.offer(entry(1, 6))
    taken = lane.take_sendable(1 << 20, 1)
    lane.requeue(taken)
    assert lane.window is not None and lane.window.unacked_messages == 0
    assert (lane.messages, lane.nbytes) == (6, sum(e.nbytes for e in lane.take_all()))


def test_a_batch_that_no_journal_keeps_can_be_cut() -> None:
    lane = SubscriptionQueue(1, AckWindow(AckMode.CLIENT, 1))
    whole = entry(1, 3)
    whole.batch.header = whole.batch.header._replace(first_sequence=0)
    whole.source = None
    lane.offer(whole)
    (first,) = lane.take_sendable(1 << 20, 1)
    assert first.batch.bodies() == [b"1"] and first.batch.first_sequence == 0
    assert lane.first_sequence == 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(1, 6)),
        st.tuples(st.just("take"), st.integers(1, 400)),
        st.tuples(st.just("ack"), st.integers(1, 6)),
        st.tuples(st.just("back"), st.just(0)),
        st.tuples(st.just("discard"), st.integers(0, 8)),
    ),
    max_size=40,
)


@given(st.integers(1, 7), steps)
def test_everything_offered_leaves_once_in_order_or_is_discarded(
    prefetch: int, plan: list[tuple[str, int]]
) -> None:
    lane, offered = SubscriptionQueue(1, AckWindow(AckMode.CLIENT, prefetch)), 0
    left, acked, waiting = list[int](), 0, list[int]()
    last: list[OutboxEntry] = []
    for what, number in plan:
        if what == "offer":
            lane.offer(entry(offered + 1, number))
            waiting += range(offered + 1, offered + number + 1)
            offered += number
        elif what == "take":
            last = lane.take_sendable(number, 1)
            left += numbers(last)
            assert numbers(last) == waiting[: len(numbers(last))]
            waiting = waiting[len(numbers(last)) :]
        elif what == "ack" and acked < len(left):
            acked = min(acked + number, len(left))
            assert lane.window is not None
            lane.window.acknowledge(acked, acked)
            last = []
        elif what == "back" and last:
            lane.requeue(last)
            count = len(numbers(last))
            waiting = left[-count:] + waiting
            del left[-count:]
            last = []
        elif what == "discard":
            gone = numbers(lane.discard_oldest(lane.messages - number, 0))
            assert gone == waiting[: len(gone)]
            waiting = waiting[len(gone) :]
            assert len(waiting) <= number
            last = []
        assert lane.messages == len(waiting)
        assert lane.first_sequence == (waiting[0] if waiting else 0)
        assert len(left) - acked <= prefetch
    assert numbers(lane.take_all()) == waiting and lane.nbytes == 0


def test_a_lane_that_never_had_credit_says_since_when_it_waits_for_some() -> None:
    lane = SubscriptionQueue(1)
    lane.credit = 0
    lane.offer(entry(1, 1))
    assert lane.take_sendable(1_000, 7) == [] and lane.take_sendable(1_000, 9) == []
    assert lane.is_credit_spent and lane.spent_since == 7
    lane.set_credit(1, 11)
    assert lane.spent_since == 0 and len(lane.take_sendable(1_000, 12)) == 1
    assert lane.spent_since == 12, "the delivery that passes the credit is the last one"
    lane.set_credit(0, 13)
    assert lane.credit == 1
