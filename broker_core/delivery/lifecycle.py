"""States of a client as one transition table.

    CONNECTED ──LOGGED_ON──▶ LIVE ──OFFLINE──▶ OFFLINED ──READING──▶ DRAINING ──DRAINED──▶ LIVE
                                                  ▲                      │
                                                  └───────OFFLINE────────┘
    every state ──CLOSE──▶ CLOSED

* LIVE: queued deliveries are in the outbox, in memory.
* OFFLINED: queued and new deliveries are in the spool; nothing is written to the socket.
* DRAINING: the client reads again and is served from the spool. New messages still go behind the spool,
  because otherwise their order would change. The client returns to LIVE only when the spool is empty. A
  client that reads a little and stops again must not move between memory and disk all the time.
* TRANSITIONS has every change of state. Callers raise the events and do whatever else belongs to them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ClientState(StrEnum):
    """Delivery state of a client."""

    CONNECTED = "connected"
    LIVE = "live"
    OFFLINED = "offlined"
    DRAINING = "draining"
    CLOSED = "closed"


class ClientStateEvent(StrEnum):
    """Event that changes the delivery state of a client."""

    LOGGED_ON = "logged_on"
    OFFLINE = "offline"
    """A decision moves the client's backlog to its spool, or the client stopped reading during its drain."""
    READING = "reading"
    """The client's socket accepts bytes again."""
    DRAINED = "drained"
    """The client's spool is empty."""
    CLOSE = "close"


class IllegalTransition(RuntimeError):
    """Event that can't happen in this state: a fault of the broker, never of a peer.

    The state is unchanged.
    """

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
    # A decision and the loss of the socket may fall into the same event-loop iteration; the second changes
    # nothing.
    (ClientState.CLOSED, ClientStateEvent.CLOSE): ClientState.CLOSED,
}
"""Next state by state and event. Any other pair is an error."""


def next_state(state: ClientState, event: ClientStateEvent) -> ClientState:
    """Return the state after the event.

    Raises:
        IllegalTransition: the table has no such row.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(state, event) from None
