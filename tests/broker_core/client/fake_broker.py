"""A small broker in memory for the client's tests, with the real protocol over TCP or WebSocket.

It accepts logons, numbers and stores records, drops repeats, replays and delivers. Tests control it by
`hold_acks`, `refuse_next`, `silent`, and `drop()`, which cuts every connection like a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection, serve

from broker_core.batch import Batch, hash64, stamp_header
from broker_core.errors import ClientError
from broker_core.protocols import commands, replies
from broker_core.protocols.native import (
    COMMAND,
    DELIVER,
    FROM_CLIENT,
    MAX_FRAME,
    NativeFrame,
    encode_command,
    encode_frame_header,
    parse_message,
)
from tests.support.frames import FedReader

INSTANCE = "fake-1"


class BrokerConnection:
    """A client's connection at the fake broker."""

    def __init__(self, broker: FakeBroker, write: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self.broker = broker
        self.write = write
        self.close = close
        self.name = ""
        self.streams: dict[str, tuple[int, str]] = {}
        self.next_stream = 1
        self.to_ack = 0
        self.flushes: list[str] = []
        self.room: dict[int, int] = {}
        self.granted: dict[int, int] = {}
        self.waits: dict[int, list[Batch]] = {}
        self.refused = False
        """Set after a refused batch of this client, until the client skips it."""

    def reply(self, reply: Any) -> None:
        self.write(encode_command(reply))

    def deliver(self, stream: int, batch: Batch) -> None:
        self.waits.setdefault(stream, []).append(batch)
        self.send(stream)

    def send(self, stream: int) -> None:
        """Send waiting batches while the stream has credit."""
        waits = self.waits.get(stream, [])
        while waits and self.room[stream] > 0:
            batch = waits.pop(0)
            self.room[stream] -= batch.nbytes
            self.write(encode_frame_header(DELIVER, stream, batch.nbytes) + bytes(batch.buf))

    def take(self, frames: list[NativeFrame]) -> None:
        for frame in frames:
            if frame.kind == COMMAND:
                self.command(commands.parse_command(frame.payload))
            else:
                self.publish(frame.payload)

    def command(self, command: commands.Command) -> None:
        self.broker.commands.append(command)
        self.broker.changed.set()
        if self.broker.silent:
            return
        match command:
            case commands.Logon() if self.broker.refuse_logon:
                self.reply(replies.error_reply(self.broker.refuse_logon, of="logon"))
                self.close()
            case commands.Logon():
                self.name = command.name
                self.broker.peers.append(self)
                self.reply(
                    replies.Ack(
                        ack="processed",
                        of="logon",
                        name=command.name,
                        instance=self.broker.instance,
                        version=1,
                        sequence=None if self.broker.unsure else self.broker.publishers.get(command.name, 0),
                        session=self.broker.sessions.get(command.name),
                        max_frame=MAX_FRAME,
                        heartbeat_ms=command.heartbeat_ms,
                    )
                )
            case commands.Subscribe():
                self.subscribe(command)
            case commands.GrantCredit():
                stream = self.streams[command.id][0]
                self.room[stream] += command.upto - self.granted[stream]
                self.granted[stream] = command.upto
                self.send(stream)
            case commands.Flush():
                self.flushes.append(command.id)
                if not self.broker.hold_acks:
                    self.acknowledge()
            case commands.ClientHeartbeat():
                self.reply(replies.BrokerHeartbeat())
            case commands.Skip():
                self.refused = False

    def subscribe(self, command: commands.Subscribe) -> None:
        if command.filter == "bad":
            error = ClientError("bad_filter", "It isn't a filter.", "Write one.", column=1)
            self.reply(replies.error_reply(error, of="subscribe", id=command.id))
            return
        stream, self.next_stream = self.next_stream, self.next_stream + 1
        self.streams[command.id] = (stream, command.topic)
        self.room[stream] = self.granted[stream] = command.credit or 0
        self.reply(replies.Ack(ack="processed", of="subscribe", id=command.id, stream=stream))
        if command.bookmark is not None:
            after = int(command.bookmark.split("|")[1]) if "|" in command.bookmark else 0
            for batch in self.broker.log:
                if batch.last_sequence > after:
                    self.deliver(stream, batch.select(np.nonzero(batch.sequences() > after)[0]))
            self.reply(replies.Ack(ack="completed", of="subscribe", id=command.id))

    def publish(self, payload: bytearray) -> None:
        batch = Batch.parse(payload)
        broker, first, last = self.broker, batch.first_publisher_sequence, batch.last_publisher_sequence
        broker.arrived.append(batch)
        broker.changed.set()
        if broker.silent:
            return
        if broker.refuse_next is not None:
            error, broker.refuse_next = broker.refuse_next, None
            self.refused = True
            self.reply(replies.error_reply(error, of="publish", first=first, sequence=last))
            return
        if self.refused:
            before = ClientError("refused_before", "Behind a refused one.", "Send skip.", refused=last)
            self.reply(replies.error_reply(before, of="publish", first=first, sequence=last))
            return
        if batch.topics[0].startswith("scratch"):
            self.reply(replies.processed_ack(first, last))
            return
        if last > broker.publishers.get(self.name, 0):
            broker.publishers[self.name] = last
            broker.sessions[self.name] = batch.session
            broker.store_batch(batch)
        self.to_ack = last
        if not broker.hold_acks:
            self.acknowledge()

    def acknowledge(self) -> None:
        if self.to_ack:
            self.reply(replies.persisted_ack(self.to_ack))
        for flush in self.flushes:
            self.reply(replies.Ack(ack="completed", of="flush", id=flush))
        self.flushes.clear()


class FakeBroker:
    """The broker; `address` once it listens."""

    def __init__(self, instance: str = INSTANCE) -> None:
        self.instance = instance
        self.address = ""
        self.ws_address = ""
        self.hold_acks = False
        self.silent = False
        self.unsure = False
        """A member of a group that is cut off from it: it tells no `sequence`."""
        self.deaf = False
        """If set, TCP connections are not read beyond their logon."""
        self.refuse_next: ClientError | None = None
        self.refuse_logon: ClientError | None = None
        self.commands: list[commands.Command] = []
        self.arrived: list[Batch] = []
        self.log: list[Batch] = []
        self.publishers: dict[str, int] = {}
        self.sessions: dict[str, int] = {}
        """The session that counted a publisher's newest number."""
        self.peers: list[BrokerConnection] = []
        self.changed = asyncio.Event()
        self.next_sequence = 1
        self._server: asyncio.Server | None = None
        self._ws_server: WebSocketServer | None = None
        self._open: list[Callable[[], None]] = []

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(lambda: _TcpConnection(self), "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start_websocket(self) -> None:
        self._ws_server = await serve(
            self._websocket, "127.0.0.1", 0, compression=None, max_size=MAX_FRAME + 1024
        )
        port = next(iter(self._ws_server.sockets)).getsockname()[1]
        self.ws_address = f"ws://127.0.0.1:{port}/"

    async def _websocket(self, connection: ServerConnection) -> None:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        peer = BrokerConnection(self, queue.put_nowait, lambda: queue.put_nowait(None))
        self._open.append(connection.transport.abort)

        async def write() -> None:
            while (data := await queue.get()) is not None:
                await connection.send(data)
            await connection.close(4101, "go away")

        task = asyncio.create_task(write())
        async for message in connection:
            assert isinstance(message, bytes)
            peer.take(parse_message(message, kinds=FROM_CLIENT))
        task.cancel()

    async def stop(self) -> None:
        self.drop()
        for server in (self._server, self._ws_server):
            if server is not None:
                server.close()

    def soon(self, what: Callable[[], None]) -> None:
        """Have it done on the broker's loop, from another thread."""
        self._loop.call_soon_threadsafe(what)

    def drop(self) -> None:
        """Cut every connection without a word."""
        for abort in self._open:
            abort()
        self._open.clear()
        self.peers.clear()

    def store_batch(self, batch: Batch) -> None:
        stamp_header(
            batch.buf, origin=hash64(self.instance), epoch=1, first_sequence=self.next_sequence, accepted_at=1
        )  # type: ignore[arg-type]
        stamped = Batch.parse(batch.buf)
        self.next_sequence += stamped.count
        self.log.append(stamped)
        for peer in self.peers:
            for stream, topic in peer.streams.values():
                if topic in (stamped.topics[0], ">"):
                    peer.deliver(stream, stamped)

    def release(self) -> None:
        """Acknowledge all records, with one acknowledgement per publisher."""
        for peer in self.peers:
            peer.acknowledge()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true; it is checked after each frame received."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    @property
    def bodies(self) -> list[bytes]:
        """Return all stored bodies, in order."""
        return [body for batch in self.log for body in batch.bodies()]


class _TcpConnection(asyncio.Protocol):
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._reader = FedReader(kinds=FROM_CLIENT)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._peer = BrokerConnection(self._broker, transport.write, transport.close)
        self._broker._open.append(transport.abort)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._peer.take(self._reader.feed(data))
        if self._broker.deaf:
            self._transport.pause_reading()
