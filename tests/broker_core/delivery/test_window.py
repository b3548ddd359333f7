"""The acknowledgement window against a plain set of message numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.delivery.account import NOTHING, MessageVolume
from broker_core.delivery.window import AckMode, AckWindow
from broker_core.errors import ClientError


def batch(first_sequence: int, count: int) -> Batch:
    made = Batch.parse(build_single_topic_batch("p", "t", [b"x"] * count), verify=False)
    made.header = made.header._replace(first_sequence=first_sequence)
    return made


def filled_window(mode: AckMode = AckMode.CLIENT, prefetch: int = 10) -> AckWindow:
    """Records 101 to 103 and 111 to 112, sent as messages 1 to 5."""
    window = AckWindow(mode, prefetch)
    window.record_sent(batch(101, 3), 1_000)
    window.record_sent(batch(111, 2), 2_000)
    return window


def test_what_is_sent_takes_room_until_it_is_acknowledged() -> None:
    window = filled_window()
    assert (window.unacked_messages, window.free_slots, window.oldest_at, window.first_unacked) == (
        5,
        5,
        1_000,
        101,
    )
    assert window.acknowledge(2, 2).messages == 2
    assert (window.unacked_messages, window.first_unacked, window.last_acked, window.oldest_at) == (
        3,
        103,
        102,
        1_000,
    )
    assert window.acknowledge(4, 4).messages == 2
    assert (window.unacked_messages, window.first_unacked, window.oldest_at) == (1, 112, 2_000)


def test_an_acknowledgement_that_comes_twice_counts_once() -> None:
    window = filled_window()
    window.acknowledge(1, 3)
    assert window.acknowledge(2, 2).messages == 0
    assert window.unacked_messages == 2


def test_single_acknowledgements_leave_what_is_before_them() -> None:
    window = filled_window(AckMode.INDIVIDUAL)
    assert window.acknowledge(2, 3).messages == 2
    assert (window.unacked_messages, window.first_unacked, window.last_acked) == (3, 101, 0)
    assert window.acknowledge(1, 1).messages == 1
    assert (window.unacked_messages, window.first_unacked, window.last_acked) == (2, 111, 103)


@pytest.mark.parametrize(("first", "last"), [(0, 1), (6, 6), (3, 2), (1, 6)])
def test_what_was_never_sent_cannot_be_acknowledged(first: int, last: int) -> None:
    window = filled_window()
    with pytest.raises(ClientError) as caught:
        window.acknowledge(first, last)
    assert caught.value.code == "bad_ack" and caught.value.details["sent"] == 5
    assert window.unacked_messages == 5


def test_a_bookmark_names_a_message_also_in_a_batch_with_explicit_sequences() -> None:
    window = AckWindow(AckMode.CLIENT, 10)
    window.record_sent(batch(101, 5).select(np.array([0, 3, 4])), 1)
    window.record_sent(batch(110, 2), 2)
    assert [window.number_of(sequence) for sequence in (101, 104, 105, 110)] == [1, 2, 3, 4]
    with pytest.raises(ClientError):
        window.number_of(102)
    window.acknowledge(2, 2)
    assert window.number_of(104) == 0


def test_a_bookmark_names_a_redelivered_record_behind_a_newer_acknowledged_one() -> None:
    window = AckWindow(AckMode.INDIVIDUAL, 10)
    window.record_sent(batch(110, 1), 1)
    window.acknowledge(1, 1)
    window.record_sent(batch(101, 1), 2)
    assert window.number_of(101) == 2


def test_what_did_not_leave_after_all_is_taken_back_with_its_numbers() -> None:
    window = filled_window()
    window.undo_sent([batch(111, 2)])
    assert (window.unacked_messages, window.free_slots) == (3, 7)
    window.record_sent(batch(111, 1), 3_000)
    assert window.number_of(111) == 4


def test_messages_that_no_journal_keeps_are_acknowledged_by_number() -> None:
    window = AckWindow(AckMode.CLIENT, 4)
    window.record_sent(batch(0, 3), 1)
    assert window.acknowledge(3, 3).messages == 3
    assert (window.unacked_messages, window.first_unacked, window.last_acked) == (0, 0, 0)


class WindowModel:
    """A model of a window, message by message; a message has as many bytes as its number."""

    def __init__(self, mode: AckMode) -> None:
        self.window, self.mode = AckWindow(mode, 1_000), mode
        self.batches: list[list[int]] = []
        self.sequences: dict[int, int] = {}
        """Sequences by message number; 0 for unjournaled messages."""
        self.open: set[int] = set()
        self.sent, self.next_sequence, self.owed_since = 0, 1, 0
        self.sent_at = dict[int, int]()

    @property
    def head(self) -> int:
        return min(self.open, default=self.sent + 1)

    def send(self, count: int, kind: str) -> None:
        bodies = [b"x" * number for number in range(self.sent + 1, self.sent + count + 1)]
        first = self.next_sequence if kind != "unjournaled" else 0
        if kind == "picked":  # every second of what the log has
            rows = np.arange(0, 2 * count, 2)
            made = parsed([body for body in bodies for _ in range(2)], first).select(rows)
            sequences = [first + 2 * at for at in range(count)]
        else:
            made, sequences = parsed(bodies, first), [first + at if first else 0 for at in range(count)]
        now = 10 * (self.sent + 1)
        if not self.open:
            self.owed_since = now
        self.window.record_sent(made, now)
        numbers = list(range(self.sent + 1, self.sent + count + 1))
        self.batches.append(numbers)
        self.sequences |= dict(zip(numbers, sequences, strict=True))
        self.sent_at |= dict.fromkeys(numbers, now)
        self.open |= set(numbers)
        self.sent += count
        self.next_sequence = max(self.next_sequence, sequences[-1] + 1)
        if kind == "returned" and len(self.open) >= count:
            self.window.undo_sent([made])
            self.sent -= count
            self.open -= set(self.batches.pop())

    def acknowledge(self, first: int, last: int) -> None:
        if not 1 <= first <= last <= self.sent:
            with pytest.raises(ClientError):
                self.window.acknowledge(first, last)
            return
        single = self.mode is AckMode.INDIVIDUAL
        gone = {number for number in self.open if number <= last and (not single or number >= first)}
        kept = {number for number in gone if self.sequences[number]}
        told = self.window.sequences(first, last)
        if not single or first > self.head:
            assert told == sorted(self.sequences[number] for number in kept)
        done = self.window.acknowledge(first, last)
        assert done == (
            MessageVolume(len(kept), sum(kept)),
            MessageVolume(len(gone - kept), sum(gone - kept)),
        )
        self.open -= gone

    def check(self) -> None:
        window, head = self.window, self.head
        there = [numbers for numbers in self.batches if numbers[-1] >= head]
        journaled = [numbers for numbers in there if self.sequences[numbers[0]]]
        assert (window.unacked_messages, window.free_slots) == (len(self.open), 1_000 - len(self.open))
        assert window.unacked_since == self.owed_since
        assert window.oldest_at == (self.sent_at[there[0][0]] if there else 0) == window.oldest_accepted_at
        first = self.sequences[max(head, journaled[0][0])] if journaled else 0
        assert window.first_unacked == first
        assert window.last_sent == (self.sequences[journaled[-1][-1]] if journaled else 0)
        passed = max((self.sequences[number] for number in range(1, head)), default=0)
        assert window.last_acked == passed
        known = {number: self.sequences[number] for numbers in there for number in numbers}
        for number in range(self.sent + 2):
            assert window.sequence_of(number) == known.get(number, 0)
        numbers_of = {sequence: number for number, sequence in known.items() if sequence > passed}
        for sequence in range(1, self.next_sequence + 2):
            if sequence in numbers_of or sequence <= passed:
                assert window.number_of(sequence) == numbers_of.get(sequence, 0)
            else:
                with pytest.raises(ClientError):
                    window.number_of(sequence)


def parsed(bodies: list[bytes], first_sequence: int) -> Batch:
    made = Batch.parse(build_single_topic_batch("p", "t", bodies), verify=False)
    made.header = made.header._replace(first_sequence=first_sequence)
    return made


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("send"),
            st.integers(1, 4),
            st.sampled_from(["journaled", "picked", "unjournaled", "returned"]),
        ),
        st.tuples(st.just("ack"), st.integers(0, 20), st.integers(0, 4)),
    ),
    max_size=20,
)


@given(st.sampled_from(AckMode), steps)
def test_a_window_equals_a_plain_table_of_messages(mode: AckMode, plan: list[tuple[str, int, Any]]) -> None:
    table = WindowModel(mode)
    for what, number, more in plan:
        if what == "send":
            table.send(number, more)
        else:
            table.acknowledge(number, number + more)
        table.check()


def test_messages_acknowledged_early_are_no_longer_counted_when_all_before_them_are() -> None:
    window = filled_window(AckMode.INDIVIDUAL)
    assert window.acknowledge(3, 4).messages == 2
    assert window.acknowledge(1, 4).messages == 2
    assert (window.unacked_messages, window.free_slots, window.first_unacked) == (1, 9, 112)


def test_ages_count_from_what_was_given_or_from_the_sending_and_there_is_none_of_nothing() -> None:
    window = AckWindow(AckMode.CLIENT, 10)
    assert (window.oldest_at, window.oldest_accepted_at) == (0, 0)
    window.record_sent(batch(101, 1), 2_000, accepted_at=500)
    window.record_sent(batch(102, 1), 3_000)
    assert (window.oldest_at, window.oldest_accepted_at) == (2_000, 500)
    window.acknowledge(1, 1)
    assert (window.oldest_at, window.oldest_accepted_at) == (3_000, 3_000)
    window.acknowledge(2, 2)
    assert (window.oldest_at, window.oldest_accepted_at) == (0, 0)


def test_the_bytes_of_an_acknowledgement_are_those_of_its_messages() -> None:
    window = AckWindow(AckMode.INDIVIDUAL, 10)
    for first, sequence in ((0, 101), (3, 0)):
        bodies = [b"x" * (1 << number) for number in range(first, first + 3)]
        made = Batch.parse(build_single_topic_batch("p", "t", bodies), verify=False)
        made.header = made.header._replace(first_sequence=sequence)
        window.record_sent(made, 1)
    assert window.acknowledge(2, 2) == (MessageVolume(1, 2), NOTHING)
    assert window.acknowledge(5, 5) == (NOTHING, MessageVolume(1, 16))
    assert window.acknowledge(1, 6) == (MessageVolume(2, 1 + 4), MessageVolume(2, 8 + 32))


def test_the_records_of_an_acknowledgement_are_all_that_it_would_acknowledge() -> None:
    window = filled_window(AckMode.INDIVIDUAL)
    window.acknowledge(4, 4)
    assert window.sequences(2, 5) == [102, 103, 112]
    assert window.sequences(1, 4) == [101, 102, 103]
    assert window.sequences(3, 3) == [103]
    assert filled_window().sequences(4, 4) == [101, 102, 103, 111]
