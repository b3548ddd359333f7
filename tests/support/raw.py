"""A client of the native protocol that can send anything, including what the client library never does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from broker_core import batch
from broker_core.broker import Broker
from broker_core.protocols.native import (
    COMMAND,
    DELIVER,
    PUBLISH,
    encode_command,
    encode_frame_header,
)
from tests.support.frames import FedReader


class RawClient:
    """A TCP connection whose frames the test writes and reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FedReader()
        self._waiting: list[Any] = []
        self.name = ""
        self.received_commands: list[dict[str, Any]] = []
        """All commands received."""
        self.logon_reply: dict[str, Any] = {}

    @classmethod
    async def open(cls, broker: Broker) -> RawClient:
        """Connect without a logon."""
        return cls(*await asyncio.open_connection("127.0.0.1", broker.statistics.transports[0]["port"]))

    @classmethod
    async def connect(cls, broker: Broker, name: str, **logon: Any) -> RawClient:
        """Connect and log on with these fields; `logon_reply` is the broker's answer."""
        made = await cls.open(broker)
        made.name = name
        made.send_command({"c": "logon", "name": name, **logon})
        made.logon_reply = await made.read_until("processed")
        return made

    def write(self, data: bytes) -> None:
        """Write any bytes."""
        self._writer.write(data)

    def send_command(self, command: dict[str, Any]) -> None:
        """Write a command frame."""
        self.write(encode_command(command))

    async def publish(self, topic: str, bodies: list[bytes], first: int = 0, session: int = 0) -> None:
        """Write a batch frame."""
        built = batch.build_single_topic_batch(self.name, topic, bodies, first, session)
        self.write(encode_frame_header(PUBLISH, 0, len(built)) + built)
        await self._writer.drain()

    async def next_frame(self, seconds: float = 10.0) -> Any:
        """Return the broker's next frame, or None at the end of the stream."""
        async with asyncio.timeout(seconds):
            while not self._waiting:
                data = await self._reader.read(1 << 16)
                if not data:
                    return None
                came = self._frames.feed(data)
                self._waiting += came
                self.received_commands += [
                    json.loads(bytes(one.payload)) for one in came if one.kind == COMMAND
                ]
        return self._waiting.pop(0)

    async def reads_before_end(self, word: bytes, seconds: float = 10.0) -> bool:
        """Return whether these bytes arrive before the stream ends, in any protocol."""
        said = b""
        async with asyncio.timeout(seconds):
            while word not in said and (data := await self._reader.read(1 << 16)):
                said += data
        return word in said

    async def read_until(self, what: str) -> dict[str, Any]:
        """Skip frames until a command whose `c` or `ack` is `what`; return it."""
        while (frame := await self.next_frame()) is not None:
            if frame.kind == COMMAND:
                command: dict[str, Any] = json.loads(bytes(frame.payload))
                if what in (command["c"], command.get("ack")):
                    return command
        raise AssertionError(f"the connection ended before {what}")

    async def next_command(self) -> dict[str, Any]:
        """Return the next command of any type."""
        while (frame := await self.next_frame()) is not None:
            if frame.kind == COMMAND:
                command: dict[str, Any] = json.loads(bytes(frame.payload))
                return command
        raise AssertionError("the connection ended")

    async def deliveries(self, number: int) -> list[bytes]:
        """Return the bodies of the next deliveries, at least `number`."""
        return [body for body, _ in await self.deliveries_with_marks(number)]

    async def deliveries_with_marks(self, number: int) -> list[tuple[bytes, str]]:
        """Return the bodies of the next deliveries, at least `number`, each with its conflation mark."""
        found: list[tuple[bytes, str]] = []
        while len(found) < number:
            frame = await self.next_frame()
            assert frame is not None, f"the connection ended after {len(found)} of {number}"
            if frame.kind == DELIVER:
                delivered = batch.Batch.parse(frame.payload)
                found += [(body, delivered.conflation_mark) for body in delivered.bodies()]
        return found

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()
