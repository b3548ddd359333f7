"""daphne with back-pressure in both directions, for the data plane's WebSocket transports.

daphne 4.2 as it is hands every send to Twisted, which buffers without limit, and queues incoming messages without
limit (measured: 2.8 GB in five seconds for a client that doesn't read). Here:

* out: the WebSocket protocol is the transport's streaming producer. `await send()` waits until the kernel has taken
  what was sent, so that what waits for a peer that doesn't read is in its outbox, and one message at most is here, or
  a few small ones.
* in: when the application has INCOMING_HIGH messages or INCOMING_BYTES waiting, no more are cut from what was read, and the
  transport stops reading from the socket. So a client's thousands of small messages take many turns of the loop.
* what is held of messages that aren't whole, or that the application hasn't taken, counts with what TCP transports hold of frames
  (`anteroom`), and so does a request for a WebSocket, whose connection is a guest of the anteroom too.
* what a connection was made of before its logon is free when it is lost, without waiting for Python's collector.
* connections have no age limit (daphne's default closes healthy subscriptions after a day).
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
from twisted.internet.interfaces import IListeningPort, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.web.http import HTTPChannel, _GenericHTTPChannelProtocol
from zope.interface import implementer

from api.broker_websocket.fast_frames import IncompleteMessage, WholeMessage, parse_whole_message
from api.broker_websocket.tls import context_factory, peer_names
from api.broker_websocket.wait_primitives import SingleReaderQueue, SingleWaiterEvent
from broker_core.config import TlsSettings
from broker_core.connections.admission import InputBufferUsage, PendingConnections, PreLogonReadQueue
from broker_core.errors import ClientError
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.native import BEFORE_LOGON, FRAME_HEADER_SIZE, MAX_FRAME
from broker_core.transports import tcp_connection

INCOMING_HIGH = 16
"""Messages waiting for the application before the socket is no longer read."""
INCOMING_LOW = 4
INCOMING_BYTES = 256 * 1024
"""Of them; or one message, however large it is. As much as a TCP transport reads at once."""
reactor: Any = _reactor
READ_BYTES = 256 * 1024
"""Read at once after the logon, as by a TCP transport; Twisted's own is 64 KiB, and each read costs a turn of the loop."""
PART_BYTES = 64
"""What a part of a message takes besides its bytes."""
GATHERED_BYTES = 4 * 1024
"""Less is written with others at the end of the turn: text clients get a message for each record. So much may lie here before it
is waited for."""
MAX_REASON = 123
"""Bytes of text in a close frame (RFC 6455, 5.5)."""
REQUEST_TIMEOUT_S = 10
"""How long a peer may be silent while it asks for its WebSocket."""


