"""HTTP for the web process with a bound on every request, also before a login.

Without these bounds a stranger can exhaust the process. Twisted spools bodies of any size to the temporary
directory, daphne reads them whole, and neither ends a request that never completes. This module changes
that:

* A body that is too large is refused by its Content-Length, or at the bound while it is read.
* Head and body each have a deadline, which further bytes do not extend.
* Each address has a share of unfinished requests and of body bytes (`unfinished_requests`).
* A pipelined request waits until the previous answer has left memory. Twisted would answer it even if
  the peer reads no answers.
* Django alone parses forms. Twisted would parse them too, in the event loop.
* A body has a bound on the number of its chunks.

A connection that was upgraded to a WebSocket has none of these bounds.
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
"""Seconds from a request's first byte, or from the connection's start, to the end of the headers."""
BODY_WITHIN_S: Final = 60
"""Seconds from the end of the headers to the end of the body."""
KEEP_ALIVE_TIMEOUT_S: Final = 75
"""Seconds from the answer of one request to the first byte of the next."""
UNREAD_ANSWER_S: Final = 600
"""Seconds that a peer has to read the rest of an answer."""
LINGER_S: Final = 2
"""Seconds that a peer has to read a refusal. The web process discards bytes that arrive meanwhile."""
MAX_BODY_PARTS: Final = 16 * 1024
"""Maximum chunks of a chunked body, or reads of another body.

Each costs some microseconds of the event loop.
"""
MAX_HEADERS: Final = 100
"""Maximum header lines of a request."""
MAX_HEAD_BYTES: Final = 16 * 1024
"""Maximum bytes of a request's head."""
MAX_LENGTH_DIGITS: Final = 18
"""Maximum digits of a Content-Length, without leading zeros."""

reactor: Any = _reactor


class BoundedChannel(HTTPChannel):
    """HTTP connection with deadlines and bounds. Implements `unfinished_requests.RequestConnection`."""

    maxHeaders = MAX_HEADERS
    totalHeadersSize = MAX_HEAD_BYTES
    MAX_LENGTH = MAX_HEAD_BYTES
    transport: Any

    def connectionMade(self) -> None:
        """Start the deadline for the first head, and count the connection as unfinished."""
        self._deadline: Any = None
        self._between_requests, self._refused = False, False
        self._body_bytes_read = self._unread_s = self._body_parts = 0
        self._unparsed = b""
        self._unfinished: UnfinishedRequests = self.factory.unfinished
        self._address = _share_key(str(getattr(self.transport.getPeer(), "host", "")))
        super().connectionMade()
        self._set_deadline(HEAD_WITHIN_S)
        self._unfinished.enter(self._address, self)

    def dataReceived(self, data: bytes) -> None:
        """Parse bytes. The first byte after an idle time starts the next head's deadline."""
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
        """Parse body bytes.

        Reading pauses while a request is being handled and the peer has not read the previous answer.
        """
        if self._refused:
            return
        super().rawDataReceived(data)
        if (
            self._handlingRequest and self._waitingForTransport
        ):  # Twisted would go on reading, without a bound
            self._networkProducer.pauseProducing()

    def setLineMode(self, extra: bytes = b"") -> None:
        """Parse the bytes behind a request once the peer has read most of the previous answer.

        Until then `extra` waits in `_unparsed`, and reading from the socket pauses.
        """
        if self._waitingForTransport:
            self._unparsed, extra = extra, b""
            self._networkProducer.pauseProducing()
        super().setLineMode(extra)

    def resumeProducing(self) -> None:
        """Read again, and parse the bytes that `setLineMode` stored."""
        super().resumeProducing()
        unparsed, self._unparsed = self._unparsed, b""
        if unparsed:
            self.dataReceived(unparsed)

    def _maybeChooseTransferDecoder(self, header: bytes, data: bytes) -> bool:
        """Refuse a Content-Length with more than `MAX_LENGTH_DIGITS` digits.

        Python does not convert numbers of more than 4,300 digits, so Twisted would close without an answer.
        """
        if header == b"Content-Length" and data.isdigit():
            data = data.lstrip(b"0") or b"0"
            if len(data) > MAX_LENGTH_DIGITS:
                self.refuse_body()
                return False
        return bool(super()._maybeChooseTransferDecoder(header, data))

    def allHeadersReceived(self) -> None:
        """Refuse a body that is too large, or start the body's deadline."""
        if self.length is not None and self.length > self.factory.max_body_bytes:
            self.refuse_body()
            return
        self._set_deadline(BODY_WITHIN_S)
        super().allHeadersReceived()

    def count_body(self, nbytes: int) -> bool:
        """Count `nbytes` of a body. Returns False when the request was refused because it exceeds a bound."""
        if self._refused:
            return False
        self._body_parts += 1
        if self._body_parts > MAX_BODY_PARTS:
            self.refuse(
                "body_too_large", f"The body of a request can have at most {MAX_BODY_PARTS:,} chunks."
            )
        elif self._body_bytes_read + nbytes > self.factory.max_body_bytes:
            self.refuse_body()
        elif not self._unfinished.reserve_body(self._address, nbytes):
            self.refuse("web_busy", "The console has reached its memory limit for request bodies.")
        else:
            self._body_bytes_read += nbytes
        return not self._refused

    def allContentReceived(self) -> None:
        """Stop the deadline of a complete request, and process it."""
        if self._refused:
            return
        self._set_deadline(None)
        self._unfinished.remove(self._address, self)
        super().allContentReceived()

    def requestDone(self, request: Any) -> None:
        """Wait for the next request of the connection, with a deadline."""
        self.release_body()
        if self.transport is not None and not self._refused:
            self._between_requests, self._unread_s = True, 0
            self._set_deadline(KEEP_ALIVE_TIMEOUT_S)
            self._unfinished.enter(self._address, self)
        super().requestDone(request)

    def connectionLost(self, reason: Any = connectionDone) -> None:
        self._set_deadline(None)
        self._unfinished.remove(self._address, self)
        self.release_body()
        super().connectionLost(reason)

    def release_body(self) -> None:
        """Stop counting the body of a request that was answered or lost."""
        self._unfinished.release_body(self._address, self._body_bytes_read)
        self._body_bytes_read = self._body_parts = 0

    def refuse_body(self) -> None:
        """Refuse the request with 413, because its body is too large."""
        limit = self.factory.max_body_bytes
        self.refuse("body_too_large", f"The body of a request can have at most {limit:,} bytes here.")

    def refuse(self, code: str, sentence: str) -> None:
        """Answer an unfinished request with a problem document, discard further input, and close.

        Does nothing if the request was refused before, or its connection is lost.

        Args:
            code: Error code. Its entry in `broker_core.error_codes` gives the HTTP status.
            sentence: The problem's `detail`.
        """
        if self._refused or self.transport is None:
            return
        self._refused = True
        status = error_code_entry(code).http_status
        problem = {
            "type": f"urn:sluice:problem:{code}",
            "title": status.phrase,
            "status": status,
            "code": code,
            "detail": sentence,
            "fix": "",
            "details": {},
        }
        body = json.dumps(problem).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/problem+json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._end(LINGER_S)

    def evict(self) -> None:
        """Close an idle connection; refuse the unfinished request of another one with `web_busy`."""
        if self._between_requests:
            self._end(LINGER_S)
        else:
            self.refuse("web_busy", "This address has too many unfinished requests.")

    def lineLengthExceeded(self, line: bytes) -> None:
        """Answer a request line or header line that is too long. Twisted would close without an answer."""
        if self._HTTPChannel__first_line:  # type: ignore[attr-defined]  # private in Twisted
            self.refuse("uri_too_long", f"The request line can have at most {self.MAX_LENGTH:,} bytes here.")
        else:
            self._respondToBadRequestAndDisconnect()

    def _respondToBadRequestAndDisconnect(self) -> None:
        """Answer an invalid head with a problem document. Twisted's own answer has no body."""
        self.refuse(
            "bad_request",
            "The head or a chunk of the request can't be read, or the head has more than "
            f"{MAX_HEADERS} headers or {MAX_HEAD_BYTES:,} bytes.",
        )

    def _end(self, linger_s: float) -> None:
        """Close the connection for writing, so that the peer can read the answer first.

        Input is discarded for `linger_s` seconds; then the connection is aborted. Closing both directions
        at once would reset the connection, and the peer could lose the answer.
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
        """Replace the connection's deadline; None removes it."""
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None if seconds is None else reactor.callLater(seconds, self._meet_deadline)

    def _meet_deadline(self) -> None:
        """Handle an expired deadline: refuse, abort, or wait longer for a peer that is still reading."""
        self._deadline = None
        if self.transport is None:
            return
        if self._refused:
            self.transport.abortConnection()
        elif not self._between_requests:
            self.refuse("request_timeout", "The client didn't send the complete request in time.")
        elif self._waitingForTransport and self._unread_s < UNREAD_ANSWER_S:
            self._unread_s += KEEP_ALIVE_TIMEOUT_S  # the peer is still reading the answer
            self._set_deadline(KEEP_ALIVE_TIMEOUT_S)
        else:
            self._end(LINGER_S)


