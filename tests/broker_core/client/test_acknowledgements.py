"""Delivery credit of the client: bounded, never exceeded and never lost, whatever the order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.client.acknowledgements import CreditWindow
from broker_core.protocols import commands

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 300)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("connect"), st.just(0)),
        st.tuples(st.just("answer"), st.just(0)),
    ),
    max_size=80,
)


class CreditModel:
    """A model of the broker's side, as docs/protocol.md defines it.

    It sends while the bytes sent are fewer than the credit given.
    """

    def __init__(self) -> None:
        self.sent = self.upto = 0

    def give(self, command: commands.GrantCredit) -> None:
        assert command.upto > self.upto
        self.upto = command.upto


@given(most=st.integers(1, 1_000), steps=STEPS)
def test_what_waits_is_bounded_and_who_reads_gets_more(most: int, steps: list[tuple[str, int]]) -> None:
    broker = CreditModel()
    credit = CreditWindow("s", most, broker.give)
    waits: list[int] = []
    broker.sent, broker.upto, answered = 0, credit.initial_credit(), False
    for step, nbytes in steps:
        if step == "send" and answered and broker.sent < broker.upto:
            assert credit.on_delivery(nbytes)
            broker.sent += nbytes
            waits.append(nbytes)
        elif step == "take" and waits:
            credit.on_consumed(waits.pop(0))
        elif step == "connect":
            broker.sent, broker.upto, answered = 0, credit.initial_credit(), False
        elif step == "answer" and not answered:
            credit.on_subscribed()
            answered = True
        assert credit.unread_bytes == sum(waits)
        assert credit.unread_bytes < most + 300
    if not answered:
        credit.on_subscribed()
    for nbytes in waits:
        credit.on_consumed(nbytes)
    assert broker.sent < broker.upto, "who has read everything is sent more"


def test_deliveries_beyond_the_credit_are_reported() -> None:
    credit = CreditWindow("s", 10, pytest.fail)
    assert credit.initial_credit() == 10
    credit.on_subscribed()
    assert credit.on_delivery(9) and credit.on_delivery(9)
    assert not credit.on_delivery(1)


def test_room_is_given_in_steps_but_for_who_waits_for_it() -> None:
    given_: list[int] = []
    credit = CreditWindow("s", 1_000_000, lambda command: given_.append(command.upto))
    credit.initial_credit()
    credit.on_subscribed()
    credit.on_delivery(900_000)
    credit.on_consumed(200_000)
    assert given_ == []
    credit.on_consumed(50_000)
    assert given_ == [1_250_000]
    credit.on_delivery(400_000)
    credit.on_consumed(40_000)
    assert given_ == [1_250_000, 1_290_000]


def test_nothing_is_said_of_a_subscription_that_is_over() -> None:
    credit = CreditWindow("s", 100, pytest.fail)
    credit.initial_credit()
    credit.on_subscribed()
    credit.on_delivery(100)
    credit.on_unsubscribed()
    credit.on_consumed(100)
    assert credit.unread_bytes == 0
