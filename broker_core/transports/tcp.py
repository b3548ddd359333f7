"""TCP transport of the native protocol: it connects frames on a socket to a `Connection` of the engine.

The kernel writes received bytes directly into the frame reader's buffer, and each frame is copied once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker_core.access.tls import make_server_context
from broker_core.config import TransportSettings
from broker_core.connections.admission import InputBufferUsage
from broker_core.delivery.entries import OutboxEntry
from broker_core.errors import ClientError
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.native import (
    BEFORE_LOGON,
    DELIVER,
    FRAME_HEADER_SIZE,
    FROM_CLIENT,
    MAX_FRAME,
    NativeFrameReader,
    encode_command,
    encode_frame_header,
)
from broker_core.protocols.replies import Reply
from broker_core.transports.accept import Acceptor
from broker_core.transports.peer_progress import CountingSslContext
from broker_core.transports.tcp_connection import TcpConnection

if TYPE_CHECKING:
    from broker_core.connections.inbox import Item
    from broker_core.engine.engine import Engine


class TcpProtocol(TcpConnection):
    """Connection of a client of the native protocol."""

    def __init__(self, engine: Engine, transport_name: str) -> None:
        super().__init__(engine, transport_name)
        self._reader = NativeFrameReader(FROM_CLIENT, BEFORE_LOGON)
        self._replies = bytearray()
        """Replies of this event-loop iteration, sent in one write.

        One read may bring a thousand commands.
        """
        self._unfinished = InputBufferUsage(engine.pending_connections, self._give_up)
        self._has_failed = False

    def _connected(self) -> None:
        self._connection = self._engine.add_connection(self._transport_name, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._connection is None or self._has_failed:
            return
        items: list[Item] = []
        try:
            items += self._reader.buffer_updated(nbytes)
            if self._reader.error is not None:
                items.append(self._reader.error)
        except ClientError as error:
            items.append(error.with_traceback(None))  # its frames refer to everything here
        buffered_bytes = self._reader.buffered_bytes
        try:
            if items and buffered_bytes:  # the buffered bytes belong to a newer frame
                self._unfinished.progress()
            self._unfinished.set_bytes(buffered_bytes)
        except ClientError as error:
            self._give_up(error)
            return
        if items:
            self._connection.receive(items)
        self._await_fair_read()

    def _give_up(self, error: ClientError) -> None:
        """Discard the unfinished frame now, and close the connection with an error in the next iteration."""
        self._has_failed = True
        self._reader.release()
        self._unfinished.set_bytes(0)
        if self._connection is not None:
            asyncio.get_running_loop().call_soon(self._connection.fail, error.with_traceback(None))

    def read_progress(self) -> ReadProgress:
        return self._reader.progress

    def on_logged_on(self) -> None:
        if self._connection is not None:
            self._unfinished.on_logged_on(self._connection.input_share)
        self._reader.max_frame = MAX_FRAME
        super().on_logged_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._reader.release()
        self._unfinished.set_bytes(0)
        super().connection_lost(exc)

    def send_entries(self, entries: Sequence[OutboxEntry]) -> None:
        assert self._transport is not None
        if self._replies:
            self._write_replies()
        parts: list[Any] = []
        for entry in entries:
            batch = entry.batch
            parts.append(encode_frame_header(DELIVER, entry.stream, batch.nbytes))
            parts.append(batch.buf)
            self.written_bytes += FRAME_HEADER_SIZE + batch.nbytes
        self._transport.writelines(parts)

    def send_reply(self, reply: Reply) -> bool:
        assert self._transport is not None
        if self._progress.closed:
            return False  # reply to a command of a client that has disconnected
        if not self._replies:
            asyncio.get_running_loop().call_soon(self._write_replies)
        frame = encode_command(reply)
        self.written_bytes += len(frame)
        self._replies += frame
        self._unwritten = len(self._replies)
        return True

    def flush_replies(self) -> None:
        self._write_replies()

    def _write_replies(self) -> None:
        if self._replies and self._transport is not None and not self._progress.closed:
            replies, self._replies, self._unwritten = self._replies, bytearray(), 0
            self._transport.write(replies)


class TcpListener:
    """Listener of a TCP transport."""

    def __init__(self, engine: Engine, settings: TransportSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._accepting: Acceptor | None = None

    async def listen(self) -> tuple[str, int]:
        """Start listening and return the address.

        Raises:
            OSError: the port is in use.
            OperatorError: bad_certificate.
        """
        settings = self._settings
        tls = make_server_context(settings.tls, CountingSslContext) if settings.tls is not None else None
        self._accepting = Acceptor(
            self._protocol, self._engine.pending_connections, self._engine.pre_logon_reads, tls
        )
        return await self._accepting.listen(settings.host, settings.port)

    def _protocol(self) -> TcpConnection:
        """Return the protocol of an accepted connection."""
        return TcpProtocol(self._engine, self._settings.name)

    async def stop_listening(self) -> None:
        """Stop accepting connections."""
        if self._accepting is not None:
            self._accepting.close()
            self._accepting = None
