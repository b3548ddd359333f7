"""What waits for a client, and where the client stands: the outbox and the life cycle.

Public names: `ClientState`, `Event`, `IllegalTransition`, `next_state`, `Outbox`, `OutboxEntry`.
"""

from __future__ import annotations

from broker_core.delivery.lifecycle import ClientState, Event, IllegalTransition, next_state
from broker_core.delivery.outbox import Outbox, OutboxEntry

__all__ = ["ClientState", "Event", "IllegalTransition", "Outbox", "OutboxEntry", "next_state"]
