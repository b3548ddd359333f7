"""The client's life cycle: every cell of the table, and the two laws that policies lean on."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.delivery.lifecycle import (
    TRANSITIONS,
    ClientState,
    ClientStateEvent,
    IllegalTransition,
    next_state,
)

ILLEGAL = [pair for pair in product(ClientState, ClientStateEvent) if pair not in TRANSITIONS]


def test_a_slow_client_goes_to_disk_and_comes_back() -> None:
    state = ClientState.CONNECTED
    for event in (
        ClientStateEvent.LOGGED_ON,
        ClientStateEvent.OFFLINE,
        ClientStateEvent.READING,
        ClientStateEvent.DRAINED,
    ):
        state = next_state(state, event)
    assert state is ClientState.LIVE


def test_a_client_that_stops_while_draining_is_offlined_again() -> None:
    assert next_state(ClientState.DRAINING, ClientStateEvent.OFFLINE) is ClientState.OFFLINED


def test_an_offlined_client_is_never_live_without_draining() -> None:
    into_live = {state for (state, _), after in TRANSITIONS.items() if after is ClientState.LIVE}
    assert into_live == {ClientState.CONNECTED, ClientState.DRAINING}


@pytest.mark.parametrize("state", ClientState)
def test_every_state_can_close_and_closing_twice_is_harmless(state: ClientState) -> None:
    assert next_state(next_state(state, ClientStateEvent.CLOSE), ClientStateEvent.CLOSE) is ClientState.CLOSED


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_what_is_not_in_the_table_raises_and_says_both(state: ClientState, event: ClientStateEvent) -> None:
    with pytest.raises(IllegalTransition) as caught:
        next_state(state, event)
    assert (caught.value.state, caught.value.event) == (state, event)
    assert str(caught.value) == f"{event.value} can't happen to a client that is {state.value}"


@given(st.lists(st.sampled_from(ClientStateEvent), max_size=30))
def test_nothing_comes_after_closed(events: list[ClientStateEvent]) -> None:
    state, closed = ClientState.CONNECTED, False
    for event in events:
        if (state, event) in TRANSITIONS:
            state = next_state(state, event)
        closed = closed or event is ClientStateEvent.CLOSE
        assert (state is ClientState.CLOSED) == closed
