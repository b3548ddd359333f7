"""HTTP for the web process with a bound on every request, before anybody has logged in.

Twisted spools a body of any size to the temporary directory, daphne reads it whole, and neither ends a
request that never becomes whole. Here a body that is too large is refused by its Content-Length, or at the
bound while it is read. Head and body have a deadline that more bytes do not move. An address has a share of
unfinished requests. Twisted answers pipelined requests although nobody reads the answers; here the next
request waits until the answer before it has left memory. Twisted parses forms in its event loop, and Django
parses them again: here only Django does. A body has a bound on its chunks.
A connection that has become a WebSocket is no longer bound by any of this.
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any, Final

from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketProtocol
from django.conf import settings
from twisted.internet import reactor as _reactor
from twisted.internet.abstract import FileDescriptor
from twisted.internet.protocol import connectionDone
from twisted.web.http import HTTPChannel, _GenericHTTPChannelProtocol

from api.unfinished_requests import UnfinishedRequests
from broker_core.error_codes import error_code_entry
from console.access.networks import is_in_networks, rate_limit_prefix

HEAD_WITHIN_S: Final = 10
"""From a request's first byte, or the connection's beginning, to the end of its headers."""
BODY_WITHIN_S: Final = 60
"""From the end of the headers to the end of the body."""
KEPT_ALIVE_S: Final = 75
"""Between the answer of one request and the first byte of the next."""
UNREAD_ANSWER_S: Final = 600
"""For a peer to read the rest of an answer."""
LINGER_S: Final = 2
"""For a peer to read why it was refused. What it goes on sending meanwhile is read and thrown away."""
MAX_BODY_PARTS: Final = 16 * 1024
"""Chunks of a chunked body, or reads of another one. Each takes some microseconds of the event loop."""
MAX_HEADERS: Final = 100
MAX_HEAD_BYTES: Final = 16 * 1024
MAX_LENGTH_DIGITS: Final = 18
"""Of a Content-Length, leading zeros aside."""

reactor: Any = _reactor


class BoundedChannel(HTTPChannel):
    """A connection that sends requests. Satisfies `unfinished_requests.RequestConnection`."""

    maxHeaders = MAX_HEADERS
    totalHeadersSize = MAX_HEAD_BYTES
    transport: Any

    def connectionMade(self) -> None:
        self._deadline: Any = None
        self._between_requests, self._refused = False, False
        self._held_bytes = self._unread_s = self._body_parts = 0
        self._unparsed = b""
        self._unfinished: UnfinishedRequests = self.factory.unfinished
        self._address = _share_of(str(getattr(self.transport.getPeer(), "host", "")))
        super().connectionMade()
        self._set_deadline(HEAD_WITHIN_S)
        self._unfinished.enter(self._address, self)

    def dataReceived(self, data: bytes) -> None:
        if self._refused:
            return
        if self._between_requests:
            self._between_requests = False
            self._set_deadline(HEAD_WITHIN_S)
        super().dataReceived(data)

    def lineReceived(self, line: bytes) -> None:
        if not self._refused:
            super().lineReceived(line)

    def rawDataReceived(self, data: bytes) -> None:
        if self._refused:
            return
        super().rawDataReceived(data)
        if (
            self._handlingRequest and self._waitingForTransport
        ):  # Twisted would go on reading, without a bound
            self._networkProducer.pauseProducing()

    def setLineMode(self, extra: bytes = b"") -> None:
        """Parse what came behind a request, once the peer has read most of the answer before it."""
        if self._waitingForTransport:
            self._unparsed, extra = extra, b""
            self._networkProducer.pauseProducing()
        super().setLineMode(extra)

    def resumeProducing(self) -> None:
        super().resumeProducing()
        unparsed, self._unparsed = self._unparsed, b""
        if unparsed:
            self.dataReceived(unparsed)

    def _maybeChooseTransferDecoder(self, header: bytes, data: bytes) -> bool:
        """Refuse a length of more digits than Python converts; Twisted would close without an answer."""
        if header == b"Content-Length" and data.isdigit():
            data = data.lstrip(b"0") or b"0"
            if len(data) > MAX_LENGTH_DIGITS:
                self.refuse_body()
                return False
        return bool(super()._maybeChooseTransferDecoder(header, data))

    def allHeadersReceived(self) -> None:
        if self.length is not None and self.length > self.factory.max_body_bytes:
            self.refuse_body()
            return
        self._set_deadline(BODY_WITHIN_S)
        super().allHeadersReceived()

    def take_body(self, nbytes: int) -> bool:
        """Count a part of the body; False when the request was refused, because it is over a bound."""
        if self._refused:
            return False
        self._body_parts += 1
        if self._body_parts > MAX_BODY_PARTS:
            self.refuse("body_too_large", f"A body has at most {MAX_BODY_PARTS:,} chunks here.")
        elif self._held_bytes + nbytes > self.factory.max_body_bytes:
            self.refuse_body()
        elif not self._unfinished.hold_body(self._address, nbytes):
            self.refuse("web_busy", "The console holds as many bodies of requests as it accepts.")
        else:
            self._held_bytes += nbytes
        return not self._refused

    def allContentReceived(self) -> None:
        if self._refused:
            return
        self._set_deadline(None)
        self._unfinished.leave(self._address, self)
        super().allContentReceived()

    def requestDone(self, request: Any) -> None:
        self.release_body()
        if self.transport is not None and not self._refused:
            self._between_requests, self._unread_s = True, 0
            self._set_deadline(KEPT_ALIVE_S)
            self._unfinished.enter(self._address, self)
        super().requestDone(request)

    def connectionLost(self, reason: Any = connectionDone) -> None:
        self._set_deadline(None)
        self._unfinished.leave(self._address, self)
        self.release_body()
        super().connectionLost(reason)

    def release_body(self) -> None:
        """Stop counting the body of a request that was answered or lost."""
        self._unfinished.release_body(self._address, self._held_bytes)
        self._held_bytes = self._body_parts = 0

    def refuse_body(self) -> None:
        """Answer 413."""
        limit = self.factory.max_body_bytes
        self.refuse("body_too_large", f"The body of a request has at most {limit:,} bytes here.")

    def refuse(self, code: str, sentence: str) -> None:
        """Answer an unfinished request with an error's status, take nothing more, and close."""
        if self._refused or self.transport is None:
            return
        self._refused = True
        status = error_code_entry(code).http_status
        problem = {
            "type": f"urn:sluice:problem:{code}", "title": status.phrase, "status": status, "code": code,
            "detail": sentence, "fix": "", "details": {},
        }  # fmt: skip
        body = json.dumps(problem).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/problem+json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._end(LINGER_S)

    def make_room(self) -> None:
        if self._between_requests:
            self._end(LINGER_S)
        else:
            self.refuse("web_busy", "Too many requests of this address are unfinished.")

    def _respondToBadRequestAndDisconnect(self) -> None:
        self.refuse(
            "bad_request",
            "The head or a chunk of the request can't be read, or the head has more than "
            f"{MAX_HEADERS} headers or {MAX_HEAD_BYTES:,} bytes.",
        )

    def _end(self, linger_s: float) -> None:
        """Close for writing, so that the peer reads the answer.

        What it still sends is thrown away for a moment.
        """
        self._refused = True
        self._set_deadline(linger_s)
        transport = self.transport
        self._networkProducer.unregisterProducer()
        self._networkProducer.resumeProducing()
        if isinstance(transport, FileDescriptor):
            transport.loseWriteConnection()
        else:
            transport.loseConnection()

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None if seconds is None else reactor.callLater(seconds, self._meet_deadline)

    def _meet_deadline(self) -> None:
        self._deadline = None
        if self.transport is None:
            return
        if self._refused:
            self.transport.abortConnection()
        elif not self._between_requests:
            self.refuse("request_timeout", "The request did not become whole in time.")
        elif self._waitingForTransport and self._unread_s < UNREAD_ANSWER_S:
            self._unread_s += KEPT_ALIVE_S  # the peer is still reading the answer
            self._set_deadline(KEPT_ALIVE_S)
        else:
            self._end(LINGER_S)


