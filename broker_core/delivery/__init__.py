"""What waits for a client, and where the client stands: the outbox, lanes, the life cycle, and what was given up.

Public names: `AckMode`, `Cause`, `ClientState`, `Event`, `IllegalTransition`, `Lane`, `Lanes`, `Ledger`, `Loss`, `Outbox`,
`OutboxEntry`, `Tally`, `Window`, `next_state`, `tally_of`.
"""

from __future__ import annotations

from broker_core.delivery.lane import Lane
from broker_core.delivery.lanes import Lanes
from broker_core.delivery.ledger import Cause, Ledger, Loss, Tally, tally_of
from broker_core.delivery.lifecycle import ClientState, Event, IllegalTransition, next_state
from broker_core.delivery.outbox import Outbox, OutboxEntry
from broker_core.delivery.window import AckMode, Window

__all__ = [
    "AckMode", "Cause", "ClientState", "Event", "IllegalTransition", "Lane", "Lanes", "Ledger", "Loss", "Outbox", "OutboxEntry",
    "Tally", "Window", "next_state", "tally_of",
]