class BoundedRequest(WebRequest):
    """HTTP request whose body stays in memory. `BoundedChannel.count_body` limits its size."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._parsePOSTFormSubmission = False  # Django parses forms, in a thread and within its limits

    def gotLength(self, length: int | None) -> None:
        """Buffer the body in memory. Twisted would use a temporary file for a large one."""
        self.content = BytesIO()

    def handleContentChunk(self, data: bytes) -> None:
        """Store body bytes that are within the limits."""
        if self.channel.count_body(len(data)):
            super().handleContentChunk(data)

    def process(self) -> Any:
        """Process the request, and release its body if the connection became a WebSocket."""
        channel = self.channel
        processed = super().process()
        if self.transport is None:  # the connection was upgraded to a WebSocket
            channel.release_body()
        return processed


class FeedProtocol(WebSocketProtocol):
    """WebSocket of the live feed.

    Drops a peer that sends more before the handshake was answered (RFC 6455, 4.1).
    """

    _has_request = False

    def dataReceived(self, data: bytes) -> None:
        if self.state == self.STATE_CONNECTING:
            if self._has_request:
                self.transport.abortConnection()
                return
            self._has_request = True
        super().dataReceived(data)


def _channel(factory: HTTPFactory) -> _GenericHTTPChannelProtocol:
    """Return the protocol of a new connection. `HTTPFactory` calls it as a method."""
    return _GenericHTTPChannelProtocol(BoundedChannel())


class BoundedHTTPFactory(HTTPFactory):
    """Factory of the web process's HTTP connections."""

    protocol = _channel

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.timeOut = None  # each connection has its own deadlines
        self.unfinished = UnfinishedRequests()
        self.max_body_bytes: int = settings.DATA_UPLOAD_MAX_MEMORY_SIZE

    def buildProtocol(self, addr: Any) -> Any:
        protocol = super().buildProtocol(addr)
        protocol.requestFactory = BoundedRequest
        return protocol


def _share_key(host: str) -> str:
    """Return the address that limits are counted by; "" for a trusted proxy, which carries the requests of
    many addresses.
    """
    return "" if is_in_networks(host, settings.SLUICE_TRUSTED_PROXIES) else rate_limit_prefix(host)
