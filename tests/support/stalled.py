"""Subscriber that stops reading its socket until the test requests it."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from broker_core.batch import Batch
from broker_core.broker import Broker
from broker_core.protocols.native import COMMAND, DELIVER, encode_command
from tests.support.frames import FedReader


class StalledSubscriber:
    """A subscriber that logs on, subscribes, and then reads only on request."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._frames = FedReader()
        self._early: list[Any] = []

    @classmethod
    async def connect(cls, broker: Broker, name: str, topic: str, **options: Any) -> StalledSubscriber:
        """Subscribe to a topic and stop reading. `options` are fields of the command, as a bookmark."""
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        # A small receive buffer, set before connecting, limits what the kernel accepts for a stalled client.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        await loop.sock_connect(sock, ("127.0.0.1", broker.statistics.transports[0]["port"]))
        made = cls(sock)
        commands = ({"c": "logon", "name": name}, {"c": "subscribe", "id": "s", "topic": topic, **options})
        await loop.sock_sendall(sock, b"".join(map(encode_command, commands)))
        answers = 0
        while answers < 2:
            frames = made._frames.feed(await loop.sock_recv(sock, 4_096))
            answers += sum(frame.kind == COMMAND for frame in frames)
            made._early += [frame for frame in frames if frame.kind == DELIVER]
        return made

    async def _read(self) -> list[Any]:
        if self._early:
            early, self._early = self._early, []
            return early
        data = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)
        if not data:
            raise EOFError
        return self._frames.feed(data)

    async def read_numbers(self, number: int) -> list[int]:
        """Read `number` records; return the numbers at the start of their bodies."""
        return [int(body[:8]) for body in await self.read_bodies(number)]

    async def read_bodies(self, number: int) -> list[bytes]:
        """Read `number` records; return their bodies."""
        # With the small buffer, the kernel's timers (delayed acknowledgements, retransmissions) would limit
        # the rate.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024 * 1024)
        bodies: list[bytes] = []
        async with asyncio.timeout(30):
            while len(bodies) < number:
                for frame in await self._read():
                    if frame.kind == DELIVER:
                        bodies += Batch.parse(frame.payload).bodies()
        return bodies

    async def read_commands(self) -> list[dict[str, Any]]:
        """Read to the end of the stream; return the commands received."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(30):
            try:
                while True:
                    found += [json.loads(bytes(f.payload)) for f in await self._read() if f.kind == COMMAND]
            except EOFError:
                return found
