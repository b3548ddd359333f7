"""Twisted's reactor on uvloop: the one place where what the two don't agree on is put right.

uvloop closes its handle of a socket that libuv reports an error of, after one last call of the reader (`UVPoll._fatal_error`),
and tells nobody. Twisted's reader may have got data by that call, because what a peer had sent before its reset is still there
to be read. Then it waits for a handle that never calls again: the connection is never lost, everything of it stays in memory, and
the next thing that is written raises `RuntimeError: … UVPoll … the handler is closed`. So whoever has read while its socket has an
error is entered anew, and reads on to the end, as with any other reactor.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

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

ACCEPTS_A_TURN: Final = 8
"""Connections taken in a turn of the loop, of each listener. Twisted's own number is 100 and grows: each costs a millisecond until
it is a WebSocket, and whoever is connected already would wait for all of them."""


class UvloopReactor(AsyncioSelectorReactor):
    """asyncio's, which loses every connection that is lost."""

    def _readOrWrite(self, selectable: Any, read: bool) -> None:
        if isinstance(selectable, Port):
            selectable.numberAccepts = ACCEPTS_A_TURN
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
        try:
            super().addReader(reader)
        except RuntimeError:
            self._lose(reader)

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
        [FilteringLogObserver(STDLibLogObserver(), [levels])], redirectStandardIO=False, discardBuffer=True
    )
    reactor = UvloopReactor(loop)
    main.installReactor(reactor)
    reactor.startRunning(installSignalHandlers=False)
