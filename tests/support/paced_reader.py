"""A client that reads its socket at a steady pace in a thread.

It records the bytes that it has read and the bytes that its kernel has received.
"""

from __future__ import annotations

import fcntl
import socket
import ssl
import struct
import termios
import threading
import time
from typing import NamedTuple

from broker_core.protocols.native import encode_command

READS_A_SECOND = 10
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
HEARTBEAT = encode_command({"c": "heartbeat"})


class ReadSample(NamedTuple):
    at: float
    read: int
    """Bytes the client has read since it asked for them."""
    received: int
    """And those that wait in its kernel."""


class PacedReader:
    """A client that reads at a fixed rate.

    Bytes are those of the socket: under TLS encrypted bytes, slightly more than were sent.
    """

    def __init__(
        self,
        port: int,
        rate: int,
        receive_buffer: int | None,
        *,
        websocket: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.rate, self.receive_buffer = rate, receive_buffer
        self.socket = socket.socket()
        # Usual segment size of a network; on loopback it would be 64 KiB.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1_448)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", port))
        self.address = "{}:{}".format(*self.socket.getsockname())
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = (
            tls.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
            if tls is not None
            else None
        )
        if self._tls is not None:
            self._shake_hands()
        if websocket:
            self._write(UPGRADE)
            while not self._read_some().endswith(b"\r\n\r\n"):
                pass
        # First sample before the request, since data may arrive before `write` returns.
        self.samples = [ReadSample(time.monotonic(), 0, 0)]
        mask = bytes(4)
        self._write((bytes((0x82, 0x80 | len(HEARTBEAT))) + mask if websocket else b"") + HEARTBEAT)
        self._asked_at = self.samples[0].at
        self._to_the_end = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __str__(self) -> str:
        return f"{self.rate} B/s with {self.receive_buffer}"

    def _shake_hands(self) -> None:
        assert self._tls is not None
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.socket.sendall(self._outgoing.read())
                self._incoming.write(self.socket.recv(1 << 14))
        self.socket.sendall(self._outgoing.read())

    def _write(self, data: bytes) -> None:
        if self._tls is None:
            self.socket.sendall(data)
        else:
            self._tls.write(data)
            self.socket.sendall(self._outgoing.read())

    def _read_some(self) -> bytes:
        if self._tls is None:
            return self.socket.recv(1 << 14)
        while True:
            try:
                return self._tls.read(1 << 14)
            except ssl.SSLWantReadError:
                self._incoming.write(self.socket.recv(1 << 14))

    def _run(self) -> None:
        read, turn = 0, 0
        self.socket.setblocking(False)
        while not self._to_the_end.is_set():
            turn += 1
            time.sleep(max(0.0, self._asked_at + turn / READS_A_SECOND - time.monotonic()))
            wanted = turn * self.rate // READS_A_SECOND - read
            try:
                read += len(self.socket.recv(wanted)) if wanted else 0
            except BlockingIOError:
                pass
            except ConnectionResetError:
                break
            # Take the time before the kernel's figure, so that the data arrived at this time or later.
            now = time.monotonic()
            waiting = fcntl.ioctl(self.socket, termios.FIONREAD, bytes(4))
            self.samples.append(ReadSample(now, read, read + struct.unpack("i", waiting)[0]))
        self.socket.settimeout(1)
        try:
            while not self._closing and (data := self.socket.recv(1 << 16)):
                read += len(data)
        except (TimeoutError, ConnectionResetError):
            pass
        self.samples.append(ReadSample(time.monotonic(), read, read))

    def read_at_full_speed(self) -> None:
        """Read without a pace until no data arrives for a second."""
        self._to_the_end.set()

    def read_to_end(self) -> None:
        """Read at full speed and wait until it is done."""
        self.read_at_full_speed()
        self._thread.join()

    def close(self) -> None:
        self._closing = True
        self._to_the_end.set()
        self._thread.join()
        self.socket.close()

    def bytes_read_at(self, at: float) -> float:
        """Return the bytes read by a time, interpolated between samples."""
        before = max((m for m in self.samples if m.at <= at), default=self.samples[0])
        after = min((m for m in self.samples if m.at >= at), default=self.samples[-1])
        if after.at == before.at:
            return before.read
        return before.read + (after.read - before.read) * (at - before.at) / (after.at - before.at)

    def kernel_bytes_at(self, at: float) -> int:
        """Return the bytes that the kernel had received at the first sample after a time."""
        return min((m for m in self.samples if m.at >= at), default=self.samples[-1]).received
