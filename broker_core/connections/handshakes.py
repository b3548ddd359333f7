"""A listener with TLS. Who hasn't finished its handshake is a guest of the anteroom: asyncio's own servers tell nobody of it
before, and any number of silent peers would have a descriptor each until their time is over."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import structlog

from broker_core.connections.anteroom import Anteroom

HANDSHAKE_S: Final = 10.0
"""How long a peer may take."""
AGAIN_S: Final = 1.0
"""After the kernel had no connection to give: no descriptors, no memory."""
log = structlog.get_logger("sluice.tls")


class Handshake:
    """One that is under way. Satisfies `anteroom.Guest`."""

    def __init__(self, taken: socket.socket, remote: str, door: TlsListener) -> None:
        self._socket, self.remote, self._door = taken, remote, door
        self._begun = False
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._over)

    def make_room(self) -> None:
        """Another comes: this one ends."""
        self._door.turned_away(self)
        self.drop()

    def drop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        self._begun = True
        await asyncio.get_running_loop().connect_accepted_socket(
            self._door.protocol, self._socket, ssl=self._door.context, ssl_handshake_timeout=HANDSHAKE_S
        )

    def _over(self, task: asyncio.Task[None]) -> None:
        if not self._begun:  # else it is its transport's, which closes it
            self._socket.close()
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.debug("handshake_failed", peer=self.remote, why=repr(problem))
        self._door.ended(self)


class TlsListener:
    """Takes connections, and makes a `protocol` for each whose handshake is done. `on_refused` hears whose ended for others."""

    def __init__(
        self,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.BaseProtocol],
        anteroom: Anteroom,
        on_refused: Callable[[str], None] = lambda remote: None,
    ) -> None:
        self.context, self.protocol = context, protocol
        self._anteroom, self._on_refused = anteroom, on_refused
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._open: set[Handshake] = set()

    async def listen(self, host: str, port: int, backlog: int) -> tuple[str, int]:
        """Start; the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((one[0], one[4]) for one in found):
                made = socket.create_server((address[0], address[1]), family=family, backlog=backlog)
                made.setblocking(False)
                self._sockets.append(made)
        except OSError:
            self.close()
            raise
        self._accepting = [loop.create_task(self._accept(one), name="accept") for one in self._sockets]
        bound: tuple[str, int] = self._sockets[0].getsockname()[:2]
        return bound

    def close(self) -> None:
        """Take no more, and end what isn't done."""
        for task in self._accepting:
            task.cancel()
        for one in self._sockets:
            one.close()
        self._accepting, self._sockets = [], []
        for handshake in list(self._open):
            handshake.drop()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, peer = await loop.sock_accept(listening)
            except ConnectionError:
                continue  # it has left again
            except OSError as problem:
                log.error("no_connection_taken", why=str(problem))
                await asyncio.sleep(AGAIN_S)
                continue
            self._begin(taken, peer)
            await asyncio.sleep(0)  # a flood is taken one a turn: others want theirs

    def _begin(self, taken: socket.socket, peer: Any) -> None:
        handshake = Handshake(taken, f"{peer[0]}:{peer[1]}", self)
        self._open.add(handshake)
        self._anteroom.enters(handshake)

    # Handshakes call these.

    def turned_away(self, handshake: Handshake) -> None:
        self._anteroom.known(handshake)  # at once: it must not be chosen again
        self._on_refused(handshake.remote)

    def ended(self, handshake: Handshake) -> None:
        self._open.discard(handshake)
        self._anteroom.gone(handshake)
