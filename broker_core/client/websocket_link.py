"""WebSocket link: native frames in binary messages, by the sans-IO half of the `websockets` package.

Sans-IO keeps reads and writes plain callbacks: no task per direction, and the asyncio transport does
back-pressure. Compression is never offered, because its CPU cost is higher than the network's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from broker_core.batch import Buffer
from broker_core.client.links import BrokerAddress, ClientLink, OnFrames
from broker_core.errors import ClientError
from broker_core.protocols.close_codes import code_from_close_number
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.native import FROM_BROKER, MAX_FRAME, parse_message

MAX_MESSAGE = MAX_FRAME + 64 * 1024
"""Maximum bytes of a received message: a frame and some headers."""


class WebSocketLink(ClientLink, asyncio.Protocol):
    """Link over WebSocket: one binary message has one or more frames."""

    def __init__(self, on_frames: OnFrames, address: BrokerAddress) -> None:
        super().__init__(on_frames)
        self._protocol = ClientProtocol(parse_uri(address.text), max_size=MAX_MESSAGE)
        self._message_parts: list[bytes] = []
        self._received_bytes = self._message_start = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._protocol.send_request(self._protocol.connect())
        self._write()

    def read_progress(self) -> ReadProgress:
        has_partial_message = bool(self._message_parts or self._protocol.reader.buffer)
        unfinished = self._received_bytes - self._message_start if has_partial_message else 0
        return ReadProgress(self._received_bytes, unfinished, self._message_start)

    def data_received(self, data: bytes) -> None:
        self._received_bytes += len(data)
        self._protocol.receive_data(data)
        self._process_events()

    def eof_received(self) -> bool:
        self._protocol.receive_eof()
        self._process_events()
        return False

    def _process_events(self) -> None:
        """Process received WebSocket events, then write pending answers."""
        for event in self._protocol.events_received():
            if isinstance(event, WireFrame):
                self._on_wire_frame(event)
            elif self._protocol.handshake_exc is None and not self.ready.done():
                self.ready.set_result(None)
        parser_error, problem = self._protocol.parser_exc, self._protocol.handshake_exc
        if problem is not None and not self.ready.done():
            self.abort(ConnectionRefusedError(f"the WebSocket handshake was refused: {problem}"))
        elif parser_error is not None and self.error is None:
            self.fail_on_garbage(ClientError("bad_frame", f"The WebSocket was broken: {parser_error}.", ""))
        self._write()

    def _on_wire_frame(self, frame: WireFrame) -> None:
        """Process one WebSocket frame: a close, binary data, or unexpected text."""
        if frame.opcode is Opcode.CLOSE:
            close = self._protocol.close_rcvd
            if close is not None and self.error is None and (code := code_from_close_number(close.code)):
                self.error = ClientError(code, close.reason or "The broker closed the connection.", "")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT):
            self._message_parts.append(bytes(frame.data))
            if frame.fin:
                message, self._message_parts = b"".join(self._message_parts), []
                self._message_start = self._received_bytes
                try:
                    frames = parse_message(message, kinds=FROM_BROKER)
                except ClientError as error:
                    self.fail_on_garbage(error)
                else:
                    self._deliver(frames)
        elif frame.opcode is Opcode.TEXT:
            self.fail_on_garbage(
                ClientError("bad_frame", "The broker sent text to a client that uses frames.", "")
            )

    def _write(self) -> None:
        """Write pending bytes of the WebSocket protocol to the asyncio transport."""
        transport = self._transport
        for data in self._protocol.data_to_send():
            if transport is None or transport.is_closing():
                return
            if data:
                self.sent_bytes += len(data)
                transport.write(data)
            elif transport.can_write_eof():
                transport.write_eof()
        if self._protocol.state is State.CLOSED and transport is not None:
            transport.close()

    def send(self, parts: Sequence[Buffer]) -> None:
        if self._protocol.state is State.OPEN:
            try:
                self._protocol.send_binary(b"".join(parts))
            except WebSocketException as problem:
                self.abort(ClientError("bad_frame", f"The WebSocket can't be written to: {problem}.", ""))
                return
            self._write()

    def close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._write()
        super().close()
