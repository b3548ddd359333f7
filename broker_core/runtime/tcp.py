"""The TCP transport: asyncio's BufferedProtocol on one side, a Connection of the engine on the other.

The kernel writes received bytes straight into the frame reader's buffer, and each frame is copied out once. Below
the outbox asyncio holds at most TRANSPORT_HIGH_BYTES: `pause_writing` makes the sink unwritable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from broker_core.access.tls import names_in, server_context
from broker_core.config import TransportSettings
from broker_core.delivery.outbox import OutboxEntry
from broker_core.errors import ClientError
from broker_core.protocols.native import (
    DELIVER,
    FROM_CLIENT,
    FrameReader,
    encode_command,
    encode_frame_header,
)
from broker_core.protocols.replies import Reply
from broker_core.runtime import socket_options
from broker_core.runtime.sink import TRANSPORT_HIGH_BYTES

if TYPE_CHECKING:
    from broker_core.runtime.connection import Connection
    from broker_core.runtime.host import Host

HANDSHAKE_S = 10.0
"""How long a peer may take for its TLS handshake."""
CLOSE_AFTER_S = 2.0
"""How long a closing connection may take to read its last notice."""


class TcpProtocol(asyncio.BufferedProtocol):
    """One TCP connection; also its own Sink."""

    protocol = "tcp"

    def __init__(self, host: Host, transport_name: str) -> None:
        self._host = host
        self._transport_name = transport_name
        self._reader = FrameReader(kinds=FROM_CLIENT)
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self.remote = "?"
        self.writable = True
        self.peer_names: frozenset[str] = frozenset()

    # asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports are asyncio's by shape and not by class.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=TRANSPORT_HIGH_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            socket_options.prepare(raw)
        peer: Any = transport.get_extra_info("peername")
        self.remote = f"{peer[0]}:{peer[1]}" if peer else "?"
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.peer_names = names_in(tls.getpeercert(binary_form=True))
        self._connection = self._host.connected(self._transport_name, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        assert self._connection is not None
        try:
            frames = self._reader.buffer_updated(nbytes)
        except ClientError as error:
            self._connection.fail(error)
            return
        if frames:
            self._connection.receive(frames)
        if self._reader.error is not None:
            self._connection.fail(self._reader.error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable = False
        if self._connection is not None:
            self._connection.on_closed()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self._connection is not None:
            self._connection.on_writable()

    # The engine calls these: the Sink.

    @property
    def flushed(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() == 0

    def send_entries(self, entries: Sequence[OutboxEntry]) -> None:
        assert self._transport is not None
        parts: list[Any] = []
        for entry in entries:
            batch = entry.batch
            parts.append(encode_frame_header(DELIVER, entry.stream, batch.nbytes))
            parts.append(batch.buf)
        self._transport.writelines(parts)

    def send_reply(self, reply: Reply) -> None:
        assert self._transport is not None
        self._transport.write(encode_command(reply))

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self, code: str, message: str) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.close()
        # close() waits for the peer to take what is buffered; one that never reads must not hold it for ever.
        asyncio.get_running_loop().call_later(CLOSE_AFTER_S, self._transport.abort)


class TcpListener:
    """Listens for clients of a TCP transport."""

    def __init__(self, host: Host, settings: TransportSettings) -> None:
        self._host = host
        self._settings = settings
        self._server: asyncio.Server | None = None

    async def listen(self) -> tuple[str, int]:
        """Start listening; the address. Raises OSError when the port is taken, OperatorError bad_certificate."""
        settings = self._settings
        tls = server_context(settings.tls) if settings.tls is not None else None
        self._server = await asyncio.get_running_loop().create_server(
            lambda: TcpProtocol(self._host, settings.name), settings.host, settings.port, backlog=1024,
            ssl=tls, ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None,
        )
        address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return address

    async def stop_listening(self) -> None:
        """Take no new connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
