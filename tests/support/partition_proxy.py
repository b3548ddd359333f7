"""A TCP proxy that simulates network partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class PartitionProxy:
    """A TCP proxy that can reset all connections, or silently stop one direction.

    Clear `requests` or `answers` to stop that direction.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: list[asyncio.StreamWriter] = []
        self.is_accepting = True
        self.requests, self.answers = asyncio.Event(), asyncio.Event()
        self.restore()
        self.port = 0
        self.transfers: set[asyncio.Future[list[None]]] = set()

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_accepting:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, back]
        carrying = asyncio.gather(
            self._copy(reader, back, self.requests), self._copy(there, writer, self.answers)
        )
        self.transfers.add(carrying)
        with suppress(asyncio.CancelledError):
            await carrying
        self.transfers.discard(carrying)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await gate.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    def restore(self) -> None:
        """Accept connections and forward both directions again."""
        self.is_accepting = True
        self.requests.set()
        self.answers.set()

    def cut(self) -> None:
        self.is_accepting = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@asynccontextmanager
async def running_partition_proxy(port: int) -> AsyncIterator[PartitionProxy]:
    cable = PartitionProxy(port)
    server = await cable.listen()
    try:
        yield cable
    finally:
        cable.cut()
        server.close()
        for carrying in list(cable.transfers):
            carrying.cancel()
        await asyncio.gather(*cable.transfers, return_exceptions=True)
