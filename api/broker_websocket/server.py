"""daphne with back-pressure in both directions, for the broker's WebSocket transports.

daphne 4.2 passes every send to Twisted, which buffers without limit, and queues incoming messages without
limit (measured: 2.8 GB in five seconds for a client that does not read). Here:

* Outgoing: the WebSocket protocol is the transport's streaming producer. `await send()` returns once the
  kernel has the message. A stalled client's backlog therefore stays in its outbox, with at most one large
  message or a few small ones here.
* Incoming: when INCOMING_HIGH messages or INCOMING_BYTES wait for the application, parsing stops and the
  transport stops reading from the socket. A client's thousands of small messages are so spread over many
  event-loop iterations.
* Incomplete messages, and messages that the application has not consumed, count towards the limit that TCP
  transports have for frames (`pending_connections`). So does a handshake, whose connection is pending there,
  too.
* Objects of a connection before its logon are freed when it is lost, without waiting for Python's garbage
  collector.
* Connections have no age limit (daphne's default closes healthy subscriptions after a day).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.server import Server
from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol
from twisted.internet import reactor as _reactor
from twisted.internet.abstract import FileDescriptor
from twisted.internet.endpoints import SSL4ServerEndpoint, TCP4ServerEndpoint
from twisted.internet.interfaces import IHalfCloseableProtocol, IListeningPort, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.web.http import HTTPChannel, _GenericHTTPChannelProtocol
from zope.interface import implementer

from api.broker_websocket.fast_frames import CompleteMessage, IncompleteMessage, parse_complete_message
from api.broker_websocket.tls import context_factory, peer_names
from api.broker_websocket.wait_primitives import INPUT_ENDED, SingleReaderQueue, SingleWaiterEvent
from broker_core.config import TlsSettings
from broker_core.connections.admission import InputBufferUsage, PendingConnections, PreLogonReadQueue
from broker_core.errors import ClientError
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.native import BEFORE_LOGON, FRAME_HEADER_SIZE, MAX_FRAME
from broker_core.transports import tcp_connection

INCOMING_HIGH = 16
"""Messages waiting for the application at which the transport stops reading from the socket."""
INCOMING_LOW = 4
"""Messages waiting for the application at which the transport reads again."""
INCOMING_BYTES = 256 * 1024
"""Bytes of waiting messages at which the transport stops reading. One message may be larger.

A TCP transport reads as much in one read.
"""
reactor: Any = _reactor
READ_BYTES = 256 * 1024
"""Maximum bytes of one read after the logon, as on a TCP transport.

Twisted's default is 64 KiB, and each read costs an event-loop iteration.
"""
PART_BYTES = 64
"""Memory overhead of one message fragment, in bytes."""
GATHERED_BYTES = 4 * 1024
"""Writes below this size are sent together at the end of the event-loop iteration.

