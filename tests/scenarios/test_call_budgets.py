"""Function calls (Python and C) that one message costs, independent of machine load."""

from __future__ import annotations

import json
import socket
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from broker_core import batch
from broker_core.protocols.native import (
    COMMAND,
    DELIVER,
    PUBLISH,
    NativeFrame,
    encode_command,
    encode_frame_header,
)
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.brokers import tcp_policy
from tests.support.frames import FedReader

MESSAGES = 200
MESSAGE_BUDGET = 342
"""Calls of the loop's thread for one message to one subscriber, its acknowledgement and its write
included.
"""


class Client:
    """A blocking client of the native protocol, so that this thread adds no work to the broker's loop."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader, self._frames = FedReader(), list[NativeFrame]()
        self.command({"c": "logon", "name": name})
        self.until("processed")

    def command(self, command: dict[str, Any]) -> None:
        """Send a command frame."""
        self._socket.sendall(encode_command(command))

    def publish(self, sequence: int) -> None:
        """Send one message with its publisher sequence."""
        built = batch.build_single_topic_batch(self.name, "t", [b"x" * 100], sequence)
        self._socket.sendall(encode_frame_header(PUBLISH, 0, len(built)) + built)

    def next_frame(self) -> NativeFrame:
        """Return the next frame that the broker sends."""
        while not self._frames:
            data = self._socket.recv(1 << 16)
            assert data, "the broker closed the connection"
            self._frames += self._reader.feed(data)
        return self._frames.pop(0)

    def until(self, ack: str) -> None:
        """Skip frames until an acknowledgement of this type."""
        while True:
            frame = self.next_frame()
            if frame.kind == COMMAND and ack in json.loads(bytes(frame.payload)).values():
                return

    def receive(self) -> None:
        """Skip frames until a delivery."""
        while self.next_frame().kind != DELIVER:
            pass


@contextmanager
def counting_calls(broker: BrokerThread) -> Iterator[list[int]]:
    """Count the calls of the broker's loop thread in the block; the list's one number is the result."""
    number = [0]

    def count(frame: FrameType, event: str, argument: object) -> None:
        number[0] += event in ("call", "c_call")

    async def switch(on: bool) -> None:
        sys.setprofile(count if on else None)

    broker.run(switch(True))
    try:
        yield number
    finally:
        broker.run(switch(False))


def test_a_message_to_one_subscriber_stays_within_its_budget_of_calls(tmp_path: Path) -> None:
    with broker_thread(tmp_path, tcp_policy(), tmp_path / "control.sock") as broker:
        port = broker.broker.statistics.transports[0]["port"]
        publisher, subscriber = Client(port, "publisher"), Client(port, "subscriber")
        subscriber.command({"c": "subscribe", "id": "s", "topic": "t"})
        subscriber.until("processed")
        for sequence in range(1, 11):
            publisher.publish(sequence)
            subscriber.receive()
            publisher.until("persisted")
        with counting_calls(broker) as number:
            costs, before = [], number[0]
            for sequence in range(11, 11 + MESSAGES):
                publisher.publish(sequence)
                subscriber.receive()
                publisher.until("persisted")
                costs.append(number[0] - before)
                before = number[0]
    assert statistics.median(costs) <= MESSAGE_BUDGET, costs
