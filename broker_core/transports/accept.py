"""A TLS handshake, of which each read waits for its turn at the door.

A loop reads all that are ready in one turn, and each step of a handshake is some of a millisecond of arithmetic: of a thousand that begin with a
byte each and say the rest at once, that would be one turn of a second. So a gate stands between socket and TLS until both sides are sure
of one another; it reads once, and then not before the door calls it.

Taking connections from the kernel, a few in each turn of the loop.

asyncio's servers take all that are there in one turn, up to a thousand, and each costs some 0.2 ms: whoever is connected already would
wait for all of them. With TLS they tell nobody of one before its handshake is done, and any number of silent peers would have a
descriptor each, and a thousand handshakes could begin in one turn. Here who hasn't finished it is a guest of the anteroom from the moment that it is taken, and
begins when it has spoken and its turn at the door has come; so is each further read of it (`handshaking`).
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
    ACCEPTED_A_TURN,
    GUEST_READ_BYTES,
    PendingConnections,
    PreLogonReadQueue,
)

_NO_FILE: Final = -1


async def start_tls(
    taken: socket.socket,
    protocol: Callable[[], asyncio.BufferedProtocol],
    context: ssl.SSLContext,
    door: PreLogonReadQueue,
    within_s: float,
) -> None:
    """Make a connection's transport with TLS, and then its protocol. Raises OSError (an SSLError is one) when nothing comes of it; `within_s`
    seconds it may take."""
    loop = asyncio.get_running_loop()
    gate = _HandshakeProtocol(door, taken.fileno())
    early = _EarlyDataProtocol()
    raw, _ = await loop.connect_accepted_socket(lambda: gate, taken)
    try:
        loop.call_soon(gate.attach, raw)  # when TLS is the socket's protocol, and before it is told so
        transport = await loop.start_tls(
            raw, early, context, server_side=True, ssl_handshake_timeout=within_s
        )
    finally:
        gate.detach(raw)
    if transport is None or early.over:
        return
    made = protocol()
    transport.set_protocol(made)
    made.connection_made(transport)
    _feed(made, early.said)


class _HandshakeProtocol(asyncio.BufferedProtocol):
    """The protocol of a socket whose TLS isn't done."""

    def __init__(self, door: PreLogonReadQueue, descriptor: int) -> None:
        self._door, self._descriptor = door, descriptor
        self._raw: asyncio.Transport | None = None
        self._tls: asyncio.BufferedProtocol | None = None
        """None before it knows its transport, and when it is done."""
        self._buffer = bytearray()
        self._before = b""
        """What was read before that: a loop reads once or twice whatever it is told."""
        self._lost: tuple[Exception | None] | None = None

    def attach(self, raw: asyncio.Transport) -> None:
        """From now on TLS is given what this reads."""
        tls = raw.get_protocol()
        if tls is not self:
            self._raw = raw
            raw.set_protocol(self)
            asyncio.get_running_loop().call_soon(self._begin, cast(asyncio.BufferedProtocol, tls))

    def detach(self, raw: asyncio.Transport) -> None:
        """It is done: TLS reads for itself."""
        self._door.remove_reader(self._descriptor, self._heard)
        tls, self._tls = self._tls, None
        self._raw, self._buffer, self._descriptor = None, bytearray(), _NO_FILE
        if tls is not None and self._lost is None:
            raw.set_protocol(tls)  # also when it is about to hear of its end
            if not raw.is_closing():
                raw.resume_reading()

    def _begin(self, tls: asyncio.BufferedProtocol) -> None:
        """TLS knows its transport."""
        if self._lost is not None:
            tls.connection_lost(*self._lost)
        elif self._raw is not None:
            self._tls = tls
            before, self._before, self._buffer = self._before, b"", bytearray()
            _feed(tls, before)
            self._rest()

    def _rest(self) -> None:
        if self._raw is not None and self._tls is not None and not self._raw.is_closing():
            self._raw.pause_reading()
            self._door.add_reader(self._descriptor, self._heard)

    def _heard(self) -> None:
        if self._raw is not None and not self._raw.is_closing():
            self._raw.resume_reading()

    # The loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).pause_reading()

    def get_buffer(self, sizehint: int) -> Any:
        if self._tls is not None:
            return self._tls.get_buffer(GUEST_READ_BYTES)
        self._buffer = self._buffer or bytearray(GUEST_READ_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._tls is not None:
            self._tls.buffer_updated(nbytes)
            self._rest()
        else:
            self._before += self._buffer[:nbytes]

    def eof_received(self) -> bool | None:
        return self._tls.eof_received() if self._tls is not None else False

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.remove_reader(self._descriptor, self._heard)
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
    """What a peer says in the same breath as the end of its handshake, until its protocol is there. One read at most."""

    def __init__(self) -> None:
        self.said = b""
        self.over = False

    def data_received(self, data: bytes) -> None:
        self.said += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True


def _feed(protocol: asyncio.BufferedProtocol, said: bytes) -> None:
    """As if it had been read."""
    rest = memoryview(said)
    while rest:
        buffer = cast(memoryview, protocol.get_buffer(len(rest)))
        number = min(len(buffer), len(rest))
        buffer[:number] = rest[:number]
        protocol.buffer_updated(number)
        rest = rest[number:]


HANDSHAKE_S: Final = 10.0
"""How long a peer may be silent before its TLS handshake, and how long that may take."""
RETRY_DELAY_S: Final = 1.0
"""After the kernel had no connection to give: no descriptors, no memory."""
BACKLOG: Final = 1_024
log = structlog.get_logger("sluice.accepting")


class Acceptor:
    """One listener's. A `protocol` is made for each connection, where there is TLS after its handshake."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.BufferedProtocol],
        anteroom: PendingConnections,
        door: PreLogonReadQueue,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.protocol, self.context = protocol, context
        self.anteroom, self.door = anteroom, door
        self.handshakes: set[PendingHandshake] = set()
        self._sockets: list[socket.socket] = []
        self._begun: set[asyncio.Task[Any]] = set()
        self._later: dict[socket.socket, asyncio.TimerHandle] = {}

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start; the address. Raises OSError."""
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
        """Take no more, and end handshakes that aren't done."""
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            if (again := self._later.pop(one, None)) is not None:
                again.cancel()
            loop.remove_reader(one)
            one.close()
        self._sockets = []
        for handshake in list(self.handshakes):
            handshake.drop()

    def _take(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                taken, peer = listening.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it has left again
            except OSError as problem:
                log.error("no_connection_taken", why=str(problem))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                self._later[listening] = loop.call_later(RETRY_DELAY_S, self._again, listening)
                return
            taken.setblocking(False)
            if self.context is None:
                self.begin(taken)
            else:
                PendingHandshake(taken, f"{peer[0]}:{peer[1]}", self)

    def _again(self, listening: socket.socket) -> None:
        del self._later[listening]
        asyncio.get_running_loop().add_reader(listening, self._take, listening)

    def begin(self, taken: socket.socket) -> asyncio.Task[Any]:
        """Make its transport."""
        loop = asyncio.get_running_loop()
        task: asyncio.Task[Any]
        if self.context is None:
            task = loop.create_task(loop.connect_accepted_socket(self.protocol, taken))
        else:
            task = loop.create_task(start_tls(taken, self.protocol, self.context, self.door, HANDSHAKE_S))
        self._begun.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.debug("connection_not_made", why=repr(problem))  # it left, was too slow, or speaks no TLS


class PendingHandshake:
    """A connection whose TLS handshake isn't done. Satisfies `anteroom.Guest`."""

    def __init__(self, taken: socket.socket, remote: str, listener: Acceptor) -> None:
        self._socket, self.remote, self._listener = taken, remote, listener
        self._begun = False
        listener.handshakes.add(self)
        listener.door.add_reader(taken.fileno(), self._begin)
        self._patience = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.drop)
        listener.anteroom.add_pending(self)

    def close_for_room(self) -> None:
        """Another comes: this one ends, and isn't chosen again. There is no protocol yet in which it could be told."""
        self._listener.anteroom.mark_authenticated(self)
        self.drop()

    def drop(self) -> None:
        self._patience.cancel()
        if not self._begun:
            self._listener.door.remove_reader(self._socket.fileno(), self._begin)
            self._socket.close()
            self._ended()
        else:
            # Its transport has it, and closes it when it hears of the end. To cancel what awaits it would leave that to the deadline on uvloop,
            # with a descriptor that two believe to be theirs.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _begin(self) -> None:
        """It has spoken, and this is its turn."""
        self._patience.cancel()
        self._begun = True
        self._listener.begin(self._socket).add_done_callback(lambda _: self._ended())

    def _ended(self) -> None:
        self._listener.handshakes.discard(self)
        self._listener.anteroom.remove_closing(self)