Text clients get a message for each record. The producer is paused once this many bytes are buffered.
"""
MAX_REASON = 123
"""Maximum bytes of text in a close frame (RFC 6455, 5.5)."""
INPUT_ENDED_TIMEOUT_S = 15
"""Maximum seconds for which a peer that sends nothing more is kept, also one that reads slowly."""
REQUEST_TIMEOUT_S = 10
"""Maximum seconds of the handshake, however many bytes arrive meanwhile."""


@implementer(IPushProducer, IHalfCloseableProtocol)
class BackpressureProtocol(WebSocketProtocol):
    """WebSocket connection that makes its application wait for a peer that does not read."""

    has_connected = False
    """Whether the handshake request was valid."""
    has_request = False
    """Whether the protocol has received the handshake request."""
    failed = False
    """Whether the peer violated RFC 6455 and was sent a close frame."""

    is_input_ended = False
    """Whether the peer has closed its sending side without a close frame."""

    received_bytes = 0
    """Bytes read since the connection became a WebSocket."""
    message_start = 0
    """Value of `received_bytes` when the last message was complete."""

    # Attributes of Autobahn, which has no annotations.
    message_data: list[bytes]
    frame_data: list[bytes]
    closeHandshakeTimeoutCall: Any

    def onConnect(self, request: Any) -> Any:
        """Initialise the state of the WebSocket.

        Until the logon, messages are limited to `BEFORE_LOGON` bytes and one frame header.
        """
        self.has_connected, self.writable = True, SingleWaiterEvent(is_open=True)
        self.reading, self.resuming, self.known = True, False, False
        self.partial = 0
        self.unfinished = InputBufferUsage(self.factory.server_class.pending_connections, self._reject_input)
        self.on_overflow: Callable[[ClientError], None] | None = None
        self.maxMessagePayloadSize = self.maxFramePayloadSize = BEFORE_LOGON + FRAME_HEADER_SIZE
        return super().onConnect(request)

    def on_logged_on(self, share: str) -> None:
        """Accept messages up to the protocol's maximum size, because the peer has logged on.

        From here on its input counts towards `share`.
        """
        self.known = True
        self.unfinished.on_logged_on(share)
        below = _descriptor(self.transport)
        if below is self.transport:
            below.bufferSize = READ_BYTES
        reactor.read_normally(below)
        self.maxMessagePayloadSize = self.maxFramePayloadSize = MAX_FRAME + FRAME_HEADER_SIZE

    def onOpen(self) -> None:
        """Become the transport's streaming producer, which Twisted pauses while the peer does not read."""
        # The HTTP channel registered itself as the producer before the upgrade, and no longer reacts.
        self.transport.unregisterProducer()
        self.transport.registerProducer(self, True)
        tcp_connection.configure_socket(self.raw_socket())
        super().onOpen()

    def raw_socket(self) -> socket.socket:
        """Return the connection's socket."""
        raw: socket.socket = _descriptor(self.transport).getHandle()
        return raw

    def read_progress(self) -> ReadProgress:
        """Return bytes read in total, bytes of an incomplete message, and where that message begins."""
        is_incomplete = bool(self.data) or self.inside_message
        unfinished = self.received_bytes - self.message_start if is_incomplete else 0
        return ReadProgress(self.received_bytes, unfinished, self.message_start)

    def unsent_bytes(self) -> int | None:
        """Return the sent bytes that Twisted still buffers, or None when the WebSocket is not open.

        Messages sent on a WebSocket that is not open are lost.
        """
        if self.state != self.STATE_OPEN:
            return None
        transport, buffered = self.transport, 0
        if not isinstance(transport, FileDescriptor):
            # Under TLS, small writes wait for the end of the event-loop iteration. Writes that TLS cannot
            # encrypt yet wait for the peer.
            small = transport._aggregator
            buffered = small.MAX_BUFFER_SIZE - small._bufferLeft + sum(map(len, transport._appSendBuffer))
            transport = transport.transport
        return int(buffered + len(transport.dataBuffer) - transport.offset + transport._tempDataLen)

    def pauseProducing(self) -> None:
        """Make `send` wait, because the kernel's buffer is full."""
        self.writable.clear()

    def resumeProducing(self) -> None:
        """Let `send` return, because the kernel has all bytes."""
        self.writable.set()

    def stopProducing(self) -> None:
        """Let `send` return, because the connection is lost."""
        self.writable.set()

    # Autobahn's own `dataReceived` and `onMessage…` first format a coloured line for the debug log, even if
    # that log is off. It took a twelfth of the broker's time on this transport (cProfile of `python -m
    # bench`'s broker).

    def dataReceived(self, data: bytes) -> None:
        """Parse bytes, and count the buffered ones."""
        if self.failed:
            return  # bytes after a violation can't be trusted
        if self.state == self.STATE_CONNECTING:
            if (
                self.has_request
                # a request that was not answered yet must be the last input (RFC 6455, 4.1); no limit counts
                # more
            ):
                self.drop()
                return
            self.has_request = True
        else:
            self.received_bytes += len(data)
        self._dataReceived(data)
        self._count()

    def onMessageFrameData(self, payload: bytes) -> None:
        self.partial += len(payload) + PART_BYTES
        super().onMessageFrameData(payload)

    def onMessageEnd(self) -> None:
        self.partial = 0
        super().onMessageEnd()

    def _count(self) -> None:
        """Report the buffered bytes to the instance's limit on input.

        Counted are incomplete messages and those that the application has not consumed. They are discarded
        if the limit is exceeded.
        """
        if self.state != self.STATE_OPEN:
            return
        try:
            self.unfinished.set_bytes(len(self.data) + self.partial + self.application_queue.nbytes)
        except ClientError as error:
            self._reject_input(error)

    def _reject_input(self, error: ClientError) -> None:
        """Discard buffered input, stop reading, and end the connection with an error.

        Without an error handler (before the upgrade) the connection is dropped.
        """
        self.reading = False
        self.transport.pauseProducing()
        self.data, self.message_data, self.frame_data, self.partial = b"", [], [], 0
        self.unfinished.set_bytes(0)
        if self.on_overflow is not None:
            self.on_overflow(error.with_traceback(None))
        else:
            self.drop()

    def _max_message_size_exceeded(self, msg_size: int, max_msg_size: int, reason: str) -> None:
        """Report ClientError `frame_too_large`.

        Autobahn's own method would drop the connection without an error.
        """
        self.failedByMe = True  # the rest of the message is skipped
        sentence = f"A WebSocket message of {msg_size} bytes is over the limit of {max_msg_size}."
        fix = "Send smaller batches; the logon acknowledgement has the limit in max_frame."
        self._reject_input(ClientError("frame_too_large", sentence, fix, length=msg_size, limit=max_msg_size))

    def _fail_connection(self, code: int = 1002, reason: str = "") -> None:
        """Send a close frame to a peer that violated RFC 6455 (5.5 and 8.1).

        Autobahn's own method would drop the connection without one.
        """
        if self.state != self.STATE_OPEN:
            super()._fail_connection(code, reason)
            return
        self.failed = self.failedByMe = True
        self.data, self.message_data, self.frame_data, self.partial = b"", [], [], 0
        self.unfinished.set_bytes(0)
        below = _descriptor(self.transport)
        reactor.read_in_turns(below, self.factory.server_class.read_queue)
        self.sendCloseFrame(code, reason.encode()[:MAX_REASON])
        # The peer closes once it has read the close frame; otherwise the connection is dropped a moment
        # later. Closing now would reset the connection, and the peer could lose the frame.
        if below is self.transport:
            below.loseWriteConnection()
        else:
            self.transport.loseConnection()

    def sendData(self, data: bytes, sync: bool = False, chopsize: int | None = None) -> None:
        """Write a frame immediately if it is large, or with others at the end of the event-loop iteration."""
        if self.state != self.STATE_OPEN or sync or chopsize or self.send_queue:
            super().sendData(data, sync, chopsize)
            return
        transport = self.transport
        if len(data) >= GATHERED_BYTES:
            data = self._write_now(data)
        if data:
            transport.write(data)
            # Twisted pauses a producer only above its bufferSize (64 KiB). Two thousand stalled clients
            # would each hold that much, so the producer is paused earlier.
            if isinstance(transport, FileDescriptor) and (self.unsent_bytes() or 0) >= GATHERED_BYTES:
                self.writable.clear()
                transport.producerPaused = True  # makes Twisted call resumeProducing once all is written

    def _write_now(self, data: bytes) -> bytes:
        """Write to the kernel immediately; return the bytes that the kernel did not accept.

        Twisted's `write` adds and removes the socket's poll registration each time, and costs an event-loop
        iteration. That was two fifths of the cost of a batch here (CPU of the broker in `bench`).
        """
        transport = self.transport
        if not isinstance(transport, FileDescriptor) or not transport.connected or transport.disconnecting:
            return data
        while data and not transport.dataBuffer and not transport._tempDataLen:
            sent = transport.writeSomeData(data)
            if not isinstance(sent, int) or sent <= 0:  # the reactor's own write reports a lost connection
                break
            data = data[sent:]
        return data

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        """Pass a message to the application, and stop reading if too many wait."""
        super().onMessage(payload, isBinary)
        self.message_start = self.received_bytes
        # Before the logon is verified, at most one further message is read.
        waiting = self.application_queue
        if self.reading and (
            not self.known or waiting.qsize() >= INCOMING_HIGH or waiting.nbytes >= INCOMING_BYTES
        ):
            self.reading = False
            self.transport.pauseProducing()

    def consumeData(self) -> None:
        """Parse the buffer while the application accepts messages."""
        if self.state not in (self.STATE_OPEN, self.STATE_CLOSING):
            super().consumeData()
            return
        while self.reading and self.state != self.STATE_CLOSED:
            if self._deliver_messages() or not self.reading or not self.processData():
                return

    def _deliver_messages(self) -> bool:
        """Deliver complete single-frame messages while the application accepts them.

        Returns whether the rest of the buffer should wait for more bytes. Otherwise Autobahn parses it.
        """
        if self.state != self.STATE_OPEN or self.current_frame is not None or self.inside_message:
            return False
        data, at, found = self.data, 0, None
        while self.reading and isinstance(
            found := parse_complete_message(data, at, self.maxFramePayloadSize), CompleteMessage
        ):
            at = found.end
            self.onMessage(found.message, True)
        if at:
            self.data = data[at:]
        # Waiting for a longer message would copy the buffer again with each read, so Autobahn collects it.
        return isinstance(found, IncompleteMessage) and found.end - at <= READ_BYTES

    def on_message_consumed(self) -> None:
        """Resume parsing in the next event-loop iteration once few messages wait for the application."""
        self._count()
        waiting = self.application_queue
        few = waiting.qsize() <= INCOMING_LOW and waiting.nbytes < INCOMING_BYTES
        if few and not self.reading and not self.resuming:
            self.resuming = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        """Parse the buffer, then read from the socket again."""
        self.reading, self.resuming = True, False
        self.consumeData()
        self._count()
        if self.reading:  # else that data filled the queue again
            self.transport.resumeProducing()

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        """Let `send` return, and stop counting buffered bytes."""
        if not self.has_connected:
            return  # the handshake failed, so no application was started
        self.writable.set()
        self.unfinished.set_bytes(0)
        super().onClose(wasClean, code, reason)

    def readConnectionLost(self) -> None:
        """Let the application answer what the peer has sent, because the peer may still read.

        Twisted calls this method without TLS only, after all bytes were parsed.
        """
        if self.state != self.STATE_OPEN or self.failed or not hasattr(self, "application_queue"):
            self.transport.loseConnection()
        elif not self.is_input_ended:
            self.is_input_ended = True
            self.input_ended_timer = reactor.callLater(INPUT_ENDED_TIMEOUT_S, self.drop)
            self.application_queue.put_nowait({"type": INPUT_ENDED})

    def writeConnectionLost(self) -> None:
        """Do nothing: `_fail_connection` has closed the sending side."""

    def drop(self) -> None:
        """Close the connection without a close frame."""
        self.transport.abortConnection()

    def connectionLost(self, reason: Any = connectionDone) -> None:
        """Release all objects of the connection."""
        super().connectionLost(reason)
        if self.is_input_ended and self.input_ended_timer.active():
            self.input_ended_timer.cancel()
        # the timer would keep this object in memory until it expires
        if self.closeHandshakeTimeoutCall is not None:
            self.closeHandshakeTimeoutCall.cancel()
            self.closeHandshakeTimeoutCall = None
        # These objects and the protocol refer to each other. Only the garbage collector would free such a
        # cycle.
        self.data, self.message_data, self.frame_data, self.on_overflow = b"", [], [], None
        del self.is_open, self.is_closed


