"""A TLS handshake, of which each read waits for its turn at the door.

A loop reads all that are ready in one turn, and each step of a handshake is some of a millisecond of arithmetic: of a thousand that begin with a
byte each and say the rest at once, that would be one turn of a second. So a gate stands between socket and TLS until both sides are sure
of one another; it reads once, and then not before the door calls it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

from broker_core.connections.admission import GUEST_READ_BYTES, PreLogonReadQueue

_NO_FILE: Final = -1


async def shake_hands(
    taken: socket.socket,
    protocol: Callable[[], asyncio.BufferedProtocol],
    context: ssl.SSLContext,
    door: PreLogonReadQueue,
    within_s: float,
) -> None:
    """Make a connection's transport with TLS, and then its protocol. Raises OSError (an SSLError is one) when nothing comes of it; `within_s`
    seconds it may take."""
    loop = asyncio.get_running_loop()
    gate = _Gate(door, taken.fileno())
    early = _Early()
    raw, _ = await loop.connect_accepted_socket(lambda: gate, taken)
    try:
        loop.call_soon(gate.stand_between, raw)  # when TLS is the socket's protocol, and before it is told so
        transport = await loop.start_tls(
            raw, early, context, server_side=True, ssl_handshake_timeout=within_s
        )
    finally:
        gate.leave(raw)
    if transport is None or early.over:
        return
    made = protocol()
    transport.set_protocol(made)
    made.connection_made(transport)
    _feed(made, early.said)


class _Gate(asyncio.BufferedProtocol):
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

    def stand_between(self, raw: asyncio.Transport) -> None:
        """From now on TLS is given what this reads."""
        tls = raw.get_protocol()
        if tls is not self:
            self._raw = raw
            raw.set_protocol(self)
            asyncio.get_running_loop().call_soon(self._begin, cast(asyncio.BufferedProtocol, tls))

    def leave(self, raw: asyncio.Transport) -> None:
        """It is done: TLS reads for itself."""
        self._door.forget(self._descriptor, self._heard)
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
            self._door.watch(self._descriptor, self._heard)

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
        self._door.forget(self._descriptor, self._heard)
        self._lost = (exc,)
        if self._tls is not None:
            self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause_writing()

    def resume_writing(self) -> None:
        if self._tls is not None:
            self._tls.resume_writing()


class _Early(asyncio.Protocol):
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
