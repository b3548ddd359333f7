"""Accepting connections, a few per event-loop iteration, and TLS handshakes that are read in fair order.

asyncio's servers accept all waiting connections in one iteration, up to a thousand, at some 0.2 ms each.
Connected clients would wait for all of them. With TLS, asyncio reports a connection only after its handshake.
Any number of silent peers would hold a descriptor each, and a thousand handshakes could begin in one
iteration.

Here a connection with TLS is a pending connection (`admission`) from the moment it is accepted. Its handshake
begins when it has sent bytes and `PreLogonReadQueue` calls it. Each step of a handshake computes for a part
of a millisecond. If a thousand peers each send one byte and later the rest together, an event loop would read
all in one iteration of a second. So `_HandshakeProtocol` stands between socket and TLS until the handshake is
done. It reads once, and again only when `PreLogonReadQueue` calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

import structlog

from broker_core.connections.admission import (
    ACCEPTS_PER_ITERATION,
    PENDING_READ_BYTES,
    PendingConnections,
    PreLogonReadQueue,
)

_NO_FILE: Final = -1


async def start_tls(
    accepted: socket.socket,
    protocol: Callable[[], asyncio.BufferedProtocol],
    context: ssl.SSLContext,
    read_queue: PreLogonReadQueue,
    within_s: float,
) -> None:
    """Make a connection's TLS transport, and then its protocol.

    Args:
        taken: the accepted socket.
        within_s: maximum duration of the handshake, seconds.

    Raises:
        OSError: the handshake failed; ssl.SSLError is an OSError.
    """
    loop = asyncio.get_running_loop()
    handshake = _HandshakeProtocol(read_queue, accepted.fileno())
    early = _EarlyDataProtocol()
    raw, _ = await loop.connect_accepted_socket(lambda: handshake, accepted)
    try:
        # It runs after start_tls has made TLS the socket's protocol, and before TLS is notified of that.
        loop.call_soon(handshake.attach, raw)
        transport = await loop.start_tls(
            raw, early, context, server_side=True, ssl_handshake_timeout=within_s
        )
    finally:
        handshake.detach(raw)
    if transport is None or early.is_closed:
        return
    made = protocol()
    transport.set_protocol(made)
    made.connection_made(transport)
    _feed(made, early.received)


class _HandshakeProtocol(asyncio.BufferedProtocol):
    """Protocol of a socket whose TLS handshake isn't done."""

    def __init__(self, read_queue: PreLogonReadQueue, descriptor: int) -> None:
        self._read_queue, self._descriptor = read_queue, descriptor
        self._raw: asyncio.Transport | None = None
        self._tls: asyncio.BufferedProtocol | None = None
        """TLS protocol; None before it has its transport, and after the handshake."""
        self._buffer = bytearray()
        self._before = b""
        """Bytes that were read before then: a loop reads once or twice even if reading is paused."""
        self._lost: tuple[Exception | None] | None = None

    def attach(self, raw: asyncio.Transport) -> None:
        """Pass the bytes that this protocol reads to TLS from now on."""
        tls = raw.get_protocol()
        if tls is not self:
            self._raw = raw
            raw.set_protocol(self)
            asyncio.get_running_loop().call_soon(self._begin, cast(asyncio.BufferedProtocol, tls))

    def detach(self, raw: asyncio.Transport) -> None:
        """Let TLS read for itself, because the handshake is done."""
        self._read_queue.remove_reader(self._descriptor, self._on_readable)
        tls, self._tls = self._tls, None
        self._raw, self._buffer, self._descriptor = None, bytearray(), _NO_FILE
        if tls is not None and self._lost is None:
            raw.set_protocol(tls)  # also when it is about to be notified of its end
            if not raw.is_closing():
                raw.resume_reading()

    def _begin(self, tls: asyncio.BufferedProtocol) -> None:
        """Pass the bytes read so far to TLS, which has its transport now."""
        if self._lost is not None:
            tls.connection_lost(*self._lost)
        elif self._raw is not None:
            self._tls = tls
            before, self._before, self._buffer = self._before, b"", bytearray()
            _feed(tls, before)
            self._pause_reading()

    def _pause_reading(self) -> None:
        """Pause reading until `PreLogonReadQueue` calls."""
        if self._raw is not None and self._tls is not None and not self._raw.is_closing():
            self._raw.pause_reading()
            self._read_queue.add_reader(self._descriptor, self._on_readable)

    def _on_readable(self) -> None:
        if self._raw is not None and not self._raw.is_closing():
            self._raw.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).pause_reading()

    def get_buffer(self, sizehint: int) -> Any:
        if self._tls is not None:
            return self._tls.get_buffer(PENDING_READ_BYTES)
        self._buffer = self._buffer or bytearray(PENDING_READ_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._tls is not None:
            self._tls.buffer_updated(nbytes)
            self._pause_reading()
        else:
            self._before += self._buffer[:nbytes]

    def eof_received(self) -> bool | None:
        return self._tls.eof_received() if self._tls is not None else False

    def connection_lost(self, exc: Exception | None) -> None:
        self._read_queue.remove_reader(self._descriptor, self._on_readable)
        self._lost = (exc,)
        if self._tls is not None:
            self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        if self._tls is not None:
            self._tls.resume_writing()


class _EarlyDataProtocol(asyncio.Protocol):
    """Buffer for bytes that arrive with the end of a handshake, before the protocol exists.

    One read at most.
    """

    def __init__(self) -> None:
        self.received = b""
        self.is_closed = False

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True


def _feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Pass bytes to a protocol as if it had read them."""
    unread = memoryview(data)
    while unread:
        buffer = cast(memoryview, protocol.get_buffer(len(unread)))
        number = min(len(buffer), len(unread))
        buffer[:number] = unread[:number]
        protocol.buffer_updated(number)
        unread = unread[number:]


HANDSHAKE_S: Final = 10.0
"""Maximum silence before a TLS handshake, and maximum duration of the handshake, seconds."""
RETRY_DELAY_S: Final = 1.0
"""Delay before the next accept after a failed one (no descriptors, no memory), seconds."""
BACKLOG: Final = 1_024
"""Connections that may wait in the kernel to be accepted."""
log = structlog.get_logger("sluice.accepting")


class Acceptor:
    """Accepting side of one listener.

    It makes a `protocol` for each connection, with TLS after the handshake.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.BufferedProtocol],
        pending_connections: PendingConnections,
        read_queue: PreLogonReadQueue,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.protocol, self.context = protocol, context
        self.pending_connections, self.read_queue = pending_connections, read_queue
        self.handshakes: set[PendingHandshake] = set()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._later: dict[socket.socket, asyncio.TimerHandle] = {}

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start listening and return the address.

        Raises:
            OSError: the address can't be bound.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((one[0], one[4]) for one in found):
                made = socket.create_server(
                    (str(address[0]), int(address[1])), family=family, backlog=BACKLOG
                )
                made.setblocking(False)
                self._sockets.append(made)
        except OSError:
            self.close()
            raise
        for one in self._sockets:
            loop.add_reader(one, self._take, one)
        bound: tuple[str, int] = self._sockets[0].getsockname()[:2]
        return bound

    def close(self) -> None:
        """Stop listening, and close connections in a handshake."""
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            if (retry_timer := self._later.pop(one, None)) is not None:
                retry_timer.cancel()
            loop.remove_reader(one)
            one.close()
        self._sockets = []
        for handshake in list(self.handshakes):
            handshake.drop()

    def _take(self, listening: socket.socket) -> None:
        """Accept a few connections from a listening socket."""
        for _ in range(ACCEPTS_PER_ITERATION):
            try:
                accepted, peer = listening.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # the peer has closed it already
            except OSError as problem:
                log.error("no_connection_taken", why=str(problem))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                self._later[listening] = loop.call_later(RETRY_DELAY_S, self._resume_accepting, listening)
                return
            accepted.setblocking(False)
            if self.context is None:
                self.begin(accepted)
            else:
                PendingHandshake(accepted, f"{peer[0]}:{peer[1]}", self)

    def _resume_accepting(self, listening: socket.socket) -> None:
        del self._later[listening]
        asyncio.get_running_loop().add_reader(listening, self._take, listening)

    def begin(self, accepted: socket.socket) -> asyncio.Task[Any]:
        """Start a task that makes the transport of an accepted socket."""
        loop = asyncio.get_running_loop()
        task: asyncio.Task[Any]
        if self.context is None:
            task = loop.create_task(loop.connect_accepted_socket(self.protocol, accepted))
        else:
            task = loop.create_task(
                start_tls(accepted, self.protocol, self.context, self.read_queue, HANDSHAKE_S)
            )
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # The peer has closed, was too slow, or doesn't speak TLS.
            log.debug("connection_not_made", why=repr(problem))


