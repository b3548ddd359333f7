"""A client of the native protocol by hand, for what the client library would never do."""

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
    """A TCP connection whose frames are written and read by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FedReader()
        self._waiting: list[Any] = []
        self.name = ""
        self.received_commands: list[dict[str, Any]] = []
        """Every command that came."""
        self.logon_reply: dict[str, Any] = {}

    @classmethod
    async def open(cls, broker: Broker) -> RawClient:
        """Connected, not logged on."""
        return cls(*await asyncio.open_connection("127.0.0.1", broker.statistics.transports[0]["port"]))

    @classmethod
    async def connect(cls, broker: Broker, name: str, **logon: Any) -> RawClient:
        """Connected and logged on, with these fields of the logon; `told` is its answer."""
        made = await cls.open(broker)
        made.name = name
        made.send_command({"c": "logon", "name": name, **logon})
        made.logon_reply = await made.read_until("processed")
        return made

    def write(self, data: bytes) -> None:
        """Any bytes."""
        self._writer.write(data)

    def send_command(self, command: dict[str, Any]) -> None:
        """A command frame."""
        self.write(encode_command(command))

    async def publish(self, topic: str, bodies: list[bytes], first: int = 0, session: int = 0) -> None:
        """A batch frame."""
        built = batch.build_single_topic_batch(self.name, topic, bodies, first, session)
        self.write(encode_frame_header(PUBLISH, 0, len(built)) + built)
        await self._writer.drain()

    async def next_frame(self, seconds: float = 10.0) -> Any:
        """The next frame from the broker; None at the end of the stream."""
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
        """Whether the word is in what comes before the end of the stream, whatever the protocol is."""
        said = b""
        async with asyncio.timeout(seconds):
            while word not in said and (data := await self._reader.read(1 << 16)):
                said += data
        return word in said

    async def read_until(self, what: str) -> dict[str, Any]:
        """The next command whose `c` or `ack` is that; others are passed over."""
        while (frame := await self.next_frame()) is not None:
            if frame.kind == COMMAND:
                command: dict[str, Any] = json.loads(bytes(frame.payload))
                if what in (command["c"], command.get("ack")):
                    return command
        raise AssertionError(f"the connection ended before {what}")

    async def next_command(self) -> dict[str, Any]:
        """The next command, whatever it is."""
        while (frame := await self.next_frame()) is not None:
            if frame.kind == COMMAND:
                command: dict[str, Any] = json.loads(bytes(frame.payload))
                return command
        raise AssertionError("the connection ended")

    async def deliveries(self, number: int) -> list[bytes]:
        """The bodies of the next deliveries, at least that many."""
        return [body for body, _ in await self.deliveries_with_marks(number)]

    async def deliveries_with_marks(self, number: int) -> list[tuple[bytes, str]]:
        """The same, each with the mark of its delivery."""
        found: list[tuple[bytes, str]] = []
        while len(found) < number:
            frame = await self.next_frame()
            assert frame is not None, f"the connection ended after {len(found)} of {number}"
            if frame.kind == DELIVER:
                delivered = batch.Batch.parse(frame.payload)
                found += [(body, delivered.conflation_mark) for body in delivered.bodies()]
        return found

    def close(self) -> None:
        """Leave."""
        self._writer.close()