class PendingUpgrade(HTTPChannel):
    """HTTP connection during a WebSocket handshake. Implements `admission.PendingConnection`."""

    transport: Any

    def connectionMade(self) -> None:
        """Count the connection as pending, and read it in the queue's order."""
        super().connectionMade()
        self.pending_connections: PendingConnections = self.factory.server.pending_connections
        self.unfinished = InputBufferUsage(self.pending_connections)
        peer = self.transport.getPeer()
        self.remote = f"{peer.host}:{peer.port}"
        reactor.read_in_turns(_descriptor(self.transport), self.factory.server.read_queue)
        self.pending_connections.add_pending(self)
        # Twisted's own limit starts again with each byte, so a request could arrive byte by byte for hours.
        self.deadline = reactor.callLater(REQUEST_TIMEOUT_S, self.drop)

    def dataReceived(self, data: bytes) -> None:
        """Parse bytes, and drop the connection if its handshake exceeds the memory limit."""
        super().dataReceived(data)
        if not self.requests:
            return
        try:
            self.unfinished.set_bytes(len(self._buffer) + self._receivedHeaderSize)
        except ClientError:
            self.drop()

    def _maybeChooseTransferDecoder(self, header: bytes, data: bytes) -> bool:
        """Drop a request that has a body.

        Twisted's conversion of its length would fail from 4,301 digits on.
        """
        if header == b"Content-Length" and data.isdigit() and data.strip(b"0"):
            self.drop()
            return False
        return bool(super()._maybeChooseTransferDecoder(header, data))

    def connectionLost(self, reason: Any = connectionDone) -> None:
        super().connectionLost(reason)
        self.mark_upgraded()

    def mark_upgraded(self) -> None:
        """Stop counting the connection as pending, because it became a WebSocket or was lost."""
        self.pending_connections.remove_closing(self)
        self.unfinished.set_bytes(0)
        self.requests.clear()
        if self.deadline.active():
            self.deadline.cancel()

    def evict(self) -> None:
        """Close the connection, because a newer pending connection needs its slot."""
        self.drop()  # before the handshake is answered there is no protocol in which to report the reason

    def drop(self) -> None:
        """Close the connection without an answer."""
        if self.transport is not None:
            self.transport.abortConnection()