class PendingHandshake:
    """Connection whose TLS handshake isn't done. Satisfies `admission.PendingConnection`."""

    def __init__(self, accepted: socket.socket, remote: str, listener: Acceptor) -> None:
        self._socket, self.remote, self._listener = accepted, remote, listener
        self._has_started = False
        listener.handshakes.add(self)
        listener.read_queue.add_reader(accepted.fileno(), self._begin)
        self._timeout_timer = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.drop)
        listener.pending_connections.add_pending(self)

    def evict(self) -> None:
        """Close for a newer connection, without an error: there is no protocol yet to send it in."""
        self._listener.pending_connections.mark_authenticated(self)
        self.drop()

    def drop(self) -> None:
        self._timeout_timer.cancel()
        if not self._has_started:
            self._listener.read_queue.remove_reader(self._socket.fileno(), self._begin)
            self._socket.close()
            self._ended()
        else:
            # The transport owns the socket and closes it at its end. Cancelling the task instead would, on
            # uvloop, leave the descriptor open until the deadline, with two owners.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _begin(self) -> None:
        """Start the handshake, because the peer has sent bytes and the queue calls this connection."""
        self._timeout_timer.cancel()
        self._has_started = True
        self._listener.begin(self._socket).add_done_callback(lambda _: self._ended())

    def _ended(self) -> None:
        self._listener.handshakes.discard(self)
        self._listener.pending_connections.remove_closing(self)
