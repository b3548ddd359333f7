"""The local endpoint of a link: a client of this broker without a socket.

It has an account, rules and a page like any other client. Records are delivered only while the destination
can receive more: `is_writable` says so. The others wait in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from broker_core.connections.connection import Connection
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.sink import UNKNOWN
from broker_core.errors import ClientError, SluiceError
from broker_core.names import BROKER_NAME
from broker_core.protocols import commands, replies
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.replies import Reply

SUBSCRIPTION = "link"
"""Id of the endpoint's only subscription."""


class LocalEngine(Protocol):
    """The methods of the engine that the endpoint calls."""

    def add_connection(self, transport: str, sink: LocalEndpoint) -> Connection: ...


class _LocalCommand:
    """A command of the link, queued in the connection's inbox like a client's."""

    nbytes = 256

    def __init__(
        self, connection: Connection, command: commands.Command, on_executed: Callable[[], None] | None
    ) -> None:
        self._connection, self._command, self._on_executed = connection, command, on_executed

    def execute(self) -> None:
        self._connection.execute_command(self._command)
        if self._on_executed is not None:
            self._on_executed()


class LocalEndpoint:
    """The sink of a link's local client. Implements `delivery.sink.ConnectionSink`.

    `on_entries` receives delivered records. `following` is done when the subscription follows the log.
    `failure` is done, with the error, when the client can't continue.
    """

    protocol = "link"
    text_mode = False
    peer_names: frozenset[str] = frozenset()
    is_flushed = True
    window_step_bytes = 0
    is_network_limited = False
    receive_window = UNKNOWN

    def __init__(
        self,
        engine: LocalEngine,
        remote: str,
        on_entries: Callable[[Sequence[OutboxEntry]], None],
        on_acknowledged: Callable[[], None],
    ) -> None:
        self.remote = remote
        self.is_writable = True
        self.written_bytes = 0
        self.following: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failure: asyncio.Future[SluiceError] = asyncio.get_running_loop().create_future()
        self.gaps = 0
        """Number of intervals of the log that were removed before the link could forward them."""
        self._on_entries = on_entries
        self._on_acknowledged = on_acknowledged
        self._subscribe: commands.Subscribe | None = None
        self._connection: Connection | None = engine.add_connection(BROKER_NAME, self)

    def begin(self, name: str, subscribe: commands.Subscribe) -> None:
        """Log on and subscribe; `following` is done when the subscription follows the log."""
        self._subscribe = subscribe
        self._execute(commands.Logon(name=name))

    def position(self, durable: int) -> int | None:
        """Return the first record that isn't acknowledged.

        None while the subscription doesn't follow the log.

        `durable`: the durable frontier.
        """
        connection = self._connection
        target = connection.subscriptions.get(SUBSCRIPTION) if connection is not None else None
        return target.position(durable) if target is not None else None

    def acknowledge(self, upto: int) -> None:
        """Acknowledge the subscription's messages up to number `upto`, which the destination has stored."""
        self._execute(commands.Acknowledge(id=SUBSCRIPTION, upto=upto), self._on_acknowledged)

    def set_writable(self, is_writable: bool) -> None:
        """Set whether the destination can receive more; resume delivery if it can again."""
        if is_writable and not self.is_writable and self._connection is not None:
            self.is_writable = True
            self._connection.on_writable()
        else:
            self.is_writable = is_writable and self._connection is not None

    def close_local(self) -> None:
        """Close the client from this side."""
        connection, self._connection = self._connection, None
        self.is_writable = False
        if connection is not None:
            connection.on_closed()

    def _execute(self, command: commands.Command, on_executed: Callable[[], None] | None = None) -> None:
        if self._connection is not None:
            self._connection.receive([_LocalCommand(self._connection, command, on_executed)])

    # Methods of `ConnectionSink`, called by the engine.

    def acked_bytes(self) -> int:
        return self.written_bytes

    def read_progress(self) -> ReadProgress:
        return ReadProgress(0, 0, 0)

    def on_logged_on(self) -> None:
        """Do nothing: the endpoint has no limits that change with the logon."""

    def send_entries(self, entries: Sequence[OutboxEntry]) -> None:
        self.written_bytes += sum(entry.batch.nbytes for entry in entries)
        self._on_entries(entries)

    def send_reply(self, reply: Reply) -> bool:
        match reply:
            case replies.Ack(of="logon") if self._subscribe is not None:
                self._execute(self._subscribe)
            case replies.Ack(of="subscribe", ack="processed") if not self.following.done():
                self.following.set_result(None)
            case replies.ErrorReply():
                self._fail(ClientError.from_dict(reply.code, reply.message, reply.fix))
            case replies.ClosingNotice() | replies.SubscriptionCancelled():
                self._fail(ClientError.from_dict(reply.code, reply.message))
            case replies.CloseRequested():
                self._fail(ClientError.from_dict(reply.code, reply.message))
            case replies.GapNotice():
                self.gaps += 1
            case replies.DecisionNotice(decision=str(decision)):
                self._execute(commands.NoticeReceived(decision=decision))
        return True

    def _fail(self, error: SluiceError) -> None:
        if not self.failure.done():
            self.failure.set_result(error)

    def pause_reading(self) -> None:
        """Do nothing: the endpoint sends few commands."""

    def resume_reading(self) -> None:
        """Do nothing: see `pause_reading`."""

    def close(self, code: str, message: str) -> None:
        self._fail(ClientError.from_dict(code, message))
        asyncio.get_running_loop().call_soon(self.close_local)

    def close_soon(self) -> None:
        self.drop()

    def drop(self) -> None:
        self.close("internal_error", "The connection was dropped.")

    def drop_input(self) -> None:
        self._connection = None
