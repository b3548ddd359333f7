"""What a connection needs of the engine, and of the rooms below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from broker_core.batch import Batch
from broker_core.connections.leases import Leases
from broker_core.connections.logons import Logons
from broker_core.connections.member import Member
from broker_core.connections.refused_names import RefusedNames
from broker_core.connections.resume_tokens import Tokens
from broker_core.connections.roster import Roster
from broker_core.delivery.ports import Facilities
from broker_core.errors import SluiceError
from broker_core.protocols import commands, replies
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.durables import Durables
from broker_core.replay.frontier import Frontier
from broker_core.replay.managed_replays import ManagedReplays
from broker_core.replay.replay_control import ReplayControl
from broker_core.replay.span import Span


class Publishing(Protocol):
    """Takes what clients publish: `engine.dispatch`."""

    @property
    def congested(self) -> bool:
        """Whether more waits for the disk than should."""

    def wait_for_room(self, connection: Member) -> None:
        """Let a publisher be read again when the disk has caught up."""

    def publish(self, connection: Member, batch: Batch, answers: Sequence[replies.Ack]) -> None:
        """Take a batch. ClientError bad_batch or bad_topic, and nothing of it is stored."""

    def publisher_sequence(self, name: str) -> int:
        """The last of a publisher's own numbers that was taken."""


class Subscribing(Protocol):
    """Begins and ends subscriptions: `engine.subscribing`."""

    def subscribe(self, connection: Member, command: commands.Subscribe) -> None:
        """Begin one, at once or when it is prepared. ClientErrors say why not."""

    def span_of(self, command: commands.Subscribe) -> Span:
        """What of the log a subscribe's bookmark names; ClientErrors of bookmarks."""

    def remove(self, target: ClientSubscription) -> None:
        """End its delivery, live or from the log; nothing is kept for it in the log any more."""

    def position(self, target: ClientSubscription) -> int:
        """Sequence of the first record it needs again."""

    def is_kept(self, target: ClientSubscription) -> bool:
        """Whether the log keeps records of it, as far as can be said."""


class Judging(Protocol):
    """Keeps what policy knows of clients: `engine.settle`."""

    def changed(self, connection: Member) -> None:
        """What waits for a client has changed: look at the end of the turn."""

    def joined(self, connection: Member) -> None:
        """A client has logged on."""

    def left(self, connection: Member) -> None:
        """A client is gone."""

    def went_live(self, connection: Member) -> None:
        """A client has drained its spool."""

    def spool_failed(self, connection: Member, error: SluiceError) -> None:
        """What waits for a client can't be written to its spool."""

    def begun(self, connection: Member, target: ClientSubscription, prefetch: int) -> None:
        """A subscription begins; before anything is offered to it."""

    def over(self, connection: Member, target: ClientSubscription) -> None:
        """A subscription has ended."""

    def acknowledged(self, connection: Member, target: ClientSubscription) -> None:
        """A subscription's client has acknowledged messages."""

    def prefetch_of(self, connection: Member, topic: str) -> int | None:
        """The prefetch that policy sets for a subscription; None: what it asks for."""


class Events(Protocol):
    """The broker's own records: `engine.events`."""

    def add(
        self,
        now_ns: int,
        client: str,
        event: str,
        state: str,
        topic: str | None = None,
        filter: str | None = None,
    ) -> None:
        """Something happened to a client."""


@dataclass(slots=True)
class Services:
    """What connections of one instance use. The engine fills it, part by part."""

    facilities: Facilities
    frontier: Frontier
    roster: Roster
    leases: Leases
    refused: RefusedNames
    tokens: Tokens
    events: Events
    judging: Judging
    publishing: Publishing
    subscribing: Subscribing
    control: ReplayControl
    durables: Durables
    managed: ManagedReplays
    logons: Logons
