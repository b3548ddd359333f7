"""Taking connections from the kernel, a few in each turn of the loop.

asyncio's servers take all that are there in one turn, up to a thousand, and each costs some 0.2 ms: whoever is connected already would
wait for all of them. With TLS they tell nobody of one before its handshake is done, and any number of silent peers would have a
descriptor each, and a thousand handshakes could begin in one turn. Here who hasn't finished it is a guest of the anteroom from the moment that it is taken, and
begins when it has spoken and its turn at the door has come; so is each further read of it (`handshaking`).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import structlog

from broker_core.connections.admission import ACCEPTED_A_TURN, PendingConnections, PreLogonReadQueue
from broker_core.transports.handshaking import shake_hands

HANDSHAKE_S: Final = 10.0
"""How long a peer may be silent before its TLS handshake, and how long that may take."""
AGAIN_S: Final = 1.0
"""After the kernel had no connection to give: no descriptors, no memory."""
BACKLOG: Final = 1_024
log = structlog.get_logger("sluice.accepting")


class Accepting:
    """One listener's. A `protocol` is made for each connection, where there is TLS after its handshake."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.BufferedProtocol],
        anteroom: PendingConnections,
        door: PreLogonReadQueue,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.protocol, self.context = protocol, context
        self.anteroom, self.door = anteroom, door
        self.handshakes: set[Handshake] = set()
        self._sockets: list[socket.socket] = []
        self._begun: set[asyncio.Task[Any]] = set()
        self._later: dict[socket.socket, asyncio.TimerHandle] = {}

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start; the address. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((one[0], one[4]) for one in found):
                made = socket.create_server(
                    (str(address[0]), int(address[1])), family=family, backlog=BACKLOG
                )
                made.setblocking(False)
                self._sockets.append(made)
        except OSError:
            self.close()
            raise
        for one in self._sockets:
            loop.add_reader(one, self._take, one)
        bound: tuple[str, int] = self._sockets[0].getsockname()[:2]
        return bound

    def close(self) -> None:
        """Take no more, and end handshakes that aren't done."""
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            if (again := self._later.pop(one, None)) is not None:
                again.cancel()
            loop.remove_reader(one)
            one.close()
        self._sockets = []
        for handshake in list(self.handshakes):
            handshake.drop()

    def _take(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                taken, peer = listening.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it has left again
            except OSError as problem:
                log.error("no_connection_taken", why=str(problem))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                self._later[listening] = loop.call_later(AGAIN_S, self._again, listening)
                return
            taken.setblocking(False)
            if self.context is None:
                self.begin(taken)
            else:
                Handshake(taken, f"{peer[0]}:{peer[1]}", self)

    def _again(self, listening: socket.socket) -> None:
        del self._later[listening]
        asyncio.get_running_loop().add_reader(listening, self._take, listening)

    def begin(self, taken: socket.socket) -> asyncio.Task[Any]:
        """Make its transport."""
        loop = asyncio.get_running_loop()
        task: asyncio.Task[Any]
        if self.context is None:
            task = loop.create_task(loop.connect_accepted_socket(self.protocol, taken))
        else:
            task = loop.create_task(shake_hands(taken, self.protocol, self.context, self.door, HANDSHAKE_S))
        self._begun.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.debug("connection_not_made", why=repr(problem))  # it left, was too slow, or speaks no TLS


class Handshake:
    """A connection whose TLS handshake isn't done. Satisfies `anteroom.Guest`."""

    def __init__(self, taken: socket.socket, remote: str, listener: Accepting) -> None:
        self._socket, self.remote, self._listener = taken, remote, listener
        self._begun = False
        listener.handshakes.add(self)
        listener.door.watch(taken.fileno(), self._begin)
        self._patience = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.drop)
        listener.anteroom.enters(self)

    def make_room(self) -> None:
        """Another comes: this one ends, and isn't chosen again. There is no protocol yet in which it could be told."""
        self._listener.anteroom.known(self)
        self.drop()

    def drop(self) -> None:
        self._patience.cancel()
        if not self._begun:
            self._listener.door.forget(self._socket.fileno(), self._begin)
            self._socket.close()
            self._ended()
        else:
            # Its transport has it, and closes it when it hears of the end. To cancel what awaits it would leave that to the deadline on uvloop,
            # with a descriptor that two believe to be theirs.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _begin(self) -> None:
        """It has spoken, and this is its turn."""
        self._patience.cancel()
        self._begun = True
        self._listener.begin(self._socket).add_done_callback(lambda _: self._ended())

    def _ended(self) -> None:
        self._listener.handshakes.discard(self)
        self._listener.anteroom.gone(self)
