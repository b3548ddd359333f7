"""What a connection needs of the engine, and of the rooms below it."""

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
from broker_core.protocols import commands, replies
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.control import ReplayControl
from broker_core.replay.cursor import DurableFrontier
from broker_core.replay.durable_subscriptions import DurableSubscriptions
from broker_core.replay.managed_replays import ManagedReplays
from broker_core.replay.span import SpanResult
from broker_core.sync_replication.sync_replication import SyncReplication


class ReplicatedLogStatus(Protocol):
    """A log that other brokers append to as well: `group.member`."""

    @property
    def is_current(self) -> bool:
        """Whether the end of the log was read with confirmation since this broker last found the log."""

    @property
    def run_id(self) -> str:
        """This process, among all that append."""

    async def wait_caught_up(self) -> int | None:
        """Read the end of the log with confirmation: wait until all that any broker has acknowledged before is here.

        Returns the newest record then, or None when that can't be told within a few seconds.
        """

    def addresses(self, transport: str) -> list[str]:
        """Where clients of a transport find the other brokers."""

    def on_current(self, told: Callable[[], None]) -> None:
        """Call this each time this broker has caught up after it was cut off."""


class PublisherPosition(NamedTuple):
    """The numbers of its name that a client learns at logon; its own continue after `sequence`.

    `session` counted up to there; None: no session did, or one whose numbers don't bind this client.
    `stored` is the newest number of the client's own session. `sequence` None: nothing is known for sure.
    `forgotten`: other sessions are all that can be remembered of the name, so its own may have published."""

    sequence: int | None
    session: int | None
    stored: int
    forgotten: bool = False


UNKNOWN_POSITION: Final = PublisherPosition(None, None, 0)
"""Told by a member that is cut off: the others may know more of each of the three."""


class PublishPort(Protocol):
    """Takes what clients publish: `engine.dispatch`."""

    @property
    def is_congested(self) -> bool: ...
    def wait_for_room(self, connection: ConnectionView) -> None: ...
    def publish(self, connection: ConnectionView, batch: Batch, answers: Sequence[replies.Ack]) -> None: ...
    def check_queue(self, topic: str) -> None:
        """Refuse a message for a queue whose topic no journal keeps. ClientError not_journaled."""

    def publisher_sequence(self, name: str) -> int: ...
    def taken_number(self, name: str, session: int) -> int: ...
    def publisher_position(self, name: str, session: int, *, proven: bool) -> PublisherPosition: ...
    def is_publisher_sequence_known(self, name: str) -> bool: ...
    async def wait_publisher_sequence_known(self, name: str) -> bool: ...
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
    """Keeps what policy knows of clients: `engine.policy_loop`."""

    def on_joined(self, connection: ConnectionView) -> None: ...
    def on_left(self, connection: ConnectionView) -> None: ...
    def mark_changed(self, connection: ConnectionView) -> None: ...
    def on_live(self, connection: ConnectionView) -> None: ...
    def on_spool_failed(self, connection: ConnectionView, error: SluiceError) -> None: ...
    def on_subscribed(
        self, connection: ConnectionView, target: ClientSubscription, prefetch: int
    ) -> None: ...
    def on_unsubscribed(self, connection: ConnectionView, target: ClientSubscription) -> None: ...
    def on_acknowledged(self, connection: ConnectionView, target: ClientSubscription) -> None: ...
    def prefetch_of(self, connection: ConnectionView, topic: str) -> int | None: ...


Note = Callable[[int, str, str, str, str | None, str | None, str | None, DeliveryAccount | None], None]
"""Something happened to a client, a record of the broker's own: now (ns), client, event, state, and of a subscription its
topic and filter; its transport; of a disconnection what it was handed. `engine.system_records`."""


@dataclass(slots=True)
class ConnectionServices:
    """What connections of one instance use. The engine fills it, part by part."""

    facilities: InstanceResources
    frontier: DurableFrontier
    roster: ConnectionTable
    leases: SubscriptionLeases
    refused: NameBanList
    tokens: ResumeTokens
    places: ResumePoints
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
