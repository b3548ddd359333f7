"""Processes of the replay benchmarks; see `bench.roles`."""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker_core.protocols.native import COMMAND, DELIVER, encode_command


def print_figures(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


_FRAME = struct.Struct("<IBBH")
_COUNT = struct.Struct("<I")
BUFFER = 1024 * 1024


class Drain:
    """Counter of delivered records, from the frames' headers."""

    def __init__(self) -> None:
        self.records = self.commands = 0
        self.completed = False
        """Whether the broker has reported the end of the replay.

        Resume points, sent once a second, don't count.
        """
        self._buffer = bytearray(BUFFER)
        self._view = memoryview(self._buffer)
        self._unparsed = 0
        self._skip = 0

    def read(self, connection: socket.socket) -> int:
        """Read the available bytes; return their number, 0 at the end."""
        received = connection.recv_into(self._view[self._unparsed :])
        at, end = 0, self._unparsed + received
        while True:
            step = min(self._skip, end - at)
            at, self._skip = at + step, self._skip - step
            # The record count is in the first 12 bytes of a delivery's batch.
            if self._skip or end - at < 20:
                break
            length, kind, _, _ = _FRAME.unpack_from(self._buffer, at)
            if kind == DELIVER:
                self.records += _COUNT.unpack_from(self._buffer, at + 16)[0]
            elif kind == COMMAND:
                if end - at < 8 + length:
                    break
                self.commands += 1
                self.completed = self.completed or b'"completed"' in self._buffer[at : at + 8 + length]
            self._skip = 8 + length
        self._unparsed = end - at
        self._view[: self._unparsed] = self._view[at:end]
        return received


def connect(
    address: str, name: str, bookmark: str = "", blocking: bool = True, topic: str = "bench"
) -> socket.socket:
    """Connect, log on and subscribe."""
    host, _, port = address.removeprefix("tcp://").partition(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(
        encode_command({"c": "logon", "name": name})
        + encode_command(
            {"c": "subscribe", "id": "s", "topic": topic} | ({"bookmark": bookmark} if bookmark else {})
        )
    )
    connection.setblocking(blocking)
    return connection


def drain(address: str, number: int, name: str, bookmark: str, again: str = "") -> None:
    """Read and drop a replay of `number` records.

    With `again` subscribe again at each end, until killed.
    """
    print_figures(ready=True)
    round_number = 0
    while True:
        requested_at, reading = time.monotonic(), Drain()
        connection = connect(address, f"{name}-{round_number}", bookmark)
        while reading.records < number and not (again and reading.completed):
            if not reading.read(connection):
                raise SystemExit("the broker closed the connection")
        connection.close()
        round_number += 1
        if not again:
            print_figures(records=reading.records, asked=requested_at, last=time.monotonic())
            return


def plain_receive(files: list[str]) -> None:
    """Receive the files' bytes from a socket and drop them."""
    expected = sum(Path(file).stat().st_size for file in files)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print_figures(port=listening.getsockname()[1])
        connection, _ = listening.accept()
    view, received, first = memoryview(bytearray(BUFFER)), 0, time.monotonic()
    while received < expected and (number := connection.recv_into(view)):
        received += number
    print_figures(first=first, last=time.monotonic(), bytes=received)


def plain_send(port: int, files: list[str]) -> None:
    """Read files from the page cache and write them to a socket, with one buffer."""
    connection = socket.create_connection(("127.0.0.1", port))
    view = memoryview(bytearray(512 * 1024))
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        while number := os.readv(handle, [view]):
            connection.sendall(view[:number])
        os.close(handle)
    connection.close()


def many(address: str, number: int, newest: int, how: str) -> None:
    """Run `number` subscribers from positions spread over the log.

    Each reads to its end, or stops immediately.
    """
    selector = selectors.DefaultSelector()
    waiting = 0
    for index in range(number):
        start = newest * index // number
        connection = connect(address, f"many-{how}-{index}", f"bench-1|{start}|", blocking=False)
        if how == "reading":
            selector.register(connection, selectors.EVENT_READ, [Drain(), newest - start])
            waiting += 1
        else:
            selector.register(connection, selectors.EVENT_READ, None)
    if how == "stopped":
        time.sleep(5)
        print_figures(subscribers=number)
        time.sleep(3_600)
    while waiting:
        for key, _ in selector.select():
            reading: Drain = key.data[0]
            with suppress(BlockingIOError):
                reading.read(key.fileobj)  # type: ignore[arg-type]
            if reading.completed:
                selector.unregister(key.fileobj)
                waiting -= 1
    print_figures(subscribers=number)
    time.sleep(3_600)