class BodylessRequest(WebRequest):
    """HTTP request before the upgrade, without a body. Twisted would collect a body in a temporary file."""

    def gotLength(self, length: int | None) -> None:
        """Drop a request that announces a body."""
        super().gotLength(0)
        if length != 0:
            self.channel.transport.abortConnection()

    def process(self) -> Any:
        """Process the handshake, and hand the connection over to the WebSocket."""
        if self.channel._buffer:  # the peer sends more before the answer, against RFC 6455 (4.1)
            self.channel.drop()
            return None
        processed = super().process()
        if self.transport is None:  # the connection was upgraded to a WebSocket
            self.server.connections.pop(self, None)
            self.channel.mark_upgraded()
        return processed


def _descriptor(transport: Any) -> Any:
    """Return the object that owns the socket. Under TLS, `transport` is a layer above it."""
    return transport if isinstance(transport, FileDescriptor) else transport.transport


def pending_upgrade_protocol(factory: HTTPFactory) -> _GenericHTTPChannelProtocol:
    """Return the protocol of a new connection. `HTTPFactory` calls it as a method."""
    return _GenericHTTPChannelProtocol(PendingUpgrade())


class BackpressureHTTPFactory(HTTPFactory):
    """Factory of connections that begin as HTTP and send no bodies."""

    protocol = pending_upgrade_protocol

    def __init__(self, server: BackpressureServer) -> None:
        super().__init__(server)
        self.timeOut = REQUEST_TIMEOUT_S

    def buildProtocol(self, addr: Any) -> Any:
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = BodylessRequest
        return protocol


