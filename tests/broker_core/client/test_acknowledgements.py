"""Room for deliveries: bounded, never passed, and never forgotten, however deliveries, reads and connections come."""

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


class Broker:
    """The other side, as docs/protocol.md has it: sends while what it has sent is less than what it was given."""

    def __init__(self) -> None:
        self.sent = self.upto = 0

    def give(self, command: commands.GrantCredit) -> None:
        assert command.upto > self.upto
        self.upto = command.upto


@given(most=st.integers(1, 1_000), steps=STEPS)
def test_what_waits_is_bounded_and_who_reads_gets_more(most: int, steps: list[tuple[str, int]]) -> None:
    broker = Broker()
    credit = CreditWindow("s", most, broker.give)
    waits: list[int] = []
    broker.sent, broker.upto, answered = 0, credit.ask(), False
    for step, nbytes in steps:
        if step == "send" and answered and broker.sent < broker.upto:
            assert credit.received(nbytes)
            broker.sent += nbytes
            waits.append(nbytes)
        elif step == "take" and waits:
            credit.taken(waits.pop(0))
        elif step == "connect":
            broker.sent, broker.upto, answered = 0, credit.ask(), False
        elif step == "answer" and not answered:
            credit.begun()
            answered = True
        assert credit.held == sum(waits)
        assert credit.held < most + 300
    if not answered:
        credit.begun()
    for nbytes in waits:
        credit.taken(nbytes)
    assert broker.sent < broker.upto, "who has read everything is sent more"


def test_more_than_there_was_room_for_is_told() -> None:
    credit = CreditWindow("s", 10, pytest.fail)
    assert credit.ask() == 10
    credit.begun()
    assert credit.received(9) and credit.received(9)
    assert not credit.received(1)


def test_room_is_given_in_steps_but_for_who_waits_for_it() -> None:
    given_: list[int] = []
    credit = CreditWindow("s", 1_000_000, lambda command: given_.append(command.upto))
    credit.ask()
    credit.begun()
    credit.received(900_000)
    credit.taken(200_000)
    assert given_ == []
    credit.taken(50_000)
    assert given_ == [1_250_000]
    credit.received(400_000)
    credit.taken(40_000)
    assert given_ == [1_250_000, 1_290_000]


def test_nothing_is_said_of_a_subscription_that_is_over() -> None:
    credit = CreditWindow("s", 100, pytest.fail)
    credit.ask()
    credit.begun()
    credit.received(100)
    credit.end()
    credit.taken(100)
    assert credit.held == 0
