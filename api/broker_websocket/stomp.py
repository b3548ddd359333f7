"""STOMP over WebSocket: the same session as STOMP over TCP, with the sink of this package.

A WebSocket message to the client holds complete STOMP frames, as many as fit a slice. Messages from the
client are a byte stream that may be split anywhere. A client that sends text gets text, if the frames are
UTF-8.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

from api.broker_websocket.consumer import ClientConsumer, WebSocketSink
from broker_core.connections.connection import Connection
from broker_core.delivery.entries import OutboxEntry
from broker_core.engine.engine import Engine
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.replies import Reply
from broker_core.protocols.stomp.message_frames import MessageTailCache
from broker_core.transports.stomp.replies import MessageFrameQueue
from broker_core.transports.stomp.session import StompSession

SUBPROTOCOLS: Final = ("v12.stomp", "v11.stomp", "v10.stomp")
"""Supported WebSocket subprotocols, best first.

Some clients offer none and name the STOMP version only in CONNECT.
"""
PATHS: Final = ("/stomp", "/ws")
"""Paths of the endpoint."""
NORMAL_CLOSE: Final = 1000
"""WebSocket close number for a regular end."""
RAW_ENDPOINT: Final = "/websocket"
"""Path suffix that clients of Spring applications use."""


class StompSink(WebSocketSink):
    """Outgoing side of one STOMP client's WebSocket."""

    protocol = "stomp-ws"
    session: StompSession

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._outgoing = MessageFrameQueue()
        self._is_closing = False

    @property
    def is_flushed(self) -> bool:
        return not self._outgoing and super().is_flushed

    def on_logged_on(self) -> None:
        super().on_logged_on()
        self.session.on_logged_on()

    def on_connection_lost(self) -> None:
        self.session.on_connection_lost()

    def drop_input(self) -> None:
        super().drop_input()
        del self.session

    def acked_bytes(self) -> int:
        """Return the bytes that the peer's kernel has acknowledged."""
        buffered = self._buffered_bytes()
        if buffered is not None:
            self._progress.update(self.written_bytes, self._waiting_bytes + self._outgoing.nbytes + buffered)
        return self._progress.acked_bytes

    def read_progress(self) -> ReadProgress:
        # A STOMP frame may be split over many WebSocket messages.
        message, frame = super().read_progress(), self.session.reader.progress
        unfinished = frame.unfinished_bytes + message.unfinished_bytes
        return ReadProgress(message.received_bytes, unfinished, frame.frame_start)

    def send_entries(self, entries: Sequence[OutboxEntry]) -> list[int]:  # type: ignore[override]
        """Queue the STOMP frames of entries. Returns the number of frame bytes of each entry."""
        sizes = []
        for entry in entries:
            frames = self.session.frames_of(entry)
            sizes.append(self._outgoing.put(frames) if frames is not None else 0)
        self.written_bytes += sum(sizes)
        self.is_writable = False
        if not self._waiting:
            self._refill()
        self._go_on()
        return sizes

    def _refill(self) -> bool:
        """Queue the next slice of STOMP frames. Returns whether there was one."""
        if not self._outgoing:
            return False
        slice_ = self._outgoing.take()
        self.written_bytes -= len(
            slice_
        )  # `send_entries` counted the frames; `_put` counts them again with the WebSocket header
        self._put(slice_)
        return True

    def _put(self, message: bytes | str) -> None:
        """Queue a message, as text if the client uses text and the frames are UTF-8."""
        if self.text_mode and isinstance(message, bytes):
            try:
                message = message.decode()
            except UnicodeDecodeError:
                pass  # stays a binary message
        super()._put(message)

    def send_reply(self, reply: Reply) -> bool:
        return self.session.answer(reply)

    def write_frame(self, frame: bytes, *, behind: bool = False, last: bool = False) -> None:
        """Send a frame.

        Args:
            behind: Send it after the queued messages instead of immediately.
            last: Discard the queued messages. Later frames are ignored.
        """
        if self._is_closing:
            return
        if last:
            self._is_closing = True
            frame = self._outgoing.receipts() + frame
            self.written_bytes -= self._outgoing.drop()
        if behind and self._outgoing:
            self.written_bytes += self._outgoing.put(frame)
        else:
            self._put(frame)
        self._go_on()

    def close_soon(self) -> None:
        if self.connection is not None:
            self.session.flush_replies()
        super().close_soon()

    def close_with(self, number: int, reason: str) -> None:
        """Close the connection. Frames that are still queued are discarded."""
        self.written_bytes -= self._outgoing.drop()
        self._is_closing = True
        super().close_with(number, reason)

    def end(self) -> None:
        """Close the connection, because the client disconnected."""
        self.close_with(NORMAL_CLOSE, "")


class StompConsumer(ClientConsumer):
    """Consumer of one STOMP client's WebSocket. The transport's connections share `tails`."""

    sink = StompSink

    def __init__(
        self, engine: Engine, transport: str, origins: Collection[str], tails: MessageTailCache
    ) -> None:
        super().__init__(engine, transport, origins)
        self._tails = tails

    def on_connected(self, sink: Any) -> Connection:
        """Start the connection's STOMP session."""
        sink.session = StompSession(self.engine, self.transport, self._tails, sink)
        sink.session.begin()
        connection: Connection = sink.session.connection
        return connection

    async def accept_from(
        self, scope: dict[str, Any], send: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        """Accept a handshake for a STOMP path with the best common subprotocol; refuse other paths."""
        path = scope["path"].rstrip("/")
        if path not in PATHS and not path.endswith(RAW_ENDPOINT):
            await send({"type": "websocket.close"})
            return
        offered = scope.get("subprotocols") or ()
        agreed = next((one for one in SUBPROTOCOLS if one in offered), None)
        await send({"type": "websocket.accept", "subprotocol": agreed})

    def _hand_on(self, connection: Connection, sink: Any, message: dict[str, Any]) -> None:
        text = message.get("text")
        if text is not None and not connection.logged_on:
            sink.text_mode = True
        sink.session.on_bytes(text.encode() if text is not None else message["bytes"])
