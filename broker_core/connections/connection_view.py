"""Interface of a connection for the other modules, and the identity of its client.

`Connection` implements it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from broker_core.access import Rights
from broker_core.connections.decision_notices import DecisionNotices, ResultCallback
from broker_core.delivery.account import DeliveryAccount
from broker_core.delivery.discards import UndeliveredSummary
from broker_core.delivery.sink import ConnectionSink
from broker_core.errors import ClientError
from broker_core.protocols import commands, replies
from broker_core.protocols.liveness import Liveness
from broker_core.replay.client_subscription import ClientSubscription, SubscriptionOwner


class ClientIdentity(NamedTuple):
    """Identity of a client: its user name, and whether that was `proven`, which means authenticated."""

    user: str
    proven: bool
    rights: Rights

    @property
    def resume_key(self) -> str:
        """User whose rights count; "" for an unauthenticated client."""
        return self.user if self.proven else ""


class PublisherView(Protocol):
    """Publishing side of a client, as the dispatcher sees it: `publisher`."""

    session: int
    claimed: bool
    claimed_in_log: bool
    has_stored_numbers: bool
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
    """Connection in the connection table.

    Its name is "" and its rights are meaningless until it has logged on.
    """

    transport: str
    user: str
    identity: ClientIdentity | None
    rights: Rights
    notices: DecisionNotices
    connected_at: int
    """Time of the connection, ns UTC."""
    liveness: Liveness
    """Signs of life of the peer."""
    last_sent_at: int
    """Time of the broker's last reply, monotonic ms."""
    broker_heartbeat_ms: int
    """Interval in which the broker has agreed to send something, ms; 0: none."""
    client_heartbeat_ms: int
    """Interval in which the client has agreed to send something, ms; 0: none.

    A native client requests one interval for both; a STOMP client may request two.
    """
    logged_on_at: int
    """Logon time, ns UTC; in a group later than that of every earlier client of the name.

    0 without a group.
    """
    has_generated_name: bool
    """Whether the broker made up its name, so that no client comes back with it."""
    preparing_ids: set[str]
    """Ids of subscribes in preparation."""
    last_stream: int
    """Number of its newest subscription."""
    has_ended_input: bool
    """Whether the peer has closed its sending side, and the answers to its commands are awaited."""

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
        """Whether the logon was answered with a `sequence`, so that the client may number its messages."""

    def close_when_answered(self) -> None:
        """Close a peer that sends nothing more, if all of its commands are answered."""

    def check_numbered(self) -> None:
        """Check that the client may number its messages.

        Raises:
            ClientError: behind.
        """

    def on_prepared(self) -> None:
        """Read from the client again if none of its subscribes is being prepared any more."""

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
        self,
        identity: str,
        notice: replies.DecisionNotice,
        ending: UndeliveredSummary,
        report_result: ResultCallback,
    ) -> None: ...
    def end_session(self, reason: str) -> UndeliveredSummary: ...
    def evict(self) -> None: ...
    def drop(self) -> None: ...
