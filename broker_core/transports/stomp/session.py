"""STOMP session of one client: translates its frames to commands, and replies to frames.

It decides nothing about deliveries, journals or slow clients. For a `Connection` a session is like the native
frames. The connection's inbox executes frames in order, so earlier frames have been executed before.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Final

from broker_core.config.transports import MAX_BODY
from broker_core.connections.admission import InputBufferUsage
from broker_core.connections.inbox import InputPauseReason
from broker_core.delivery.entries import OutboxEntry
from broker_core.errors import ClientError
from broker_core.protocols import commands, replies
from broker_core.protocols.stomp.frames import (
    FRAME_BYTES,
    VERSIONS,
    FrameLimits,
    StompFrame,
    StompFrameReader,
    StompVersion,
    best_version,
)
from broker_core.protocols.stomp.headers import parse_heartbeat, required_header, to_durable_name
from broker_core.protocols.stomp.message_frames import MessageFrames, MessageTailCache
from broker_core.protocols.stomp.replies import HEARTBEAT, connected_frame
from broker_core.protocols.stomp.send_headers import SendBatch
from broker_core.transports.stomp.publishing import StompPublisher
from broker_core.transports.stomp.replies import RECEIPT, ErrorCloser, SessionTransport, StompReplyWriter
from broker_core.transports.stomp.subscriptions import StompSubscriptions, resume_key

if TYPE_CHECKING:
    from broker_core.connections.connection import Connection
    from broker_core.connections.inbox import Item
    from broker_core.engine.engine import Engine

MAX_SENDS: Final = 512
"""Maximum number of SENDs of one read that become one batch."""
MAX_SENT_BYTES: Final = 1024 * 1024
"""Bytes of bodies at which a batch of SENDs is closed."""
_PROCESS: Final = secrets.token_hex(3)
"""Random part of generated client names, so that no name is reused after a restart."""
_names = count(1)
_ORDERED: Final = frozenset(("SUBSCRIBE", "UNSUBSCRIBE"))
"""Frames that wait until the client's earlier messages are delivered. They would change who gets these."""


@dataclass(slots=True)
class _SendAction:
    """SENDs that came together, none of them in a transaction."""

    session: StompSession
    sends: SendBatch

    @property
    def nbytes(self) -> int:
        return FRAME_BYTES * len(self.sends) + self.sends.body_bytes

    def execute(self) -> None:
        self.session.execute_in_order(partial(self.session.send, self.sends))


@dataclass(slots=True)
class _FrameAction:
    """Any frame except such a SEND."""

    session: StompSession
    frame: StompFrame

    @property
    def nbytes(self) -> int:
        return self.frame.nbytes

    def execute(self) -> None:
        self.session.execute_in_order(partial(self.session.execute_frame, self.frame))


@dataclass(slots=True)
class _MalformedFrameAction:
    """End of the readable input, and the receipt that the unreadable frame requested; "" for none."""

    session: StompSession
    error: ClientError
    receipt: str
    nbytes = 0

    def execute(self) -> None:
        self.session.execute_in_order(partial(self.session.fail, self.error, self.receipt))


@dataclass(slots=True)
class _RefusalAction:
    """Refusal of a frame, when the client's earlier messages are on disk and answered."""

    session: StompSession
    error: ClientError
    receipt: str
    nbytes = 0

    def execute(self) -> None:
        self.session.fail(self.error, self.receipt)


@dataclass(slots=True)
class _EndAction:
    """End of the input.

    It comes behind the frames that were read before, because a COMMIT may be among them.
    """

    session: StompSession
    nbytes = 0

    def execute(self) -> None:
        self.session.on_input_end()


