"""A minimal STOMP client that sends bytes and reads frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from broker_core.broker import Broker
from broker_core.config import PolicyDocument, TransportSettings
from broker_core.headers import unescape
from tests.support.brokers import tcp_policy


class StompFrame(NamedTuple):
    """A frame from the broker."""

    command: str
    headers: dict[str, str]
    body: bytes


def stomp_policy(policy: PolicyDocument | None = None, **settings: Any) -> PolicyDocument:
    """Return a policy with a native and a STOMP transport, each on a free port."""
    policy = policy or tcp_policy()
    return replace(
        policy, transports=(*policy.transports, TransportSettings("stomp", "stomp", 0, **settings))
    )


def port_of(broker: Broker, name: str = "stomp") -> int:
    return next(int(one["port"]) for one in broker.statistics.transports if one["name"] == name)


class StompClient:
    """A STOMP connection whose frames the test writes and reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.version = "1.2"

    def send(self, command: str, body: bytes = b"", **headers: object) -> None:
        """Send a frame; `_` in a header's name stands for `-`. Values are not escaped."""
        lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
        self.write(f"{command}\n{lines}\n".encode() + body + b"\0")

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    async def read(self, seconds: float = 30.0) -> StompFrame:
        """Return the next frame; heart-beats are skipped.

        Raises EOFError when the broker has closed.
        """
        async with asyncio.timeout(seconds):
            line = b"\n"
            while line == b"\n":
                line = await self.reader.readline()
            if not line:
                raise EOFError
            headers: dict[str, str] = {}
            while (header := await self.reader.readline()) != b"\n":
                if not header:
                    raise EOFError
                name, _, value = header.decode()[:-1].partition(":")
                plain = line == b"CONNECTED\n" or self.version == "1.0"
                headers.setdefault(name, value if plain else unescape(value))
            length = headers.get("content-length")
            body = (
                await self.reader.readuntil(b"\0")
                if length is None
                else await self.reader.readexactly(int(length) + 1)
            )
            assert body[-1:] == b"\0"
            return StompFrame(line.decode().strip(), headers, body[:-1])

    async def connect(self, version: str = "1.2", **headers: object) -> StompFrame:
        self.version = version
        self.send("CONNECT", accept_version=version, host="here", **headers)
        answer = await self.read()
        assert answer.command == "CONNECTED", answer
        return answer

    async def send_with_receipt(self, command: str, body: bytes = b"", **headers: object) -> StompFrame:
        """Send a frame with a receipt header and wait for the RECEIPT."""
        self.send(command, body, **headers, receipt="asked")
        answer = await self.read()
        assert (answer.command, answer.headers.get("receipt-id")) == ("RECEIPT", "asked"), answer
        return answer

    async def read_error(self) -> StompFrame:
        """Read the ERROR frame that comes next, and the end of the connection after it."""
        found = await self.read()
        assert found.command == "ERROR", found
        assert await asyncio.wait_for(self.reader.read(), 10) == b""
        return found


@asynccontextmanager
async def stomp_client(broker: Broker, version: str = "1.2", **headers: object) -> AsyncIterator[StompClient]:
    """Run a connected client until the block ends; with version "" only its socket is open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker), limit=1 << 24)
    client = StompClient(reader, writer)
    try:
        if version:
            await client.connect(version, **headers)
        yield client
    finally:
        writer.close()
