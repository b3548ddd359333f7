"""Subscribers that each read their socket at a steady pace, driven by one thread.

No code of the broker reads.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from broker_core.protocols.native import encode_command

READ_INTERVAL_S = 0.02
SEGMENT = 1_448
"""Segment size of a usual network; on loopback it would be 64 KiB."""


class SteadyReader:
    """A subscriber to `t` with id `s` that reads `rate` bytes per second; 0 never reads.

    Its name describes how it reads.
    """

    def __init__(self, port: int, rate: int, receive_buffer: int | None, reads_a_second: int = 10) -> None:
        self.rate, self._reads = rate, reads_a_second
        self.name = f"{rate}-{receive_buffer or 'default'}-{reads_a_second}"
        self.read = 0
        self.socket = socket.socket()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect(("127.0.0.1", port))
        commands = {"c": "logon", "name": self.name}, {"c": "subscribe", "id": "s", "topic": "t"}
        self.socket.sendall(b"".join(map(encode_command, commands)))
        self.socket.setblocking(False)
        self._since = time.monotonic()

    def read_due(self) -> None:
        """Read the bytes that are due.

        Missing data is not made up for later: the reader never exceeds its rate.
        """
        now = time.monotonic()
        looks = int((now - self._since) * self._reads)
        wanted = looks * self.rate // self._reads - self.read
        if wanted <= 0:
            return
        try:
            got = len(self.socket.recv(wanted))
        except (BlockingIOError, ConnectionResetError):
            got = 0
        self.read += got
        if got < wanted:
            self._since = now - self.read / self.rate


@contextmanager
def reading_steadily(readers: Iterable[SteadyReader]) -> Iterator[list[SteadyReader]]:
    """Let the readers read until the block ends."""
    driven, end = list(readers), threading.Event()

    def drive() -> None:
        while not end.wait(READ_INTERVAL_S):
            for one in driven:
                one.read_due()

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield driven
    finally:
        end.set()
        thread.join()
        for one in driven:
            one.socket.close()
