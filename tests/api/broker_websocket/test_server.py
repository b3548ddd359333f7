"""Buffer limits of the WebSocket server for incoming and outgoing data."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.abstract import FileDescriptor

from api.broker_websocket.consumer import ClientConsumer
from api.broker_websocket.server import GATHERED_BYTES, INCOMING_BYTES, BackpressureProtocol
from api.broker_websocket.wait_primitives import SingleReaderQueue, SingleWaiterEvent
from broker_core.connections.admission import InputBufferUsage, PendingConnections


@pytest.fixture
def protocol() -> BackpressureProtocol:
    """Return an open connection whose transport writes only when the test calls `doWrite`."""
    made = BackpressureProtocol()
    made.writable, made.send_queue = SingleWaiterEvent(is_open=True), []
    reactor = SimpleNamespace(removeReader=lambda _: None)
    made.state, made.transport = made.STATE_OPEN, FileDescriptor(reactor=reactor)
    made.muted, made.client_addr, made.known, made.reading, made.resuming = False, None, True, True, False
    made.data, made.partial, made.application_queue = b"", 0, SingleReaderQueue()
    made.unfinished = InputBufferUsage(PendingConnections())
    return made


class Kernel(FileDescriptor):
    """Transport that accepts `room` bytes and then none, until the test sets `room` again."""

    connected = 1

    def __init__(self, room: int) -> None:
        super().__init__(SimpleNamespace(addWriter=lambda _: None, removeWriter=lambda _: None))
        self.room, self.got = room, b""

    def writeSomeData(self, data: bytes) -> int:
        taken, self.room = bytes(data[: self.room]), max(self.room - len(data), 0)
        self.got += taken
        return len(taken)


async def test_what_the_kernel_takes_at_once_is_not_waited_for_and_the_rest_is(
    protocol: BackpressureProtocol,
) -> None:
    large, small = b"x" * 2 * GATHERED_BYTES, b"z" * 100
    protocol.transport = Kernel(room=len(large) + 100)
    protocol.transport.registerProducer(protocol, True)
    protocol.sendData(large)
    assert protocol.writable.is_set() and protocol.transport.got == large
    protocol.sendData(large)
    assert not protocol.writable.is_set() and protocol.unsent_bytes() == len(large) - 100
    protocol.sendData(small)
    protocol.transport.room = 1 << 20
    while protocol.unsent_bytes():
        protocol.transport.doWrite()
    assert protocol.writable.is_set() and protocol.transport.got == large + large + small, (
        "the messages are sent in order"
    )


async def test_small_messages_are_gathered_and_waited_for_when_they_are_many(
    protocol: BackpressureProtocol,
) -> None:
    protocol.transport = Kernel(room=1 << 20)
    protocol.transport.registerProducer(protocol, True)
    for _ in range(GATHERED_BYTES // 128):
        assert protocol.writable.is_set() and not protocol.transport.got
        protocol.sendData(b"x" * 128)
    assert not protocol.writable.is_set()
    protocol.transport.doWrite()
    assert protocol.writable.is_set() and len(protocol.transport.got) == GATHERED_BYTES


async def test_large_messages_that_wait_are_counted_and_no_more_are_read(
    protocol: BackpressureProtocol,
) -> None:
    counted = protocol.unfinished._pending_connections
    for number in range(1, 5):
        assert protocol.reading
        protocol.onMessage(b"x" * (INCOMING_BYTES // 4), True)
        protocol._count()
        assert counted.buffered == number * INCOMING_BYTES // 4
    assert not protocol.reading, "the limit counts bytes, so many more small messages may wait"
    await protocol.application_queue.get()
    protocol.on_message_consumed()
    assert counted.buffered == 3 * INCOMING_BYTES // 4 and protocol.resuming


async def test_a_message_that_cannot_be_read_is_free_when_it_was_refused() -> None:
    heard: list[Any] = []
    connection: Any = SimpleNamespace(logged_on=False, receive=heard.extend)
    engine: Any = None
    message = memoryview(b"\xff" * 60_000)
    known = weakref.ref(message)
    gc.disable()
    try:
        ClientConsumer(engine, "websocket")._hand_on(connection, connection, {"bytes": message})
        del message
        assert heard[0].code == "bad_frame" and known() is None, (
            "the message must be freed without the garbage collector"
        )
    finally:
        gc.enable()


async def test_a_gate_that_was_opened_lets_through_although_it_was_closed_again() -> None:
    gate = SingleWaiterEvent()
    waiting = asyncio.create_task(gate.wait())
    await asyncio.sleep(0)
    gate.set()
    gate.clear()
    await waiting
    assert not gate.is_set()
    waiting = asyncio.create_task(gate.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    gate.set()
    await gate.wait()
