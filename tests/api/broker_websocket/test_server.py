"""When a WebSocket that was sent to is waited for: once a message that counts is on its way, not for each small one. And what is
held of what it sent."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.abstract import FileDescriptor

from api.broker_websocket.consumer import ClientConsumer
from api.broker_websocket.server import INCOMING_BYTES, UNAWAITED_BYTES, PacedProtocol
from api.broker_websocket.waiting import Gate, Incoming
from broker_core.connections.anteroom import Anteroom, Unfinished


@pytest.fixture
def protocol() -> PacedProtocol:
    """An open connection whose transport writes nothing by itself."""
    made = PacedProtocol()
    made.room, made.unawaited_bytes = Gate(is_open=True), 0
    reactor = SimpleNamespace(removeReader=lambda _: None)
    made.state, made.transport = made.STATE_OPEN, FileDescriptor(reactor=reactor)
    made.muted, made.client_addr, made.known, made.reading, made.resuming = False, None, True, True, False
    made.data, made.partial, made.application_queue = b"", 0, Incoming()
    made.unfinished = Unfinished(Anteroom())
    return made


async def test_small_messages_go_on_without_a_wait_until_they_are_many(protocol: PacedProtocol) -> None:
    for _ in range(UNAWAITED_BYTES // 128 - 1):
        protocol.handed_over(128)
        assert protocol.room.is_set()
    protocol.handed_over(128)
    assert not protocol.room.is_set() and protocol.transport.producerPaused
    protocol.resumeProducing()
    protocol.handed_over(128)
    assert protocol.room.is_set(), "they are counted anew"


async def test_a_large_message_is_waited_for_at_once(protocol: PacedProtocol) -> None:
    protocol.handed_over(UNAWAITED_BYTES)
    assert not protocol.room.is_set() and protocol.transport.producerPaused


async def test_nothing_is_waited_for_on_a_connection_that_is_closing(protocol: PacedProtocol) -> None:
    protocol.state = protocol.STATE_CLOSING
    protocol.handed_over(1 << 20)
    assert protocol.room.is_set(), "what is sent now is never written, so nobody would be called back"


async def test_large_messages_that_wait_are_counted_and_no_more_are_read(protocol: PacedProtocol) -> None:
    counted = protocol.unfinished._anteroom
    for number in range(1, 5):
        assert protocol.reading
        protocol.onMessage(b"x" * (INCOMING_BYTES // 4), True)
        protocol._count()
        assert counted.held == number * INCOMING_BYTES // 4
    assert not protocol.reading, "of small ones many more may wait"
    await protocol.application_queue.get()
    protocol.taken()
    assert counted.held == 3 * INCOMING_BYTES // 4 and protocol.resuming


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
        assert heard[0].code == "bad_frame" and known() is None, "the collector comes too seldom for a flood"
    finally:
        gc.enable()


async def test_a_gate_that_was_opened_lets_through_although_it_was_closed_again() -> None:
    gate = Gate()
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
