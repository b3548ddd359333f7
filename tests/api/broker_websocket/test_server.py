"""When a WebSocket that was sent to is waited for: once a message that counts is on its way, not for each small one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from twisted.internet.abstract import FileDescriptor

from api.broker_websocket.server import UNAWAITED_BYTES, PacedProtocol


@pytest.fixture
def protocol() -> PacedProtocol:
    """An open connection whose transport writes nothing by itself."""
    made = PacedProtocol()
    made.room, made.unawaited_bytes = asyncio.Event(), 0
    made.room.set()
    made.state, made.transport = made.STATE_OPEN, FileDescriptor(reactor=SimpleNamespace())
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
