"""Lines of a stream, with a length limit for each call."""

from __future__ import annotations

import asyncio

_PART = 64 * 1024
"""Maximum bytes of one read from the stream."""


class LineStream:
    """Reader and writer of lines. At most 64 KiB are read ahead."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._held = bytearray()

    async def read(self, most: int) -> bytes | None:
        """Return the next line with its line break; None at the end of the stream.

        An incomplete last line is dropped.

        Raises:
            ValueError: The line is longer than `most` bytes.
        """
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
        """Write a line, and wait until the transport can accept more."""
        self._writer.write(line)
        await self._writer.drain()