class StompSession:
    """Protocol state of one STOMP client, between its transport `out` and its `connection`."""

    __slots__ = (
        "_beats",
        "_closer",
        "_engine",
        "_has_failed",
        "_is_disconnecting",
        "_lost",
        "_named",
        "_reply_writer",
        "_sending",
        "_subscribed",
        "_transport",
        "_unfinished",
    )

    def __init__(
        self, engine: Engine, transport: str, tails: MessageTailCache, out: SessionTransport
    ) -> None:
        self._engine = engine
        self._transport = transport
        self._reply_writer = StompReplyWriter(out)
        self._subscribed = StompSubscriptions(engine, self._reply_writer, tails, _begins_subscription)
        self._sending = StompPublisher(self._reply_writer, self._subscribed)
        self._closer = ErrorCloser(self._reply_writer)
        self._unfinished = InputBufferUsage(engine.pending_connections, self._give_up)
        self._beats = (0, 0)
        self._named = False
        """Whether the client gave its own name."""
        self._is_disconnecting = self._has_failed = self._lost = False

    @property
    def connection(self) -> Connection:
        return self._reply_writer.connection

    @property
    def reader(self) -> StompFrameReader:
        return self._reply_writer.reader

    @property
    def last_decision_id(self) -> str:
        """Id of the last decision that was sent to the client before its connection closes."""
        return self._closer.last_decision_id

    def begin(self) -> None:
        """Create the engine's connection."""
        self._reply_writer.connection = self._engine.add_connection(self._transport, self._reply_writer.out)

    def flush_replies(self) -> None:
        """Send the receipts of this iteration."""
        self._reply_writer.flush()

    def on_connection_lost(self) -> None:
        """Handle the loss of the connection.

        All input is released, even if other objects still refer to this session.
        """
        self._lost = True
        self._unfinished.set_bytes(0)
        if self.connection.logged_on and not self.connection.is_closed:
            self.connection.receive([_EndAction(self)])
        else:
            self.on_input_end()

    def on_input_end(self) -> None:
        """Discard unfinished input, because all complete frames have been executed."""
        self.reader.release()
        self._sending.transactions.drop()

    # Input.

    def on_bytes(self, data: bytes | memoryview) -> None:
        """Process received bytes."""
        connection, reader = self.connection, self.reader
        if self._is_disconnecting or connection.is_closed:
            return
        reader.put(data)
        items = self._items()
        if connection.logged_on:
            connection.receive(items)
        elif (first := next(items, None)) is not None:  # only a complete frame extends the logon deadline
            connection.receive(chain((first,), items))
        self._count_unfinished()
        if reader.error is not None and not self._has_failed:
            connection.receive(self._items())

    def _items(self) -> Iterator[Item]:
        """Yield the received frames.

        They are parsed as they are executed: a read may have thousands, and parsing uses the client's time
        budget.
        """
        yield from self._actions()
        if not self._lost:
            self._count_unfinished()
        if self.reader.error is not None and not self._has_failed:
            self._has_failed = True
            receipt = self.reader.receipt if self.connection.logged_on else ""
            yield _MalformedFrameAction(self, self.reader.error, receipt)

    def _count_unfinished(self) -> None:
        """Count the bytes of unfinished input.

        Beyond the limit the connection ends immediately, even during the logon check.

        The earlier frames of the client would wait in the same memory.
        """
        try:
            self._unfinished.set_bytes(self.reader.buffered_bytes + self._sending.transactions.nbytes)
        except ClientError as error:
            self._give_up(error)

    def _give_up(self, error: ClientError) -> None:
        """Discard unfinished frames and transactions, and end the connection with an error."""
        self._has_failed = True
        self.reader.release(error.with_traceback(None))
        self._sending.transactions.drop()
        self._unfinished.set_bytes(0)
        self.connection.fail(error)

    def _actions(self) -> Iterator[_SendAction | _FrameAction]:
        """Yield frames as actions. SENDs that came together become one batch, as a native publisher's do."""
        reader = self.reader
        frame = reader.read_frames()
        while frame is not None:
            if frame.publishes:
                sends, frame = reader.read_sends(frame, MAX_SENDS, MAX_SENT_BYTES)
                yield _SendAction(self, sends)
                frame = frame or reader.read_frames()
            else:
                yield _FrameAction(self, frame)
                frame = reader.read_frames()

    def send(self, sends: SendBatch) -> None:
        """Publish SENDs that came together.

        Raises:
            ClientError: as for `StompPublisher.send`.
        """
        if self._is_disconnecting:
            return
        if not self.connection.logged_on:
            raise _not_logged_on()
        self._sending.send(sends)

    def execute_frame(self, frame: StompFrame) -> None:
        """Execute a frame.

        Raises:
            ClientError: the reason for a refusal. The connection ends with it.
        """
        if self._is_disconnecting:
            return
        publishing, reply_writer = self.connection.publishing, self._reply_writer
        if frame.command in _ORDERED and publishing.pending_batches:
            self.connection.inbox.pause(InputPauseReason.ORDER)
            publishing.call_when_durable(partial(self._execute_in_order, frame))
            return
        reply_writer.receipt = frame.receipt
        if not self._carry_out(frame) and reply_writer.receipt:
            self.connection.reply(reply_writer.on_processed)
        reply_writer.receipt = ""

    def _execute_in_order(self, frame: StompFrame) -> None:
        """Execute a frame that had to wait for the client's earlier messages, and resume its input."""
        self.connection.execute_item(_FrameAction(self, frame))
        self.connection.inbox.resume(InputPauseReason.ORDER)

    def execute_in_order(self, execute: Callable[[], None]) -> None:
        """Execute a frame. If it is refused, the client's earlier messages are answered before the ERROR.

        Raises:
            ClientError: the reason for a refusal, if no message is on its way to the disk.
        """
        publishing, reply_writer = self.connection.publishing, self._reply_writer
        try:
            execute()
        except ClientError as error:
            if not publishing.pending_batches:
                raise
            self._is_disconnecting = True  # later frames have no effect
            self.connection.inbox.pause(InputPauseReason.ORDER)
            refusal = _RefusalAction(self, error.with_traceback(None), reply_writer.receipt)
            publishing.call_when_durable(partial(self.connection.execute_item, refusal))

    def fail(self, error: ClientError, receipt: str) -> None:
        """Refuse a frame that requested this receipt.

        Raises:
            ClientError: the error.
        """
        self._reply_writer.receipt = receipt
        raise error

    def _carry_out(self, frame: StompFrame) -> bool:
        """Execute a frame. Return whether another part sends its receipt later."""
        headers, transactions = frame.headers, self._sending.transactions
        match frame.command:
            case "CONNECT" | "STOMP":
                self._connect(frame)
            case _ if not self.connection.logged_on:
                raise _not_logged_on()
            case "SUBSCRIBE":
                try:
                    self._subscribed.subscribe(headers)
                except ClientError as error:
                    error.details.setdefault("c", "subscribe")
                    raise
            case "UNSUBSCRIBE":
                self._subscribed.unsubscribe(headers)
            case "COMMIT":
                self._sending.commit(required_header(headers, "transaction"))
            case "DISCONNECT":
                self._is_disconnecting = True
                self.connection.publishing.flush(self._reply_writer.receipt)
            case "BEGIN":
                transactions.begin(required_header(headers, "transaction"))
                return False
            case "ABORT":
                transactions.end(required_header(headers, "transaction"))
                return False
            case _ if "transaction" in headers:
                self._sending.add_to_transaction(frame)
                return frame.command == "SEND"  # the receipt is sent with that of COMMIT
            case _:
                self._subscribed.acknowledge(frame)
                return False
        return True

    # Logon.

    def _connect(self, frame: StompFrame) -> None:
        """Log on with a CONNECT frame."""
        headers, version = frame.headers, best_version(frame)
        connection = self.connection
        if connection.logged_on:
            raise ClientError(
                "bad_logon", f"This connection is logged on as {connection.name}.", "Log on once."
            )
        if version is None:
            raise ClientError(
                "bad_logon",
                f"None of the versions {headers.get('accept-version', '')[:80]} is spoken here.",
                f"Accept one of {VERSIONS}.",
                version=VERSIONS,
            )
        self._beats = (
            parse_heartbeat(headers.get("heart-beat", "0,0")) if version is not StompVersion.V10 else (0, 0)
        )
        client_id = headers.get("client-id", "")
        secret = headers.get("passcode", "")
        self._named = bool(client_id)
        connection.has_generated_name = not client_id
        connection.execute_command(
            commands.Logon(
                name=to_durable_name(client_id)
                if client_id
                else f"stomp-{self._transport[:32]}-{_PROCESS}-{next(_names)}",
                user=headers.get("login") or None,
                password=secret or None,
                token=secret or None,
            )
        )
        self._reply_writer.receipt = ""

    def on_logged_on(self) -> None:
        """Apply the limits of an authenticated client."""
        self._unfinished.on_logged_on(self.connection.input_share)
        body_limits = (one.max_body for one in self._engine.policy.transports if one.name == self._transport)
        self.reader.limits = FrameLimits(body=next(body_limits, None) or MAX_BODY)

    def _connected(self) -> None:
        """Send CONNECTED, and set the agreed heart-beats."""
        connection, reply_writer = self.connection, self._reply_writer
        connection.resume_key = resume_key(connection, self._named)
        broker_ms, client_ms = self._beats
        connection.broker_heartbeat_ms, connection.client_heartbeat_ms = broker_ms, client_ms
        reply_writer.send_frame(
            connected_frame(
                reply_writer.version, connection.name, self._engine.instance, broker_ms, client_ms
            )
        )

    # Output.

    def frames_of(self, entry: OutboxEntry) -> MessageFrames | None:
        """Return the frames of a delivery; None when its subscription has ended meanwhile."""
        self._reply_writer.flush()
        return self._subscribed.frames_of(entry)

    def answer(self, reply: replies.Reply) -> bool:
        """Send a reply as STOMP frames. Return whether there are some.

        Replies without a STOMP frame are dropped, because no client waits for them.
        """
        match reply:
            case replies.BrokerHeartbeat():
                self._reply_writer.send_frame(HEARTBEAT)
            case replies.Ack(of="publish", id=str(batch)):
                self._sending.on_persisted(batch)
            case replies.Ack(of="logon"):
                self._connected()
            case replies.Ack(of="subscribe", ack="processed"):
                return self._subscribed.on_subscribed(reply)
            case replies.Ack(of="subscribe", ended=True):
                self._subscribed.on_ended(reply.id or "")
            case replies.Ack(of="flush"):
                self._closer.close_after_disconnect(reply.id or "")
            case replies.Ack(of="unsubscribe", id=str(id)):
                return self._subscribed.on_unsubscribed(id)
            case replies.Ack(of=of, id=str(receipt)) if of == RECEIPT:
                self._reply_writer.send_receipts([receipt], behind=True)
            case replies.GapNotice():
                self._subscribed.note_gap(reply)  # the next message reports it
                return False
            case replies.SubscriptionCancelled():
                self._closer.on_subscription_cancelled(reply)
            case replies.DecisionNotice(code="no_longer_journaled", details={"extent": "part"}):
                self._subscribed.note_notice(reply)
                return False
            case replies.DecisionNotice(code="bookmark_unknown"):
                self._subscribed.note_notice(reply)
                return False
            case replies.DecisionNotice(code="no_longer_journaled"):
                # An ERROR ends the connection, because STOMP has no other frame for it. Otherwise the client
                # would wait forever.
                self._closer.send_last_frame(reply)
                self.connection.close(reply.code, reply.message)
            case replies.DecisionNotice():
                return self._closer.on_decision_notice(reply)
            case replies.ErrorReply(of="subscribe"):
                self._subscribed.on_refused(reply.id or "", partial(self._closer.send_error, reply))
            case replies.ErrorReply():
                self._closer.send_error(reply, self._reply_writer.receipt)
            case replies.ClosingNotice():
                self._closer.send_last_frame(reply)
            case _:
                return False
        return True


def _begins_subscription(item: Item) -> bool:
    return isinstance(item, _FrameAction) and item.frame.command == "SUBSCRIBE"


def _not_logged_on() -> ClientError:
    return ClientError("not_logged_on", "The first frame must be CONNECT or STOMP.", "Send CONNECT first.")