class BackpressureServer(Server):
    """daphne's server for one transport, on the broker's event loop, with back-pressure."""

    def __init__(
        self,
        application: Callable[..., Awaitable[None]],
        host: str,
        port: int,
        pending_connections: PendingConnections,
        read_queue: PreLogonReadQueue,
        tls: TlsSettings | None = None,
    ) -> None:
        super().__init__(
            application,
            endpoints=[f"tcp:port={port}:interface={host}"],
            websocket_timeout=-1,
            websocket_max_message_size=MAX_FRAME + 8,
            websocket_max_frame_size=MAX_FRAME + 8,
            application_close_timeout=5,
            server_name="Sluice",
        )
        self.connections: dict[Any, Any] = {}
        self.pending_connections, self.read_queue = pending_connections, read_queue
        self.http_factory = BackpressureHTTPFactory(self)
        self.ws_factory = WebSocketFactory(self, server=self.server_name)
        self.ws_factory.setProtocolOptions(
            allowNullOrigin=True,  # the consumer decides which pages may connect
            autoPingTimeout=self.ping_timeout,
            openHandshakeTimeout=self.websocket_handshake_timeout,
            maxMessagePayloadSize=self.websocket_max_message_size,
            maxFramePayloadSize=self.websocket_max_frame_size,
            # A peer that does not answer the close frame is dropped after this many seconds.
            closeHandshakeTimeout=2,
        )
        # Autobahn copies its settings to each connection and lists them for its debug log, even if that log
        # is off. It was half of the cost of a handshake, so the settings are class attributes here.
        attributes = {name: getattr(self.ws_factory, name) for name in BackpressureProtocol.CONFIG_ATTRS}
        settings = {name: staticmethod(one) if callable(one) else one for name, one in attributes.items()}
        self.ws_factory.protocol = type("Paced", (BackpressureProtocol,), settings | {"CONFIG_ATTRS": []})
        self._address = (host, port)
        self._tls = tls
        self._listening: IListeningPort | None = None

    async def listen(self) -> tuple[str, int]:
        """Start listening; return the host and port.

        Raises:
            OSError: The port is in use.
            OperatorError: `bad_certificate`.
        """
        host, port = self._address
        endpoint: Any = (
            TCP4ServerEndpoint(reactor, port, backlog=1024, interface=host)
            if self._tls is None
            else SSL4ServerEndpoint(reactor, port, context_factory(self._tls), backlog=1024, interface=host)
        )
        self._listening = await endpoint.listen(self.http_factory).asFuture(asyncio.get_running_loop())
        reactor.callLater(1, self.application_checker)
        reactor.callLater(2, self.timeout_checker)
        address = self._listening.getHost()
        return address.host, address.port

    async def stop_listening(self) -> None:
        """Accept no new connections. Existing ones continue until they are closed."""
        if self._listening is not None:
            stopped = self._listening.stopListening()
            if stopped is not None:
                await stopped.asFuture(asyncio.get_running_loop())
            self._listening = None

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        """Create the application of a connection, as daphne does, with two differences.

        The application's `receive` reports each consumed message to the protocol. The scope has the
        connection's socket and callbacks.
        """
        if scope["type"] != "websocket":
            return super().create_application(protocol, scope)
        queue = SingleReaderQueue()

        async def receive() -> dict[str, Any]:
            message = await queue.get()
            protocol.on_message_consumed()
            return message

        scope.setdefault("asgi", {"version": "3.0"})
        scope["peer_names"] = peer_names(protocol.transport)
        scope["raw_socket"], scope["buffered_bytes"] = protocol.raw_socket(), protocol.unsent_bytes
        scope["read_progress"] = protocol.read_progress
        scope["logged_on"] = protocol.on_logged_on
        scope["on_overflow"] = partial(setattr, protocol, "on_overflow")
        scope["drop"] = protocol.drop
        if protocol not in self.connections:
            return None
        application = asyncio.ensure_future(
            self.application(scope=scope, receive=receive, send=partial(self.handle_reply, protocol))
        )
        self.connections[protocol]["application_instance"] = application
        application.add_done_callback(partial(self._forget, protocol))
        return queue

    def _forget(self, protocol: Any, application: asyncio.Future[None]) -> None:
        """Remove a connection whose application has ended without an error.

        daphne checks for ended applications once a second, and a thousand may end in that time. daphne
        handles failed ones.
        """
        has_succeeded = not application.cancelled() and application.exception() is None
        if has_succeeded and "disconnected" in self.connections.get(protocol, ()):
            del self.connections[protocol]

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        """Pass a message to Twisted, then wait until the kernel has it."""
        await super().handle_reply(protocol, message)
        if message["type"] == "websocket.close" and (not protocol.known or protocol.is_input_ended):
            # The server does not wait for the answer to the close frame: a peer without a logon has no time
            # for it, and a peer that has closed its sending side can't answer.
            protocol.transport.loseConnection()
        if message["type"] == "websocket.send":
            del message  # Twisted has its own copy; a thousand stalled clients don't need two
            await protocol.writable.wait()
