"""A TCP proxy that carries a bounded number of bytes per second each way, as a slow line does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

BUFFER_BYTES = 4 * 1024
"""Kernel buffers of the proxy's sockets: more would hide the pace from both ends."""


class ThrottledProxy:
    """A TCP proxy with a limit of bytes per second in each direction.

    `connections` counts accepted connections.
    """

    def __init__(self, port: int, bytes_per_second: int) -> None:
        self.connections = 0
        self.bytes_per_second = bytes_per_second
        self._target = port
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            try:
                far.connect(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            self.connections += 1
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
                self._open.add(one)
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1_024):
                time.sleep(len(data) / self.bytes_per_second)
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop accepting and close all connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def throttled_proxy(port: int, bytes_per_second: int) -> Iterator[ThrottledProxy]:
    """Run a throttled proxy to a port of this machine until the block ends."""
    line = ThrottledProxy(port, bytes_per_second)
    try:
        yield line
    finally:
        line.close()
