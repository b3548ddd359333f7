"""Interfaces that a connection needs of the engine, and the services that connections share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from broker_core.batch import Batch
from broker_core.connections.connection_view import ConnectionView
from broker_core.connections.logons import LogonAuthenticator, NameBanList
from broker_core.connections.quotas import Quotas
from broker_core.connections.resume import ResumePoints, ResumeTokens
from broker_core.connections.roster import ConnectionTable
from broker_core.connections.subscription_leases import SubscriptionLeases
from broker_core.delivery.account import DeliveryAccount
from broker_core.delivery.ports import InstanceResources
from broker_core.errors import SluiceError
from broker_core.journal.commit_log import LogGeneration
from broker_core.protocols import commands, replies
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.control import ReplayControl
from broker_core.replay.cursor import DurableFrontier
from broker_core.replay.durable_subscriptions import DurableSubscriptions
from broker_core.replay.managed_replays import ManagedReplays
from broker_core.replay.span import SpanResult
from broker_core.sync_replication.sync_replication import SyncReplication


class ReplicatedLogStatus(Protocol):
    """State of a log that other brokers append to as well: `group.member`."""

    @property
    def is_current(self) -> bool:
        """Whether the end of the log was read with confirmation since this broker last found the log."""

    @property
    def run_id(self) -> str:
        """Identity of this process among all that append."""

    @property
    def log_generation(self) -> LogGeneration | None:
        """Generation of the log; None while this broker hasn't found the log."""

    async def wait_caught_up(self) -> int | None:
        """Read the end of the log with confirmation.

        Wait until this broker has every record that a broker acknowledged before.

        Returns the newest record's sequence, or None when that is unknown within a few seconds.
        """

    def addresses(self, transport: str) -> list[str]:
        """Return the addresses of the other brokers for clients of a transport."""

    def on_current(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time this broker has caught up after it was cut off."""


class PublisherPosition(NamedTuple):
    """Publisher sequences of a client's name, sent at its logon.

    Its own numbers continue after `sequence`.

    `session`: the session that counted up to there; None: none did, or one whose numbers don't bind this
    client. `stored`: the newest number of the client's own session. `sequence` None: nothing is known for
    sure. `forgotten`: the remembered sessions of the name are all others, so its own may have published
    before.
    """

    sequence: int | None
    session: int | None
    stored: int
    forgotten: bool = False


UNKNOWN_POSITION: Final = PublisherPosition(None, None, 0)
"""Position that a cut-off member sends: the other members may know more of each of the three."""


class PublishPort(Protocol):
    """Accepts clients' publishes: `engine.dispatch`."""

    @property
    def is_congested(self) -> bool: ...
    def wait_for_room(self, connection: ConnectionView) -> None: ...
    def publish(self, connection: ConnectionView, batch: Batch, answers: Sequence[replies.Ack]) -> None: ...
    def check_queue(self, topic: str) -> None:
        """Check that a queue's topic is journaled.

        Raises:
            ClientError: not_journaled.
        """

    def publisher_sequence(self, name: str) -> int: ...
    def accepted_number(self, name: str, session: int) -> int: ...
    def publisher_position(self, name: str, session: int, *, proven: bool) -> PublisherPosition: ...
    def is_publisher_sequence_known(self, name: str) -> bool: ...
    async def wait_publisher_sequence_known(self, name: str) -> bool: ...
    async def barrier(self) -> None: ...
    @property
    def following(self) -> ReplicatedLogStatus | None: ...


class SubscribePort(Protocol):
    """Begins and ends subscriptions: `engine.subscriptions`."""

    def subscribe(self, connection: ConnectionView, command: commands.Subscribe) -> None: ...
    def find(self, command: commands.Subscribe) -> SpanResult: ...
    def remove(self, target: ClientSubscription) -> None: ...
    def position(self, target: ClientSubscription) -> int: ...
    def is_durable(self, target: ClientSubscription) -> bool: ...


class PolicyPort(Protocol):
    """Policy's knowledge of clients: `engine.policy_loop`."""

    def on_logged_on(self, connection: ConnectionView) -> None: ...
    def on_disconnected(self, connection: ConnectionView) -> None: ...
    def mark_changed(self, connection: ConnectionView) -> None: ...
    def on_live(self, connection: ConnectionView) -> None: ...
    def on_spool_failed(self, connection: ConnectionView, error: SluiceError) -> None: ...
    def on_subscribed(
        self, connection: ConnectionView, target: ClientSubscription, prefetch: int
    ) -> None: ...
    def on_unsubscribed(self, connection: ConnectionView, target: ClientSubscription) -> None: ...
    def on_acknowledged(self, connection: ConnectionView, target: ClientSubscription) -> None: ...
    def prefetch_for(self, connection: ConnectionView, topic: str) -> int | None: ...


Note = Callable[[int, str, str, str, str | None, str | None, str | None, DeliveryAccount | None], None]
"""Function that records an event of a client as a system record: `engine.system_records`.

Arguments: time (ns), client, event, state, the topic and filter of a subscription, the transport, and for a
disconnection the delivery account.
"""


@dataclass(slots=True)
class ConnectionServices:
    """Services that the connections of one instance share. The engine fills it step by step."""

    facilities: InstanceResources
    frontier: DurableFrontier
    roster: ConnectionTable
    leases: SubscriptionLeases
    refused: NameBanList
    tokens: ResumeTokens
    resume_points: ResumePoints
    note: Note
    judging: PolicyPort
    publishing: PublishPort
    subscribing: SubscribePort
    control: ReplayControl
    confirmations: SyncReplication
    durables: DurableSubscriptions
    managed: ManagedReplays
    logons: LogonAuthenticator
    quotas: Quotas
