"""A client's life cycle as one table.

    CONNECTED ──LOGGED_ON──▶ LIVE ──OFFLINE──▶ OFFLINED ──READING──▶ DRAINING ──DRAINED──▶ LIVE
                                                  ▲                      │
                                                  └───────OFFLINE────────┘
    every state ──CLOSE──▶ CLOSED

* LIVE: what waits is in the outbox, in memory.
* OFFLINED: what waits is in the spool, and so is everything new; nothing is written to the socket.
* DRAINING: the client reads again and is served from the spool. New messages still go behind the spool, or
  its order would change, and it doesn't return to LIVE before the spool is empty: a client that reads a
  little and stops again must not move between memory and disk at every turn.
* Everything that affects the state is in TRANSITIONS; who raises an event, and what else happens then, is not
  known here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ClientState(StrEnum):
    """Where a client stands."""

    CONNECTED = "connected"
    LIVE = "live"
    OFFLINED = "offlined"
    DRAINING = "draining"
    CLOSED = "closed"


class ClientStateEvent(StrEnum):
    """What may happen to a client."""

    LOGGED_ON = "logged_on"
    OFFLINE = "offline"
    """A decision moves its backlog to its spool, or it stopped reading while it drained."""
    READING = "reading"
    """Its socket takes bytes again."""
    DRAINED = "drained"
    """Its spool is empty."""
    CLOSE = "close"


class IllegalTransition(RuntimeError):
    """The event can't happen in this state: a mistake of ours, never of a peer. The state is unchanged."""

    def __init__(self, state: ClientState, event: ClientStateEvent) -> None:
        super().__init__(f"{event.value} can't happen to a client that is {state.value}")
        self.state = state
        self.event = event


TRANSITIONS: Final[dict[tuple[ClientState, ClientStateEvent], ClientState]] = {
    (ClientState.CONNECTED, ClientStateEvent.LOGGED_ON): ClientState.LIVE,
    (ClientState.LIVE, ClientStateEvent.OFFLINE): ClientState.OFFLINED,
    (ClientState.OFFLINED, ClientStateEvent.READING): ClientState.DRAINING,
    (ClientState.DRAINING, ClientStateEvent.OFFLINE): ClientState.OFFLINED,
    (ClientState.DRAINING, ClientStateEvent.DRAINED): ClientState.LIVE,
    (ClientState.CONNECTED, ClientStateEvent.CLOSE): ClientState.CLOSED,
    (ClientState.LIVE, ClientStateEvent.CLOSE): ClientState.CLOSED,
    (ClientState.OFFLINED, ClientStateEvent.CLOSE): ClientState.CLOSED,
    (ClientState.DRAINING, ClientStateEvent.CLOSE): ClientState.CLOSED,
    # A decision and the loss of the socket may fall into the same turn; the second changes nothing.
    (ClientState.CLOSED, ClientStateEvent.CLOSE): ClientState.CLOSED,
}


def next_state(state: ClientState, event: ClientStateEvent) -> ClientState:
    """The state after the event. Raises IllegalTransition when the table has no such row."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(state, event) from None
