"""Twisted's reactor on uvloop: it reports a lost connection to both ends."""

from __future__ import annotations

import asyncio
import socket
import struct

import uvloop
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.tcp import Port

from api.broker_websocket.reactor import UvloopReactor

SENT = 200_000
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Reads(Protocol):
    """Protocol that counts received bytes and signals a lost connection."""

    def __init__(self) -> None:
        self.came = 0
        self.lost = asyncio.Event()

    def dataReceived(self, data: bytes) -> None:
        self.came += len(data)

    def connectionLost(self, reason: object = None) -> None:
        self.lost.set()


async def _reset_with_unread_data() -> Reads:
    reactor = UvloopReactor(asyncio.get_running_loop())
    made: asyncio.Queue[Reads] = asyncio.Queue()

    class Made(Factory):
        def buildProtocol(self, addr: object) -> Reads:
            made.put_nowait(Reads())
            return made._queue[-1]  # type: ignore[attr-defined]

    port = Port(0, Made(), reactor=reactor)
    port.startListening()
    client = socket.create_connection(("127.0.0.1", port.getHost().port))
    server = await made.get()
    # The event loop does not run here, so the reset arrives before the server reads any data.
    client.setblocking(False)
    sent = client.send(bytes(SENT))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    client.close()
    async with asyncio.timeout(20):
        await server.lost.wait()
    assert 0 < server.came <= sent
    port.stopListening()
    reactor.removeAll()
    return server


def test_a_peer_that_resets_with_data_unread_is_lost() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_reset_with_unread_data()).lost.is_set()
