"""A subscription of a connected client, as the runtime keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker_core.protocols import commands
from broker_core.slow_clients.signals import SubscriptionSignals
from broker_core.subscriptions.managed import ManagedReplay
from broker_core.subscriptions.pace import Rate
from broker_core.subscriptions.span import Span
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.trail import Trail

if TYPE_CHECKING:
    from broker_core.journal.held import Pin
    from broker_core.runtime.connection import Connection
    from broker_core.runtime.holding import Conflating
    from broker_core.runtime.replayer import Replay


@dataclass(slots=True, eq=False)
class ClientSubscription:
    """A subscription of a connected client: what it asked for, and where it stands."""

    connection: Connection
    subscription: Subscription
    topic: str
    filter_text: str | None
    bookmark: str | None
    journaled_only: bool
    timestamp: bool = False
    durability: commands.Durability = "persisted"
    replaying: bool = False
    next_sequence: int = 0
    begun: bool = True
    """Whether its beginning was met: a moment may be still to come."""
    held_from: int = 0
    """Sequence of the first record that is kept back and not delivered yet; 0 when there is none."""
    acknowledged: int = 0
    """Up to which sequence the client was told that it may resume (`persisted`)."""
    delivered_messages: int = 0
    """Matched and queued, whatever became of them."""
    lost_messages: int = 0
    durable: str = ""
    """Name of the durable subscription it is; "" for others."""
    signals: SubscriptionSignals | None = None
    snapshot_key: str | None = None
    """The key expression by which its state is made, and what waits for it conflated."""
    lease_ms: int = 0
    paused: bool = False
    """A paused subscription counts as replaying: it isn't live, and goes on from the log."""
    completed: bool = False
    """Whether the client was told that everything up to `caught_up_at`, the log's end when it asked, was delivered."""
    caught_up_at: int = 0
    span: Span | None = None
    """Of a bookmark subscription: what of the log was asked for."""
    rate: Rate | None = None
    replay: Replay | None = None
    """What serves it from the log now, perhaps with others."""
    pin: Pin | None = None
    """Keeps its place in the log while it is paused."""
    conflating: Conflating | None = None
    managed: ManagedReplay | None = None
    trail: Trail | None = None
    """Of a managed replay: what was sent last."""
    noted_messages: int = 0
    """How many of delivered_messages its managed replay has counted."""
    recorded_at: int = 0
    """The moment on the recorded timeline that its replay has come to, ns."""

    @property
    def position(self) -> int:
        """The sequence of the first record that isn't delivered: where it would go on."""
        return self.held_from or self.next_sequence

    def unpin(self) -> None:
        """Something else keeps its place now, or nothing need."""
        if self.pin is not None:
            self.pin.release()
            self.pin = None