class BoundedRequest(WebRequest):
    """A request whose body is in memory, as far as its connection may hold one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._parsePOSTFormSubmission = False  # Django parses forms, in a thread and within its limits

    def gotLength(self, length: int | None) -> None:
        self.content = BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        if self.channel.take_body(len(data)):
            super().handleContentChunk(data)

    def process(self) -> Any:
        channel = self.channel
        processed = super().process()
        if self.transport is None:  # the WebSocket has it
            channel.release_body()
        return processed


class FeedProtocol(WebSocketProtocol):
    """A WebSocket of the live feed. A peer that sends before it was answered is dropped (RFC 6455, 4.1)."""

    _asked = False

    def dataReceived(self, data: bytes) -> None:
        if self.state == self.STATE_CONNECTING:
            if self._asked:
                self.transport.abortConnection()
                return
            self._asked = True
        super().dataReceived(data)


def _channel(factory: HTTPFactory) -> _GenericHTTPChannelProtocol:
    return _GenericHTTPChannelProtocol(BoundedChannel())


class BoundedHTTPFactory(HTTPFactory):
    """Makes the web process's connections."""

    protocol = _channel

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.timeOut = None  # each connection has deadlines of its own
        self.unfinished = UnfinishedRequests()
        self.max_body_bytes: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE

    def buildProtocol(self, addr: Any) -> Any:
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = BoundedRequest
        return protocol


def _share_of(host: str) -> str:
    """Return the address whose share a connection uses; "" for a trusted proxy, which has all of them."""
    return "" if is_in_networks(host, settings.SLUICE_TRUSTED_PROXIES) else rate_limit_prefix(host)
