"""The link of a slow consumer: `python -m bench.peers.slow_link PORT MODE`.

It relays to PORT and prints its own port. Data of the client pass immediately. Data of the server pass
according to the mode:

    stall     nothing, from the first `go` line on standard input on
    trickle   1 KB/s from then on
    return    nothing for ten seconds from then on, then everything

So every broker gets the same slow consumer, with its own client library unchanged.
"""

from __future__ import annotations

import asyncio
import socket
import sys

AWAY_S = 10.0
SMALL = 64 * 1024
"""Kernel buffers of the link, whose data the broker can't see as unread."""


class Link:
    """A port whose connections are all slowed together."""

    def __init__(self, port: int, mode: str) -> None:
        self._port = port
        self._mode = mode
        self._free = asyncio.Event()
        self._free.set()
        self._trickling = False

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either side closes it."""
        upstream = socket.socket()
        upstream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        upstream.setblocking(False)
        await asyncio.get_running_loop().sock_connect(upstream, ("127.0.0.1", self._port))
        server_reader, server_writer = await asyncio.open_connection(sock=upstream, limit=SMALL)
        ways = [
            asyncio.create_task(self._pass(reader, server_writer, False)),
            asyncio.create_task(self._pass(server_reader, writer, True)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        writer.close()
        server_writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slow: bool) -> None:
        while True:
            if slow:
                await self._free.wait()
            if data := await reader.read(1_024 if slow and self._trickling else SMALL):
                writer.write(data)
                await writer.drain()
                if slow and self._trickling:
                    await asyncio.sleep(1)
            else:
                return

    async def go(self) -> None:
        """Wait for a line on standard input, then become slow."""
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        if self._mode == "trickle":
            self._trickling = True
            return
        self._free.clear()
        if self._mode == "return":
            await asyncio.sleep(AWAY_S)
            self._free.set()


async def main(port: int, mode: str) -> None:
    link = Link(port, mode)
    server = await asyncio.start_server(link.relay, "127.0.0.1", 0, limit=SMALL)
    print(server.sockets[0].getsockname()[1], flush=True)
    await link.go()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
