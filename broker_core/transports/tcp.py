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
from broker_core.delivery.entry import OutboxEntry
from broker_core.delivery.sink import TRANSPORT_HIGH_BYTES
from broker_core.errors import ClientError
from broker_core.protocols.native import (
    BEFORE_LOGON,
    DELIVER,
    FRAME_HEADER_SIZE,
    FROM_CLIENT,
    MAX_FRAME,
    FrameReader,
    encode_command,
    encode_frame_header,
)
from broker_core.protocols.replies import Reply
from broker_core.transports import socket_options
from broker_core.transports.peer_progress import CountedContext, CountedTls, PeerProgress

if TYPE_CHECKING:
    from broker_core.connections.connection import Connection
    from broker_core.connections.inbox import Item
    from broker_core.engine.engine import Engine

HANDSHAKE_S = 10.0
"""How long a peer may take for its TLS handshake."""
CLOSE_AFTER_S = 2.0
"""How long a closing connection may take to read its last notice."""


class TcpProtocol(asyncio.BufferedProtocol):
    """One TCP connection; also its own Sink."""

    protocol = "tcp"

    def __init__(self, engine: Engine, transport_name: str) -> None:
        self._engine = engine
        self._transport_name = transport_name
        self._reader = FrameReader(FROM_CLIENT, BEFORE_LOGON)
        self._trusted = False
        self._held = 0
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._progress = PeerProgress(None)
        self._tls: CountedTls | None = None
        self.handed_bytes = 0
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
        self._progress = PeerProgress(raw)
        peer: Any = transport.get_extra_info("peername")
        self.remote = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._tls = transport.get_extra_info("ssl_object")
        if self._tls is not None:
            self.peer_names = names_in(self._tls.getpeercert(binary_form=True))
        self._connection = self._engine.connected(self._transport_name, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        assert self._connection is not None
        items: list[Item] = []
        try:
            items += self._reader.buffer_updated(nbytes)
            if self._reader.error is not None:
                items.append(self._reader.error)
            if self._reader.held != self._held:
                self._hold(self._reader.held)
        except ClientError as error:
            items.append(error)
        if items:
            self._connection.receive(items)

    def _hold(self, nbytes: int) -> None:
        more, self._held = nbytes - self._held, nbytes
        self._engine.anteroom.hold(more, logged_on=self._trusted)

    def logged_on(self) -> None:
        self._engine.anteroom.logged_on(self._held)
        self._trusted, self._reader.max_frame = True, MAX_FRAME

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable = False
        if self._tls is None:
            self.taken_bytes()  # below TLS the socket is closed already
        self._progress.close()
        self._reader.release()
        self._hold(0)
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

    def taken_bytes(self) -> int:
        if self._transport is None or self._progress.closed:
            return self._progress.taken
        above, tls = self._transport.get_write_buffer_size(), self._tls
        if tls is None:
            return self._progress.look(self.handed_bytes, above)
        # What TLS has made already and not given on is both in the transport's buffer and among what was produced.
        return self._progress.look(self.handed_bytes, above - tls.outgoing.pending, tls.produced)

    @property
    def lump_bytes(self) -> int:
        return self._progress.lump_bytes

    @property
    def network_limited(self) -> bool:
        return self._progress.network_limited

    def send_entries(self, entries: Sequence[OutboxEntry]) -> None:
        assert self._transport is not None
        parts: list[Any] = []
        for entry in entries:
            batch = entry.batch
            parts.append(encode_frame_header(DELIVER, entry.stream, batch.nbytes))
            parts.append(batch.buf)
            self.handed_bytes += FRAME_HEADER_SIZE + batch.nbytes
        self._transport.writelines(parts)

    def send_reply(self, reply: Reply) -> None:
        assert self._transport is not None
        if self._progress.closed:
            return  # to what its client had sent before it was gone
        frame = encode_command(reply)
        self.handed_bytes += len(frame)
        self._transport.write(frame)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self, code: str, message: str) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.taken_bytes()
        self._transport.close()
        # close() waits for the peer to take what is buffered; one that never reads must not hold it for ever.
        asyncio.get_running_loop().call_later(CLOSE_AFTER_S, self._transport.abort)


class TcpListener:
    """Listens for clients of a TCP transport."""

    def __init__(self, engine: Engine, settings: TransportSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._server: asyncio.Server | None = None

    async def listen(self) -> tuple[str, int]:
        """Start listening; the address. Raises OSError when the port is taken, OperatorError bad_certificate."""
        settings = self._settings
        tls = server_context(settings.tls, CountedContext) if settings.tls is not None else None
        self._server = await asyncio.get_running_loop().create_server(
            lambda: TcpProtocol(self._engine, settings.name),
            settings.host,
            settings.port,
            backlog=1024,
            ssl=tls,
            ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None,
        )
        address: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return address

    async def stop_listening(self) -> None:
        """Take no new connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
