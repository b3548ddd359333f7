"""Twisted's reactor on uvloop: the one place where what the two don't agree on is put right.

uvloop closes its handle of a socket that libuv reports an error of, after one last call of the reader (`UVPoll._fatal_error`),
and tells nobody. Twisted's reader may have got data by that call, because what a peer had sent before its reset is still there
to be read. Then it waits for a handle that never calls again: the connection is never lost, everything of it stays in memory, and
the next thing that is written raises `RuntimeError: … UVPoll … the handler is closed`. So whoever has read while its socket has an
error is entered anew, and reads on to the end, as with any other reactor.

Connections whose peers nobody knows yet are read from when their turn at the door comes (`broker_core.connections.admission`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet import error, main
from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.tcp import Connection, Port
from twisted.logger import (
    FilteringLogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    STDLibLogObserver,
    globalLogBeginner,
)
from twisted.python.failure import Failure
from twisted.python.log import callWithLogger

from broker_core.connections.admission import ACCEPTED_A_TURN, GUEST_READ_BYTES, PreLogonReadQueue


class UvloopReactor(AsyncioSelectorReactor):
    """asyncio's, which loses every connection that is lost, and lets strangers wait at the door."""

    _readers: dict[Any, int]  # Twisted's annotation has classes as keys; they are descriptors

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._standing: dict[Connection, Callable[[], None]] = {}
        """Who waits for its turn, with what makes it leave the line."""

    def read_in_turns(self, connection: Connection, door: PreLogonReadQueue) -> None:
        """Read from it when its turn comes, until `read_normally` or its close."""
        connection.bufferSize = GUEST_READ_BYTES
        self._move(connection, door)

    def read_normally(self, connection: Connection) -> None:
        """Read from it as from any other."""
        self._move(connection, None)

    def _move(self, connection: Any, door: PreLogonReadQueue | None) -> None:
        reads = connection in self._readers
        self.removeReader(connection)
        connection.door = door
        if reads:
            self.addReader(connection)

    def _readOrWrite(self, selectable: Any, read: bool) -> None:
        if isinstance(selectable, Port):
            selectable.numberAccepts = ACCEPTED_A_TURN  # Twisted's own number is 100 and grows
        super()._readOrWrite(selectable, read)
        if (
            read
            and isinstance(selectable, Connection)
            and selectable in self._readers
            and _failed(selectable)
        ):
            self._asyncioEventloop.call_soon(self._enter_anew, selectable)

    def _enter_anew(self, reader: Any) -> None:
        if reader in self._readers:  # else it was lost, or stopped reading, meanwhile
            self.removeReader(reader)
            self.addReader(reader)

    def addReader(self, reader: Any) -> None:
        door = getattr(reader, "door", None)
        if door is not None:
            if reader not in self._readers:
                self._readers[reader] = reader.fileno()
                self._stand(reader, door)
            return
        try:
            super().addReader(reader)
        except RuntimeError:
            self._lose(reader)

    def removeReader(self, reader: Any) -> None:
        if getattr(reader, "door", None) is None:
            super().removeReader(reader)
            return
        self._readers.pop(reader, None)
        if (leave := self._standing.pop(reader, None)) is not None:
            leave()

    def _stand(self, reader: Any, door: PreLogonReadQueue) -> None:
        descriptor, heard = self._readers[reader], partial(self._heard, reader)
        self._standing[reader] = partial(door.remove_reader, descriptor, heard)
        door.add_reader(descriptor, heard)

    def _heard(self, reader: Any) -> None:
        del self._standing[reader]
        callWithLogger(reader, self._readOrWrite, reader, True)
        if reader in self._readers and reader not in self._standing and reader.door is not None:
            self._stand(reader, reader.door)

    def addWriter(self, writer: Any) -> None:
        try:
            super().addWriter(writer)
        except RuntimeError:
            self._lose(writer)

    def _lose(self, selectable: Any) -> None:
        """Its handle was closed in this very turn: the socket had an error."""
        why = Failure(error.ConnectionLost())
        self._asyncioEventloop.call_soon(self._disconnectSelectable, selectable, why.value, False)


def _failed(connection: Any) -> bool:
    """Whether its socket has an error. Asking takes the error away; the end of what can be read stays."""
    return bool(connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Make it the process's reactor, on a loop that somebody else runs. Before anything imports `twisted.internet.reactor`."""
    # Until a log begins Twisted keeps the last 65,536 lines, each with whom it is about.
    levels = LogLevelFilterPredicate(defaultLogLevel=LogLevel.error)
    globalLogBeginner.beginLoggingTo(
        [FilteringLogObserver(STDLibLogObserver(), [levels])],  # type: ignore[list-item]  # zope's
        redirectStandardIO=False,
        discardBuffer=True,
    )
    reactor = UvloopReactor(loop)
    main.installReactor(reactor)
    reactor.startRunning(installSignalHandlers=False)