@implementer(IPushProducer)
class BackpressureProtocol(WebSocketProtocol):
    """A WebSocket connection that tells its application when the peer doesn't read."""

    asked = False
    """Whether it was given the request that it begins with."""
    failed = False
    """Whether the peer broke the rules of WebSockets, and was told so."""

    received_bytes = 0
    """Bytes read since the connection became a WebSocket."""
    message_start = 0
    """How many of them had come when the last message was whole."""

    # Of autobahn, which has no annotations.
    message_data: list[bytes]
    frame_data: list[bytes]
    closeHandshakeTimeoutCall: Any

    def onConnect(self, request: Any) -> Any:
        self.room = SingleWaiterEvent(is_open=True)
        self.reading, self.resuming, self.known = True, False, False
        self.partial = 0
        self.unfinished = InputBufferUsage(self.factory.server_class.anteroom, self._take_no_more)
        self.on_overflow: Callable[[ClientError], None] | None = None
        self.maxMessagePayloadSize = self.maxFramePayloadSize = BEFORE_LOGON + FRAME_HEADER_SIZE
        return super().onConnect(request)

    def on_logged_on(self, share: str) -> None:
        """Accept messages as large as the protocol allows: the peer is known, and its input counts in this
        share."""
        self.known = True
        self.unfinished.on_logged_on(share)
        below = _descriptor(self.transport)
        if below is self.transport:
            below.bufferSize = READ_BYTES
        reactor.read_normally(below)
        self.maxMessagePayloadSize = self.maxFramePayloadSize = MAX_FRAME + FRAME_HEADER_SIZE

    def onOpen(self) -> None:
        # The HTTP channel registered itself as the producer before the upgrade; it is no longer listening.
        self.transport.unregisterProducer()
        self.transport.registerProducer(self, True)
        tcp_connection.configure_socket(self.raw_socket())
        super().onOpen()

    def raw_socket(self) -> socket.socket:
        """The connection's socket."""
        raw: socket.socket = _descriptor(self.transport).getHandle()
        return raw

    def read_progress(self) -> ReadProgress:
        """Bytes read so far, and those since the last whole message while another has begun."""
        begun = bool(self.data) or self.inside_message
        unfinished = self.received_bytes - self.message_start if begun else 0
        return ReadProgress(self.received_bytes, unfinished, self.message_start)

    def unsent_bytes(self) -> int | None:
        """What Twisted holds of what was sent; None when the WebSocket isn't open: what is sent then goes nowhere."""
        if self.state != self.STATE_OPEN:
            return None
        transport, held = self.transport, 0
        if not isinstance(transport, FileDescriptor):
            # Small writes wait for the end of the turn, and those that TLS can't take yet for the peer's answer.
            small = transport._aggregator
            held = small.MAX_BUFFER_SIZE - small._bufferLeft + sum(map(len, transport._appSendBuffer))
            transport = transport.transport
        return int(held + len(transport.dataBuffer) - transport.offset + transport._tempDataLen)

    def pauseProducing(self) -> None:
        self.room.clear()

    def resumeProducing(self) -> None:
        self.room.set()

    def stopProducing(self) -> None:
        self.room.set()

    # Autobahn's own two first make a line for its debug log, in colours, whether or not anybody reads it: a twelfth of a
    # broker's time on this transport (cProfile of `python -m bench`'s broker).

    def dataReceived(self, data: bytes) -> None:
        if self.failed:
            return  # nothing that follows can be trusted
        if self.state == self.STATE_CONNECTING:
            if (
                self.asked
            ):  # and it wasn't answered: it speaks out of turn (RFC 6455, 4.1), and nothing counts that
                self.drop()
                return
            self.asked = True
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
        """Tell the instance what is held of what isn't whole or wasn't taken; let go of it when there is no room."""
        if self.state != self.STATE_OPEN:
            return
        try:
            self.unfinished.set_bytes(len(self.data) + self.partial + self.application_queue.nbytes)
        except ClientError as error:
            self._take_no_more(error)

    def _take_no_more(self, error: ClientError) -> None:
        """Let go of what is there, read nothing more, and have the connection end with a word."""
        self.reading = False
        self.transport.pauseProducing()
        self.data, self.message_data, self.frame_data, self.partial = b"", [], [], 0
        self.unfinished.set_bytes(0)
        if self.on_overflow is not None:
            self.on_overflow(error.with_traceback(None))
        else:
            self.drop()

    def _max_message_size_exceeded(self, msg_size: int, max_msg_size: int, reason: str) -> None:
        """Autobahn's own cuts the connection, and its peer isn't told why."""
        self.failedByMe = True  # what is left of the message is passed over
        sentence = f"A WebSocket message of {msg_size} bytes is over the limit of {max_msg_size}."
        fix = "Send smaller batches; the logon acknowledgement says the limit in max_frame."
        self._take_no_more(ClientError("frame_too_large", sentence, fix, length=msg_size, limit=max_msg_size))

    def _fail_connection(self, code: int = 1002, reason: str = "") -> None:
        """Against the rules (RFC 6455, 5.5 and 8.1). Autobahn's own cuts the connection, and its peer isn't told why."""
        if self.state != self.STATE_OPEN:
            super()._fail_connection(code, reason)
            return
        self.failed = self.failedByMe = True
        self.data, self.message_data, self.frame_data, self.partial = b"", [], [], 0
        self.unfinished.set_bytes(0)
        below = _descriptor(self.transport)
        reactor.read_in_turns(below, self.factory.server_class.door)
        self.sendCloseFrame(code, reason.encode()[:MAX_REASON])
        # The peer closes when it has read that, or is dropped a moment later. To close now would reset what it hasn't read.
        if below is self.transport:
            below.loseWriteConnection()
        else:
            self.transport.loseConnection()

    def sendData(self, data: bytes, sync: bool = False, chopsize: int | None = None) -> None:
        if self.state != self.STATE_OPEN or sync or chopsize or self.send_queue:
            super().sendData(data, sync, chopsize)
            return
        transport = self.transport
        if len(data) >= GATHERED_BYTES:
            data = self._write_now(data)
        if data:
            transport.write(data)
            # Twisted by itself calls a producer back only after more than its bufferSize, and two thousand clients that don't read
            # would hold as much each.
            if isinstance(transport, FileDescriptor) and (self.unsent_bytes() or 0) >= GATHERED_BYTES:
                self.room.clear()
                transport.producerPaused = True  # what makes it call resumeProducing when it has written all

    def _write_now(self, data: bytes) -> bytes:
        """Write what the kernel takes at once; what is left. Twisted's own way enters and leaves the poll for each write, and
        costs a turn of the loop: by that, two fifths of what a batch took here (`bench`'s broker, CPU)."""
        transport = self.transport
        if not isinstance(transport, FileDescriptor) or not transport.connected or transport.disconnecting:
            return data
        while data and not transport.dataBuffer and not transport._tempDataLen:
            sent = transport.writeSomeData(data)
            if not isinstance(sent, int) or sent <= 0:  # a lost connection is lost in the reactor's own write
                break
            data = data[sent:]
        return data

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        super().onMessage(payload, isBinary)
        self.message_start = self.received_bytes
        # What comes behind a logon that is being checked is nobody's yet: no more than a message of it is taken.
        waiting = self.application_queue
        if self.reading and (
            not self.known or waiting.qsize() >= INCOMING_HIGH or waiting.nbytes >= INCOMING_BYTES
        ):
            self.reading = False
            self.transport.pauseProducing()

    def consumeData(self) -> None:
        if self.state not in (self.STATE_OPEN, self.STATE_CLOSING):
            super().consumeData()
            return
        while self.reading and self.state != self.STATE_CLOSED:
            if self._take_whole() or not self.reading or not self.processData():
                return

    def _take_whole(self) -> bool:
        """Take the messages that came whole, as far as the application has room; whether what follows them is best looked at when
        more of it is there."""
        if self.state != self.STATE_OPEN or self.current_frame is not None or self.inside_message:
            return False
        data, at, found = self.data, 0, None
        while self.reading and isinstance(
            found := parse_whole_message(data, at, self.maxFramePayloadSize), WholeMessage
        ):
            at = found.end
            self.onMessage(found.message, True)
        if at:
            self.data = data[at:]
        # A larger one would be copied again with each read.
        return isinstance(found, IncompleteMessage) and found.end - at <= READ_BYTES

    def on_message_consumed(self) -> None:
        """The application took a message; go on in the next turn of the loop once few are waiting."""
        self._count()
        waiting = self.application_queue
        few = waiting.qsize() <= INCOMING_LOW and waiting.nbytes < INCOMING_BYTES
        if few and not self.reading and not self.resuming:
            self.resuming = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self.reading, self.resuming = True, False
        self.consumeData()
        self._count()
        if self.reading:  # else the last read brought more than that
            self.transport.resumeProducing()

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:
        self.room.set()
        self.unfinished.set_bytes(0)
        super().onClose(wasClean, code, reason)

    def drop(self) -> None:
        """Close the connection without a word."""
        self.transport.abortConnection()

    def connectionLost(self, reason: Any = connectionDone) -> None:
        super().connectionLost(reason)
        if self.closeHandshakeTimeoutCall is not None:  # which would keep everything here until its time
            self.closeHandshakeTimeoutCall.cancel()
            self.closeHandshakeTimeoutCall = None
        # What knows this protocol, and is known by it: in circles, only the collector would free it.
        self.data, self.message_data, self.frame_data, self.on_overflow = b"", [], [], None
        del self.is_open, self.is_closed


