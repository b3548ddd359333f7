"""A connection as everybody but itself sees it, and who it is. `Connection` is one; nobody below it needs to know that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from broker_core.access import Rights
from broker_core.connections.decision_notices import DecisionNotices, Settled
from broker_core.delivery.account import DeliveryAccount
from broker_core.delivery.discards import UndeliveredSummary
from broker_core.delivery.sink import ConnectionSink
from broker_core.errors import ClientError
from broker_core.protocols import commands, replies
from broker_core.protocols.liveness import Liveness
from broker_core.replay.client_subscription import ClientSubscription, SubscriptionOwner


class ClientIdentity(NamedTuple):
    """Who a client is: what it says, or what it has `proven`."""

    user: str
    proven: bool
    rights: Rights

    @property
    def resume_key(self) -> str:
        """The user whose rights count; "" for somebody who proved nothing."""
        return self.user if self.proven else ""


class PublisherView(Protocol):
    """What a client publishes, as whoever takes it sees that: `publisher`."""

    session: int
    claimed: bool
    claimed_in_log: bool
    held_name: bool
    refused_upto: int

    @property
    def messages(self) -> int: ...
    @property
    def topics(self) -> Mapping[str, int]: ...
    @property
    def pending_batches(self) -> int: ...
    def assign_session(self, session: int) -> int: ...
    def make_refused_before(self, first: int, last: int) -> ClientError: ...
    def on_submitted(self) -> None: ...
    def on_committed(self, number: int) -> None: ...
    def may_read(self) -> None: ...
    def reply_when_committed(self, answers: Sequence[replies.Ack]) -> None: ...
    def on_forwarded(self, answers: Sequence[replies.Ack]) -> None: ...


class ConnectionView(SubscriptionOwner, Protocol):
    """One of the roster. Its name is "" and its rights say nothing until it has logged on."""

    transport: str
    user: str
    identity: ClientIdentity | None
    rights: Rights
    notices: DecisionNotices
    connected_at: int
    """ns UTC"""
    liveness: Liveness
    """Signs of life of the peer."""
    spoke_at: int
    """When the broker replied last, in monotonic ms."""
    heartbeat_ms: int
    """How often it wants to hear something; 0: it doesn't say."""
    logged_on_at: int
    """When it took its name, ns UTC: in a group later than that of every client of that name before it. 0
    for a broker by itself."""
    passing: bool
    """Whether its name was made up for it: nobody will come back with it."""
    promised_ms: int
    """How often it promised to say something itself; 0: never."""
    preparing: set[str]
    """Ids of the subscribes that haven't begun yet."""
    last_stream: int
    """The number of its newest subscription."""

    @property
    def sink(self) -> ConnectionSink: ...
    @property
    def logged_on(self) -> bool: ...
    @property
    def remote(self) -> str: ...
    @property
    def is_reading(self) -> bool: ...
    @property
    def account(self) -> DeliveryAccount: ...
    @property
    def subscriptions(self) -> dict[str, ClientSubscription]: ...
    @property
    def publishing(self) -> PublisherView: ...

    @property
    def knows_sequence(self) -> bool:
        """Whether its logon was answered with a `sequence`, so that it may number its messages."""

    def check_numbered(self) -> None:
        """Raise ClientError behind unless the client may number its messages."""

    def prepared(self) -> None:
        """Go on reading from the client when none of its subscribes is being prepared any more."""

    def on_identified(self, command: commands.Logon, identity: ClientIdentity) -> None: ...
    def add(self, target: ClientSubscription, command: commands.Subscribe) -> None: ...
    def resume_bookmark(self, ending: UndeliveredSummary) -> str | None: ...
    def resume_token(self) -> str: ...
    def save_resume_points(self) -> None: ...
    def record_event(self, event: str, state: str, target: ClientSubscription | None = None) -> None: ...
    def close(self, code: str, message: str, fix: str = "", retry_after_ms: int | None = None) -> None: ...
    def close_with_summary(
        self, code: str, message: str, fix: str = "", retry_after_ms: int | None = None
    ) -> UndeliveredSummary: ...
    def close_by_decision(
        self, identity: str, notice: replies.DecisionNotice, ending: UndeliveredSummary, settled: Settled
    ) -> None: ...
    def end_session(self, why: str) -> UndeliveredSummary: ...
    def close_for_room(self) -> None: ...
    def drop(self) -> None: ...
