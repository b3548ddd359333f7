"""Twisted's reactor on uvloop, with a fix for connections whose error uvloop hides.

When libuv reports an error of a socket, uvloop calls the reader once more, closes its handle and notifies
no one (`UVPoll._fatal_error`). Twisted's reader may have read data in that call, because the bytes that a
peer sent before its reset can still be read. It then waits for a handle that never calls again. The
connection is never reported as lost, its objects stay in memory, and the next write raises `RuntimeError: …
UVPoll … the handler is closed`.

The fix: if the socket has an error after a read, its reader is registered again. It then reads to the end,
as with any other reactor.

Connections that have not logged on are read one after the other (`broker_core.connections.admission`).
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

from broker_core.connections.admission import ACCEPTS_PER_ITERATION, PENDING_READ_BYTES, PreLogonReadQueue


class UvloopReactor(AsyncioSelectorReactor):
    """asyncio reactor of Twisted that reports every lost connection.

    It also reads connections before their logon in the order of a `PreLogonReadQueue`.
    """

    _readers: dict[Any, int]  # Twisted's annotation has classes as keys; the keys are descriptors

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._queue_exits: dict[Connection, Callable[[], None]] = {}
        """Connections that wait to be read, each with a callback that removes it from the
        queue.
        """

    def read_in_turns(self, connection: Connection, read_queue: PreLogonReadQueue) -> None:
        """Read a connection in the queue's order until `read_normally` is called or it is closed."""
        connection.bufferSize = PENDING_READ_BYTES
        self._move(connection, read_queue)

    def read_normally(self, connection: Connection) -> None:
        """Read a connection whenever data arrives."""
        self._move(connection, None)

    def _move(self, connection: Any, read_queue: PreLogonReadQueue | None) -> None:
        """Read a connection in the queue's order, or normally if `read_queue` is None."""
        reads = connection in self._readers
        self.removeReader(connection)
        connection.read_queue = read_queue
        if reads:
            self.addReader(connection)

    def _readOrWrite(self, selectable: Any, read: bool) -> None:
        """Handle an event of a socket, and register its reader again if it has an error after a read."""
        if isinstance(selectable, Port):
            selectable.numberAccepts = ACCEPTS_PER_ITERATION  # Twisted's own limit is 100 and grows
        super()._readOrWrite(selectable, read)
        if (
            read
            and isinstance(selectable, Connection)
            and selectable in self._readers
            and _has_socket_error(selectable)
        ):
            self._asyncioEventloop.call_soon(self._register_again, selectable)

    def _register_again(self, reader: Any) -> None:
        """Register a reader again, so that it gets a working uvloop handle."""
        if reader in self._readers:  # it may have been lost, or have stopped reading, meanwhile
            self.removeReader(reader)
            self.addReader(reader)

    def addReader(self, reader: Any) -> None:
        """Start reading: by the queue if the connection has one, else by the event loop."""
        read_queue = getattr(reader, "read_queue", None)
        if read_queue is not None:
            if reader not in self._readers:
                self._readers[reader] = reader.fileno()
                self._enqueue_reader(reader, read_queue)
            return
        try:
            super().addReader(reader)
        except RuntimeError:
            self._lose(reader)

    def removeReader(self, reader: Any) -> None:
        """Stop reading, and leave the queue."""
        if getattr(reader, "read_queue", None) is None:
            super().removeReader(reader)
            return
        self._readers.pop(reader, None)
        if (remove := self._queue_exits.pop(reader, None)) is not None:
            remove()

    def _enqueue_reader(self, reader: Any, read_queue: PreLogonReadQueue) -> None:
        """Wait in the queue for the next read."""
        descriptor, callback = self._readers[reader], partial(self._read_once, reader)
        self._queue_exits[reader] = partial(read_queue.remove_reader, descriptor, callback)
        read_queue.add_reader(descriptor, callback)

    def _read_once(self, reader: Any) -> None:
        """Read once, then wait in the queue again."""
        del self._queue_exits[reader]
        callWithLogger(reader, self._readOrWrite, reader, True)
        if reader in self._readers and reader not in self._queue_exits and reader.read_queue is not None:
            self._enqueue_reader(reader, reader.read_queue)

    def addWriter(self, writer: Any) -> None:
        try:
            super().addWriter(writer)
        except RuntimeError:
            self._lose(writer)

    def _lose(self, selectable: Any) -> None:
        """Report a connection as lost whose uvloop handle was closed in this event-loop iteration."""
        failure = Failure(error.ConnectionLost())
        self._asyncioEventloop.call_soon(self._disconnectSelectable, selectable, failure.value, False)


def _has_socket_error(connection: Any) -> bool:
    """Return whether a connection's socket has an error.

    Reading SO_ERROR clears the error; data that can still be read, and its end, stay.
    """
    return bool(connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Install the reactor of the process on an event loop that another component runs.

    Must be called before any import of `twisted.internet.reactor`.
    """
    # Until logging begins, Twisted keeps the last 65,536 log events, each with the objects that it is
    # about.
    levels = LogLevelFilterPredicate(defaultLogLevel=LogLevel.error)
    globalLogBeginner.beginLoggingTo(
        [FilteringLogObserver(STDLibLogObserver(), [levels])],  # type: ignore[list-item]  # zope's
        redirectStandardIO=False,
        discardBuffer=True,
    )
    reactor = UvloopReactor(loop)
    main.installReactor(reactor)
    reactor.startRunning(installSignalHandlers=False)
