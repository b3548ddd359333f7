"""A connection as everybody but itself sees it, and who it is. `Connection` is one; nobody below it needs to know that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from broker_core.access import Rights
from broker_core.connections.notices import Notices, Settled
from broker_core.delivery.account import Account
from broker_core.delivery.backlog import Ending
from broker_core.delivery.sink import Sink
from broker_core.protocols import commands, replies
from broker_core.replay.client_subscription import ClientSubscription, Peer


class Identity(NamedTuple):
    """Who a client is: what it says, or what it has `proven`."""

    user: str
    proven: bool
    rights: Rights

    @property
    def known_as(self) -> str:
        """The user whose rights count; "" for somebody who proved nothing."""
        return self.user if self.proven else ""


class Publishes(Protocol):
    """What a client publishes, as whoever takes it sees that: `publisher`."""

    @property
    def messages(self) -> int:
        """How many it has published."""

    @property
    def uncommitted(self) -> int:
        """Batches that aren't durable yet."""

    def submitted(self) -> None:
        """One of its batches is on its way to the disk."""

    def committed(self, number: int) -> None:
        """That many of its batches are done."""

    def may_read(self) -> None:
        """There is room for what it publishes again."""

    def answer_when_committed(self, answers: Sequence[replies.Ack]) -> None:
        """To a repeat of what is on disk or on its way there."""

    def handed_on(self, answers: Sequence[replies.Ack]) -> None:
        """To what no journal keeps."""


class Member(Peer, Protocol):
    """One of the roster. Its name is "" and its rights say nothing until it has logged on."""

    transport: str
    sink: Sink
    user: str
    identity: Identity | None
    rights: Rights
    notices: Notices
    connected_at: int
    """ns UTC"""
    heard_at: int
    """ms of the clock that never jumps, as `spoke_at`."""
    spoke_at: int
    heartbeat_ms: int
    """How often it wants to hear something; 0: it doesn't say."""
    promised_ms: int
    """How often it promised to say something itself; 0: never."""
    last_stream: int
    """The number of its newest subscription."""

    @property
    def logged_on(self) -> bool: ...
    @property
    def account(self) -> Account:
        """What became of everything that was for it."""

    @property
    def subscriptions(self) -> dict[str, ClientSubscription]: ...
    @property
    def publishing(self) -> Publishes: ...

    def identified(self, command: commands.Logon, identity: Identity) -> None:
        """It is known who this is."""

    def add(self, target: ClientSubscription, command: commands.Subscribe) -> None:
        """Enter a subscription that can begin."""

    def resume_bookmark(self, ending: Ending) -> str | None:
        """After it a new subscription gets what the log keeps of what was owed; None when it keeps nothing."""

    def resume_token(self) -> str:
        """A token for a client that is about to be dropped; "" when nothing of its subscriptions is journaled."""

    def changed(self) -> None:
        """What waits for it has changed."""

    def close(self, code: str, message: str, fix: str = "", retry_after_ms: int | None = None) -> None:
        """End the connection with a last word."""

    def close_by_decision(self, identity: str, notice: replies.Notice, settled: Settled) -> None:
        """Tell a client that has left why, and close when it knows, or at the deadline."""

    def leave(self, why: str) -> Ending:
        """Everything of this client ends; what was owed to it. Twice is harmless."""