class PendingUpgrade(HTTPChannel):
    """A connection that is asking for a WebSocket. Satisfies `anteroom.Guest`."""

    transport: Any

    def connectionMade(self) -> None:
        super().connectionMade()
        self.anteroom: PendingConnections = self.factory.server.anteroom
        self.unfinished = InputBufferUsage(self.anteroom)
        peer = self.transport.getPeer()
        self.remote = f"{peer.host}:{peer.port}"
        reactor.read_in_turns(_descriptor(self.transport), self.factory.server.door)
        self.anteroom.add_pending(self)

    def dataReceived(self, data: bytes) -> None:
        super().dataReceived(data)
        if not self.requests:
            return
        try:
            self.unfinished.set_bytes(len(self._buffer) + self._receivedHeaderSize)
        except ClientError:
            self.drop()

    def _maybeChooseTransferDecoder(self, header: bytes, data: bytes) -> bool:
        """Drop a request with a body before Twisted converts its length, which fails from 4,301 digits on."""
        if header == b"Content-Length" and data.isdigit() and data.strip(b"0"):
            self.drop()
            return False
        return bool(super()._maybeChooseTransferDecoder(header, data))

    def connectionLost(self, reason: Any = connectionDone) -> None:
        super().connectionLost(reason)
        self.mark_upgraded()

    def mark_upgraded(self) -> None:
        """Whatever comes of it is the WebSocket's from here on, or nobody's."""
        self.anteroom.remove_closing(self)
        self.unfinished.set_bytes(0)
        self.requests.clear()

    def close_for_room(self) -> None:
        self.drop()  # who hasn't been answered yet has no protocol in which to be told

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abortConnection()


