"""TCP proxies: what a network does to those who speak through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Cable:
    """Between somebody and a server: can be cut, or carry nothing one way without anybody being told."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: list[asyncio.StreamWriter] = []
        self.whole = True
        self.requests, self.answers = asyncio.Event(), asyncio.Event()
        self.mend()
        self.port = 0
        self.carrying: set[asyncio.Future[list[None]]] = set()

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.whole:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, back]
        carrying = asyncio.gather(
            self._carry(reader, back, self.requests), self._carry(there, writer, self.answers)
        )
        self.carrying.add(carrying)
        with suppress(asyncio.CancelledError):
            await carrying
        self.carrying.discard(carrying)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await gate.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    def mend(self) -> None:
        """Carry everything again."""
        self.whole = True
        self.requests.set()
        self.answers.set()

    def cut(self) -> None:
        self.whole = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@asynccontextmanager
async def running_cable(port: int) -> AsyncIterator[Cable]:
    cable = Cable(port)
    server = await cable.listen()
    try:
        yield cable
    finally:
        cable.cut()
        server.close()
        for carrying in list(cable.carrying):
            carrying.cancel()
        await asyncio.gather(*cable.carrying, return_exceptions=True)
