"""Accepting connections: a few per event-loop iteration, none lost, on asyncio and uvloop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from broker_core.connections.admission import ACCEPTS_PER_ITERATION, PendingConnections, PreLogonReadQueue
from broker_core.transports import accept
from broker_core.transports.accept import Acceptor
from tests.support.manual_clock import ManualClock

Loops = Callable[[], asyncio.AbstractEventLoop]


class AcceptedProtocol(asyncio.Protocol):
    def __init__(self, made: list[asyncio.BaseTransport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.append(transport)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_concurrent_connections_are_accepted_a_few_per_iteration(loop: Loops) -> None:
    async def run() -> None:
        made: list[asyncio.BaseTransport] = []
        listener = Acceptor(
            lambda: AcceptedProtocol(made), PendingConnections(), PreLogonReadQueue(ManualClock())
        )
        _, port = await listener.listen("127.0.0.1", 0)
        peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(5 * ACCEPTS_PER_ITERATION)]
        parts, before = [], 0
        async with asyncio.timeout(20):
            while before < len(peers):
                await asyncio.sleep(0)
                parts.append(len(made) - before)
                before = len(made)
        assert 0 < max(parts) <= ACCEPTS_PER_ITERATION
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        for transport in made:
            transport.close()
        for peer in peers:
            peer.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


async def test_a_kernel_that_has_no_descriptor_to_give_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accept, "RETRY_DELAY_S", 0.0)
    made: list[asyncio.BaseTransport] = []
    real_accept, refused = socket.socket.accept, [1, 2, 3]

    def failing(own: socket.socket) -> tuple[socket.socket, Any]:
        if refused:
            refused.pop()
            raise OSError(errno.EMFILE, "Too many open files")
        return real_accept(own)

    monkeypatch.setattr(socket.socket, "accept", failing)
    listener = Acceptor(
        lambda: AcceptedProtocol(made), PendingConnections(), PreLogonReadQueue(ManualClock())
    )
    _, port = await listener.listen("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port)):
        async with asyncio.timeout(20):
            while not made:
                await asyncio.sleep(0)
        assert not refused
    made[0].close()
    listener.close()