class BodylessRequest(WebRequest):
    """A request before the upgrade. What has a body would be gathered, in files, before anybody looks at it."""

    def gotLength(self, length: int | None) -> None:
        super().gotLength(0)
        if length != 0:
            self.channel.transport.abortConnection()

    def process(self) -> Any:
        if self.channel._buffer:  # it doesn't wait for the answer, as RFC 6455 asks it to (4.1)
            self.channel.drop()
            return None
        processed = super().process()
        if self.transport is None:  # the WebSocket has it
            self.server.connections.pop(self, None)
            self.channel.mark_upgraded()
        return processed


def _descriptor(transport: Any) -> Any:
    """What has the socket. Under TLS the transport is a layer above it."""
    return transport if isinstance(transport, FileDescriptor) else transport.transport


def _doorway(factory: HTTPFactory) -> _GenericHTTPChannelProtocol:
    return _GenericHTTPChannelProtocol(PendingUpgrade())


class BackpressureHTTPFactory(HTTPFactory):
    """Connections that begin as HTTP, and send no bodies."""

    protocol = _doorway

    def __init__(self, server: BackpressureServer) -> None:
        super().__init__(server)
        self.timeOut = REQUEST_TIMEOUT_S

    def buildProtocol(self, addr: Any) -> Any:
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = BodylessRequest
        return protocol


class BackpressureServer(Server):
    """daphne's server on an event loop that somebody else runs, with paced protocols. One per transport."""

    def __init__(
        self,
        application: Callable[..., Awaitable[None]],
        host: str,
        port: int,
        anteroom: PendingConnections,
        door: PreLogonReadQueue,
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
        self.anteroom, self.door = anteroom, door
        self.http_factory = BackpressureHTTPFactory(self)
        self.ws_factory = WebSocketFactory(self, server=self.server_name)
        self.ws_factory.setProtocolOptions(
            allowNullOrigin=True,  # whose pages may connect is decided by the consumer
            autoPingTimeout=self.ping_timeout,
            openHandshakeTimeout=self.websocket_handshake_timeout,
            maxMessagePayloadSize=self.websocket_max_message_size,
            maxFramePayloadSize=self.websocket_max_frame_size,
            # A peer that doesn't answer the close is dropped after this; the notice had its deadline before.
            closeHandshakeTimeout=2,
        )
        # Autobahn copies its settings to each connection, and makes a list of them for its debug log, whether or not anybody
        # reads that: half of what a handshake cost. So they are the class's.
        given = {name: getattr(self.ws_factory, name) for name in BackpressureProtocol.CONFIG_ATTRS}
        settings = {name: staticmethod(one) if callable(one) else one for name, one in given.items()}
        self.ws_factory.protocol = type("Paced", (BackpressureProtocol,), settings | {"CONFIG_ATTRS": []})
        self._address = (host, port)
        self._tls = tls
        self._listening: IListeningPort | None = None

    async def listen(self) -> tuple[str, int]:
        """Start listening; returns the address. Raises OSError when the port is taken, OperatorError bad_certificate."""
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
        """Take no new connections; those there are go on until they are closed."""
        if self._listening is not None:
            stopped = self._listening.stopListening()
            if stopped is not None:
                await stopped.asFuture(asyncio.get_running_loop())
            self._listening = None

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        """As daphne's, but the application's `receive` tells the protocol that a message was taken."""
        if scope["type"] != "websocket":
            return super().create_application(protocol, scope)
        queue = SingleReaderQueue()

        async def receive() -> dict[str, Any]:
            message = await queue.get()
            protocol.on_message_consumed()
            return message

        scope.setdefault("asgi", {"version": "3.0"})
        scope["peer_names"] = peer_names(protocol.transport)
        scope["raw_socket"], scope["held_bytes"] = protocol.raw_socket(), protocol.unsent_bytes
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
        """daphne looks once a second for what has ended, and a thousand may come and go in that time. What failed is left to it."""
        went_well = not application.cancelled() and application.exception() is None
        if went_well and "disconnected" in self.connections.get(protocol, ()):
            del self.connections[protocol]

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        """Hand a message to Twisted, then wait until the kernel has taken it."""
        await super().handle_reply(protocol, message)
        if message["type"] == "websocket.close" and not protocol.known:
            # A peer that is nobody's is told, and not waited for.
            protocol.transport.loseConnection()
        if message["type"] == "websocket.send":
            del message  # Twisted has a copy of its own; a thousand stalled clients needn't hold two
            await protocol.room.wait()
