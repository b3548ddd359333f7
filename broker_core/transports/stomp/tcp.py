"""STOMP transport over TCP, and its listener."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker_core.config import TransportSettings
from broker_core.connections.admission import PENDING_READ_BYTES
from broker_core.delivery.entries import OutboxEntry
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.replies import Reply
from broker_core.protocols.stomp.message_frames import MessageTailCache
from broker_core.transports.stomp.replies import MessageFrameQueue
from broker_core.transports.stomp.session import StompSession
from broker_core.transports.tcp import TcpListener
from broker_core.transports.tcp_connection import CLOSE_AFTER_S, TcpConnection

if TYPE_CHECKING:
    from broker_core.engine.engine import Engine

READ_BYTES: Final = 256 * 1024
"""Maximum bytes of one read from a logged-on client."""
_read_into: Final = memoryview(bytearray(READ_BYTES))
"""Read buffer shared by all clients. Its bytes are taken out before the next read.

So an idle connection needs no buffer of its own.
"""
_pending_read_into: Final = _read_into[:PENDING_READ_BYTES]


class StompProtocol(TcpConnection):
    """TCP connection of a STOMP client."""

    protocol = "stomp"

    def __init__(self, engine: Engine, transport_name: str, tails: MessageTailCache) -> None:
        super().__init__(engine, transport_name)
        self._session = StompSession(engine, transport_name, tails, self)
        self._outgoing = MessageFrameQueue()
        self._paused = False
        self._closing = False

    def _connected(self) -> None:
        self._session.begin()
        self._connection = self._session.connection

    def get_buffer(self, sizehint: int) -> memoryview:
        return _pending_read_into if self._has_fair_reads else _read_into

    def buffer_updated(self, nbytes: int) -> None:
        if not self._closing:
            self._session.on_bytes(_read_into[:nbytes])
        self._await_fair_read()

    def eof_received(self) -> bool:
        # A client that closes after it has read the reason of its closing has received the notice.
        if self._session.last_decision_id and self.acked_bytes() >= self.written_bytes:
            self._session.connection.notices.on_received(self._session.last_decision_id)
        return super().eof_received()

    def flush_replies(self) -> None:
        if self._connection is not None:
            self._session.flush_replies()

    @property
    def is_ending(self) -> bool:
        return self._closing or super().is_ending

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.on_connection_lost()
        super().connection_lost(exc)

    def read_progress(self) -> ReadProgress:
        return self._session.reader.progress

    def on_logged_on(self) -> None:
        self._session.on_logged_on()
        super().on_logged_on()

    def drop_input(self) -> None:
        super().drop_input()
        del self._session

    def pause_writing(self) -> None:
        self._paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._paused = False
        self._write_on()
        if not self._paused:
            super().resume_writing()

    def _write_on(self) -> None:
        """Write queued slices to the transport, as far as the kernel accepts them."""
        assert self._transport is not None
        while self._outgoing and not self._paused:
            slice_ = self._outgoing.take()
            self._unwritten = self._outgoing.nbytes
            self._transport.write(slice_)
        self.is_writable = not self._paused

    def send_entries(self, entries: Sequence[OutboxEntry]) -> list[int]:
        sizes = []
        for entry in entries:
            frames = self._session.frames_of(entry)
            sizes.append(self._outgoing.put(frames) if frames is not None else 0)
        self.written_bytes += sum(sizes)
        self._unwritten = self._outgoing.nbytes
        self._write_on()
        return sizes

    def send_reply(self, reply: Reply) -> bool:
        return self._session.answer(reply)

    def write_frame(self, frame: bytes, *, behind: bool = False, last: bool = False) -> None:
        """Send a frame immediately, or `behind` the queued messages, or in their place as the `last` one."""
        assert self._transport is not None
        if self._progress.closed or self._closing:
            return
        if last:
            frame = self._outgoing.receipts() + frame
            self.written_bytes -= self._outgoing.drop()
            self._unwritten = 0
        self.written_bytes += len(frame)
        if behind and self._outgoing:
            self._outgoing.put(frame)
            self._unwritten = self._outgoing.nbytes
        else:
            self._transport.write(frame)
        if last:
            self._end_writing()

    def _end_writing(self) -> None:
        """End the output after the last frame.

        Further input is read and discarded. Otherwise the kernel would reset the connection, and the client
        would lose bytes that it hasn't read. The client closes when it has read the end, or is closed.
        """
        assert self._transport is not None
        self._closing, self.is_writable = True, False
        self._start_fair_reads()
        if not self._transport.is_closing() and self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the peer has closed first
                self._transport.write_eof()

    def close(self, code: str, message: str) -> None:
        self.end()

    def end(self) -> None:
        """Close when the client has read the last frame, at the latest after CLOSE_AFTER_S."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._closing:
            self._session.on_connection_lost()
            self.written_bytes -= self._outgoing.drop()
            self._unwritten = 0
            self._end_writing()
        if not self._transport.can_write_eof():
            self.close_soon()
            return
        self.acked_bytes()
        self.resume_reading()
        asyncio.get_running_loop().call_later(CLOSE_AFTER_S, self._transport.abort)


class StompListener(TcpListener):
    """Listener of a STOMP transport."""

    def __init__(self, engine: Engine, settings: TransportSettings) -> None:
        super().__init__(engine, settings)
        self._tails = MessageTailCache(engine.instance)

    def _protocol(self) -> TcpConnection:
        return StompProtocol(self._engine, self._settings.name, self._tails)
