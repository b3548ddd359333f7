"""Lines of a stream, with a limit that may differ from one to the next."""

from __future__ import annotations

import asyncio

_PART = 64 * 1024


class LineStream:
    """Reads lines and writes them. What is read ahead is at most one part."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._held = bytearray()

    async def read(self, most: int) -> bytes | None:
        """The next line; None at the end. Raises ValueError for one that is longer than `most` bytes."""
        looked = 0
        while (end := self._held.find(b"\n", looked)) < 0:
            looked = len(self._held)
            if looked > most:
                raise ValueError("the line is too long")
            part = await self._reader.read(_PART)
            if not part:
                return None
            self._held += part
        if end > most:
            raise ValueError("the line is too long")
        line = bytes(self._held[: end + 1])
        del self._held[: end + 1]
        return line

    async def write(self, line: bytes) -> None:
        """Write one, and wait until there is room again."""
        self._writer.write(line)
        await self._writer.drain()
